package main

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"log"
	"reflect"
	"regexp"
	"sort"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// op is one operation of a JSON patch.
type op struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// MarshalJSON writes a value that is empty, too.
func (o op) MarshalJSON() ([]byte, error) {
	if o.Op == "remove" {
		return json.Marshal(map[string]any{"op": o.Op, "path": o.Path})
	}
	return json.Marshal(map[string]any{"op": o.Op, "path": o.Path, "value": o.Value})
}

// depth is how far what is added to an object is filled.
const depth = 2

// changes returns all single changes of an object of external's type: each value
// removed and replaced by bad and border ones, each missing one added. With only
// they are limited to the paths that it matches, and may be in the status.
func changes(external runtime.Object, base []byte, only *regexp.Regexp) []op {
	var value any
	if err := json.Unmarshal(base, &value); err != nil {
		log.Fatal(err)
	}
	w := &walker{only: only}
	w.value("", reflect.TypeOf(external).Elem(), value)
	return w.ops
}

type walker struct {
	only *regexp.Regexp
	ops  []op
}

func (w *walker) add(kind, path string, value any) {
	if w.only != nil {
		if w.only.MatchString(path) {
			w.ops = append(w.ops, op{kind, path, value})
		}
		return
	}
	// What is in every template is tried with pods; here a part of it is enough.
	if i := strings.Index(path, "/template/spec/"); i >= 0 {
		h := fnv.New32()
		_, _ = h.Write([]byte(path + fmt.Sprint(value)))
		if h.Sum32()%23 != 0 {
			return
		}
	}
	w.ops = append(w.ops, op{kind, path, value})
}

func escape(key string) string {
	return strings.ReplaceAll(strings.ReplaceAll(key, "~", "~0"), "/", "~1")
}

// value tries the changes of one value that is there.
func (w *walker) value(path string, t reflect.Type, value any) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if path != "" {
		w.add("remove", path, nil)
	}
	if v, ok := value.(map[string]any); ok && t.Kind() == reflect.Struct && !isScalar(t) {
		for _, f := range fieldsOf(t) {
			at := path + "/" + f.name
			if untried[at] && (w.only == nil || at != "/status") {
				continue
			}
			if inner, there := v[f.name]; there {
				w.value(at, f.t, inner)
				continue
			}
			for _, c := range candidates(f.t, depth) {
				if !later.MatchString(path) {
					w.add("add", at, c)
				}
			}
		}
		return
	}
	for _, c := range candidates(t, depth) {
		w.add("replace", path, c)
	}
	if isScalar(t) {
		return
	}
	switch v := value.(type) {
	case map[string]any:
		for _, k := range sortedKeys(v) {
			w.value(path+"/"+escape(k), t.Elem(), v[k])
		}
	case []any:
		if len(v) > 0 {
			w.add("add", path+"/-", v[0]) // a double
		}
		if t.Elem().Kind() != reflect.Uint8 {
			for _, c := range candidates(t.Elem(), depth-1) {
				w.add("add", path+"/-", c)
			}
			for i, x := range v {
				w.value(fmt.Sprintf("%s/%d", path, i), t.Elem(), x)
			}
		}
	}
}

// later are all but the first elements of lists: what they may have is tried with the first.
var later = regexp.MustCompile(`/[1-9][0-9]*(/|$)`)

// untried are fields whose change makes it another object, or that the server sets.
var untried = map[string]bool{
	"/apiVersion": true, "/kind": true, "/status": true, "/metadata/namespace": true, "/metadata/uid": true,
	"/metadata/creationTimestamp": true,
	"/metadata/deletionTimestamp": true, "/metadata/deletionGracePeriodSeconds": true, "/metadata/managedFields": true,
	"/metadata/resourceVersion": true,
	"/metadata/selfLink":        true, "/metadata/generation": true, "/metadata/generateName": true,
}

type fieldOf struct {
	name string
	t    reflect.Type
}

// fieldsOf returns the fields of a struct as JSON names them.
func fieldsOf(t reflect.Type) []fieldOf {
	var all []fieldOf
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-" || !f.IsExported():
		case name == "":
			all = append(all, fieldsOf(f.Type)...)
		default:
			all = append(all, fieldOf{name, f.Type})
		}
	}
	return all
}

var (
	quantity    = reflect.TypeFor[resource.Quantity]()
	intOrString = reflect.TypeFor[intstr.IntOrString]()
	timeType    = reflect.TypeFor[metav1.Time]()
	microTime   = reflect.TypeFor[metav1.MicroTime]()
	duration    = reflect.TypeFor[metav1.Duration]()
	extension   = reflect.TypeFor[runtime.RawExtension]()
)

func isScalar(t reflect.Type) bool {
	switch t {
	case quantity, intOrString, timeType, microTime, duration, extension:
		return true
	}
	return false
}

// candidates are values of a type that may be right or wrong.
func candidates(t reflect.Type, left int) []any {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t {
	case quantity:
		if left < depth {
			return []any{"-1", "1"}
		}
		return []any{"-1", "0", "1", "1500m", "1Gi"}
	case intOrString:
		if left < depth {
			return []any{-1, 1, "Bad_Name!"}
		}
		return []any{-1, 0, 1, 70000, "", "10%", "150%", "-1%", "Bad_Name!"}
	case timeType:
		return []any{"2026-01-02T03:04:05Z"}
	case microTime:
		return []any{"2026-01-02T03:04:05.000006Z"}
	case duration:
		return []any{"0s", "-1s", "1m"}
	case extension:
		return []any{map[string]any{"a": "b"}}
	}
	switch t.Kind() {
	case reflect.String:
		if left < depth {
			return []any{"", "x", "Bad Value!"}
		}
		return []any{"", "x", "Bad Value!", "a/b", "../a", "/abs", "1.2.3.4", "*", strings.Repeat("a", 64),
			strings.Repeat("a", 300)}
	case reflect.Bool:
		return []any{true, false}
	case reflect.Int32, reflect.Int64, reflect.Int:
		if left < depth {
			return []any{-1, 1}
		}
		return []any{-1, 0, 1, 2, 101, 70000, 2000000001}
	case reflect.Float64:
		return []any{-1.0, 0.5}
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return []any{"", "AAAA"}
		}
		all := []any{[]any{}}
		if left > 0 {
			for _, c := range candidates(t.Elem(), left-1) {
				all = append(all, []any{c})
			}
			if c := candidates(t.Elem(), left-1); len(c) > 1 {
				all = append(all, []any{c[1], c[1]})
			}
		}
		return all
	case reflect.Map:
		if left == 0 {
			return []any{map[string]any{}}
		}
		values := candidates(t.Elem(), left-1)
		if len(values) == 0 {
			return nil
		}
		if left < depth {
			return []any{map[string]any{"Bad Key!": values[0]}, map[string]any{"key": values[len(values)-1]}}
		}
		all := []any{map[string]any{"": values[0]}, map[string]any{"Bad Key!": values[0]},
			map[string]any{"a/b/c": values[0]}, map[string]any{strings.Repeat("a", 64): values[0]}}
		for _, v := range values {
			all = append(all, map[string]any{"key": v})
		}
		return all
	case reflect.Struct:
		all := []any{map[string]any{}}
		if left > 0 {
			for _, f := range fieldsOf(t) {
				for _, c := range candidates(f.t, left-1) {
					all = append(all, map[string]any{f.name: c})
				}
			}
		}
		return all
	}
	return nil
}

func sortedKeys(m map[string]any) []string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}
