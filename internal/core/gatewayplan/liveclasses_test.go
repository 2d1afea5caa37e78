package gatewayplan

import (
	"math/rand/v2"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

func team(name string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"team": name}}
}

// changeClass changes an IngressClass, with the Ingresses that name it.
func (o *objects) changeClass(r *rand.Rand, there bool, c *Changes) {
	name := Name{Name: pick(r, Class, "more", "other")}
	var class *networkingv1.IngressClass
	if there {
		class = &networkingv1.IngressClass{ObjectMeta: meta("", name.Name, 0),
			Spec: networkingv1.IngressClassSpec{Controller: pick(r, IngressController, IngressController, "other")}}
	}
	set(o.now.IngressClasses, c.IngressClasses, name, class, there)
	for key, in := range o.now.Ingresses {
		if ClassOf(in) == name.Name {
			c.Ingresses[key] = in
		}
	}
}

// changeGatewayClass changes a GatewayClass, or its status.
func (o *objects) changeGatewayClass(r *rand.Rand, step int, there bool, c *Changes) {
	name := Name{Name: pick(r, Class, "other")}
	var class *gatewayv1.GatewayClass
	if there || r.IntN(2) == 0 {
		there = true
		class = &gatewayv1.GatewayClass{ObjectMeta: meta("", name.Name, 0)}
		class.Generation = int64(step)
		class.Spec.ControllerName = pick(r, GatewayController, GatewayController, GatewayController, "other/one")
		if r.IntN(6) == 0 {
			class.Spec.ParametersRef = &gatewayv1.ParametersReference{Kind: "x", Name: "x"}
		}
	}
	set(o.now.GatewayClasses, c.GatewayClasses, name, class, there)
}

// changeNamespace changes the labels of a namespace.
func (o *objects) changeNamespace(r *rand.Rand, there bool, c *Changes) {
	name := pick(r, "a", "b")
	var of labels.Set
	if there || r.IntN(2) == 0 {
		there = true
		of = pick(r, labels.Set{}, labels.Set{"team": "x"}, labels.Set{"team": "x", "other": "y"})
	}
	set(o.now.Namespaces, c.Namespaces, name, of, there)
}
