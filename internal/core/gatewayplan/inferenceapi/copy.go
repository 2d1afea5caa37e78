package inferenceapi

import (
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

func pointer[T any](p *T) *T {
	if p == nil {
		return nil
	}
	return new(*p)
}

func parents(in []Parent) []Parent {
	out := slices.Clone(in)
	for i := range out {
		out[i].Conditions = slices.Clone(out[i].Conditions)
	}
	return out
}

// deepCopy copies everything except the metadata.
func (p *Pool) deepCopy() {
	p.Spec.Selector.MatchLabels = maps.Clone(p.Spec.Selector.MatchLabels)
	p.Spec.TargetPorts = slices.Clone(p.Spec.TargetPorts)
	if p.Spec.EndpointPickerRef = pointer(p.Spec.EndpointPickerRef); p.Spec.EndpointPickerRef != nil {
		p.Spec.EndpointPickerRef.Port = pointer(p.Spec.EndpointPickerRef.Port)
	}
	p.Status.Parents = parents(p.Status.Parents)
}

func (p *OldPool) deepCopy() {
	p.Spec.Selector = maps.Clone(p.Spec.Selector)
	if p.Spec.ExtensionRef = pointer(p.Spec.ExtensionRef); p.Spec.ExtensionRef != nil {
		p.Spec.ExtensionRef.PortNumber = pointer(p.Spec.ExtensionRef.PortNumber)
	}
	p.Status.Parents = parents(p.Status.Parents)
}

func (m *Model) deepCopy() {
	m.Spec.TargetModels = slices.Clone(m.Spec.TargetModels)
	for i := range m.Spec.TargetModels {
		m.Spec.TargetModels[i].Weight = pointer(m.Spec.TargetModels[i].Weight)
	}
	m.Status.Conditions = slices.Clone(m.Status.Conditions)
}

func (o *Objective) deepCopy() {
	o.Spec.Priority = pointer(o.Spec.Priority)
	o.Status.Conditions = slices.Clone(o.Status.Conditions)
}

func (r *Rewrite) deepCopy() {
	r.Spec.Rules = slices.Clone(r.Spec.Rules)
	for i := range r.Spec.Rules {
		rule := &r.Spec.Rules[i]
		rule.Matches, rule.Targets = slices.Clone(rule.Matches), slices.Clone(rule.Targets)
		for j := range rule.Matches {
			rule.Matches[j].Model = pointer(rule.Matches[j].Model)
		}
		for j := range rule.Targets {
			rule.Targets[j].Weight = pointer(rule.Targets[j].Weight)
		}
	}
	r.Status.Conditions = slices.Clone(r.Status.Conditions)
}

// DeepCopy returns a copy that shares nothing.
func (p *Pool) DeepCopy() *Pool {
	out := *p
	p.DeepCopyInto(&out.ObjectMeta)
	out.deepCopy()
	return &out
}

// DeepCopyObject implements runtime.Object.
func (p *Pool) DeepCopyObject() runtime.Object { return p.DeepCopy() }

// PoolList is a list.
type PoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []Pool `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (l *PoolList) DeepCopyObject() runtime.Object {
	out := *l
	out.Items = slices.Clone(l.Items)
	for i := range out.Items {
		out.Items[i] = *l.Items[i].DeepCopy()
	}
	return &out
}

// DeepCopy returns a copy that shares nothing.
func (p *OldPool) DeepCopy() *OldPool {
	out := *p
	p.DeepCopyInto(&out.ObjectMeta)
	out.deepCopy()
	return &out
}

// DeepCopyObject implements runtime.Object.
func (p *OldPool) DeepCopyObject() runtime.Object { return p.DeepCopy() }

// OldPoolList is a list.
type OldPoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []OldPool `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (l *OldPoolList) DeepCopyObject() runtime.Object {
	out := *l
	out.Items = slices.Clone(l.Items)
	for i := range out.Items {
		out.Items[i] = *l.Items[i].DeepCopy()
	}
	return &out
}

// DeepCopy returns a copy that shares nothing.
func (m *Model) DeepCopy() *Model {
	out := *m
	m.DeepCopyInto(&out.ObjectMeta)
	out.deepCopy()
	return &out
}

// DeepCopyObject implements runtime.Object.
func (m *Model) DeepCopyObject() runtime.Object { return m.DeepCopy() }

// ModelList is a list.
type ModelList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []Model `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (l *ModelList) DeepCopyObject() runtime.Object {
	out := *l
	out.Items = slices.Clone(l.Items)
	for i := range out.Items {
		out.Items[i] = *l.Items[i].DeepCopy()
	}
	return &out
}

// DeepCopy returns a copy that shares nothing.
func (o *Objective) DeepCopy() *Objective {
	out := *o
	o.DeepCopyInto(&out.ObjectMeta)
	out.deepCopy()
	return &out
}

// DeepCopyObject implements runtime.Object.
func (o *Objective) DeepCopyObject() runtime.Object { return o.DeepCopy() }

// ObjectiveList is a list.
type ObjectiveList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []Objective `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (l *ObjectiveList) DeepCopyObject() runtime.Object {
	out := *l
	out.Items = slices.Clone(l.Items)
	for i := range out.Items {
		out.Items[i] = *l.Items[i].DeepCopy()
	}
	return &out
}

// DeepCopy returns a copy that shares nothing.
func (r *Rewrite) DeepCopy() *Rewrite {
	out := *r
	r.DeepCopyInto(&out.ObjectMeta)
	out.deepCopy()
	return &out
}

// DeepCopyObject implements runtime.Object.
func (r *Rewrite) DeepCopyObject() runtime.Object { return r.DeepCopy() }

// RewriteList is a list.
type RewriteList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []Rewrite `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (l *RewriteList) DeepCopyObject() runtime.Object {
	out := *l
	out.Items = slices.Clone(l.Items)
	for i := range out.Items {
		out.Items[i] = *l.Items[i].DeepCopy()
	}
	return &out
}
