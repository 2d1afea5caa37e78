package apiserver

import (
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	clientcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"carob/internal/base/gctuning"
)

// Whatever changes between two lists, each shows the current objects.
func testListsOfChanged(t *testing.T, r *running) {
	ctx := t.Context()
	plain := r.admin(t).CoreV1().ConfigMaps("kube-public")
	cfg := r.ClientConfig("admin", user.SystemPrivilegedGroup)
	cfg.ContentType = "application/vnd.kubernetes.protobuf"
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	packed := client.CoreV1().ConfigMaps("kube-public")
	const n = 60
	name := func(i int) string { return fmt.Sprint("listed-", i) }
	create := func(i int, value string) {
		t.Helper()
		if _, err := plain.Create(ctx,
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name(i)}, Data: map[string]string{"k": value}},
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	same := func(when string, limit int64) {
		t.Helper()
		for format, client := range map[string]clientcorev1.ConfigMapInterface{"JSON": plain, "protobuf": packed} {
			listed := map[string]corev1.ConfigMap{}
			for o := (metav1.ListOptions{Limit: limit}); ; {
				l, err := client.List(ctx, o)
				if err != nil {
					t.Fatal(err)
				}
				for _, o := range l.Items {
					listed[o.Name] = o
				}
				if o.Continue = l.Continue; o.Continue == "" {
					break
				}
			}
			for i := range n {
				want, err := plain.Get(ctx, name(i), metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if got := listed[name(i)]; !equality.Semantic.DeepEqual(&got, want) {
					t.Errorf("%s, in pages of %d in %s: listed %+v, want %+v", when, limit, format, got, want)
				}
			}
		}
	}
	for i := range n {
		create(i, "first")
	}
	for _, limit := range []int64{0, 25} {
		same("at first", limit)
		same("again", limit)
		for i := 0; i < n; i += 7 {
			if _, err := plain.Patch(ctx, name(i), types.MergePatchType,
				fmt.Appendf(nil, `{"data":{"k":"changed-%d"}}`, limit), metav1.PatchOptions{}); err != nil {
				t.Fatal(err)
			}
			if err := plain.Delete(ctx, name(i+1), metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			create(i+1, "another of that name")
		}
		same("changed", limit)
	}
	// An idle process caches none.
	cached := r.lists.Len()
	if err := gctuning.Settle(); err != nil {
		t.Fatal(err)
	}
	if left := r.lists.Len(); cached < n || left >= n {
		t.Errorf("%d of %d encoded objects are still cached", left, cached)
	}
}

// ages are in the cells of tables.
var ages = regexp.MustCompile(`"[0-9]+m?[0-9]*s"`)

// listBothWays returns an answer as it is and for a client that accepts gzip, with the status of the second one. The
// revision of a list grows with each write of the server, so both are read between two equal plain answers.
func (r *running) listBothWays(t *testing.T, path, accept string) (plain, got string, status int) {
	t.Helper()
	read := func(encoding string) (int, string) {
		code, body, _ := r.raw(t, "GET", path, map[string]string{"Accept": accept, "Accept-Encoding": encoding}, nil)
		return code, body
	}
	_, plain = read("identity")
	for range 10 {
		status, got = read("gzip")
		before := plain
		if _, plain = read("identity"); ages.ReplaceAllString(before, "") == ages.ReplaceAllString(plain, "") {
			break
		}
	}
	return plain, got, status
}

// Long lists of built-in kinds and of custom resources are compressed for clients that accept it, in all formats, and
// are the same; watches are not.
func TestListsCompressed(t *testing.T) {
	r := start(t, t.TempDir())
	ctx := t.Context()
	r.establish(t, gadgets())
	long := strings.Repeat("long ", 2000)
	for i := range 20 {
		name := fmt.Sprint("compressed-", i)
		if _, err := r.admin(t).CoreV1().ConfigMaps("kube-public").Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"k": long}},
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		g := gadget(name, map[string]any{"size": int64(1)})
		g.SetAnnotations(map[string]string{"a": long})
		if _, err := r.objects(t).Resource(gadgetResource).Namespace("kube-public").Create(ctx, g,
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	const table = "application/json;as=Table;v=v1;g=meta.k8s.io"
	maps, custom := "/api/v1/namespaces/kube-public/configmaps", "/apis/example.org/v1/namespaces/kube-public/gadgets"
	for _, c := range []struct {
		path, accept string
		packed       bool
	}{
		{maps, "application/json", true},
		{maps, "application/vnd.kubernetes.protobuf", true},
		{maps + "?includeObject=Object", table, true},
		{maps + "?limit=3", "application/json", false},
		{maps + "/compressed-1", "application/json", false},
		{maps + "?watch=true&resourceVersion=0&timeoutSeconds=1", "application/json", false},
		{custom, "application/json", true},
		{custom + "?includeObject=Object", table, true},
		{custom + "?limit=3", "application/json", false},
		{custom + "?watch=true&resourceVersion=0&timeoutSeconds=1", "application/json", false},
	} {
		plain, got, status := r.listBothWays(t, c.path, c.accept)
		packed := strings.HasPrefix(got, "\x1f\x8b")
		if packed != c.packed || status != http.StatusOK {
			t.Errorf("%s as %s: status %d, compressed %v, %d bytes of %d", c.path, c.accept, status, packed, len(got),
				len(plain))
		}
		if !packed {
			continue
		}
		z, err := gzip.NewReader(strings.NewReader(got))
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(z)
		if err != nil || ages.ReplaceAllString(string(b), "") != ages.ReplaceAllString(plain, "") {
			t.Errorf("%s as %s: the compressed list differs: %v", c.path, c.accept, err)
		}
	}
}
