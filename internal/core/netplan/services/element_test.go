package services

import (
	"maps"
	"net/netip"
	"testing"
)

// An endpoint that moves within its list has not gone, in whatever order it is deleted and added; elements that lead to
// no endpoint do not count.
func TestGoneEndpoints(t *testing.T) {
	at := netip.MustParseAddrPort
	one, two, three := at("10.0.0.1:80"), at("10.0.0.2:80"), at("[fd00::3]:80")
	c := Change{
		Delete: []Element{{Set: Endpoints, To: one}, {Set: Endpoints, To: two}, {Set: Members, To: three},
			{Set: Dispatch, To: at("10.0.0.4:80")}},
		Add: []Element{{Set: Members, To: two}, {Set: Endpoints, To: at("10.0.0.5:80")}, {Set: Dispatch, To: one}},
	}
	want := map[netip.AddrPort]bool{one: true, three: true}
	if got := c.GoneEndpoints(); !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := (&Change{}).GoneEndpoints(); len(got) > 0 {
		t.Errorf("an empty change: %v", got)
	}
}
