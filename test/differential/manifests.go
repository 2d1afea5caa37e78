package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

const (
	definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	mostBytes   = 3 << 20 // of a manifest
)

// manifests are the objects of files that other projects deploy, each once.
type manifests struct {
	crds, others []request // without a path
	kinds        map[string]resource
}

// resource is how a kind is served.
type resource struct {
	path       string // of its objects, with $NS
	namespaced bool
}

// readManifests reads all files of YAML and JSON below folders. Templates, and what else cannot be parsed, are left
// out.
func readManifests(dirs []string) (*manifests, error) {
	m := &manifests{kinds: map[string]resource{}}
	seen := map[string]bool{}
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() || !slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name)) {
				return err
			}
			for _, o := range readObjects(name) {
				text, err := json.Marshal(o)
				if err != nil || seen[string(text)] {
					continue
				}
				seen[string(text)] = true
				r := request{name: name, body: string(text), allocates: true}
				if o["kind"] == "CustomResourceDefinition" {
					m.crds = append(m.crds, r)
				} else {
					m.others = append(m.others, r)
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return m, nil
}

// readObjects returns the objects of a file; those of lists, too.
func readObjects(name string) (out []map[string]any) {
	f, err := os.Open(name)
	if err != nil {
		return nil
	}
	defer f.Close()
	documents := utilyaml.NewYAMLReader(bufio.NewReader(io.LimitReader(f, mostBytes)))
	for {
		text, err := documents.Read()
		if err != nil {
			return out
		}
		var o map[string]any
		if yaml.Unmarshal(text, &o) != nil {
			continue
		}
		items, _ := o["items"].([]any)
		for _, v := range append(items, o) {
			o, _ := v.(map[string]any)
			_, ok := o["metadata"].(map[string]any)
			if kind := stringOf(o, "kind"); ok && stringOf(o, "apiVersion") != "" && kind != "" && kind != "List" {
				out = append(out, o)
			}
		}
	}
}

func stringOf(o map[string]any, key string) string {
	s, _ := o[key].(string)
	return s
}

// manifests sends the objects as dry runs, created and applied. Before that, it makes the definitions of their kinds,
// which stay.
func (t *tester) manifests(ctx context.Context, dirs []string) error {
	m, err := readManifests(dirs)
	if err != nil {
		return err
	}
	fmt.Printf("%d definitions, %d objects\n", len(m.crds), len(m.others))
	var made []string
	for _, r := range m.crds {
		r.method, r.path, r.ignore = "POST", definitions+"?dryRun=All", []string{"status"}
		t.request(ctx, r)
		name := stringOf(m.metadata(r), "name")
		if slices.Contains(made, name) {
			continue
		}
		r.path = definitions
		if t.defines(ctx, r) {
			made = append(made, name)
		}
	}
	for _, name := range made {
		t.request(ctx, request{name: "condition", method: "GET", until: `"type":"Established","status":"True"`,
			ignore: []string{"body"}, path: definitions + "?watch=1&timeoutSeconds=10&fieldSelector=metadata.name=" + name})
		t.request(ctx, request{name: "definition", method: "GET", path: definitions + "/" + name})
	}
	for _, r := range m.others {
		t.object(ctx, m, r)
	}
	return nil
}

// mostTries is how often a definition is sent: on a machine with other work, a request may time out.
const mostTries = 5

// defines makes a definition on both sides, and reports whether upstream takes it.
func (t *tester) defines(ctx context.Context, r request) bool {
	for i, s := range []*side{t.sides[1], t.sides[0]} {
		a := s.send(ctx, r)
		for try := 1; a.err != nil && try < mostTries; try++ {
			a = s.send(ctx, r)
		}
		if i == 0 && a.err == nil && a.status != 201 && a.status != 409 {
			return false // refused, as the dry run was on both
		}
		if a.status != 201 && a.status != 409 {
			fail("%s cannot be made: %d %v", r.name, a.status, a.err)
		}
	}
	return true
}

// metadata returns the metadata of the object of a request.
func (m *manifests) metadata(r request) map[string]any {
	var o struct {
		Metadata map[string]any `json:"metadata"`
	}
	_ = json.Unmarshal([]byte(r.body), &o) // it was marshaled
	return o.Metadata
}

// configured are the fields in which the two servers are configured otherwise: carob has a default storage class, and
// each has its own administrator.
func configured(o map[string]any) []string {
	switch spec, _ := o["spec"].(map[string]any); {
	case o["kind"] == "PersistentVolumeClaim" && spec["storageClassName"] == nil:
		return []string{"spec.storageClassName"}
	case o["kind"] == "CertificateSigningRequest":
		return []string{"spec.username", "spec.uid", "spec.groups", "spec.extra"}
	}
	return nil
}

// metricsReader is a role that carob has, since the metrics API is built in; metrics-server brings it elsewhere.
const metricsReader = "system:aggregated-metrics-reader"

// builtIn reports whether only carob has an object from the start.
func builtIn(o map[string]any) bool {
	meta, _ := o["metadata"].(map[string]any)
	return o["kind"] == "ClusterRole" && stringOf(meta, "name") == metricsReader
}

// object sends one object as a dry run: created, also with strict validation, and applied.
func (t *tester) object(ctx context.Context, m *manifests, r request) {
	var o map[string]any
	if err := json.Unmarshal([]byte(r.body), &o); err != nil {
		fail("%v", err) // it was marshaled
	}
	kind, err := t.kind(ctx, m, stringOf(o, "apiVersion"), stringOf(o, "kind"))
	if err != nil || builtIn(o) {
		return // its kind is not served, or it cannot be created
	}
	meta := o["metadata"].(map[string]any)
	if kind.namespaced {
		meta["namespace"] = "$NS"
	}
	r.ignore = configured(o)
	delete(meta, "managedFields")
	if meta["generateName"] != nil {
		meta["name"] = "generated"
	}
	if spec, ok := o["spec"].(map[string]any); ok && o["kind"] == "Pod" {
		delete(spec, "serviceAccountName") // does not exist
	}
	text, err := json.Marshal(o)
	if err != nil {
		fail("%v", err)
	}
	r.body, r.method = string(text), "POST"
	for _, validation := range []string{"Warn", "Strict"} {
		r.path = kind.path + "?dryRun=All&fieldManager=differential&fieldValidation=" + validation
		t.request(ctx, r)
	}
	if name := stringOf(meta, "name"); name != "" && !strings.Contains(name, "/") {
		r.method, r.path = "PATCH", kind.path+"/"+url.PathEscape(name)+"?dryRun=All&fieldManager=differential&force=true"
		r.header = [][2]string{{"Content-Type", "application/apply-patch+yaml"}}
		t.request(ctx, r)
	}
}

var errNotServed = errors.New("not served")

// kind finds out how a kind is served, by the discovery of upstream's server.
func (t *tester) kind(ctx context.Context, m *manifests, version, kind string) (resource, error) {
	base := "/apis/" + version
	if !strings.Contains(version, "/") {
		base = "/api/" + version
	}
	if _, ok := m.kinds[version]; !ok {
		m.kinds[version] = resource{}
		a := t.sides[1].send(ctx, request{method: "GET", path: base})
		var list struct {
			Resources []struct {
				Name, Kind string
				Namespaced bool
			}
		}
		_ = json.Unmarshal(a.raw, &list) // an error has none
		for _, r := range list.Resources {
			path := base + "/" + r.Name
			if r.Namespaced {
				path = base + "/namespaces/$NS/" + r.Name
			}
			if !strings.Contains(r.Name, "/") {
				m.kinds[version+" "+r.Kind] = resource{path, r.Namespaced}
			}
		}
	}
	r, ok := m.kinds[version+" "+kind]
	if !ok {
		return r, errNotServed
	}
	return r, nil
}

// allocated hides what a server chooses for a Service or a Pod: addresses, ports, and names of volumes.
func allocated(v any) any {
	switch at := v.(type) {
	case map[string]any:
		for k, v := range at {
			switch s, _ := v.(string); {
			case slices.Contains([]string{"nodePort", "healthCheckNodePort", "clusterIP", "clusterIPs"}, k) && s != "None":
				at[k] = "<allocated>"
			case strings.HasPrefix(s, "kube-api-access-"):
				at[k] = "<token>"
			default:
				at[k] = allocated(v)
			}
		}
	case []any:
		for i := range at {
			at[i] = allocated(at[i])
		}
	}
	return v
}
