package apiserver

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apiserver/pkg/authentication/user"
	restclient "k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"
)

// target is a server for arbitrary requests. Whatever a client sends, an answer of 500 or more is a
// bug, and so is a panic, which becomes one.
type target struct {
	*running
	http  *http.Client
	paths map[schema.GroupVersionKind]string // paths of collections in namespace default
}

func newTarget(f *testing.F) *target {
	f.Helper()
	r := start(f, f.TempDir())
	cfg := r.ClientConfig("admin", user.SystemPrivilegedGroup)
	c, err := restclient.HTTPClientFor(cfg)
	if err != nil {
		f.Fatal(err)
	}
	t := &target{running: r, http: c, paths: map[schema.GroupVersionKind]string{}}
	for _, d := range r.descriptors() {
		for _, gv := range append([]schema.GroupVersion{d.Kind.GroupVersion()}, d.AlsoServed...) {
			t.paths[gv.WithKind(d.Kind.Kind)] = collection(gv, d.Plural, !d.Cluster)
		}
	}
	pods := schema.GroupVersionKind{Version: "v1", Kind: "Pod"}
	t.paths[pods] = collection(pods.GroupVersion(), "pods", true)
	return t
}

func collection(gv schema.GroupVersion, plural string, namespaced bool) string {
	path := "/apis/" + gv.String()
	if gv.Group == "" {
		path = "/api/v1"
	}
	if namespaced {
		path += "/namespaces/default"
	}
	return path + "/" + plural
}

// send returns the status of an answer; 0 if there was none in time.
func (t *target) send(ctx context.Context, method, path, query string, header http.Header, body []byte) (int, string) {
	req, err := http.NewRequestWithContext(ctx, method, "http://carob.invalid", bytes.NewReader(body))
	if err != nil {
		return 0, err.Error()
	}
	req.URL.Path, req.URL.RawQuery, req.Header = path, query, header
	resp, err := t.http.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil && ctx.Err() == nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(text)
}

func check(t *testing.T, status int, text, what string) {
	t.Helper()
	if status >= 500 {
		t.Fatalf("%s: %d %.2000s", what, status, text)
	}
}

// validObjects are those of the corpus of validation, as JSON.
func validObjects(f *testing.F) [][]byte {
	f.Helper()
	text, err := os.ReadFile(filepath.Join(upstreamDir, "bases.yaml"))
	if err != nil {
		f.Fatal(err)
	}
	var out [][]byte
	for doc := range bytes.SplitSeq(text, []byte("\n---\n")) {
		seed, err := utilyaml.ToJSON(doc)
		if err != nil {
			f.Fatal(err)
		}
		out = append(out, seed)
	}
	return out
}

