// Package discovery is the group discovery.k8s.io: EndpointSlices.
package discovery
