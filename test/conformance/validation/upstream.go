package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"reflect"
	"regexp"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
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

// answer is the response to a request.
type answer struct {
	errs, warnings []string
	// stored is how what is stored differs from what was sent; only if there are no errors.
	stored []string
	// undecodable means that it did not reach validation.
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
	return genericapirequest.WithRequestInfo(ctx,
		&genericapirequest.RequestInfo{APIGroup: u.gvk.Group, APIVersion: u.gvk.Version, Subresource: sub,
			IsResourceRequest: true})
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
	if a.errs = details(rest.BeforeCreate(u.main, u.context("", &a), obj)); a.errs == nil {
		a.stored = u.difference(data, obj)
	}
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
	if a.errs = details(rest.BeforeUpdate(by, u.context(sub, &a), obj, old.DeepCopyObject())); a.errs == nil {
		a.stored = u.difference(data, obj)
	}
	return a
}

// difference returns what a server makes of what it gets: a line for each value that it sets, changes or
// drops, without what is another at each time.
func (u upstream) difference(sent []byte, obj runtime.Object) []string {
	text, err := u.encode(obj)
	if err != nil {
		log.Fatal(err)
	}
	before, after := leaves(sent), leaves(text)
	lines := []string{}
	for at, value := range after {
		if before[at] != value {
			lines = append(lines, at+" "+value[:min(len(value), longest)])
		}
	}
	for at := range before {
		if _, ok := after[at]; !ok {
			lines = append(lines, at+" dropped")
		}
	}
	for i, l := range lines {
		lines[i] = times.ReplaceAllString(uids.ReplaceAllString(l, "UID"), `"NOW"`)
	}
	slices.Sort(lines)
	return lines
}

// leaves returns the values of a document that hold no others, by their paths.
func leaves(text []byte) map[string]string {
	var document any
	if err := json.Unmarshal(text, &document); err != nil {
		log.Fatal(err)
	}
	all := map[string]string{}
	var walk func(at string, value any)
	walk = func(at string, value any) {
		if m, ok := value.(map[string]any); ok && len(m) > 0 {
			for k, v := range m {
				walk(at+"/"+k, v)
			}
			return
		}
		if list, ok := value.([]any); ok && len(list) > 0 {
			for i, v := range list {
				walk(fmt.Sprint(at, "/", i), v)
			}
			return
		}
		if leaf, err := json.Marshal(value); err == nil && value != nil {
			all[at] = string(leaf)
		}
	}
	walk("", document)
	return all
}

// beyond returns the lines that are not of the unchanged object, and how many of its are missing.
func beyond(lines, unchanged []string) []string {
	of := sets.New(unchanged...)
	more := slices.DeleteFunc(slices.Clone(lines), of.Has)
	if n := of.Difference(sets.New(lines...)).Len(); n > 0 {
		more = append(more, fmt.Sprintf("-%d", n))
	}
	return more
}

// uids and times are of the request, not of an object of the corpus.
var (
	uids  = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)
	times = regexp.MustCompile(`"20(2[7-9]|26-(0[2-9]|1))[-0-9]*T[0-9:.]*Z"`)
)

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
	a.errs = details(rest.BeforeUpdate(u.main, u.context("", &a), obj, old))
	return a
}

// longest is how much of a message is kept, in bytes.
const longest = 120

// details returns the parts of an error that a client sees: field and message of each cause.
func details(err error) []string {
	if err == nil {
		return nil
	}
	status, ok := err.(apierrors.APIStatus)
	if !ok || status.Status().Details == nil || len(status.Status().Details.Causes) == 0 {
		return []string{err.Error()}
	}
	var all []string
	for _, c := range status.Status().Details.Causes {
		// what follows is the difference of two objects, in upstream's form
		text, _, _ := strings.Cut(c.Field+": "+c.Message, "\n")
		if len(text) > longest { // a dump of the object, or of a long value
			text = text[:longest]
		}
		all = append(all, text)
	}
	slices.Sort(all)
	return all
}
