package apiserver

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
)

// Whatever has changed between two lists, one in protobuf has what one in JSON has.
func testListsInProtobuf(t *testing.T, r *running) {
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
		if _, err := plain.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name(i)}, Data: map[string]string{"k": value}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	same := func(when string, limit int64) {
		t.Helper()
		want, err := plain.List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var got []corev1.ConfigMap
		for o := (metav1.ListOptions{Limit: limit}); ; {
			l, err := packed.List(ctx, o)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, l.Items...)
			if o.Continue = l.Continue; o.Continue == "" {
				break
			}
		}
		if len(got) < n || !equality.Semantic.DeepEqual(got, want.Items) {
			t.Errorf("%s, in pages of %d: %d objects differ from the %d in JSON", when, limit, len(got), len(want.Items))
		}
	}
	for i := range n {
		create(i, "first")
	}
	for _, limit := range []int64{0, 25} {
		same("at first", limit)
		same("again", limit)
		for i := 0; i < n; i += 7 {
			if _, err := plain.Patch(ctx, name(i), types.MergePatchType, fmt.Appendf(nil, `{"data":{"k":"changed-%d"}}`, limit), metav1.PatchOptions{}); err != nil {
				t.Fatal(err)
			}
			if err := plain.Delete(ctx, name(i+1), metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			create(i+1, "another of that name")
		}
		same("changed", limit)
	}
}
