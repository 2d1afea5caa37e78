package apiserver

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"
)

// upstreamDir has objects, and the answers of upstream's API server to changes of them (made by
// test/conformance/validation).
const upstreamDir = "testdata/validation"

var corpusDir = flag.String("corpus", upstreamDir, "TestUpstreamValidation: where corpus.jsonl and grammar.jsonl are")

var writeKnown = flag.Bool("write-known", false,
	"TestUpstreamValidation: write the differences to known.txt instead of failing")

// upstreamCase is one change of one object, and upstream's errors about the result. Update and Kept
// are missing if they equal Create.
type upstreamCase struct {
	Base     string          `json:"base"`     // kind/name
	Sub      string          `json:"sub"`      // a subresource, which has updates only
	Op       json.RawMessage `json:"op"`       // of a JSON patch
	Create   []string        `json:"create"`   // of a new object, as "field: message"
	Update   *[]string       `json:"update"`   // for an update of a stored object
	Kept     *[]string       `json:"kept"`     // for a label on an object that was stored with the change
	Warnings []string        `json:"warnings"` // of the create, or of the update if there is no create

	// How the stored object differs from the one sent. The first case of an object changes nothing;
	// the others list differences from it.
	Stored, Updated []string
}

// Requests that upstream rejects are rejected for the same reasons, in the same words, about the
// same fields; requests that it accepts are accepted, with the same warnings, and stored with the
// same defaults and dropped fields.
func TestUpstreamValidation(t *testing.T) {
	r := start(t, t.TempDir())
	objects := r.upstreamObjects(t)
	found := &differences{known: upstreamKnown(t)}
	for _, name := range []string{"corpus.jsonl", "grammar.jsonl"} {
		// each change of an object, and each value of a field's grammar
		f, err := os.Open(filepath.Join(*corpusDir, name))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for lines := json.NewDecoder(f); ; {
			var c upstreamCase
			if err := lines.Decode(&c); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			o := objects[c.Base]
			if o == nil {
				t.Fatalf("no object %s", c.Base)
			}
			o.compare(t, c, found)
		}
	}
	found.report(t)
}

// compare sends all requests to which the corpus has answers.
func (o *object) compare(t *testing.T, c upstreamCase, found *differences) {
	t.Helper()
	orCreate := func(errs *[]string) []string {
		if errs == nil {
			return c.Create
		}
		return *errs
	}
	answers := o.createErrors
	if o.stored || c.Sub != "" {
		answers = o.updateErrors
	} else {
		a := o.createErrors(t, c)
		found.compare(c, "create", c.Create, a.errs)
		switch {
		case c.Create != nil || a.errs != nil:
		case o.completed == nil:
			o.completed = a.stored
			found.compare(c, "stored", c.Stored, a.stored)
		default:
			found.compare(c, "stored", c.Stored, beyond(a.stored, o.completed))
		}
		if c.Create != nil && !renames(c) {
			found.compare(c, "kept", orCreate(c.Kept), o.touchErrors(t, c).errs)
		}
	}
	if u := o.updateErrors(t, c); u.applies && !renames(c) {
		found.compare(c, "update"+c.Sub, orCreate(c.Update), u.errs)
		if len(orCreate(c.Update)) == 0 && u.errs == nil {
			found.compare(c, "updated"+c.Sub, c.Updated, u.stored)
		}
	}
	if a := answers(t, c); a.errs == nil {
		found.compare(c, "warnings"+c.Sub, c.Warnings, a.warnings)
	}
}

// renames reports whether the change is of the name, which is fixed for a stored object: a request
// for another name is rejected before validation.
func renames(c upstreamCase) bool {
	return bytes.Contains(c.Op, []byte(`"path":"/metadata/name"`)) || bytes.Contains(c.Op, []byte(`"path":"/metadata"`))
}

// differences are the places where carob answers differently from upstream.
type differences struct {
	known    map[string]bool // and whether the difference occurs
	requests int
	// By their consequence for a client.
	refused, accepted, worded, warned, completed []string
	details                                      []string
}

func (d *differences) compare(c upstreamCase, verb string, want, got []string) {
	d.requests++
	if slices.Equal(general(got), general(want)) {
		return
	}
	line := fmt.Sprintf("%s %s %s", c.Base, verb, c.Op)
	switch {
	case strings.HasPrefix(verb, "stored") || strings.HasPrefix(verb, "updated"):
		d.completed = append(d.completed, line)
	case strings.HasPrefix(verb, "warnings"):
		d.warned = append(d.warned, line)
	case len(want) == 0:
		d.refused = append(d.refused, line)
	case len(got) == 0:
		d.accepted = append(d.accepted, line)
	default:
		d.worded = append(d.worded, line)
	}
	if _, ok := d.known[line]; ok {
		d.known[line] = true
	}
	if !d.known[line] || *writeKnown {
		d.details = append(d.details, fmt.Sprintf("%s\n\tupstream %q\n\tcarob    %q", line, want, got))
	}
}

