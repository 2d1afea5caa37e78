package apiserver

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
)

// upstreamDir has objects, and what upstream's API server says to changes of
// them (made by test/conformance/validation).
const upstreamDir = "testdata/validation"

// upstreamCase is one change of one object.
type upstreamCase struct {
	Base   string          `json:"base"`   // kind/name
	Op     json.RawMessage `json:"op"`     // of a JSON patch
	Create []string        `json:"create"` // errors of a create, as "field: message"; none if it is accepted
}

// Requests that upstream refuses are refused for the same reasons, in the same
// words, about the same fields, and what it accepts is accepted.
func TestUpstreamValidation(t *testing.T) {
	r := start(t, t.TempDir())
	if _, err := r.admin(t).CoreV1().ServiceAccounts("default").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	objects := map[string]*object{}
	for key, base := range upstreamBases(t) {
		objects[key] = r.object(t, base)
	}
	known := upstreamKnown(t)
	f, err := os.Open(filepath.Join(upstreamDir, "corpus.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	asked, different := 0, 0
	for lines := json.NewDecoder(f); ; {
		var c upstreamCase
		if err := lines.Decode(&c); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		s := objects[c.Base]
		if s == nil {
			t.Fatalf("no object %s", c.Base)
		}
		{
			want := c.Create
			got, comparable := s.create(t, c)
			asked++
			if !comparable || slices.Equal(general(got), general(want)) {
				continue
			}
			line := fmt.Sprintf("%s %s", c.Base, c.Op)
			if _, ok := known[line]; ok {
				known[line] = true
				continue
			}
			different++
			t.Errorf("%s\n\tupstream %q\n\tcarob    %q", line, want, got)
		}
	}
	t.Logf("%d requests, %d answered differently, %d differences known", asked, different, len(known))
	for line, seen := range known {
		if !seen {
			t.Errorf("known.txt: there is no difference any more: %s", line)
		}
	}
}

func upstreamBases(t *testing.T) map[string]*unstructured.Unstructured {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(upstreamDir, "bases.yaml"))
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

// upstreamKnown returns the differences that are there on purpose.
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

// object is one of the corpus. None is stored: some would change what is said of others.
type object struct {
	objects dynamic.ResourceInterface
	base    *unstructured.Unstructured
}

func (r *running) object(t *testing.T, base *unstructured.Unstructured) *object {
	t.Helper()
	gvr, _ := meta.UnsafeGuessKindToResource(base.GroupVersionKind())
	if base.GetKind() == "Endpoints" {
		gvr.Resource = "endpoints"
	}
	resource := r.objects(t).Resource(gvr)
	objects := resource.Namespace("default")
	switch base.GetKind() {
	case "Namespace", "Node", "PersistentVolume", "ClusterRole", "ClusterRoleBinding", "StorageClass", "CSIDriver", "CSINode", "VolumeAttachment", "PriorityClass", "RuntimeClass", "IngressClass":
		objects = resource
	}
	if _, err := objects.Create(t.Context(), base, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		t.Fatalf("%s %s: %v", base.GetKind(), base.GetName(), err)
	}
	return &object{objects, base}
}

func (s *object) create(t *testing.T, c upstreamCase) ([]string, bool) {
	t.Helper()
	u := changed(t, s.base, c.Op)
	_, err := s.objects.Create(t.Context(), u, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	return told(err)
}

// changed returns a copy of u with one change; nil if what is stored has nothing to change there.
func changed(t *testing.T, u *unstructured.Unstructured, op json.RawMessage) *unstructured.Unstructured {
	t.Helper()
	text, err := u.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	patch, err := jsonpatch.DecodePatch([]byte("[" + string(op) + "]"))
	if err != nil {
		t.Fatal(err)
	}
	if text, err = patch.Apply(text); err != nil {
		return nil
	}
	out := &unstructured.Unstructured{}
	if err := json.Unmarshal(text, &out.Object); err != nil {
		t.Fatal(err)
	}
	return out
}

// general leaves out what a message shows of an object (upstream shows its
// internal form), and what is said twice.
func general(errs []string) []string {
	var all []string
	for _, e := range errs {
		if i := strings.Index(e, " value: "); i >= 0 && strings.ContainsAny(e[i+8:min(len(e), i+9)], "{[") {
			e = e[:i]
		}
		all = append(all, e)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// longestTold is how much of a message the corpus has, in bytes.
const longestTold = 120

// told returns the causes of a refusal. What admission refuses can't be compared:
// the corpus has none.
func told(err error) (causes []string, comparable bool) {
	if err == nil {
		return nil, true
	}
	if apierrors.IsForbidden(err) {
		return nil, false
	}
	status, ok := err.(apierrors.APIStatus)
	if !ok || status.Status().Details == nil || len(status.Status().Details.Causes) == 0 {
		return []string{err.Error()}, true
	}
	for _, c := range status.Status().Details.Causes {
		text := c.Field + ": " + c.Message
		causes = append(causes, text[:min(len(text), longestTold)])
	}
	slices.Sort(causes)
	return causes, true
}
