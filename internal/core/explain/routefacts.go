package explain

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// legacyClass is the annotation that chose a class before spec.ingressClassName.
const legacyClass = "kubernetes.io/ingress.class"

// gatewayGroup is the API group of Gateways.
const gatewayGroup = "gateway.networking.k8s.io"

// NamedGateway is a Gateway that a route names.
type NamedGateway struct {
	Namespace, Name string // Namespace is empty if it is that of the route
	Missing         bool
	Class           string
	Unknown         string // why it could not be read; empty: it was
}

// Read takes the Gateway's stored form, or why it could not be read.
func (g *NamedGateway) Read(text []byte, err error, missing bool) {
	var object struct {
		Spec struct {
			Class string `json:"gatewayClassName"`
		} `json:"spec"`
	}
	if err == nil {
		err = json.Unmarshal(text, &object)
	}
	g.Class, g.Missing = object.Spec.Class, missing
	if err != nil {
		g.Unknown = err.Error()
	}
}

// RouteFacts reads what explains an Ingress, a Gateway, or a route from its stored form. It has the Gateways that a
// route names if none of them has reported a state.
func RouteFacts(text []byte, kind string) (Served, error) {
	var object struct {
		Status struct {
			Parents    StatusParents      `json:"parents"`
			Conditions []metav1.Condition `json:"conditions"`
		} `json:"status"`
		Metadata struct {
			Annotations map[string]string `json:"annotations"`
		} `json:"metadata"`
		Spec struct {
			IngressClassName *string `json:"ingressClassName"`
			ParentRefs       []struct {
				Group     *string `json:"group"`
				Kind      *string `json:"kind"`
				Namespace string  `json:"namespace"`
				Name      string  `json:"name"`
			} `json:"parentRefs"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(text, &object); err != nil {
		return Served{}, fmt.Errorf("read the %s: %w", kind, err)
	}
	out := Served{Parents: object.Status.Parents.Parents()}
	if len(object.Status.Conditions) > 0 {
		out.Parents = append(out.Parents, Parent{Conditions: object.Status.Conditions})
	}
	if kind == "Ingress" {
		out.Class = cmp.Or(object.Spec.IngressClassName, new(object.Metadata.Annotations[legacyClass]))
	}
	if !strings.HasSuffix(kind, "Route") || len(out.Parents) > 0 {
		return out, nil
	}
	out.Named = []NamedGateway{}
	for _, ref := range object.Spec.ParentRefs {
		if ref.Kind != nil && *ref.Kind != "Gateway" || ref.Group != nil && *ref.Group != gatewayGroup {
			out.Named = nil // such as a ListenerSet
			break
		}
		out.Named = append(out.Named, NamedGateway{Namespace: ref.Namespace, Name: ref.Name})
	}
	return out, nil
}

// gateways explains why no Gateway serves a route.
func (l *Lines) gateways(all []NamedGateway) {
	if len(all) == 0 {
		l.warn("%s: it names no Gateway in spec.parentRefs", NothingServed)
	}
	for _, g := range all {
		name := g.Name
		if g.Namespace != "" {
			name = g.Namespace + "/" + name
		}
		switch {
		case g.Missing:
			l.warn("%s: Gateway %s, which spec.parentRefs names, does not exist", NothingServed, name)
		case g.Unknown != "":
			l.warn("%s: cannot read Gateway %s: %s", NothingServed, name, g.Unknown)
		default:
			l.warn("%s: Gateway %s of class %s has reported no state of it; check that carob serves this class",
				NothingServed, name, g.Class)
		}
	}
}
