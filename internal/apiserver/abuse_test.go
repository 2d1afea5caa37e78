package apiserver

import (
	"bytes"
	"compress/gzip"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/registry/rest"
)

// Request bodies that are too large, in all formats and verbs.
func testHugeBodies(t *testing.T, r *running) {
	const path = "/api/v1/namespaces/default/configmaps"
	createConfig(t, r.admin(t), "huge", nil)
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err := io.CopyN(z, zeros{}, 1<<30); err != nil || z.Close() != nil {
		t.Fatal(err)
	}
	big := []byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"huge"},"data":{"k":"` +
		strings.Repeat("x", 3<<20) + `"}}`)
	const levels = 10_000
	nested := strings.Repeat(`{"a":`, levels) + "1" + strings.Repeat("}", levels)
	for _, c := range []struct {
		name, method, path, kind string
		body                     []byte
		status                   int
	}{
		{"PUT of 3 MiB", "PUT", path + "/huge", "application/json", big, 413},
		{"merge patch of 3 MiB", "PATCH", path + "/huge", "application/merge-patch+json", big, 413},
		{"apply of 3 MiB", "PATCH", path + "/huge?fieldManager=m", "application/apply-patch+yaml", big, 413},
		{"delete options of 3 MiB", "DELETE", path + "/huge", "application/json", big, 413},
		{"delete options of 3 MiB for a collection", "DELETE", path, "application/json", big, 413},
		// a config map has 1 MiB
		{"more than the engine takes", "POST", path, "application/json",
			[]byte(`{"metadata":{"name":"big"},"data":{"k":"` + strings.Repeat("x", 2<<20) + `"}}`), 422},
		{"deep YAML", "POST", path, "application/yaml",
			[]byte("data: " + strings.Repeat("[", levels+1) + strings.Repeat("]", levels+1)), 400},
		{"deep merge patch", "PATCH", path + "/huge", "application/merge-patch+json", []byte(`{"data":` + nested + `}`),
			400},
		{"deep strategic merge patch", "PATCH", path + "/huge", "application/strategic-merge-patch+json",
			[]byte(`{"data":` + nested + `}`), 400},
		{"deep JSON patch", "PATCH", path + "/huge", "application/json-patch+json",
			[]byte(`[{"op":"add","path":"/data","value":` + nested + `}]`), 400},
		{"deep apply", "PATCH", path + "/huge?fieldManager=m", "application/apply-patch+yaml",
			[]byte(`{"apiVersion":"v1","kind":"ConfigMap","data":` + nested + `}`), 400},
		{"deep protobuf", "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
			runtime.ContentTypeProtobuf, deepDefinition(t, levels-100), 422},
		{"deeper protobuf", "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
			runtime.ContentTypeProtobuf, deepDefinition(t, 100_000), 400},
	} {
		status, text, _ := r.raw(t, c.method, c.path, map[string]string{"Content-Type": c.kind}, c.body)
		if status != c.status {
			t.Errorf("%s: %d %.300s, want %d", c.name, status, text, c.status)
		}
	}
	// A gigabyte of zeros in a compressed megabyte is not unpacked: clients may not compress
	// bodies.
	before := heap()
	status, text, _ := r.raw(t, "POST", path, map[string]string{"Content-Encoding": "gzip"}, packed.Bytes())
	if status != http.StatusBadRequest || heap()-before > 100<<20 {
		t.Errorf("a compressed body: %d %.300s, %d MB", status, text, (heap()-before)>>20)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// deepDefinition returns a definition in protobuf whose schema has so many nested "not".
func deepDefinition(t *testing.T, levels int) []byte {
	t.Helper()
	// The tag of a "not", as the library encodes it.
	one, err := (&apiextensionsv1.JSONSchemaProps{Not: &apiextensionsv1.JSONSchemaProps{}}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	none, err := (&apiextensionsv1.JSONSchemaProps{}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	tail := len(one) - len(none)
	at := bytes.Index(one, append(binary.AppendUvarint(nil, uint64(len(none))), none...))
	if at < 0 || tail < 2 {
		t.Fatalf("%x holds no %x", one, none)
	}
	tag := one[:at]
	for k := at; k > 0; k-- { // the tag comes right before the length
		if tag[k-1] < 0x80 && k < at {
			tag = tag[k:]
			break
		}
	}
	// From the inside out: each level is written before its content, backwards.
	schema := slices.Clone(none)
	slices.Reverse(schema)
	for range levels {
		size := binary.AppendUvarint(slices.Clone(tag), uint64(len(schema)))
		slices.Reverse(size)
		schema = append(schema, size...)
	}
	slices.Reverse(schema)
	wrap := func(field int, inner []byte) []byte {
		out := binary.AppendUvarint(nil, uint64(field<<3|2))
		return append(binary.AppendUvarint(out, uint64(len(inner))), inner...)
	}
	version := append(wrap(1, []byte("v1")), wrap(4, wrap(1, schema))...)
	spec := append(wrap(1, []byte("example.org")), wrap(7, version)...)
	object := append(wrap(1, wrap(1, []byte("a.example.org"))), wrap(2, spec)...)
	unknown := append(wrap(1, append(wrap(1, []byte("apiextensions.k8s.io/v1")),
		wrap(2, []byte("CustomResourceDefinition"))...)), wrap(2, object)...)
	return append([]byte("k8s\x00"), unknown...)
}

// Duplicate and unknown fields, in YAML and in patches.
func testFieldValidation(t *testing.T, r *running) {
	const path = "/api/v1/namespaces/default/configmaps"
	createConfig(t, r.admin(t), "checked", nil)
	const yamlBody = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: odd-yaml}\ndate: {}\ndata: {}\ndata: {}\n"
	for _, c := range []struct {
		name, method, path, kind, body string
		strict                         int
	}{
		{"YAML", "POST", path + "?dryRun=All&", "application/yaml", yamlBody, 400},
		{"merge patch", "PATCH", path + "/checked?", "application/merge-patch+json", `{"date":{},"data":{},"data":{}}`,
			422},
		{"strategic merge patch", "PATCH", path + "/checked?", "application/strategic-merge-patch+json",
			`{"date":{},"data":{},"data":{}}`, 422},
	} {
		for check, want := range map[string]struct{ status, warnings int }{"Strict": {c.strict, 0}, "Warn": {0, 2},
			"Ignore": {0, 0}, "": {0, 2}} {
			status, text, warnings := r.raw(t, c.method, c.path+"fieldValidation="+check,
				map[string]string{"Content-Type": c.kind}, []byte(c.body))
			ok := status == want.status || want.status == 0 && status < 300
			if !ok || len(warnings) != want.warnings {
				t.Errorf("%s, %q: %d %.200s, warnings %q", c.name, check, status, text, warnings)
			}
		}
	}
	status, text, _ := r.raw(t, "PATCH", path+"/checked?fieldValidation=Strict",
		map[string]string{"Content-Type": "application/json-patch+json"},
		[]byte(`[{"op":"add","path":"/date","value":{}}]`))
	if status != http.StatusUnprocessableEntity && status != http.StatusBadRequest ||
		!strings.Contains(text, `unknown field \"date\"`) {
		t.Errorf("JSON patch: %d %.300s", status, text)
	}
	// Upstream answers 500 to an apply that does not fit the schema, and so does carob: clients rely on it.
	status, text, _ = r.raw(t, "PATCH", path+"/checked?fieldManager=m",
		map[string]string{"Content-Type": "application/apply-patch+yaml"},
		[]byte("apiVersion: v1\nkind: ConfigMap\ndate: {}\n"))
	if status != http.StatusInternalServerError || !strings.Contains(text, ".date: field not declared in schema") {
		t.Errorf("apply: %d %.300s", status, text)
	}
}

// An object with a thousand field managers keeps the newest; it can still be updated and applied.
func testManyManagers(t *testing.T, r *running) {
	ctx, maps := t.Context(), r.admin(t).CoreV1().ConfigMaps("default")
	m := config("managed", map[string]string{"a": "1"})
	for i := range 3000 {
		m.ManagedFields = append(m.ManagedFields,
			metav1.ManagedFieldsEntry{Manager: fmt.Sprintf("%s-%d", strings.Repeat("m", 100), i),
				Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", FieldsType: "FieldsV1",
				Time:     &metav1.Time{Time: metav1.Now().Add(-1)},
				FieldsV1: metav1.NewFieldsV1(fmt.Sprintf(`{"f:data":{"f:k%d":{}}}`, i))})
	}
	made, err := maps.Create(ctx, m, metav1.CreateOptions{FieldManager: "maker"})
	if err != nil {
		t.Fatal(err)
	}
	made.ManagedFields = m.ManagedFields
	made.Data["b"] = "2"
	got, err := maps.Update(ctx, made, metav1.UpdateOptions{FieldManager: "changer"})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(got.ManagedFields); n == 0 || n > 12 {
		t.Errorf("%d managers are kept", n)
	}
	body := []byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"managed"},"data":{"c":"3"}}`)
	if got, err = maps.Patch(ctx, "managed", types.ApplyPatchType, body,
		metav1.PatchOptions{FieldManager: "applier"}); err != nil || got.Data["c"] != "3" {
		t.Errorf("apply: %v, %v", got, err)
	}
	bad := made.DeepCopy()
	bad.ResourceVersion = ""
	bad.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "m", Operation: "Guess", FieldsType: "FieldsV7"}}
	if _, err := maps.Update(ctx, bad, metav1.UpdateOptions{}); err != nil && !apierrors.IsInvalid(err) {
		t.Errorf("managed fields that are none: %v", err)
	}
}

// always generates the same name.
type always struct{ rest.RESTCreateStrategy }

func (always) GenerateName(base string) string { return base + "same" }

// If a generated name exists, another one is generated, eight times; then the error says that the client may try
// again (W0.32).
func testNameCollisions(t *testing.T, r *running) {
	store := r.stores[corev1.Resource("configmaps")].Store
	strategy := store.CreateStrategy
	store.CreateStrategy = always{strategy}
	defer func() { store.CreateStrategy = strategy }()
	maps := r.admin(t).CoreV1().ConfigMaps("default")
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "collides-"}}
	if _, err := maps.Create(t.Context(), m, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err := maps.Create(t.Context(), m, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) || !strings.Contains(err.Error(), "collides-same") {
		t.Errorf("a name that is always taken: %v", err)
	}
}

// streams is an HTTP/2 connection on which only the test sends frames.
type streams struct {
	*http2.Framer
	conn   *tls.Conn
	next   uint32
	header bytes.Buffer
}

func (r *running) dialStreams(t *testing.T) *streams {
	t.Helper()
	pair := r.pki.Admin.Pair()
	cert, err := tls.X509KeyPair(pair.CertPEM, pair.KeyPEM)
	if err != nil {
		t.Fatal(err)
	}
	d := tls.Dialer{Config: &tls.Config{RootCAs: r.pki.Pool, ServerName: "127.0.0.1",
		Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2"}}}
	c, err := d.DialContext(t.Context(), "tcp", r.cfg.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	s := &streams{Framer: http2.NewFramer(c, c), conn: c.(*tls.Conn), next: 1}
	if err := s.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1}); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *streams) open(t *testing.T, method, path string, end bool, more ...string) {
	t.Helper()
	s.header.Reset()
	e := hpack.NewEncoder(&s.header)
	e.SetMaxDynamicTableSizeLimit(0)
	fields := append([]string{":method", method, ":scheme", "https", ":authority", "h", ":path", path}, more...)
	for i := 0; i < len(fields); i += 2 {
		if err := e.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.WriteHeaders(http2.HeadersFrameParam{StreamID: s.next, BlockFragment: s.header.Bytes(),
		EndHeaders: true, EndStream: end}); err != nil {
		t.Fatal(err)
	}
	s.next += 2
}

// Clients of HTTP/2 that open watches without reading, or send bodies that never end, do not block other clients,
// and use a limited amount of memory.
func TestIdleStreams(t *testing.T) {
	r := start(t, t.TempDir())
	ctx, c := t.Context(), r.admin(t)
	createConfig(t, c, "streamed", nil)
	for range 3 {
		s := r.dialStreams(t)
		for range 40 {
			s.open(t, "GET", "/api/v1/configmaps?watch=1", true)
			s.open(t, "GET", "/api/v1/events?watch=1", true)
			s.open(t, "POST", "/api/v1/namespaces/default/configmaps", false, "content-type", "application/json",
				"content-length", "1000")
		}
	}
	before := heap()
	reader, err := r.remote(t, r.pki.Admin.Pair()).CoreV1().ConfigMaps("default").Watch(ctx,
		metav1.ListOptions{FieldSelector: "metadata.name=streamed"})
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Stop()
	const writes = 300
	go func() {
		for i := range writes {
			patch := fmt.Sprintf(`{"data":{"n":"%d","x":%q}}`, i, strings.Repeat("x", 10_000))
			if _, err := c.CoreV1().ConfigMaps("default").Patch(ctx, "streamed", types.MergePatchType, []byte(patch),
				metav1.PatchOptions{}); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	for e := range reader.ResultChan() {
		if m, ok := e.Object.(*corev1.ConfigMap); ok && m.Data["n"] == fmt.Sprint(writes-1) {
			break
		}
	}
	if grown := heap() - before; grown > 200<<20 {
		t.Errorf("%d MB more memory", grown>>20)
	}
}

// A URL longer than a header may be is rejected without being read.
func testLongAddresses(t *testing.T, r *running) {
	for size, want := range map[int]int{2 * maxHeader: http.StatusRequestHeaderFieldsTooLarge,
		maxHeader / 2: http.StatusOK} {
		c := r.dial(t)
		go func() {
			_, _ = io.WriteString(c, "GET /api/v1/namespaces/default/configmaps?limit=1&x="+strings.Repeat("y", size)+
				" HTTP/1.1\r\nHost: h\r\n\r\n")
		}()
		if resp := answer(t, c); resp.StatusCode != want {
			t.Errorf("%d bytes: %s, want %d", size, resp.Status, want)
		}
	}
}