// FuzzObjects creates objects of all kinds as dry runs: they are decoded, defaulted, admitted,
// validated, and printed as a table.
func FuzzObjects(f *testing.F) {
	target := newTarget(f)
	for i, seed := range validObjects(f) {
		f.Add(seed, false)
		if i%8 != 0 {
			continue
		}
		y, err := yaml.JSONToYAML(seed)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(y, true)
	}
	f.Fuzz(func(t *testing.T, data []byte, isYAML bool) {
		header := http.Header{"Content-Type": {"application/json"},
			"Accept": {"application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}}
		text := data
		if isYAML {
			header.Set("Content-Type", "application/yaml")
			text, _ = yaml.YAMLToJSON(data)
		}
		var id metav1.TypeMeta
		if json.Unmarshal(text, &id) != nil {
			return
		}
		path, ok := target.paths[id.GroupVersionKind()]
		if !ok {
			return
		}
		status, answer := target.send(t.Context(), http.MethodPost, path, "dryRun=All&fieldValidation=Warn", header,
			data)
		check(t, status, answer, "create")
	})
}

// FuzzPatches patches stored objects as dry runs, with each type of patch.
func FuzzPatches(f *testing.F) {
	target := newTarget(f)
	var paths []string
	for _, seed := range validObjects(f) {
		var o metav1.PartialObjectMetadata
		if err := json.Unmarshal(seed, &o); err != nil {
			f.Fatal(err)
		}
		path := target.paths[o.GroupVersionKind()]
		if path == "" || strings.HasPrefix(path, "/apis/admissionregistration") ||
			strings.HasPrefix(path, "/apis/apiregistration") {
			continue // stored ones affect the other requests
		}
		status, _ := target.send(f.Context(), http.MethodPost, path, "",
			http.Header{"Content-Type": {"application/json"}}, seed)
		if status != http.StatusCreated {
			continue // needs another object first
		}
		for i := range 4 {
			f.Add(uint(len(paths)), uint8(i), seed)
		}
		paths = append(paths, path+"/"+o.Name, path+"/"+o.Name+"/status", path+"/"+o.Name+"/scale")
	}
	if len(paths) < 3*20 {
		f.Fatalf("only %d objects could be stored", len(paths)/3)
	}
	kinds := []string{"application/json-patch+json", "application/merge-patch+json",
		"application/strategic-merge-patch+json", "application/apply-patch+yaml"}
	for i, path := range paths {
		if i%10 != 0 {
			continue
		}
		f.Add(uint(i), uint8(0),
			[]byte(
				`[{"op":"test","path":"/metadata/name","value":"x"},{"op":"add","path":"/metadata/labels","value":{"a":"b"}},{"op":"copy","from":"/spec","path":"/metadata/annotations"},{"op":"move","from":"/metadata/labels/a","path":"/metadata/labels/b~1c"},{"op":"remove","path":"/spec"},{"op":"replace","path":"/spec/x/-1","value":null}]`))
		f.Add(uint(i), uint8(1),
			[]byte(
				`{"metadata":{"labels":{"a":null},"finalizers":["example.com/f"],"ownerReferences":[{}],"managedFields":[{}]},"spec":{},"status":{"conditions":[{}]}}`))
		f.Add(uint(i), uint8(2),
			[]byte(
				`{"metadata":{"$deleteFromPrimitiveList/finalizers":["a"],"$retainKeys":["name"]},"spec":{"$patch":"replace","template":{"spec":{"containers":[{"name":"c","$patch":"delete"}],"$setElementOrder/containers":[{"name":"c"}]}},"ports":[{"port":1,"protocol":"TCP"}]}}`))
		f.Add(uint(i), uint8(3),
			[]byte("apiVersion: v1\nkind: "+filepath.Base(path)+"\nmetadata: {labels: {a: b}}\nspec: {}\n"))
	}
	f.Fuzz(func(t *testing.T, n uint, kind uint8, patch []byte) {
		path, as := paths[n%uint(len(paths))], kinds[int(kind)%len(kinds)]
		query := "dryRun=All&fieldManager=fuzz"
		if as == kinds[3] {
			query += "&force=true"
		}
		status, answer := target.send(t.Context(), http.MethodPatch, path, query, http.Header{"Content-Type": {as}},
			patch)
		if as == kinds[3] && (strings.Contains(answer, "failed to create typed patch object") ||
			strings.Contains(answer, "failed to convert new object")) {
			return // upstream's 500 for what does not fit the schema, see testFieldValidation
		}
		if as == kinds[2] && (strings.Contains(answer, "unknown patch type") ||
			strings.Contains(answer, "does not contain declared merge key")) {
			return // the library's 500, which upstream returns, too
		}
		check(t, status, answer, as+" of "+path)
	})
}

// FuzzQueries reads with all kinds of queries and Accept headers.
func FuzzQueries(f *testing.F) {
	target := newTarget(f)
	paths := []string{"/api/v1/namespaces/default/configmaps", "/api/v1/pods", "/api/v1/events",
		"/apis/apps/v1/deployments", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "/api/v1/nodes",
		"/api/v1/componentstatuses",
		"/apis", "/openapi/v3", "/openapi/v2", "/readyz", "/api/v1/namespaces/default",
		"/api/v1/namespaces/default/pods/none/log", "/api/v1/namespaces/default/pods/none/exec",
		"/api/v1/namespaces/default/pods/none/portforward",
		"/api/v1/namespaces/default/pods/none/proxy/x", "/api/v1/namespaces/default/services/https:none:1/proxy",
		"/api/v1/nodes/none:1/proxy/logs", "/apis/autoscaling/v1/horizontalpodautoscalers", "/version", "/metrics"}
	for _, q := range []string{"limit=1&continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6NSwic3RhcnQiOiJhXHUwMDAwIn0",
		"labelSelector=a in (b,c),!d,e!=f,g>1,h",
		"fieldSelector=metadata.name%3Da,metadata.namespace!=b,status.phase=x",
		"resourceVersion=0&resourceVersionMatch=NotOlderThan", "resourceVersion=5&resourceVersionMatch=Exact&limit=2",
		"watch=1&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&timeoutSeconds=1",
		"watch=true&resourceVersion=1", "includeObject=Metadata", "pretty=1", "verbose&exclude=etcd&exclude=x",
		"container=a&follow=false&previous=true&sinceSeconds=5&sinceTime=2020-01-01T00:00:00Z&timestamps=1&tailLines=-1&limitBytes=5&stream=Stdout",
		"command=a&command=b&stdin=1&stdout=1&stderr=1&tty=1", "ports=80&ports=x", "shardSelector=object",
		"hash=0123&timeout=1m&timeoutSeconds=-1", "kind=x&apiVersion=y&dryRun=No"} {
		for n := range paths {
			f.Add(uint(n), q, "application/json")
		}
		f.Add(uint(0), q, "application/json;as=Table;g=meta.k8s.io;v=v1,application/json")
		f.Add(uint(1), q, "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1")
		f.Add(uint(2), q, "application/yaml, */*;q=0.1")
		f.Add(uint(7), q, "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList;profile=nopeer")
	}
	f.Fuzz(func(t *testing.T, n uint, query, accept string) {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond) // the time limit of a watch
		defer cancel()
		status, answer := target.send(ctx, http.MethodGet, paths[n%uint(len(paths))], query,
			http.Header{"Accept": {accept}}, nil)
		if status == http.StatusGatewayTimeout || status == http.StatusServiceUnavailable || ctx.Err() != nil {
			return // a future version, an unavailable server
		}
		check(t, status, answer, paths[n%uint(len(paths))]+"?"+query)
	})
}

// FuzzUnauthenticated sends whole requests from the network without a certificate: nothing is done for
// them, whatever identity they claim.
func FuzzUnauthenticated(f *testing.F) {
	target := newTarget(f)
	for _, text := range []string{
		"Authorization: Bearer 0123ab.0123456789abcdef\n",
		"Authorization: Bearer eyJhbGciOiJub25lIn0.eyJpc3MiOiJrdWJlcm5ldGVzL3NlcnZpY2VhY2NvdW50In0.\n",
		"Authorization: Basic YTpi\n",
		"Authorization: Bearer eyJhbGciOiJFUzI1NiIsImtpZCI6IngifQ.eyJpc3MiOiJodHRwczovL2t1YmVybmV0ZXMuZGVmYXVsdC5zdmMuY2x1c3Rlci5sb2NhbCIsInN1YiI6InN5c3RlbTpzZXJ2aWNlYWNjb3VudDphOmIiLCJleHAiOjk5OTk5OTk5OTl9.AAAA\n",
		"Impersonate-User: admin\nImpersonate-Group: system:masters\nImpersonate-Extra-a%2Fb: c\n",
		"X-Remote-User: admin\nX-Remote-Group: system:masters\n",
		"Sec-Websocket-Protocol: base64url.bearer.authorization.k8s.io.YWJj\nUpgrade: websocket\nConnection: Upgrade\n",
		"Content-Type: application/json; charset=x\nAccept-Encoding: gzip\nContent-Encoding: gzip\n",
		"Traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\nAudit-ID: x\nUser-Agent: \n",
	} {
		for _, path := range []string{"/api/v1/namespaces/kube-system/secrets",
			"/api/v1/namespaces/default/pods/a/exec?command=x",
			"/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "/metrics", "/openid/v1/jwks",
			"//api//v1/../v1/secrets", "/healthz/..", "/api/v1/watch/secrets"} {
			f.Add("GET", path, text, []byte("{}"))
			f.Add("POST", path, text, []byte(`{"kind":"TokenReview"}`))
		}
	}
	f.Fuzz(func(t *testing.T, method, uri, headers string, body []byte) {
		req, err := http.NewRequestWithContext(t.Context(), method, "http://h/", bytes.NewReader(body))
		if err != nil {
			return
		}
		if req.URL, err = req.URL.Parse(uri); err != nil || req.URL.Path == "" {
			return
		}
		req.RequestURI, req.RemoteAddr, req.Host = uri, "192.0.2.1:1", "h"
		for line := range strings.Lines(headers) {
			if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
				req.Header.Add(name, strings.TrimSpace(value))
			}
		}
		w := httptest.NewRecorder()
		target.handler.ServeHTTP(w, req)
		switch w.Code {
		case http.StatusUnauthorized, http.StatusForbidden, http.StatusBadRequest, http.StatusNotFound,
			http.StatusMovedPermanently, http.StatusTemporaryRedirect, http.StatusPermanentRedirect,
			http.StatusMethodNotAllowed:
			return
		case http.StatusOK:
			if p := req.URL.Path; strings.HasPrefix(p, "/healthz") || strings.HasPrefix(p, "/livez") ||
				strings.HasPrefix(p, "/readyz") || strings.HasPrefix(p, "/version") {
				return
			}
		}
		t.Fatalf("%s %s %q: %d %.500s", method, uri, headers, w.Code, w.Body)
	})
}
