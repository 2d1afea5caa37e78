package autoscaler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/record"

	"carob/internal/controllers/controllertest"
	"carob/internal/controllers/inventory"
	"carob/internal/controllers/source"
	"carob/internal/core/workload/autoscaler"
)

// twin simulates the API: kinds, the scale of one target, and metrics.
type twin struct {
	mu        sync.Mutex
	size      int32
	value     int64 // of each external metric
	reads     []time.Time
	conflicts int
	err       error
	synced    chan struct{}
	hangs     func(name string) bool // whether the metrics of an autoscaler have no answer
}

func (w *twin) Preferred(gk schema.GroupKind) (inventory.Kind, bool) {
	return inventory.Kind{}, gk == schema.GroupKind{Group: "apps", Kind: "Deployment"}
}
func (w *twin) Synced() <-chan struct{} { return w.synced }

func (w *twin) get(context.Context, inventory.Kind, string, string) (*autoscalingv1.Scale, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return nil, w.err
	}
	return &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "d"},
		Spec:   autoscalingv1.ScaleSpec{Replicas: w.size},
		Status: autoscalingv1.ScaleStatus{Replicas: w.size, Selector: "app=d"}}, nil
}

func (w *twin) put(_ context.Context, _ inventory.Kind, s *autoscalingv1.Scale) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conflicts > 0 {
		w.conflicts--
		return apierrors.NewConflict(schema.GroupResource{Resource: "scales"}, "d", errors.New("another was first"))
	}
	w.size = s.Spec.Replicas
	return nil
}

func (w *twin) sample(ctx context.Context, hpa *autoscalingv2.HorizontalPodAutoscaler, _ *autoscalingv2.MetricSpec,
	_ labels.Selector) autoscaler.Sample {
	if w.hangs != nil && w.hangs(hpa.Name) {
		<-ctx.Done()
		return autoscaler.Sample{Err: ctx.Err()}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reads = append(w.reads, time.Now())
	return autoscaler.Sample{Values: []int64{w.value}}
}

func newHPA(name string) *autoscalingv2.HorizontalPodAutoscaler {
	return &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment",
				Name: "d"},
			MinReplicas: new(int32(1)), MaxReplicas: 10,
			Metrics: []autoscalingv2.MetricSpec{{Type: autoscalingv2.ExternalMetricSourceType,
				External: &autoscalingv2.ExternalMetricSource{Metric: autoscalingv2.MetricIdentifier{Name: "q"},
					Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType,
						AverageValue: new(resource.MustParse("1"))}}}}}}
}

func run(t *testing.T, api *controllertest.API, w *twin) *record.FakeRecorder {
	t.Helper()
	events := record.NewFakeRecorder(10_000)
	hpas, pods := source.Autoscalers(api), source.Pods(api)
	c, err := newController(api, events, w, hpas, pods, w, w)
	if err != nil {
		t.Fatal(err)
	}
	go hpas.Run(t.Context())
	go pods.Run(t.Context())
	go func() {
		<-hpas.Synced()
		<-pods.Synced()
		c.Run(t.Context())
	}()
	return events
}

func recorded(r *record.FakeRecorder) string {
	var out []string
	for len(r.Events) > 0 {
		out = append(out, <-r.Events)
	}
	return strings.Join(out, "\n")
}

func TestPasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &twin{size: 1, value: 1000, synced: make(chan struct{})}
		api := controllertest.New(newHPA("h"))
		events := run(t, api, w)
		time.Sleep(10 * time.Second)
		if len(w.reads) != 0 {
			t.Fatal("a pass before the kinds are known")
		}
		close(w.synced)
		time.Sleep(62 * time.Second)
		// W7.10: every 15 s, although each pass writes a status.
		if n := len(w.reads); n != 5 {
			t.Errorf("%d passes in a minute: %v", n, w.reads)
		}
		w.value = 3000
		time.Sleep(15 * time.Second)
		if w.size != 3 || !strings.Contains(recorded(events),
			"Normal SuccessfulRescale New size: 3; reason: external metric q(nil) above target") {
			t.Errorf("size %d", w.size)
		}
		s := controllertest.All[*autoscalingv2.HorizontalPodAutoscaler](api)[0].Status
		if s.DesiredReplicas != 3 || s.LastScaleTime == nil || s.ObservedGeneration == nil {
			t.Errorf("status %+v", s)
		}
		// A change of the spec is processed at once.
		n := len(w.reads)
		controllertest.Change(api, "ns", "h", func(h *autoscalingv2.HorizontalPodAutoscaler) { h.Spec.MaxReplicas = 2 })
		time.Sleep(time.Second)
		if w.size != 2 || len(w.reads) != n {
			t.Errorf("size %d, %d more reads", w.size, len(w.reads)-n)
		}
		// Conflicts are tried again, at most five times (W7.12).
		controllertest.Change(api, "ns", "h", func(h *autoscalingv2.HorizontalPodAutoscaler) { h.Spec.MaxReplicas = 5 })
		w.conflicts = 4
		time.Sleep(time.Second)
		if w.size != 3 {
			t.Errorf("size %d after conflicts", w.size)
		}
		// The target is deleted: reported, without busy retries.
		recorded(events)
		w.err = apierrors.NewNotFound(schema.GroupResource{Group: "apps", Resource: "deployments"}, "d")
		time.Sleep(time.Minute)
		if got := recorded(events); strings.Count(got, "Warning FailedGetScale deployments.apps \"d\" not found") != 4 {
			t.Errorf("events:\n%s", got)
		}
	})
}

