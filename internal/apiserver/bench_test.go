package apiserver

import (
	"context"
	"fmt"
	goruntime "runtime"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// startForPods starts a server that accepts pods.
func startForPods(b *testing.B) (*running, *kubernetes.Clientset) {
	b.Helper()
	r := start(b, b.TempDir())
	c, err := kubernetes.NewForConfig(r.ClientConfig("bench", user.SystemPrivilegedGroup))
	if err != nil {
		b.Fatal(err)
	}
	if _, err := c.CoreV1().ServiceAccounts("default").Create(b.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}); err != nil {
		b.Fatal(err)
	}
	return r, c
}

// The writes between a pod's creation and its start, as carob's parts make them.
func BenchmarkInProcess(b *testing.B) {
	_, c := startForPods(b)
	ctx := context.Background()
	pods, n := c.CoreV1().Pods("default"), 0
	create := func() *corev1.Pod {
		n++
		p, err := pods.Create(ctx,
			&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("p-", n)},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i:1"}}}},
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
			if err := pods.Bind(ctx,
				&corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: p.Name},
					Target: corev1.ObjectReference{Kind: "Node", Name: "n"}}, metav1.CreateOptions{}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("patch status", func(b *testing.B) {
		b.ReportAllocs()
		p, i := create(), 0
		for b.Loop() {
			i++
			if _, err := pods.Patch(ctx, p.Name, types.StrategicMergePatchType,
				[]byte(fmt.Sprintf(`{"status":{"message":"m%d"}}`, i)), metav1.PatchOptions{}, "status"); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("patch label", func(b *testing.B) {
		b.ReportAllocs()
		made := make([]*corev1.Pod, 64) // in turns: the watch cache has received the last patch of each
		for i := range made {
			made[i] = create()
		}
		i := 0
		for b.Loop() {
			i++
			if _, err := pods.Patch(ctx, made[i%len(made)].Name, types.MergePatchType,
				[]byte(fmt.Sprintf(`{"metadata":{"labels":{"x":"y%d"}}}`, i)), metav1.PatchOptions{}); err != nil {
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

// Writes of several clients on one connection, as in test/bench; the figures include their CPU time
// and memory.
func BenchmarkWrites(b *testing.B) {
	r, _ := startForPods(b)
	ctx := context.Background()
	pair := r.pki.Admin.Pair()
	remote, err := kubernetes.NewForConfig(&rest.Config{Host: "https://" + r.cfg.Listener.Addr().String(), QPS: -1,
		ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeProtobuf,
			AcceptContentTypes: runtime.ContentTypeProtobuf},
		TLSClientConfig: rest.TLSClientConfig{CAData: r.pki.CAPEM, CertData: pair.CertPEM, KeyData: pair.KeyPEM}})
	if err != nil {
		b.Fatal(err)
	}
	pods := remote.CoreV1().Pods("default")
	var made atomic.Int64
	create := func(name string) error {
		_, err := pods.Create(ctx,
			&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i:1"}}}},
			metav1.CreateOptions{})
		return err
	}
	run := func(name string, do func(i int64) error) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetParallelism(16 / goruntime.GOMAXPROCS(0))
			var next atomic.Int64
			before := processorTime(b)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if err := do(next.Add(1)); err != nil {
						b.Error(err)
					}
				}
			})
			b.ReportMetric(float64((processorTime(b)-before).Microseconds())/float64(b.N), "cpu-µs/op")
		})
	}
	run("create", func(int64) error { return create(fmt.Sprint("c-", made.Add(1))) })
	for i := range int64(64) {
		if err := create(fmt.Sprint("p-", i)); err != nil {
			b.Fatal(err)
		}
	}
	run("patch", func(i int64) error {
		_, err := pods.Patch(ctx, fmt.Sprint("p-", i%64), types.MergePatchType,
			fmt.Appendf(nil, `{"metadata":{"labels":{"x":"y%d"}}}`, i), metav1.PatchOptions{})
		return err
	})
}

func processorTime(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
