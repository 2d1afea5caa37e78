package gateway

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	"k8s.io/klog/v2"
)

// A mistake of the gateway is logged with its stack; the end of a response that is not complete is not. Both end the
// connection of their request only.
func TestPanicsAreLogged(t *testing.T) {
	for _, c := range []struct {
		name   string
		panics any
		logged bool
	}{
		{"nothing", nil, false}, {"an incomplete response", http.ErrAbortHandler, false}, {"a mistake", "index", true},
		{"an error that wraps the other", errors.Join(http.ErrAbortHandler), true},
	} {
		var log strings.Builder
		ctx := klog.NewContext(t.Context(), funcr.New(func(_, args string) { log.WriteString(args) }, funcr.Options{}))
		var got any
		func() {
			defer func() { got = recover() }()
			defer logPanic((&http.Request{ProtoMajor: 1, ProtoMinor: 1}).WithContext(ctx))
			if c.panics != nil {
				panic(c.panics)
			}
		}()
		var want any
		if c.panics != nil {
			want = http.ErrAbortHandler
		}
		if got != want {
			t.Errorf("%s: the server gets %v, want %v", c.name, got, want)
		}
		if logged := strings.Contains(log.String(), "ports_test.go"); logged != c.logged {
			t.Errorf("%s: logged with a stack: %t, want %t: %s", c.name, logged, c.logged, log.String())
		}
	}
}