// W7.27: two autoscalers of the same pods do nothing; when one is deleted, the other works.
func TestRivals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &twin{size: 2, value: 9000, synced: make(chan struct{})}
		close(w.synced)
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p",
			Labels: map[string]string{"app": "d"}}}
		a, b := newHPA("a"), newHPA("b")
		api := controllertest.New(pod, a, b)
		events := run(t, api, w)
		time.Sleep(16 * time.Second)
		if got := recorded(events); !strings.Contains(got,
			"Warning AmbiguousSelector pods by selector app=d are controlled by more than one HPA (e.g. [ns/a ns/b])") {
			t.Errorf("events:\n%s", got)
		}
		api.Remove(b)
		w.mu.Lock()
		w.size = 2
		w.mu.Unlock()
		time.Sleep(30 * time.Second)
		if w.size < 4 {
			t.Errorf("size %d with one autoscaler left", w.size)
		}
	})
}

// W7.69: a status that cannot be written is an event; the next pass, 15 seconds later, writes it (W7.10).
func TestStatusIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &twin{size: 1, value: 1000, synced: make(chan struct{})}
		close(w.synced)
		api := controllertest.New(newHPA("h"))
		refused := 0
		api.Before = func(verb string, gvr schema.GroupVersionResource, _ metav1.Object) error {
			if verb == "update" && gvr.Resource == "horizontalpodautoscalers" && refused == 0 {
				refused++
				return apierrors.NewForbidden(gvr.GroupResource(), "h", errors.New("not now"))
			}
			return nil
		}
		events := run(t, api, w)
		time.Sleep(time.Second)
		if got, want := recorded(events), `Warning FailedUpdateStatus horizontalpodautoscalers.autoscaling "h" is `+
			"forbidden: not now"; got != want {
			t.Errorf("events:\n%s\nwant %s", got, want)
		}
		status := func() autoscalingv2.HorizontalPodAutoscalerStatus {
			return controllertest.All[*autoscalingv2.HorizontalPodAutoscaler](api)[0].Status
		}
		if s := status(); len(s.Conditions) > 0 {
			t.Errorf("status %+v", s)
		}
		time.Sleep(15 * time.Second)
		if s := status(); s.DesiredReplicas != 1 || len(s.Conditions) != 3 || recorded(events) != "" {
			t.Errorf("status %+v after the next pass", s)
		}
	})
}

// W7.25: a target is scaled to zero only when the status says so. Otherwise it would stay there if the write of the
// status failed, or the process ended before it.
func TestToZero(t *testing.T) {
	for what, fails := range map[string]func(size int32) bool{
		"nothing":            func(int32) bool { return false },
		"all writes after":   func(size int32) bool { return size == 0 },
		"all writes of zero": func(int32) bool { return true },
	} {
		synctest.Test(t, func(t *testing.T) {
			w := &twin{size: 1, value: 0, synced: make(chan struct{})}
			close(w.synced)
			h := newHPA("h")
			h.Spec.MinReplicas = new(int32(0))
			api := controllertest.New(h)
			api.Before = func(verb string, gvr schema.GroupVersionResource, o metav1.Object) error {
				w.mu.Lock()
				defer w.mu.Unlock()
				next, ok := o.(*autoscalingv2.HorizontalPodAutoscaler)
				zero := func(c autoscalingv2.HorizontalPodAutoscalerCondition) bool {
					return c.Type == autoscalingv2.ScaledToZero && c.Status == corev1.ConditionTrue
				}
				if ok && verb == "update" && fails(w.size) && slices.ContainsFunc(next.Status.Conditions, zero) {
					return apierrors.NewConflict(gvr.GroupResource(), "h", errors.New("another was first"))
				}
				return nil
			}
			run(t, api, w)
			time.Sleep(10 * time.Minute)
			want := int32(0)
			if what == "all writes of zero" {
				want = 1
			}
			w.mu.Lock()
			if w.size != want {
				t.Errorf("%s fails: size %d, want %d", what, w.size, want)
			}
			w.value = 3000
			w.mu.Unlock()
			time.Sleep(time.Minute)
			w.mu.Lock()
			if w.size != 3 {
				t.Errorf("%s fails: size %d with load", what, w.size)
			}
			w.mu.Unlock()
		})
	}
}

// Autoscalers whose metrics API does not answer report that, and do not keep others from their work.
func TestMetricsHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &twin{size: 1, value: 3000, synced: make(chan struct{}),
			hangs: func(name string) bool { return name != "healthy" }}
		close(w.synced)
		api := controllertest.New()
		for i := range 100 {
			h := newHPA(fmt.Sprint("hangs-", i))
			h.Spec.Metrics = slices.Repeat(h.Spec.Metrics, 3)
			api.Put(h)
		}
		run(t, api, w)
		time.Sleep(time.Minute)
		api.Put(newHPA("healthy"))
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		w.mu.Lock()
		defer w.mu.Unlock()
		if len(w.reads) < 10 || w.size != 3 {
			t.Errorf("the healthy one made %d passes in ten minutes, its target has size %d", len(w.reads), w.size)
		}
		for _, h := range controllertest.All[*autoscalingv2.HorizontalPodAutoscaler](api) {
			for _, c := range h.Status.Conditions {
				if h.Name != "healthy" && c.Type == autoscalingv2.ScalingActive && !strings.Contains(c.Message,
					"no answer of the metrics APIs within 10s") {
					t.Errorf("%s: %+v", h.Name, c)
				}
			}
		}
	})
}