func (d *differences) report(t *testing.T) {
	t.Helper()
	t.Logf(
		"%d requests; %d refused only here, %d accepted only here, %d refused in other words, "+
			"%d with other warnings, %d stored otherwise", d.requests, len(d.refused), len(d.accepted),
		len(d.worded), len(d.warned), len(d.completed))
	if *writeKnown {
		var b strings.Builder
		b.WriteString(
			"# Changes that carob answers otherwise than upstream. A line goes when its answer is mended; none is added for a new rule.\n" +
				"# create: the object is made with the change; update: a stored one gets it (updatestatus: through its status);\n" +
				"# kept: one that was stored with it gets a label; warnings: of a create, or of an update where there is no create;\n" +
				"# stored, updated: what is made of an object beyond what was sent.\n")
		for _, group := range []struct {
			title string
			lines []string
		}{{"Refused here, accepted upstream.", d.refused},
			{"Accepted here, refused upstream: faults that no object has that was stored by carob.", d.accepted},
			{"Refused by both, in other words or for fewer or more reasons. (Of a webhook's service upstream blames the name for a missing namespace, and the other way round.)", d.worded}, {"Accepted by both, with other warnings.", d.warned}, {"Accepted by both, and stored with other defaults or fields. (Upstream counts a generation for an empty list where there was none, and for fields of a ResourceSlice that it drops; of a signing request the test has a user, upstream's corpus none.)", d.completed}} {
			slices.Sort(group.lines)
			fmt.Fprintf(&b, "\n# %s\n", group.title)
			for _, line := range slices.Compact(group.lines) {
				fmt.Fprintln(&b, line)
			}
		}
		if err := os.WriteFile(filepath.Join(upstreamDir, "known.txt"), []byte(b.String()), 0o600); err != nil {
			t.Error(err)
		}
		t.Log(strings.Join(d.details, "\n"))
		return
	}
	for _, text := range d.details {
		t.Error(text)
	}
	for line, seen := range d.known {
		if !seen {
			t.Errorf("known.txt: there is no difference any more: %s", line)
		}
	}
}

func upstreamBases(t *testing.T, file string) map[string]*unstructured.Unstructured {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(upstreamDir, file))
	if err != nil {
		t.Fatal(err)
	}
	bases := map[string]*unstructured.Unstructured{}
	for docs := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text))); ; {
		doc, err := docs.Read()
		if errors.Is(err, io.EOF) {
			return bases
		}
		u := &unstructured.Unstructured{}
		if err := utilyaml.Unmarshal(doc, &u.Object); err != nil {
			t.Fatal(err)
		}
		bases[u.GetKind()+"/"+u.GetName()] = u
	}
}

// upstreamKnown returns the existing differences.
func upstreamKnown(t *testing.T) map[string]bool {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(upstreamDir, "known.txt"))
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			known[line] = false
		}
	}
	return known
}

// object is one of the corpus. Its changes go to the strategies of its kind, without admission,
// like upstream's.
type object struct {
	r      *running
	gvk    schema.GroupVersionKind
	create rest.RESTCreateStrategy
	update rest.RESTUpdateStrategy
	parts  map[string]rest.RESTUpdateStrategy
	base   []byte
	stored bool // it cannot be created: only updates are tested

	old       runtime.Object // the base as it is stored
	text      []byte         // and as a client gets it
	completed []string       // what a create of the base sets and drops
}

// upstreamAnswer is the answer to a request.
type upstreamAnswer struct {
	errs, warnings []string
	// stored is how the stored object differs from the one sent; only if there are no errors.
	stored []string
	// applies is false if the change does not apply to the stored object.
	applies bool
}

// AddWarning records a warning of the request.
func (a *upstreamAnswer) AddWarning(_, text string) {
	if strings.HasPrefix(text, "v1 Endpoints is deprecated") {
		return // which upstream sends before it reads the object
	}
	a.warnings = append(a.warnings, text[:min(len(text), longestMessage)])
}

// onPanic turns a panic into an answer.
func (a *upstreamAnswer) onPanic() {
	if r := recover(); r != nil {
		*a = upstreamAnswer{errs: []string{fmt.Sprint("panic: ", r)}, applies: true}
	}
}

