package instance

import (
	"errors"
	"testing"
)

func TestGatewayPorts(t *testing.T) {
	for _, c := range []struct {
		http, https, addresses string
		want                   string // an error, if it is none of these
		on                     bool
		count                  int
	}{
		{"", "", "", "", false, 0}, {":80", ":443", "", "", true, 0}, {"127.0.0.1:80", "127.0.0.2:80", "", "", true, 0},
		{"", "", "127.77.0.0/24, ::1", "", true, 257}, {":80", ":80", "", "error", false, 0},
		{"127.0.0.1:80", ":80", "", "error", false, 0}, {":0", "", "", "error", false, 0},
		{"host:80", "", "", "error", false, 0}, {"", "", "10.0.0.0/8", "error", false, 0},
		{"", "", "fd00::/64", "error", false, 0}, {"", "", "0.0.0.0", "error", false, 0},
		{"", "", "x", "error", false, 0},
	} {
		p, err := gatewayPorts(Flags{GatewayHTTP: c.http, GatewayHTTPS: c.https, GatewayAddresses: c.addresses})
		if (err != nil) != (c.want != "") || err != nil && !errors.Is(err, ErrFlag) {
			t.Errorf("%+v: %v", c, err)
		}
		if err == nil && (p.On() != c.on || len(p.Addresses) != c.count) {
			t.Errorf("%+v: %+v", c, p)
		}
	}
}

// The endpoint picker alone serves no Gateways; plain text must be enabled explicitly.
func TestEndpointPickerFlag(t *testing.T) {
	for _, c := range []struct {
		at        string
		plain, ok bool
	}{{"", false, true}, {"", true, false}, {":9002", false, true}, {"127.0.0.1:9002", true, true},
		{":0", false, false},
		{"here:1", false, false}} {
		p, err := gatewayPorts(Flags{EndpointPicker: c.at, EndpointPickerPlain: c.plain})
		if (err == nil) != c.ok || err != nil && !errors.Is(err, ErrFlag) {
			t.Errorf("%+v: %v", c, err)
		}
		if err == nil && (p.On() != (c.at != "") || p.Serves() || p.PickerPlain != c.plain) {
			t.Errorf("%+v: %+v", c, p)
		}
	}
}

func TestGatewaySeeing(t *testing.T) {
	for _, c := range []struct {
		log, proxies string
		ranges       int // -1: an error
	}{
		{"", "", 0}, {"-", "10.0.0.0/8, ::1", 2}, {"/var/log/x", "10.0.0.1/8", 1}, {"x.log", "", -1},
		{"", "here", -1}, {"", "10.0.0.0/33", -1},
	} {
		p, err := gatewayPorts(Flags{GatewayHTTP: ":80", GatewayAccessLog: c.log, GatewayProxies: c.proxies})
		if (err != nil) != (c.ranges < 0) || err != nil && !errors.Is(err, ErrFlag) {
			t.Errorf("%+v: %v", c, err)
		}
		if err == nil && (len(p.Proxies) != c.ranges || p.AccessLog != c.log) {
			t.Errorf("%+v: %+v", c, p)
		}
	}
}
