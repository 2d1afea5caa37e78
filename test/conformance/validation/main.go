// Command validation writes the responses of upstream's API server to objects that are nearly valid: one line for each
// change of one of the objects in a file, with the errors of a create, and the stored form of those that it accepts.
// Only developers run it; its output is the corpus of TestUpstreamValidation in internal/apiserver. It must never be a
// part of the product.
//
//	go run ./validation ../../internal/apiserver/testdata/validation
//	go run ./validation -all ../../internal/apiserver/testdata/validation   # all questions of grammar
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/capabilities"
)

// line is one case of the corpus: a change of an object, and what is wrong with
// the outcome; nothing if it is accepted.
type line struct {
	Base string          `json:"base"`          // kind/name
	Sub  string          `json:"sub,omitempty"` // a subresource, of which there are only updates
	Op   json.RawMessage `json:"op"`            // of a JSON patch

	// Create is the result of creating the changed object.
	Create []string `json:"create,omitempty"`
	// Update is the result of updating the stored object with the change; the same as Create if missing.
	Update *[]string `json:"update,omitempty"`
	// Kept is the result of adding a label to an object that was stored with the change; the same as Create if missing.
	Kept *[]string `json:"kept,omitempty"`
	// Warnings are those of a create, or of an update if the object can't be made.
	Warnings []string `json:"warnings,omitempty"`

	// Stored and Updated are how what is stored differs from what was sent with a create and an update that were
	// accepted. The first line of an object has no change; others say what is not so there.
	Stored  []string `json:"stored,omitempty"`
	Updated []string `json:"updated,omitempty"`
}

func main() {
	log.SetFlags(0)
	capabilities.Setup(true, 0)   // privileged containers are a matter of admission
	klog.SetLogger(klog.Logger{}) // what upstream thinks of its own rules
	all := flag.Bool("all", false, "write all questions of the fields' grammar, not one for each answer")
	flag.Parse()
	if flag.NArg() != 1 {
		log.Fatal("usage: validation [-all] DIRECTORY")
	}
	if err := run(flag.Arg(0), *all); err != nil {
		log.Fatal(err)
	}
}

// corpus is one of the files that are written.
type corpus struct {
	*json.Encoder
	lines *bufio.Writer
	file  *os.File
}

func newCorpus(path string) (*corpus, error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	lines := bufio.NewWriter(f)
	c := &corpus{json.NewEncoder(lines), lines, f}
	c.SetEscapeHTML(false)
	return c, nil
}

func (c *corpus) close() error { return errors.Join(c.lines.Flush(), c.file.Close()) }

func run(dir string, all bool) error {
	out, err := newCorpus(filepath.Join(dir, "corpus.jsonl"))
	if err != nil {
		return err
	}
	byGrammar, err := newCorpus(filepath.Join(dir, "grammar.jsonl"))
	if err != nil {
		return err
	}
	var bad error
	kept := &sample{seen: map[string]bool{}}
	generated := &sample{seen: map[string]bool{}, all: all}
	for _, bases := range []struct {
		file   string
		stored bool
	}{{"bases.yaml", false}, {"stored.yaml", true}} {
		text, err := os.Open(filepath.Join(dir, bases.file))
		if err != nil {
			return err
		}
		for docs := utilyaml.NewYAMLReader(bufio.NewReader(text)); ; {
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
			t, err := newTrial(out, base, kept, bases.stored)
			if err != nil {
				return err
			}
			if err := t.all(); err != nil {
				bad = errors.Join(bad, fmt.Errorf("%s: %w", t.name, err))
				continue
			}
			t.out, t.kept = byGrammar, generated
			if err := t.grammar(); err != nil {
				bad = errors.Join(bad, fmt.Errorf("%s: %w", t.name, err))
			}
		}
		if err := text.Close(); err != nil {
			return err
		}
	}
	return errors.Join(bad, out.close(), byGrammar.close())
}

// trial tries the changes of one object.
type trial struct {
	upstream
	out    *corpus
	kept   *sample
	stored bool // it can't be made as it is: only updates are tried
	name   string
	base   []byte
	cases  int
}

