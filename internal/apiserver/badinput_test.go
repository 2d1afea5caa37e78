package apiserver

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	restclient "k8s.io/client-go/rest"
)

// raw sends a request as an administrator and returns status, body, and warnings.
func (r *running) raw(t *testing.T, method, path string, header map[string]string, body []byte) (int, string,
	[]string) {
	t.Helper()
	cfg := r.ClientConfig("admin", user.SystemPrivilegedGroup)
	c, err := restclient.HTTPClientFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, cfg.Host+path, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for k, v := range header {
		req.Header.Set(k, v)
	}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text), resp.Header.Values("Warning")
}

// Invalid requests get a clear answer, and the server continues.
func TestBadInput(t *testing.T) {
	r := start(t, t.TempDir())
	const path = "/api/v1/namespaces/default/configmaps"
	object := func(rest string) []byte {
		return []byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"}` + rest + `}`)
	}
	if status, text, _ := r.raw(t, "POST", path, nil, object("")); status != http.StatusCreated {
		t.Fatalf("a good one: %d %s", status, text)
	}
	patch := func(kind string) map[string]string { return map[string]string{"Content-Type": kind} }
	copies := `[{"op":"add","path":"/data","value":{"a":"` + strings.Repeat("x", 1000) + `"}}`
	for i := range 40 {
		copies += fmt.Sprintf(`,{"op":"copy","from":"/data","path":"/data/k%d"}`, i)
	}
	for _, c := range []struct {
		name, method, path string
		header             map[string]string
		body               []byte
		status             int
		message            string
	}{
		{"too large", "POST", path, nil, object(`,"data":{"k":"` + strings.Repeat("x", 4<<20) + `"}`),
			http.StatusRequestEntityTooLarge, "limit is"},
		{"no JSON", "POST", path, nil, []byte(`{`), http.StatusBadRequest, ""},
		{"deep", "POST", path, nil, object(`,"x":` + strings.Repeat("[", 200_000)), http.StatusBadRequest, ""},
		{"deep and closed", "POST", path, nil,
			object(`,"data":` + strings.Repeat(`{"a":`, 20_000) + "1" + strings.Repeat("}", 20_000)),
			http.StatusBadRequest, ""},
		{"another kind", "POST", path, nil, []byte(`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"b"}}`),
			http.StatusBadRequest, "Secret"},
		{"another namespace", "POST", path, nil,
			[]byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"b","namespace":"other"}}`),
			http.StatusBadRequest, "does not match the namespace"},
		{"media type", "POST", path, map[string]string{"Content-Type": "text/html"}, object(""),
			http.StatusUnsupportedMediaType, "accepted media types include: application/json"},
		{"accept", "GET", path, map[string]string{"Accept": "text/html"}, nil, http.StatusNotAcceptable,
			"application/json"},
		{"patch type", "PATCH", path + "/a", patch("application/json"), []byte(`{}`), http.StatusUnsupportedMediaType,
			""},
		{"unknown fields", "POST", path + "?fieldValidation=Strict", nil, object(`,"date":{}`), http.StatusBadRequest,
			`unknown field \"date\"`},
		{"duplicate fields", "POST", path + "?fieldValidation=Strict", nil, object(`,"data":{},"data":{}`),
			http.StatusBadRequest, `duplicate field \"data\"`},
		{"field validation", "POST", path + "?fieldValidation=Maybe", nil, object(""), http.StatusUnprocessableEntity,
			"fieldValidation"},
		{"many patches", "PATCH", path + "/a", patch("application/json-patch+json"),
			[]byte(`[` + strings.Repeat(`{"op":"test","path":"/kind","value":"ConfigMap"},`, 10_001) +
				`{"op":"test","path":"/kind","value":"ConfigMap"}]`),
			http.StatusRequestEntityTooLarge, "operations"},
		{"copies of copies", "PATCH", path + "/a", patch("application/json-patch+json"), []byte(copies + `]`),
			http.StatusUnprocessableEntity, ""},
		{"patch of the status of nothing", "PATCH", path + "/a/status", patch("application/merge-patch+json"),
			[]byte(`{}`), http.StatusNotFound, ""},
		{"apply without a manager", "PATCH", path + "/a", patch("application/apply-patch+yaml"), object(""),
			http.StatusUnprocessableEntity, "fieldManager: Required value"},
		{"continue", "GET", path + "?limit=1&continue=%00bad", nil, nil, http.StatusBadRequest, "continue"},
		{"version", "GET", path + "?resourceVersion=abc", nil, nil, http.StatusBadRequest, "resource version"},
		{"match without version", "GET", path + "?resourceVersionMatch=Exact", nil, nil, http.StatusUnprocessableEntity,
			"resourceVersionMatch"},
		{"a version to come", "GET", path + "?resourceVersion=99999999&resourceVersionMatch=Exact", nil, nil,
			http.StatusGatewayTimeout, "Too large resource version"},
		{"field selector", "GET", path + "?fieldSelector=data.k%3Dx", nil, nil, http.StatusBadRequest,
			"is not a known field selector"},
		{"label selector", "GET", path + "?labelSelector=a%20inn%20(b)", nil, nil, http.StatusBadRequest,
			"unable to parse requirement"},
	} {
		status, text, _ := r.raw(t, c.method, c.path, c.header, c.body)
		if len(text) > 300 {
			text = text[:300]
		}
		if status != c.status || !strings.Contains(text, c.message) {
			t.Errorf("%s: %d %s, want %d with %q", c.name, status, text, c.status, c.message)
		}
	}
	if status, _, warnings := r.raw(t, "PUT", path+"/a?fieldValidation=Warn", nil,
		object(`,"date":{},"data":{},"data":{}`)); status != http.StatusOK || len(warnings) != 2 {
		t.Errorf("warn: %d %v, want two warnings", status, warnings)
	}
	if status, _, warnings := r.raw(t, "PUT", path+"/a?fieldValidation=Ignore", nil,
		object(`,"date":{}`)); status != http.StatusOK || len(warnings) != 0 {
		t.Errorf("ignore: %d %v", status, warnings)
	}
	terms := make([]string, 10_000)
	for i := range terms {
		terms[i] = fmt.Sprintf("k%d!=v", i)
	}
	if status, text, _ := r.raw(t, "GET", path+"?labelSelector="+strings.Join(terms, ","), nil,
		nil); status != http.StatusOK {
		t.Errorf("10,000 terms: %d %.200s", status, text)
	}
}

