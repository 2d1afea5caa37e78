package proxy

import (
	"net/http"

	"golang.org/x/net/http/httpguts"

	"carob/internal/core/httproute"
)

// Change applies a header filter. host is nil for responses.
func Change(h http.Header, c *httproute.HeaderChange, host *string) {
	for _, v := range c.Set {
		switch {
		case v.Name == "Host" && host != nil:
			*host = v.Value
		case httpguts.ValidHeaderFieldValue(v.Value):
			h[v.Name] = []string{v.Value}
		}
	}
	for _, v := range c.Add {
		if httpguts.ValidHeaderFieldValue(v.Value) {
			h[v.Name] = append(h[v.Name], v.Value)
		}
	}
	for _, name := range c.Remove {
		delete(h, name)
	}
}
