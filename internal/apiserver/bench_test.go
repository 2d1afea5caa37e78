package apiserver

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
)

// The writes that stand between a pod's creation and its start, as the parts make them.
func BenchmarkInProcess(b *testing.B) {
	r := start(b, b.TempDir())
	c, err := kubernetes.NewForConfig(r.ClientConfig("bench", user.SystemPrivilegedGroup))
	if err != nil {
		b.Fatal(err)
	}
	ctx := context.Background()
	if _, err := c.CoreV1().ServiceAccounts("default").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}); err != nil {
		b.Fatal(err)
	}
	pods, n := c.CoreV1().Pods("default"), 0
	create := func() *corev1.Pod {
		n++
		p, err := pods.Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("p-", n)}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i:1"}}}},
			metav1.CreateOptions{})
		if err != nil {
			b.Fatal(err)
		}
		return p
	}
	b.Run("create pod", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			create()
		}
	})
	b.Run("bind", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			b.StopTimer()
			p := create()
			b.StartTimer()
			if err := pods.Bind(ctx, &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: p.Name}, Target: corev1.ObjectReference{Kind: "Node", Name: "n"}}, metav1.CreateOptions{}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("patch status", func(b *testing.B) {
		b.ReportAllocs()
		p, i := create(), 0
		for b.Loop() {
			i++
			if _, err := pods.Patch(ctx, p.Name, types.StrategicMergePatchType, []byte(fmt.Sprintf(`{"status":{"message":"m%d"}}`, i)), metav1.PatchOptions{}, "status"); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("patch label", func(b *testing.B) {
		b.ReportAllocs()
		made := make([]*corev1.Pod, 64) // in turns: the watch cache has seen the last patch of each
		for i := range made {
			made[i] = create()
		}
		i := 0
		for b.Loop() {
			i++
			if _, err := pods.Patch(ctx, made[i%len(made)].Name, types.MergePatchType, []byte(fmt.Sprintf(`{"metadata":{"labels":{"x":"y%d"}}}`, i)), metav1.PatchOptions{}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("get", func(b *testing.B) {
		b.ReportAllocs()
		p := create()
		for b.Loop() {
			if _, err := pods.Get(ctx, p.Name, metav1.GetOptions{}); err != nil {
				b.Fatal(err)
			}
		}
	})
}