func (r *running) upstreamObjects(t *testing.T) map[string]*object {
	t.Helper()
	objects := map[string]*object{}
	for _, file := range []string{"bases.yaml", "stored.yaml"} {
		for key, base := range upstreamBases(t, file) {
			gvk := base.GroupVersionKind()
			gvr, _ := meta.UnsafeGuessKindToResource(gvk)
			if gvk.Kind == "Endpoints" {
				gvr.Resource = "endpoints"
			}
			store := r.stores[gvr.GroupResource()]
			if store == nil {
				t.Fatalf("no store of %v", gvr)
			}
			text, err := base.MarshalJSON()
			if err != nil {
				t.Fatal(err)
			}
			o := &object{r: r, gvk: gvk, create: store.CreateStrategy, update: store.UpdateStrategy,
				parts: map[string]rest.RESTUpdateStrategy{}, base: text, stored: file == "stored.yaml"}
			for gr, s := range r.storages {
				if name, sub, ok := strings.Cut(gr.Resource, "/"); ok && name == gvr.Resource && gr.Group == gvr.Group {
					if by, ok := s.(interface {
						UpdateStrategy() rest.RESTUpdateStrategy
					}); ok {
						o.parts[sub] = by.UpdateStrategy()
					}
				}
			}
			if o.old = o.asStored(t, text); o.old == nil {
				t.Fatalf("%s can't be decoded", key)
			}
			if o.text, err = runtime.Encode(r.set.Codecs.LegacyCodec(gvk.GroupVersion()), o.old); err != nil {
				t.Fatal(err)
			}
			objects[key] = o
		}
	}
	return objects
}

func (o *object) context(sub string, a *upstreamAnswer) context.Context {
	ctx := genericapirequest.WithNamespace(genericapirequest.NewContext(), "")
	if o.create.NamespaceScoped() {
		ctx = genericapirequest.WithNamespace(ctx, metav1.NamespaceDefault)
	}
	ctx = genericapirequest.WithUser(warning.WithWarningRecorder(ctx, a),
		&user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}})
	return genericapirequest.WithRequestInfo(ctx,
		&genericapirequest.RequestInfo{APIGroup: o.gvk.Group, APIVersion: o.gvk.Version, Subresource: sub,
			IsResourceRequest: true})
}

// decode returns an object as a strategy gets it; nil if it cannot be decoded.
func (o *object) decode(t *testing.T, data []byte) (runtime.Object, metav1.Object) {
	t.Helper()
	obj, _, err := o.r.set.Codecs.UniversalDecoder().Decode(data, &o.gvk, nil)
	if err != nil {
		return nil, nil
	}
	m, err := meta.Accessor(obj)
	if err != nil {
		t.Fatal(err)
	}
	if o.create.NamespaceScoped() && m.GetNamespace() == "" {
		m.SetNamespace(metav1.NamespaceDefault)
	}
	return obj, m
}

// asStored returns an object as if it had been created and had got its status later; it may be
// invalid.
func (o *object) asStored(t *testing.T, data []byte) runtime.Object {
	t.Helper()
	obj, m := o.decode(t, data)
	if obj == nil {
		return nil
	}
	rest.FillObjectMetaSystemFields(m)
	m.SetResourceVersion("1")
	before := obj.DeepCopyObject()
	o.create.PrepareForCreate(o.context("", &upstreamAnswer{}), obj)
	if status := reflect.ValueOf(before).Elem().FieldByName("Status"); status.IsValid() && !status.IsZero() {
		reflect.ValueOf(obj).Elem().FieldByName("Status").Set(status)
	}
	return obj
}

func (o *object) createErrors(t *testing.T, c upstreamCase) (a upstreamAnswer) {
	t.Helper()
	defer a.onPanic()
	obj, m := o.decode(t, changed(t, o.base, c.Op))
	if obj == nil {
		return upstreamAnswer{errs: []string{"can't be decoded"}}
	}
	rest.FillObjectMetaSystemFields(m)
	if a.errs = causesOf(rest.BeforeCreate(o.create, o.context("", &a), obj)); a.errs == nil {
		a.stored = o.difference(t, changed(t, o.base, c.Op), obj)
	}
	return a
}

func (o *object) updateErrors(t *testing.T, c upstreamCase) (a upstreamAnswer) {
	t.Helper()
	defer a.onPanic()
	by := o.update
	if c.Sub != "" {
		if by = o.parts[c.Sub]; by == nil {
			t.Fatalf("%s has no %s", c.Base, c.Sub)
		}
	}
	text := changed(t, o.text, c.Op)
	if text == nil {
		return a
	}
	a.applies = true
	obj, _ := o.decode(t, text)
	if obj == nil {
		a.errs = []string{"can't be decoded"}
		return a
	}
	if a.errs = causesOf(rest.BeforeUpdate(by, o.context(c.Sub, &a), obj, o.old.DeepCopyObject())); a.errs == nil {
		a.stored = o.difference(t, text, obj)
	}
	return a
}

