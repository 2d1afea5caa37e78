package network

import (
	"strings"
	"testing"
)

// N7.33
func TestBandwidthOf(t *testing.T) {
	for _, tt := range []struct {
		ingress, egress string
		want            Bandwidth
		err             string
	}{
		{},
		{ingress: "10M", want: Bandwidth{Ingress: 10_000_000}},
		{ingress: "1k", egress: "1Gi", want: Bandwidth{Ingress: 1000, Egress: 1 << 30}},
		{ingress: "1P", want: Bandwidth{Ingress: maxBandwidth}},
		{ingress: "999", err: "unreasonably small"},
		{egress: "-1M", err: "unreasonably small"},
		{egress: "0", err: "unreasonably small"},
		{egress: "2P", err: "unreasonably large"},
		{egress: "9999999999999999999999E", err: "unreasonably large"},
		{egress: "fast", err: AnnotationEgress},
		{egress: "1M\x00", err: AnnotationEgress},
		{ingress: "1M", egress: "", err: ""},
	} {
		a := map[string]string{}
		if tt.ingress != "" {
			a[AnnotationIngress] = tt.ingress
		}
		if tt.egress != "" {
			a[AnnotationEgress] = tt.egress
		}
		got, err := BandwidthOf(a)
		if tt.err != "" {
			if err == nil || !strings.Contains(err.Error(), tt.err) || got != (Bandwidth{}) {
				t.Errorf("%q, %q: %v, %v", tt.ingress, tt.egress, got, err)
			}
			continue
		}
		if tt.want == (Bandwidth{}) && tt.ingress != "" {
			tt.want.Ingress = 1_000_000
		}
		if err != nil || got != tt.want {
			t.Errorf("%q, %q: %v, %v, want %v", tt.ingress, tt.egress, got, err, tt.want)
		}
	}
}