func newTrial(out *corpus, base []byte, kept *sample, stored bool) (*trial, error) {
	var id struct {
		metav1.TypeMeta
		Metadata metav1.ObjectMeta
	}
	if err := json.Unmarshal(base, &id); err != nil {
		return nil, err
	}
	gvk := id.GroupVersionKind()
	t := &trial{out: out, kept: kept, stored: stored, name: gvk.Kind + "/" + id.Metadata.Name, base: base}
	t.gvk = gvk
	strategy, ok := strategies[gvk.GroupKind()]
	if !ok {
		return nil, fmt.Errorf("no strategy for %v", gvk)
	}
	t.main = strategy
	return t, nil
}

// all writes a line for each change of the object.
func (t *trial) all() error {
	unchanged := t.create(t.base)
	if unchanged.errs != nil && !t.stored {
		return fmt.Errorf("is not valid: %v", unchanged.errs)
	}
	old, err := t.asStored(t.base)
	if err != nil {
		return err
	}
	text, err := t.encode(old)
	if err != nil {
		return err
	}
	kept := t.update("", old, text)
	if kept.errs != nil {
		return fmt.Errorf("is not valid as it is stored: %v", kept.errs)
	}
	if err := t.write(line{Base: t.name, Warnings: unchanged.warnings, Stored: unchanged.stored, Updated: kept.stored},
		op{"test", "/kind", t.gvk.Kind}); err != nil {
		return err
	}
	external, err := legacyscheme.Scheme.New(t.gvk)
	if err != nil {
		return err
	}
	for _, op := range changes(external, t.base, nil) {
		l, ok, err := t.request(op, unchanged, old, text)
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		if err := t.write(l, op); err != nil {
			return err
		}
	}
	for _, sub := range slices.Sorted(maps.Keys(parts[t.gvk.GroupKind()])) {
		for _, op := range changes(external, t.base, parts[t.gvk.GroupKind()][sub].fields) {
			replaced, err := patched(text, op)
			if err != nil {
				continue // it is not there by default
			}
			a := t.update(sub, old, replaced)
			if a.undecodable {
				continue
			}
			if err := t.write(line{Base: t.name, Sub: sub, Update: &a.errs, Warnings: a.warnings, Updated: a.stored},
				op); err != nil {
				return err
			}
		}
	}
	log.Printf("%s: %d cases", t.name, t.cases)
	return nil
}

// request returns the results of a change; false if it can't be decoded. old is the object as it is stored, text as a
// client gets it.
func (t *trial) request(op op, unchanged answer, old runtime.Object, text []byte) (line, bool, error) {
	l := line{Base: t.name}
	changed, err := patched(t.base, op)
	if err != nil {
		return l, false, err
	}
	var created, updated answer
	if !t.stored {
		if created = t.create(changed); created.undecodable {
			return l, false, nil
		}
		l.Create, l.Warnings = created.errs, created.warnings
		if created.errs == nil {
			l.Stored = beyond(created.stored, unchanged.stored)
		}
		if op.Path != "/metadata/name" && op.Path != "/metadata" {
			l.Kept = unlessSame(t.touch(changed), created)
		}
	}
	if replaced, err := patched(text, op); err == nil {
		if updated = t.update("", old, replaced); updated.undecodable {
			return l, false, nil
		}
		l.Update, l.Updated = unlessSame(updated, created), updated.stored
		if t.stored {
			l.Warnings = updated.warnings
		}
	}
	return l, true, nil
}

