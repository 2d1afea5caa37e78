// Command validation writes what upstream's API server says to objects that are
// nearly valid: one line for each change of one of the objects in a file, with
// the errors of a create. Nobody but a developer runs it; its
// output is the corpus of TestUpstreamValidation in internal/apiserver. It must
// never be a part of the product.
//
//	go run ./validation ../../internal/apiserver/testdata/validation
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
)

// line is one case of the corpus.
type line struct {
	Base   string          `json:"base"`             // kind/name
	Op     json.RawMessage `json:"op"`               // of a JSON patch
	Create []string        `json:"create,omitempty"` // what is wrong; nothing if it is accepted
}

func main() {
	log.SetFlags(0)
	if len(os.Args) != 2 {
		log.Fatal("usage: validation DIRECTORY")
	}
	if err := run(os.Args[1]); err != nil {
		log.Fatal(err)
	}
}

func run(dir string) error {
	bases, err := os.Open(filepath.Join(dir, "bases.yaml"))
	if err != nil {
		return err
	}
	defer bases.Close()
	f, err := os.Create(filepath.Join(dir, "corpus.jsonl"))
	if err != nil {
		return err
	}
	out, kept := bufio.NewWriter(f), &sample{seen: map[string]bool{}}
	for docs := utilyaml.NewYAMLReader(bufio.NewReader(bases)); ; {
		doc, err := docs.Read()
		if err != nil {
			break // the end
		}
		base, err := utilyaml.ToJSON(doc)
		if err != nil {
			return err
		}
		if string(base) == "null" {
			continue
		}
		if err := tryAll(out, base, kept); err != nil {
			return err
		}
	}
	if err := out.Flush(); err != nil {
		return err
	}
	return f.Close()
}

// tryAll writes a line for each change of base.
func tryAll(out *bufio.Writer, base []byte, kept *sample) error {
	var id struct {
		metav1.TypeMeta
		Metadata metav1.ObjectMeta
	}
	if err := json.Unmarshal(base, &id); err != nil {
		return err
	}
	gvk := id.GroupVersionKind()
	strategy, ok := strategies[gvk.GroupKind()]
	if !ok {
		return fmt.Errorf("no strategy for %v", gvk)
	}
	if errs := create(gvk, strategy, base); errs != nil {
		return fmt.Errorf("%s %s is not valid: %v", gvk.Kind, id.Metadata.Name, errs)
	}
	external, err := legacyscheme.Scheme.New(gvk)
	if err != nil {
		return err
	}
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	n := 0
	for _, op := range changes(external, base) {
		raw, err := json.Marshal([]any{op})
		if err != nil {
			return err
		}
		patch, err := jsonpatch.DecodePatch(raw)
		if err != nil {
			return err
		}
		changed, err := patch.Apply(base)
		if err != nil {
			return fmt.Errorf("%s: %w", raw, err)
		}
		l := line{Base: gvk.Kind + "/" + id.Metadata.Name, Create: create(gvk, strategy, changed)}
		if isDecodeError(l.Create) || !kept.isNew(gvk.Kind, l, op.Path) {
			continue
		}
		l.Op, err = json.Marshal(op)
		if err != nil {
			return err
		}
		if err := encoder.Encode(l); err != nil {
			return err
		}
		n++
	}
	log.Printf("%s: %d cases", id.Metadata.Name, n)
	return nil
}

// sample keeps the corpus small: one example of each answer about a field of a
// kind, and a quarter of what is accepted.
type sample struct {
	seen     map[string]bool
	accepted int
}

var (
	indexes = regexp.MustCompile(`\[[^\]]*\]`)
	places  = regexp.MustCompile(`/[0-9]+`)
	values  = regexp.MustCompile(` value: .*: `)
	quoted  = regexp.MustCompile(`"[^"]*"`)
)

func (s *sample) isNew(kind string, l line, path string) bool {
	if len(l.Create) == 0 {
		if !s.first(l.Base + places.ReplaceAllString(path, "")) {
			return false
		}
		s.accepted++
		return s.accepted%4 == 0
	}
	some := false
	for _, e := range l.Create {
		at, message, _ := strings.Cut(e, ": ")
		message = quoted.ReplaceAllString(values.ReplaceAllString(message, " value: "), "")
		if s.first(kind + " " + indexes.ReplaceAllString(at, "") + " " + message[:min(len(message), 60)]) {
			some = true
		}
	}
	return some
}

func (s *sample) first(key string) bool {
	was := s.seen[key]
	s.seen[key] = true
	return !was
}

const undecodable = "undecodable"

func isDecodeError(errs []string) bool { return len(errs) == 2 && errs[0] == undecodable }

func requestContext(gvk schema.GroupVersionKind, namespaced bool) context.Context {
	ctx := genericapirequest.WithNamespace(genericapirequest.NewContext(), "")
	if namespaced {
		ctx = genericapirequest.WithNamespace(ctx, metav1.NamespaceDefault)
	}
	return genericapirequest.WithRequestInfo(ctx, &genericapirequest.RequestInfo{APIGroup: gvk.Group, APIVersion: gvk.Version, IsResourceRequest: true})
}

// decode returns an object as a strategy gets it.
func decode(gvk schema.GroupVersionKind, strategy strategy, data []byte) (runtime.Object, metav1.Object, error) {
	obj, _, err := legacyscheme.Codecs.UniversalDecoder().Decode(data, &gvk, nil)
	if err != nil {
		return nil, nil, err
	}
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil, nil, err
	}
	if strategy.NamespaceScoped() && m.GetNamespace() == "" {
		m.SetNamespace(metav1.NamespaceDefault)
	}
	return obj, m, nil
}

// unlessPanic has a case left out that ends upstream's server's request: there
// are some, as a Job with a successPolicy and without completions.
func unlessPanic(errs *[]string) {
	if r := recover(); r != nil {
		*errs = []string{undecodable, fmt.Sprint(r)}
	}
}

func create(gvk schema.GroupVersionKind, strategy strategy, data []byte) (errs []string) {
	defer unlessPanic(&errs)
	obj, m, err := decode(gvk, strategy, data)
	if err != nil {
		return []string{undecodable, err.Error()}
	}
	rest.FillObjectMetaSystemFields(m)
	if m.GetName() == "" && m.GetGenerateName() != "" {
		m.SetName(strategy.GenerateName(m.GetGenerateName()))
	}
	return told(rest.BeforeCreate(strategy, requestContext(gvk, strategy.NamespaceScoped()), obj))
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
		text := c.Field + ": " + c.Message
		if len(text) > longest { // a dump of the object, or of a long value
			text = text[:longest]
		}
		all = append(all, text)
	}
	slices.Sort(all)
	return all
}