// Conditional and repeated requests do exactly what they say.
func TestWriteSemantics(t *testing.T) {
	r := start(t, t.TempDir())
	ctx, maps := t.Context(), r.admin(t).CoreV1().ConfigMaps("default")
	made, err := maps.Create(ctx,
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "gen-", Labels: map[string]string{"set": "one"}},
			Data: map[string]string{"a": "1"}}, metav1.CreateOptions{})
	if err != nil || !strings.HasPrefix(made.Name, "gen-") || len(made.Name) != len("gen-")+5 {
		t.Fatalf("generateName: %v, %v", made, err)
	}
	// Preconditions: only the object that was meant is deleted.
	if err := maps.Delete(ctx, made.Name,
		metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions("other")}); !apierrors.IsConflict(err) {
		t.Errorf("delete of another UID: %v, want a conflict", err)
	}
	if err := maps.Delete(ctx, made.Name, metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		t.Errorf("dry run: %v", err)
	}
	stale := made.DeepCopy()
	made.Data["a"] = "2"
	if made, err = maps.Update(ctx, made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := maps.Update(ctx, stale, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("update of an old version: %v, want a conflict", err)
	}
	// Immutable: neither the data nor the field itself can be changed; labels can.
	made.Immutable = new(true)
	if made, err = maps.Update(ctx, made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{`{"data":{"a":"3"}}`, `{"immutable":false}`, `{"binaryData":{"b":"eA=="}}`} {
		if _, err := maps.Patch(ctx, made.Name, types.MergePatchType, []byte(p),
			metav1.PatchOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "immutable") {
			t.Errorf("%s: %v, want that it is immutable", p, err)
		}
	}
	if _, err := maps.Patch(ctx, made.Name, types.MergePatchType, []byte(`{"metadata":{"labels":{"more":"yes"}}}`),
		metav1.PatchOptions{}); err != nil {
		t.Errorf("a label: %v", err)
	}
	// A collection: the selected objects, page by page.
	for i := range 5 {
		if _, err := maps.Create(ctx,
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("c", i),
				Labels: map[string]string{"set": "two"}}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	var names []string
	for page := (metav1.ListOptions{Limit: 2, LabelSelector: "set=two"}); ; {
		list, err := maps.List(ctx, page)
		if err != nil || len(list.Items) > 2 {
			t.Fatalf("a page: %d, %v", len(list.Items), err)
		}
		for _, m := range list.Items {
			names = append(names, m.Name)
		}
		if page.Continue = list.Continue; page.Continue == "" {
			break
		}
	}
	if fmt.Sprint(names) != "[c0 c1 c2 c3 c4]" {
		t.Errorf("pages have %v", names)
	}
	if err := maps.DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{LabelSelector: "set=two"}); err != nil {
		t.Fatal(err)
	}
	left, err := maps.List(ctx, metav1.ListOptions{LabelSelector: "set"})
	if err != nil || len(left.Items) != 1 || left.Items[0].Name != made.Name {
		t.Errorf("left are %v, %v", left, err)
	}
}
