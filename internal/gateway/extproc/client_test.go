package extproc

import (
	"fmt"
	"net/http"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
)

// A picker that sends all headers back changes none; what it sets replaces; framing and forms stay the gateway's.
func TestChange(t *testing.T) {
	m := &extprocv3.HeaderMutation{RemoveHeaders: []string{"x-gone", "content-length"}}
	for _, p := range [][2]string{{"x-served", "a"}, {"x-served", "a"}, {"set-cookie", "1"}, {"set-cookie", "2"},
		{"x-new", "1"}, {"x-new", "2"}, {"x-other", "3"}, {"content-length", "1"}, {"transfer-encoding", "chunked"},
		{":path", "/admin"}, {"x-bad", "a\r\nb: c"}, {"host", "evil"}, {"bad name", "x"}} {
		m.SetHeaders = append(m.SetHeaders, &corev3.HeaderValueOption{Header: pair(p[0], p[1])})
	}
	h := http.Header{"X-Served": {"a"}, "Set-Cookie": {"1", "2"}, "X-Other": {"1", "2"}, "X-Gone": {"x"},
		"Content-Length": {"9"}}
	change(m).Apply(h)
	want := http.Header{"X-Served": {"a"}, "Set-Cookie": {"1", "2"}, "X-New": {"2"}, "X-Other": {"3"},
		"Content-Length": {"9"}}
	if fmt.Sprint(h) != fmt.Sprint(want) {
		t.Errorf("%v, not %v", h, want)
	}
}

func TestEndpoints(t *testing.T) {
	got := endpoints(" 10.0.0.1:80,x,,[fd00::1]:81 ,10.0.0.2, ::ffff:10.0.0.3:82,[::ffff:10.0.0.4]:83")
	if fmt.Sprint(got) != "[10.0.0.1:80 [fd00::1]:81 10.0.0.4:83]" {
		t.Error(got)
	}
}
