package apiserver

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
)

// aliases is YAML whose references expand to nine times nine times nine times…
func aliases() string {
	b := "a: &a [x,x,x,x,x,x,x,x,x]\n"
	for c := byte('b'); c <= 'i'; c++ {
		b += fmt.Sprintf("%c: &%c [%s*%c]\n", c, c, strings.Repeat(fmt.Sprintf("*%c,", c-1), 8), c-1)
	}
	return b
}

// Malformed requests get the same status as from upstream's server of this version
// (hack/reference-apiserver).
func TestBadWire(t *testing.T) {
	r := start(t, t.TempDir())
	const (
		path  = "/api/v1/namespaces/default/configmaps"
		yaml  = "application/yaml"
		merge = "application/merge-patch+json"
		patch = "application/json-patch+json"
		smp   = "application/strategic-merge-patch+json"
		apply = "application/apply-patch+yaml"
		defs  = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions?dryRun=All"
	)
	object := func(name, rest string) string {
		return `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"` + name + `"}` + rest + `}`
	}
	fields := func(value string) string {
		data := map[string]string{}
		for i := range 10_000 {
			data[fmt.Sprint("k", i)] = value
		}
		b, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "ConfigMap",
			"metadata": map[string]string{"name": "fields"}, "data": data})
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	terms := func(format string) string {
		var all []string
		for i := range 10_000 {
			all = append(all, fmt.Sprintf(format, i))
		}
		return strings.Join(all, ",")
	}
	definition := func(schema string) string {
		return `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"as.ex.org"},"spec":{"group":"ex.org","names":{"plural":"as","kind":"A"},"scope":"Namespaced",` +
			`"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":` + schema + `}}]}}`
	}
	nested := strings.Repeat("[1,2,3,4,5,6,7,8,9,10].all(x,", 8) + "true" + strings.Repeat(")", 8)
	for _, c := range []struct {
		name, method, path, kind, body string
		status                         int
	}{
		{"an object to begin with", "POST", path, "application/json", object("a", ""), 201},
		{"YAML of aliases", "POST", path, yaml, aliases(), 400},
		{"applied YAML of aliases", "PATCH", path + "/b?fieldManager=m", apply, aliases(), 400},
		{"YAML that holds itself", "POST", path, yaml, "a: &a [*a]\n", 400},
		{"two documents", "POST", path, yaml,
			"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: first}\n---\napiVersion: v1\n", 201},
		{"more behind the object", "POST", path, "application/json", object("c", "") + "{}", 400},
		{"nothing", "POST", path, "application/json", "", 400},
		{"null", "POST", path, "application/json", "null", 422},
		{"a list", "POST", path, "application/json", "[]", 400},
		{"byte order mark", "POST", path, "application/json", "\ufeff" + object("d", ""), 400},
		{"name that is not UTF-8", "POST", path, "application/json", object("d\xff", ""), 422},
		{"label that is not UTF-8", "POST", path, "application/json",
			`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"d","labels":{"a":"` + "\xff" + `"}}}`, 422},
		{"key that is not UTF-8", "POST", path, "application/json", object("d", `,"data":{"`+"\xff"+`":"x"}`), 422},
		{"value that is not UTF-8", "POST", path, "application/json", object("d", `,"data":{"x":"`+"\xff"+`"}`), 201},
		{"YAML that is not UTF-8", "POST", path, yaml, "metadata: {name: \"\xff\"}\n", 400},
		{"path that is not UTF-8", "GET", path + "/%ff%fe", "", "", 404},
		{"namespace, not UTF-8", "POST", "/api/v1/namespaces/%ff/configmaps", "application/json", object("d", ""),
			404},
		{"label selector that is not UTF-8", "GET", path + "?labelSelector=a%3D%ff", "", "", 400},
		{"protobuf that is cut off", "POST", path, runtime.ContentTypeProtobuf,
			"k8s\x00\n\x0f\n\x02v1\x12\tConfigMap\x12\x53\n\x04", 400},
		{"no protobuf", "POST", path, runtime.ContentTypeProtobuf, "hello", 400},
		{"CBOR", "POST", path, "application/cbor", "\xd9\xd9\xf7\xa0", 415},
		{"applied CBOR", "PATCH", path + "/a?fieldManager=m", "application/apply-patch+cbor", "\xd9\xd9\xf7\xa0", 415},
		{"two types", "POST", path, "application/json, text/html", object("e", ""), 415},
		{"10,000 label terms", "GET", path + "?labelSelector=" + terms("k%d!%%3Dv"), "", "", 200},
		{"10,000 field terms", "GET", path + "?fieldSelector=" + terms("metadata.name!%%3Dn%d"), "", "", 200},
		{"limit that is not a number", "GET", path + "?limit=99999999999999999999", "", "", 400},
		{"patch that is not a list", "PATCH", path + "/a", patch, "{}", 400},
		{"unknown operation", "PATCH", path + "/a", patch, `[{"op":"frob","path":"/x"}]`, 422},
		{"null for an operation", "PATCH", path + "/a", patch, `[null]`, 422},
		{"index beyond numbers", "PATCH", path + "/a", patch,
			`[{"op":"add","path":"/metadata/finalizers/99999999999999999999","value":"x"}]`, 422},
		{"deep path", "PATCH", path + "/a", patch,
			`[{"op":"add","path":"` + strings.Repeat("/a", 5000) + `","value":1}]`, 422},
		{"nothing left", "PATCH", path + "/a", patch, `[{"op":"replace","path":"","value":{}}]`, 400},
		{"10,000 operations", "PATCH", path + "/a", patch,
			"[" + strings.Repeat(`{"op":"test","path":"/kind","value":"ConfigMap"},`, 9999) +
				`{"op":"test","path":"/kind","value":"ConfigMap"}]`, 200},
		{"list for a merge patch", "PATCH", path + "/a", merge, "[]", 400},
		{"null for a merge patch", "PATCH", path + "/a", merge, "null", 400},
		{"another kind by a patch", "PATCH", path + "/a", merge, `{"kind":"Secret"}`, 422},
		{"unknown directive", "PATCH", path + "/a", smp, `{"$patch":"explode"}`, 500}, // as upstream
		{"another name applied", "PATCH", path + "/f?fieldManager=m", apply, object("g", ""), 400},
		{"managed fields applied", "PATCH", path + "/f?fieldManager=m", apply,
			`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"f","managedFields":[{}]}}`, 400},
		{"10,000 fields applied", "PATCH", path + "/fields?fieldManager=m", apply, fields("1"), 201},
		{"10,000 fields taken over", "PATCH", path + "/fields?fieldManager=n&force=true", apply, fields("2"), 200},
		{"10,000 conflicts", "PATCH", path + "/fields?fieldManager=m", apply, fields("3"), 409},
		{"name of 254", "POST", path, "application/json", object(strings.Repeat("n", 254), ""), 422},
		// as upstream
		{"version of a new object", "POST", path, "application/json",
			`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"h","resourceVersion":"5"}}`, 500},
		{"continue from elsewhere", "GET",
			path + "?limit=1&continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MSwic3RhcnQiOiIuLi8uLi9zZWNyZXRzLyJ9", "", "",
			400},
		{"grace that is none", "DELETE", path + "/a", "application/json",
			`{"kind":"DeleteOptions","apiVersion":"v1","propagationPolicy":"Explode"}`, 422},
		{"schema of 1000 levels", "POST", defs, "application/json",
			definition(strings.Repeat(`{"type":"object","properties":{"a":`, 1000) + `{"type":"string"}` +
				strings.Repeat("}}", 1000)), 201},
		{"rule of cubic cost", "POST", defs, "application/json",
			definition(
				`{"type":"object","properties":{"l":{"type":"array","items":{"type":"string"},"x-kubernetes-validations":[{"rule":"self.all(a,self.all(b,self.all(c,a!=b||b!=c)))"}]}}}`), 422},
		{"schema that refers", "POST", defs, "application/json",
			definition(`{"type":"object","properties":{"l":{"$ref":"#"}}}`), 422},
		{"pattern too large", "POST", defs, "application/json",
			definition(`{"type":"object","properties":{"l":{"type":"string","pattern":"(a{1000}){1000}"}}}`), 422},
		{"device selector of huge cost", "POST", "/apis/resource.k8s.io/v1/deviceclasses?dryRun=All",
			"application/json",
			`{"apiVersion":"resource.k8s.io/v1","kind":"DeviceClass","metadata":{"name":"d"},"spec":{"selectors":[{"cel":{"expression":"` + nested + `"}}]}}`, 422},
	} {
		kind := map[string]string{"Content-Type": c.kind}
		status, text, _ := r.raw(t, c.method, c.path, kind, []byte(c.body))
		if status != c.status || status >= http.StatusBadRequest && text == "" {
			t.Errorf("%s: %d %.300s, want %d", c.name, status, text, c.status)
		}
	}
}
