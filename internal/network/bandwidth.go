package network

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Bandwidth limits what a pod receives (Ingress) and sends (Egress), in bits per second; 0: no limit.
type Bandwidth struct {
	Ingress, Egress uint64
}

// Annotations of pods that limit their bandwidth (N7.33).
const (
	AnnotationIngress = "kubernetes.io/ingress-bandwidth"
	AnnotationEgress  = "kubernetes.io/egress-bandwidth"
)

// The smallest and the largest limit, in bits per second.
const (
	minBandwidth = 1_000
	maxBandwidth = 1_000_000_000_000_000
)

// BandwidthOf reads the annotations of a pod. The error has the text of containerd and CRI-O.
func BandwidthOf(annotations map[string]string) (b Bandwidth, err error) {
	for _, a := range []struct {
		name string
		to   *uint64
	}{{AnnotationIngress, &b.Ingress}, {AnnotationEgress, &b.Egress}} {
		text, ok := annotations[a.name]
		if !ok {
			continue
		}
		q, err := resource.ParseQuantity(text)
		switch {
		case err != nil:
		case q.CmpInt64(minBandwidth) < 0:
			err = errors.New("resource is unreasonably small (< 1kbit)")
		case q.CmpInt64(maxBandwidth) > 0:
			err = errors.New("resource is unreasonably large (> 1Pbit)")
		}
		if err != nil {
			return Bandwidth{}, fmt.Errorf("annotation %s %q: %w", a.name, text, err)
		}
		*a.to = uint64(q.Value())
	}
	return b, nil
}
