package feed

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"carob/internal/core/gatewayplan"
	"carob/internal/core/httproute"
	"carob/internal/gateway/certs"
)

// note records an object that has changed; its last state counts.
func note[K comparable, T any](into *map[K]T, of K, o T) {
	if *into == nil {
		*into = map[K]T{}
	}
	(*into)[of] = o
}

// noting records the changes of a kind.
func noting[T interface {
	comparable
	metav1.Object
}](into *map[name]T) func(before, after T) {
	return func(before, after T) { note(into, eitherName(before, after), after) }
}

// eitherName is the name of the old or the new object.
func eitherName[T interface {
	comparable
	metav1.Object
}](before, after T) name {
	var none T
	if after == none {
		return nameOf(before)
	}
	return nameOf(after)
}

// classChanged records a class that is carob's, or was, with the Ingresses that name it, and counts again which
// Ingresses are carob's. The lock is held.
func (f *Feed) classChanged(before, after *networkingv1.IngressClass) {
	ours := func(c *networkingv1.IngressClass) bool {
		return c != nil && c.Spec.Controller == gatewayplan.IngressController
	}
	if ours(before) == ours(after) {
		return
	}
	of, was := eitherName(before, after), f.serving
	note(&f.changes.IngressClasses, of, after)
	classes := values(f.classes.all)
	f.serving = 0
	for key, in := range f.ingresses.all { // any order: into a map
		if gatewayplan.Serves(in, classes) {
			f.serving++
		}
		if gatewayplan.ClassOf(in) == of.Name {
			note(&f.changes.Ingresses, key, in)
		}
	}
	f.servingChanged(was)
}

// servingChanged may change the watched kinds, when carob begins to serve Ingresses, and when it serves none any more.
// The lock is held.
func (f *Feed) servingChanged(was int) {
	if (was == 0) != (f.serving == 0) {
		poke(f.restage)
	}
}

// gatewayClassChanged records a changed GatewayClass. The lock is held.
func (f *Feed) gatewayClassChanged(before, after *gatewayv1.GatewayClass) {
	note(&f.changes.GatewayClasses, eitherName(before, after), after)
	poke(f.restage)
}

// ingressChanged records a changed Ingress. The lock is held.
func (f *Feed) ingressChanged(before, after *networkingv1.Ingress) {
	classes, was := values(f.classes.all), f.serving
	if before != nil && gatewayplan.Serves(before, classes) {
		f.serving--
	}
	if after != nil && gatewayplan.Serves(after, classes) {
		f.serving++
	}
	note(&f.changes.Ingresses, eitherName(before, after), after)
	f.servingChanged(was)
}

// serviceChanged records a Service if a plan may depend on it. The lock is held.
func (f *Feed) serviceChanged(before, after *corev1.Service) {
	if before == nil || after == nil || !gatewayplan.SameService(before, after) {
		note(&f.changes.Services, eitherName(before, after), after)
	}
}

// namespaceChanged records a namespace whose labels changed. The lock is held.
func (f *Feed) namespaceChanged(before, after *corev1.Namespace) {
	switch {
	case after == nil:
		note(&f.changes.Namespaces, before.Name, nil)
	case before == nil || !maps.Equal(before.Labels, after.Labels):
		set := labels.Set(after.Labels)
		if set == nil {
			set = labels.Set{}
		}
		note(&f.changes.Namespaces, after.Name, set)
	}
}

// gatewayChanged records a changed Gateway, and reads the Secret with its certificate for backends again: until now its
// key may not have been needed. The lock is held.
func (f *Feed) gatewayChanged(before, after *gatewayv1.Gateway) {
	note(&f.changes.Gateways, eitherName(before, after), after)
	if before != nil && after != nil && gatewayplan.SameGateway(before, after) {
		return
	}
	poke(f.restage)
	if after == nil {
		return
	}
	if of, ok := gatewayplan.Identity(after); ok {
		if _, newer := f.changedSecrets[of]; !newer && f.secrets.all[of] != nil {
			note(&f.changedSecrets, of, f.secrets.all[of])
		}
	}
}

// hasCAs and hasPickerConfig report what a ConfigMap is for.
func hasCAs(m *corev1.ConfigMap) bool {
	_, text := m.Data[caKey]
	_, binary := m.BinaryData[caKey]
	return (text || binary) && m.Name != "kube-root-ca.crt"
}

func hasPickerConfig(m *corev1.ConfigMap) bool {
	_, config := m.Data[pickerConfigKey]
	return config
}

// caKey is the key of CAs in a ConfigMap.
const caKey = "ca.crt"

// configMapChanged notes CAs and configurations of pickers. The lock is held.
func (f *Feed) configMapChanged(before, after *corev1.ConfigMap) {
	if before != nil && hasPickerConfig(before) || after != nil && hasPickerConfig(after) {
		f.inference.changed = true
	}
	var now *gatewayplan.Material
	if after != nil {
		now = new(certs.ReadCAs(after))
	}
	note(&f.changes.CAs, eitherName(before, after), now)
}

// Fill adds the endpoints of Services and the pods of pools to a snapshot.
func (f *Feed) Fill(s *Snapshot, all map[name]bool, pools map[httproute.Ref]bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for ref := range pools { // any order: into a map
		f.addPods(s, ref.Namespace)
	}
	for of := range all { // any order: into maps
		s.Services[of] = f.services.all[of]
		s.Slices[of] = sorted(f.ofService[of])
	}
}