// grammar writes a line for each question about the grammar of a field, once for all objects that have the field.
func (t *trial) grammar() error {
	var base map[string]any
	if err := json.Unmarshal(t.base, &base); err != nil {
		return err
	}
	external, err := legacyscheme.Scheme.New(t.gvk)
	if err != nil {
		return err
	}
	unchanged := t.create(t.base)
	old, err := t.asStored(t.base)
	if err != nil {
		return err
	}
	text, err := t.encode(old)
	if err != nil {
		return err
	}
	for _, q := range questions(t.gvk.Kind, external, base, nil) {
		if !t.kept.first(q.id + fmt.Sprint(t.stored)) {
			continue
		}
		l, ok, err := t.request(q.op, unchanged, old, text)
		if err != nil {
			return err
		}
		if ok && t.kept.keeps(q, l) {
			if err := t.put(l, q.op); err != nil {
				return err
			}
		}
	}
	for _, sub := range slices.Sorted(maps.Keys(parts[t.gvk.GroupKind()])) {
		for _, q := range questions(t.gvk.Kind, external, base, parts[t.gvk.GroupKind()][sub].fields) {
			if !t.kept.first(sub + q.id + fmt.Sprint(t.stored)) {
				continue
			}
			replaced, err := patched(text, q.op)
			if err != nil {
				continue // it is not there by default
			}
			a := t.update(sub, old, replaced)
			l := line{Base: t.name, Sub: sub, Update: &a.errs, Warnings: a.warnings, Updated: a.stored}
			if !a.undecodable && t.kept.keeps(q, l) {
				if err := t.put(l, q.op); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func unlessSame(a, b answer) *[]string {
	if a.undecodable || slices.Equal(a.errs, b.errs) {
		return nil
	}
	if a.errs == nil {
		a.errs = []string{}
	}
	return &a.errs
}

func (t *trial) write(l line, op op) error {
	if op.Op != "test" && !t.kept.isNew(t.gvk.Kind, l, op.Path) {
		return nil
	}
	return t.put(l, op)
}

func (t *trial) put(l line, op op) error {
	t.cases++
	var err error
	if l.Op, err = json.Marshal(op); err != nil {
		return err
	}
	return t.out.Encode(l)
}

func patched(object []byte, op op) ([]byte, error) {
	raw, err := json.Marshal([]any{op})
	if err != nil {
		return nil, err
	}
	patch, err := jsonpatch.DecodePatch(raw)
	if err != nil {
		return nil, err
	}
	return patch.Apply(object)
}

// sample keeps the corpus small: one example of each answer about a field of a
// kind and of each way to complete an object, and a part of what is accepted.
type sample struct {
	seen     map[string]bool
	accepted int
	all      bool // keep questions of the grammar with any result
}

// keeps reports whether the result of a question of the grammar is kept: only the first of equal results for a field
// is.
func (s *sample) keeps(q question, l line) bool {
	at, _, _ := strings.Cut(q.id, "=")
	answer := []string{"answer", at, l.Sub}
	lists := [][]string{l.Create, l.Warnings}
	if l.Update != nil {
		lists = append(lists, *l.Update)
	}
	for _, list := range lists {
		for _, text := range list {
			_, text, _ = strings.Cut(text, ": ")
			answer = append(answer, quoted.ReplaceAllString(values.ReplaceAllString(text, " value: "), ""))
		}
		answer = append(answer, "/")
	}
	return s.first(strings.Join(answer, "\n")) || s.all || q.always
}

var (
	indexes = regexp.MustCompile(`\[[^\]]*\]`)
	places  = regexp.MustCompile(`/[0-9]+`)
	values  = regexp.MustCompile(` value: .*: `)
	quoted  = regexp.MustCompile(`"[^"]*"`)
)

func (s *sample) isNew(kind string, l line, path string) bool {
	some := s.news(kind+" "+l.Sub, l.Create)
	if l.Update != nil {
		some = s.news(kind+" update "+l.Sub, *l.Update) || some
	}
	if len(l.Warnings) > 0 {
		some = s.news(kind+" warning "+l.Sub, l.Warnings) || some
	}
	for _, set := range slices.Concat(l.Stored, l.Updated) {
		if !strings.HasPrefix(set, "-") {
			some = s.first(kind+" stored "+l.Sub+places.ReplaceAllString(set, "")) || some
		}
	}
	if len(l.Create) > 0 || some {
		return some
	}
	if l.Update != nil && len(*l.Update) > 0 || !s.first(l.Base+l.Sub+places.ReplaceAllString(path, "")) {
		return false
	}
	s.accepted++
	return s.accepted%3 == 0
}

// news reports whether one of the errors is the first of its kind.
func (s *sample) news(prefix string, errs []string) bool {
	some := false
	for _, e := range errs {
		at, message, _ := strings.Cut(e, ": ")
		message = quoted.ReplaceAllString(values.ReplaceAllString(message, " value: "), "")
		if s.first(prefix + " " + indexes.ReplaceAllString(at, "") + " " + message[:min(len(message), 60)]) {
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
