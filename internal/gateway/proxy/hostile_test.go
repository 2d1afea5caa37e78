package proxy

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// served proxies a request, and returns what the backend got and what the client got before the answer.
func served(r *http.Request, f fake) (got string, early []string) {
	w := &recorder{ResponseRecorder: httptest.NewRecorder()}
	Serve(r.Context(), w, r, backend{&f})
	return f.got, w.early
}

// Upgrades to HTTP/2 or TLS, with which a client would reach the backend past the routes, are not passed on, nor those
// of HTTP/1.0 and those that the field Connection does not name; others are.
func TestUpgradesPastTheRoutes(t *testing.T) {
	for upgrade, passed := range map[string]bool{"h2c": false, "H2C": false, "websocket, h2c": false, "HTTP/2.0": false,
		"TLS/1.2": false, "foo/1,TLS/1.0": false, "websocket": true, "SPDY/3.1": true} {
		r := request("GET", "", "Connection", "Upgrade, HTTP2-Settings", "Upgrade", upgrade, "Http2-Settings", "AA")()
		got, _ := served(r, fake{res: response(200, 2, "ok")})
		if strings.Contains(got, "Upgrade") != passed || strings.Contains(got, "Http2-Settings") {
			t.Errorf("Upgrade: %s: the backend got %s", upgrade, got)
		}
	}
	old := request("GET", "", "Connection", "Upgrade", "Upgrade", "websocket")()
	old.ProtoMinor, old.Proto = 0, "HTTP/1.0"
	for _, r := range []*http.Request{old, request("GET", "", "Upgrade", "websocket")()} {
		if got, _ := served(r, fake{res: response(200, 2, "ok")}); strings.Contains(got, "Upgrade") {
			t.Errorf("%s: the backend got %s", r.Proto, got)
		}
	}
}

// A client of HTTP/1.0 would take an informational response for the answer (RFC 9110, 15.2).
func TestNoHintsForHTTP10(t *testing.T) {
	for minor, want := range []int{0, 1} {
		r := request("GET", "")()
		r.ProtoMinor = minor
		if _, early := served(r, fake{res: response(200, 2, "ok"), early: 103}); len(early) != want {
			t.Errorf("a client of HTTP/1.%d got %v", minor, early)
		}
	}
}

// An informational response is for one connection, too, where HTTP/2 forbids fields of HTTP/1.1 (RFC 9113, 8.2.2).
func TestHintsWithFieldsOfTheConnection(t *testing.T) {
	_, early := served(request("GET", "")(), fake{res: response(200, 2, "ok"), early: 103, hints: []string{"Connection",
		"X-Hop", "X-Hop", "1", "Keep-Alive", "x", "Upgrade", "h2c", "Content-Length", "5", "Link", "x"}})
	if len(early) != 1 || early[0] != `103Link=["x"] ` {
		t.Errorf("the client got %q", early)
	}
}

// A status that cannot be sent is the backend's mistake.
func TestStatusesThatAreNotValid(t *testing.T) {
	for _, status := range []int{-1, 0, 99, 101, 199, 1000} {
		w := httptest.NewRecorder()
		r := request("GET", "")()
		Serve(r.Context(), w, r, backend{&fake{res: response(status, 2, "ok")}})
		if w.Code != http.StatusBadGateway {
			t.Errorf("%d became %d", status, w.Code)
		}
	}
}

// Backends do not believe what clients claim about their origin, also those that take underscores for hyphens.
func TestClaims(t *testing.T) {
	claims := []string{"X_Forwarded_For", "1.2.3.4", "x-forwarded_proto", "https", "X_Forwarded-Host", "evil",
		"X-Real-Ip", "1.2.3.4", "X-Forwarded-Port", "evil", "X_Forwarded_User", "evil", "X_Mine", "stays"}
	for what, more := range map[string][]string{"plain": nil,
		"for another protocol": {"Connection", "Upgrade", "Upgrade", "websocket"}} {
		got, _ := served(request("GET", "", append(more, claims...)...)(), fake{res: response(200, 2, "ok")})
		claimed := strings.Contains(got, "1.2.3.4") || strings.Contains(got, "evil") ||
			strings.Contains(got, "orwarded_proto")
		if claimed || !strings.Contains(got, "stays") || strings.Contains(got, "websocket") != (more != nil) {
			t.Errorf("%s: the backend got %s", what, got)
		}
	}
}

// What the gateway itself answers has a status of gRPC for calls of gRPC, and only for them.
func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		major   int
		content string
		status  int
		want    string // the status of HTTP, and that of gRPC
		timeout string // the call took a second
	}{
		{2, "application/grpc", 500, "200 14 Internal Server Error", ""},
		{2, "application/grpc+proto", 404, "200 12 Not Found", ""},
		{2, "Application/gRPC;x=y", 504, "200 4 Gateway Timeout", ""},
		{2, "application/grpc", 413, "200 8 Request Entity Too Large", ""},
		{2, "application/grpc", 400, "200 13 Bad Request", ""}, {2, "application/grpc", 418, "200 2 I'm a teapot", ""},
		{2, "application/grpc", 502, "200 4 Bad Gateway", "1S"}, {2, "application/grpc", 502, "200 4 Bad Gateway", "999m"},
		{2, "application/grpc", 502, "200 14 Bad Gateway", "1001m"},
		{2, "application/grpc", 502, "200 14 Bad Gateway", "99999999H"},
		{2, "application/grpc", 502, "200 14 Bad Gateway", "1s"}, {2, "application/grpc", 502, "200 14 Bad Gateway", "-1S"},
		{2, "application/grpc", 404, "200 12 Not Found", "1n"},
		{1, "application/grpc", 503, "503  ", ""}, {2, "application/grpc-web", 503, "503  ", ""},
		{2, "application/json", 503, "503  ", ""}, {2, "", 503, "503  ", ""},
	} {
		w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/s/M", nil)
		r.ProtoMajor = c.major
		r.Header.Set("Content-Type", c.content)
		r.Header.Set("Grpc-Timeout", c.timeout)
		Refuse(w, r, c.status, time.Second)
		got := fmt.Sprint(w.Code, " ", w.Header().Get("Grpc-Status"), " ", w.Header().Get("Grpc-Message"))
		if got != c.want {
			t.Errorf("HTTP/%d, %q, %d: %q, want %q", c.major, c.content, c.status, got, c.want)
		}
	}
}
