package inference

import (
	"net/http"
	"testing"
)

// A body that a server may read as JSON is read, so that the model in it is known: no client can hide it from the
// policies of the pool.
func TestPasses(t *testing.T) {
	for _, c := range []struct {
		kinds []string
		want  bool
	}{
		{nil, false}, {[]string{""}, false}, {[]string{"application/json"}, false},
		{[]string{"Application/JSON; charset=utf-8"}, false}, {[]string{" application/json "}, false},
		{[]string{"application/problem+json"}, false}, {[]string{"text/plain"}, false}, {[]string{"text/json"}, false},
		{[]string{"application/x-www-form-urlencoded"}, false},
		// Not valid, but servers ignore the parameters.
		{[]string{"application/json;x"}, false}, {[]string{"application/json;a=1;a=2"}, false},
		{[]string{"application/json;charset=\"utf-8"}, false}, {[]string{"application/json ;=;"}, false},
		// Not valid: a server may assume JSON.
		{[]string{"json"}, false}, {[]string{"/"}, false}, {[]string{"application/"}, false}, {[]string{";"}, false},
		{[]string{"application/json, audio/wav"}, false}, {[]string{"audio/wav, application/json"}, false},
		{[]string{"audio/w\x00v"}, false},
		// Servers may use either.
		{[]string{"audio/wav", "application/json"}, false}, {[]string{"application/json", "audio/wav"}, false},
		{[]string{"audio/wav", "audio/wav"}, false},
		{[]string{"application/grpc"}, true}, {[]string{"application/grpc+proto"}, true},
		{[]string{"multipart/form-data; boundary=x"}, true}, {[]string{"audio/wav"}, true},
	} {
		if got := Passes(http.Header{"Content-Type": c.kinds}); got != c.want {
			t.Errorf("%q: %v, not %v", c.kinds, got, c.want)
		}
	}
	for field, want := range map[string]bool{"close": true, "content-type": false, "close, Content-Type": false,
		"keep-alive ,\tCONTENT-TYPE": false, "x-content-type": true} {
		if got := Passes(http.Header{"Content-Type": {"audio/wav"}, "Connection": {field}}); got != want {
			t.Errorf("Connection: %s: %v", field, got)
		}
	}
}
