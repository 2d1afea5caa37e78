package core

import (
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"carob/internal/kinds/table"
)

// endpointAddresses prints the first addresses of an Endpoints object and the number of others.
func endpointAddresses(subsets []corev1.EndpointSubset) string {
	const most = 3
	var out []string
	total := 0
	for _, s := range subsets {
		add := func(host string) {
			if total++; len(out) < most {
				out = append(out, host)
			}
		}
		for _, a := range s.Addresses {
			if len(s.Ports) == 0 {
				add(a.IP)
			}
			for _, p := range s.Ports {
				host := a.IP
				if strings.Contains(host, ":") {
					host = "[" + host + "]"
				}
				add(host + ":" + strconv.Itoa(int(p.Port)))
			}
		}
	}
	return table.More(out, total)
}
