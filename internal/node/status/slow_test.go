package status

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
)

// reviewed is an API server with a webhook that reviews the statuses in the namespace "slow".
type reviewed struct {
	corev1client.PodInterface
	namespace string
	hang      time.Duration // 0: the webhook never answers
	calls     *atomic.Int32 // in the namespace "slow"
	running   *atomic.Int32
	most      *atomic.Int32
	stored    *sync.Map // of when, by name
}

func (r reviewed) Pods(namespace string) corev1client.PodInterface { r.namespace = namespace; return r }

func (r reviewed) UpdateStatus(ctx context.Context, pod *corev1.Pod, _ metav1.UpdateOptions) (*corev1.Pod, error) {
	if r.namespace == "slow" {
		r.calls.Add(1)
		r.most.Store(max(r.most.Load(), r.running.Add(1)))
		defer r.running.Add(-1)
		if r.hang == 0 {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		time.Sleep(r.hang)
	}
	r.stored.Store(pod.Name, time.Now())
	stored := pod.DeepCopy()
	stored.ResourceVersion += "0"
	return stored, nil
}

// A webhook that answers late, or never, for the statuses of one namespace delays those of the others by a second at
// most. All of its own are written in the end, each once.
func TestSlowNamespace(t *testing.T) {
	for _, hang := range []time.Duration{0, 10 * time.Second, 500 * time.Millisecond} {
		t.Run(hang.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const n = 30
				api := reviewed{hang: hang, calls: &atomic.Int32{}, running: &atomic.Int32{}, most: &atomic.Int32{},
					stored: &sync.Map{}}
				w := New(api)
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan struct{})
				go func() { w.Run(ctx); close(ended) }()
				defer func() { cancel(); <-ended }()
				set := func(namespace, name string) {
					pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name,
						UID: types.UID(name), ResourceVersion: "1"}}
					w.Seen(pod)
					w.Set(pod, running("on"))
				}
				for i := range n {
					set("slow", fmt.Sprint("s", i))
				}
				synctest.Wait()
				for i := range n {
					set("other", fmt.Sprint("o", i))
				}
				time.Sleep(2 * time.Second)
				synctest.Wait()
				for i := range n {
					if _, ok := api.stored.Load(fmt.Sprint("o", i)); !ok {
						t.Errorf("pod %d of another namespace: nothing is stored after two seconds", i)
					}
				}
				if most := api.most.Load(); most > workers {
					t.Errorf("%d writes of the slow namespace at once", most)
				}
				// A pod that goes while it waits is not written.
				w.Forget(types.UID(fmt.Sprint("s", n-1)))
				time.Sleep(time.Hour)
				synctest.Wait()
				if hang == 0 {
					return
				}
				for i := range n - 1 {
					if _, ok := api.stored.Load(fmt.Sprint("s", i)); !ok {
						t.Errorf("pod %d of the slow namespace: nothing is stored", i)
					}
				}
				want := int32(n - 1)
				if hang < time.Second {
					want = n // it was written before it went
				}
				if got := api.calls.Load(); got != want {
					t.Errorf("%d writes in the slow namespace, want %d", got, want)
				}
				w.mu.Lock()
				defer w.mu.Unlock()
				if !w.running.Empty() || len(w.queue) != 0 {
					t.Errorf("left over: %+v, %v", w.running, w.queue)
				}
			})
		})
	}
}