// difference returns what the server changes in its input: a line for each value that it sets,
// changes, or drops, without values that differ each time.
func (o *object) difference(t *testing.T, sent []byte, stored runtime.Object) []string {
	t.Helper()
	text, err := runtime.Encode(o.r.set.Codecs.LegacyCodec(o.gvk.GroupVersion()), stored)
	if err != nil {
		t.Fatal(err)
	}
	before, after := leaves(t, sent), leaves(t, text)
	lines := []string{}
	for at, value := range after {
		if before[at] != value {
			lines = append(lines, at+" "+value[:min(len(value), longestMessage)])
		}
	}
	for at := range before {
		if _, ok := after[at]; !ok {
			lines = append(lines, at+" dropped")
		}
	}
	for i, l := range lines {
		lines[i] = clockTimes.ReplaceAllString(madeUIDs.ReplaceAllString(l, "UID"), `"NOW"`)
	}
	slices.Sort(lines)
	return lines
}

// madeUIDs and clockTimes are values of the request, not of an object in the corpus.
var (
	madeUIDs   = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)
	clockTimes = regexp.MustCompile(`"20(2[7-9]|26-(0[2-9]|1))[-0-9]*T[0-9:.]*Z"`)
)

// leaves returns the scalar values of a document by their paths.
func leaves(t *testing.T, text []byte) map[string]string {
	t.Helper()
	var document any
	if err := json.Unmarshal(text, &document); err != nil {
		t.Fatal(err)
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

// beyond returns the lines that are not in the unchanged object, and how many of its lines are
// missing.
func beyond(lines, unchanged []string) []string {
	of := sets.New(unchanged...)
	more := slices.DeleteFunc(slices.Clone(lines), of.Has)
	if n := of.Difference(sets.New(lines...)).Len(); n > 0 {
		more = append(more, fmt.Sprintf("-%d", n))
	}
	return more
}

// touchErrors labels an object that is stored with the change although it may be invalid, and
// returns the errors.
func (o *object) touchErrors(t *testing.T, c upstreamCase) (a upstreamAnswer) {
	t.Helper()
	defer a.onPanic()
	old := o.asStored(t, changed(t, o.base, c.Op))
	if old == nil {
		return upstreamAnswer{errs: []string{"can't be decoded"}}
	}
	obj := old.DeepCopyObject()
	m, err := meta.Accessor(obj)
	if err != nil {
		t.Fatal(err)
	}
	labels := map[string]string{"touched": "yes"}
	maps.Copy(labels, m.GetLabels())
	m.SetLabels(labels)
	a.errs = causesOf(rest.BeforeUpdate(o.update, o.context("", &a), obj, old))
	return a
}

// changed returns an object with one change; nil if the change does not apply.
func changed(t *testing.T, object []byte, op json.RawMessage) []byte {
	t.Helper()
	patch, err := jsonpatch.DecodePatch([]byte("[" + string(op) + "]"))
	if err != nil {
		t.Fatal(err)
	}
	text, err := patch.Apply(object)
	if err != nil {
		return nil
	}
	return text
}

// general removes what a message shows of an object (upstream shows its internal form), and
// duplicates.
func general(errs []string) []string {
	var all []string
	for _, e := range errs {
		if i := strings.Index(e, " value: "); i >= 0 && strings.ContainsAny(e[i+8:min(len(e), i+9)], "{[") {
			e = e[:i]
		}
		// Unprintable text is shown in more than one way, and may be cut in two.
		if i := unprintable.FindStringIndex(e); i != nil {
			e = e[:i[0]]
		}
		all = append(all, e)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

var unprintable = regexp.MustCompile(`\\+(u[0-9a-f]{4}|x[0-9a-f]{2}|[abfnrtv])|[^ -~]|[&<>]`)

// longestMessage is how many bytes of a message the corpus keeps.
const longestMessage = 120

// causesOf returns the causes of a rejection, as "field: message".
func causesOf(err error) (causes []string) {
	if err == nil {
		return nil
	}
	status, ok := err.(apierrors.APIStatus)
	if !ok || status.Status().Details == nil || len(status.Status().Details.Causes) == 0 {
		return []string{err.Error()}
	}
	for _, c := range status.Status().Details.Causes {
		text, _, _ := strings.Cut(c.Field+": "+c.Message, "\n") // followed by the difference of two objects
		causes = append(causes, text[:min(len(text), longestMessage)])
	}
	slices.Sort(causes)
	return causes
}
