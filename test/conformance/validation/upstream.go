package main

import (
	"context"
	"reflect"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
)

// upstream is upstream's registry of one kind.
type upstream struct {
	gvk  schema.GroupVersionKind
	main strategy
}

// answer is what is said to a request.
type answer struct {
	errs, warnings []string
	// undecodable says that it never came to validation.
	undecodable bool
}

// AddWarning keeps a warning of the request.
func (a *answer) AddWarning(_, text string) {
	a.warnings = append(a.warnings, text[:min(len(text), longest)])
}

func (u upstream) context(sub string, a *answer) context.Context {
	ctx := genericapirequest.WithNamespace(genericapirequest.NewContext(), "")
	if u.main.NamespaceScoped() {
		ctx = genericapirequest.WithNamespace(ctx, metav1.NamespaceDefault)
	}
	ctx = warning.WithWarningRecorder(ctx, a)
	return genericapirequest.WithRequestInfo(ctx, &genericapirequest.RequestInfo{APIGroup: u.gvk.Group, APIVersion: u.gvk.Version, Subresource: sub, IsResourceRequest: true})
}

// decode returns an object as a strategy gets it.
func (u upstream) decode(data []byte) (runtime.Object, metav1.Object, error) {
	obj, _, err := legacyscheme.Codecs.UniversalDecoder().Decode(data, &u.gvk, nil)
	if err != nil {
		return nil, nil, err
	}
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil, nil, err
	}
	if u.main.NamespaceScoped() && m.GetNamespace() == "" {
		m.SetNamespace(metav1.NamespaceDefault)
	}
	return obj, m, nil
}

func (u upstream) encode(obj runtime.Object) ([]byte, error) {
	return runtime.Encode(legacyscheme.Codecs.LegacyCodec(u.gvk.GroupVersion()), obj)
}

// asStored returns an object as if it had been made and had got its status since then; it may be invalid.
func (u upstream) asStored(data []byte) (runtime.Object, error) {
	obj, m, err := u.decode(data)
	if err != nil {
		return nil, err
	}
	rest.FillObjectMetaSystemFields(m)
	m.SetResourceVersion("1")
	before := obj.DeepCopyObject()
	u.main.PrepareForCreate(u.context("", &answer{}), obj)
	if status := reflect.ValueOf(before).Elem().FieldByName("Status"); status.IsValid() && !status.IsZero() {
		reflect.ValueOf(obj).Elem().FieldByName("Status").Set(status)
	}
	return obj, nil
}

// unlessPanic has a case left out that ends upstream's server's request: there
// are some, as a Job with a successPolicy and without completions.
func unlessPanic(a *answer) {
	if recover() != nil {
		*a = answer{undecodable: true}
	}
}

func (u upstream) create(data []byte) (a answer) {
	defer unlessPanic(&a)
	obj, m, err := u.decode(data)
	if err != nil {
		return answer{undecodable: true}
	}
	rest.FillObjectMetaSystemFields(m)
	if m.GetName() == "" && m.GetGenerateName() != "" {
		m.SetName(u.main.GenerateName(m.GetGenerateName()))
	}
	a.errs = told(rest.BeforeCreate(u.main, u.context("", &a), obj))
	return a
}

// update replaces old by data, which is old with changes, through a subresource if one is named.
func (u upstream) update(sub string, old runtime.Object, data []byte) (a answer) {
	defer unlessPanic(&a)
	obj, _, err := u.decode(data)
	if err != nil {
		return answer{undecodable: true}
	}
	var by rest.RESTUpdateStrategy = u.main
	if sub != "" {
		by = parts[u.gvk.GroupKind()][sub].strategy
	}
	a.errs = told(rest.BeforeUpdate(by, u.context(sub, &a), obj, old.DeepCopyObject()))
	return a
}

// touch labels an object that is stored although it may be invalid.
func (u upstream) touch(data []byte) (a answer) {
	defer unlessPanic(&a)
	old, err := u.asStored(data)
	if err != nil {
		return answer{undecodable: true}
	}
	obj := old.DeepCopyObject()
	m, err := meta.Accessor(obj)
	if err != nil {
		return answer{undecodable: true}
	}
	labels := map[string]string{"touched": "yes"}
	for k, v := range m.GetLabels() {
		labels[k] = v
	}
	m.SetLabels(labels)
	a.errs = told(rest.BeforeUpdate(u.main, u.context("", &a), obj, old))
	return a
}

// longest is how much of a message is kept, in bytes.
const longest = 120

// told returns what a client is told of an error: field and message of each cause.
func told(err error) []string {
	if err == nil {
		return nil
	}
	status, ok := err.(apierrors.APIStatus)
	if !ok || status.Status().Details == nil || len(status.Status().Details.Causes) == 0 {
		return []string{err.Error()}
	}
	var all []string
	for _, c := range status.Status().Details.Causes {
		text, _, _ := strings.Cut(c.Field+": "+c.Message, "\n") // what follows is the difference of two objects, in upstream's form
		if len(text) > longest {                                // a dump of the object, or of a long value
			text = text[:longest]
		}
		all = append(all, text)
	}
	slices.Sort(all)
	return all
}
