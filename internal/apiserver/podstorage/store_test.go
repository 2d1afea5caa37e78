package podstorage

import (
	"context"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/ptr"

	"carob/internal/apiserver/admission"
	"carob/internal/apiserver/inprocess"
	"carob/internal/apiserver/storage"
	"carob/internal/core/podstatus"
	"carob/internal/kinds"
	"carob/internal/kinds/pods"
	"carob/internal/kinds/scheme"
)

// open creates the pod storages on a private etcd.
func open(t *testing.T) (context.Context, *Storage) {
	t.Helper()
	ctx := genericapirequest.WithNamespace(t.Context(), "ns")
	set, err := scheme.New(kinds.RegisterDefaults)
	if err != nil {
		t.Fatal(err)
	}
	engine, err := storage.Open(ctx, storage.Config{Dir: t.TempDir(), NoFsync: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(engine.Close)
	options := storage.NewOptions(engine, set, func(schema.GroupResource) storage.Caching { return storage.Eager },
		storage.Plain, inprocess.Is)
	t.Cleanup(options.Close)
	none := func(schema.GroupResource) rest.Storage { return nil }
	s, err := New(Config{Scheme: set.Scheme, RESTOptions: options, Reader: admission.NewReader(none, nil),
		Storages: none})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Pods.Destroy)
	return ctx, s
}

func create(t *testing.T, ctx context.Context, s *Storage, change func(*corev1.Pod)) *corev1.Pod {
	t.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns"},
		Spec: corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	if change != nil {
		change(p)
	}
	pods.DefaultPod(p)
	obj, err := s.Pods.Create(ctx, p, rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return obj.(*corev1.Pod)
}

func remove(t *testing.T, ctx context.Context, s *Storage, o *metav1.DeleteOptions) (*corev1.Pod, bool, error) {
	t.Helper()
	obj, gone, err := s.Pods.Delete(ctx, "p", rest.ValidateAllObjectFunc, o)
	p, _ := obj.(*corev1.Pod)
	return p, gone, err
}

func stored(ctx context.Context, s *Storage) (*corev1.Pod, error) {
	obj, err := s.Pods.Get(ctx, "p", &metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return obj.(*corev1.Pod), nil
}

// L1.91, L1.93: a deletion waits; a second one can only shorten it, and does not change the
// generation.
func TestGracefulDeletion(t *testing.T) {
	ctx, s := open(t)
	create(t, ctx, s, nil)
	p, gone, err := remove(t, ctx, s, &metav1.DeleteOptions{})
	if err != nil || gone || p.DeletionTimestamp == nil || *p.DeletionGracePeriodSeconds != 30 || p.Generation != 2 {
		t.Fatalf("first delete: gone %v, %v, %+v", gone, err, p)
	}
	first := p.DeletionTimestamp.Time
	if p, _, err = remove(t, ctx, s, &metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](60)}); err != nil ||
		*p.DeletionGracePeriodSeconds != 30 {
		t.Fatalf("a longer period: %v, %+v", err, p)
	}
	if _, _, err = remove(t, ctx, s, &metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](20)}); err != nil {
		t.Fatal(err)
	}
	if p, err = stored(ctx, s); err != nil || *p.DeletionGracePeriodSeconds != 20 || p.Generation != 2 ||
		first.Sub(p.DeletionTimestamp.Time).Seconds() != 10 {
		t.Fatalf("a shorter period: %v, grace %d, generation %d, %v earlier", err, *p.DeletionGracePeriodSeconds,
			p.Generation, first.Sub(p.DeletionTimestamp.Time))
	}
	if _, gone, err = remove(t, ctx, s, &metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}); err != nil ||
		!gone {
		t.Fatalf("forced: gone %v, %v", gone, err)
	}
	if _, err := stored(ctx, s); !apierrors.IsNotFound(err) {
		t.Fatalf("after the forced delete: %v", err)
	}
}

// L1.96
func TestUnscheduledPodGoesAtOnce(t *testing.T) {
	ctx, s := open(t)
	create(t, ctx, s, func(p *corev1.Pod) { p.Spec.NodeName = "" })
	if _, gone, err := remove(t, ctx, s, &metav1.DeleteOptions{}); err != nil || !gone {
		t.Fatalf("gone %v, %v", gone, err)
	}
}

// L1.92, L1.95: finalizers keep a pod until an update removes them after the delete with grace
// period 0.
func TestFinalizersHoldThePod(t *testing.T) {
	ctx, s := open(t)
	create(t, ctx, s, func(p *corev1.Pod) { p.Finalizers = []string{"ex.com/hold"} })
	if _, gone, err := remove(t, ctx, s, &metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}); err != nil ||
		gone {
		t.Fatalf("gone %v, %v", gone, err)
	}
	p, err := stored(ctx, s)
	if err != nil || p.DeletionTimestamp == nil || *p.DeletionGracePeriodSeconds != 0 {
		t.Fatalf("held pod: %v, %+v", err, p)
	}
	p.Finalizers = nil
	if _, _, err := s.Pods.Update(ctx, "p", rest.DefaultUpdatedObjectInfo(p), rest.ValidateAllObjectFunc,
		rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := stored(ctx, s); !apierrors.IsNotFound(err) {
		t.Fatalf("after the last finalizer: %v", err)
	}
}

// L1.94
func TestDeletePreconditions(t *testing.T) {
	ctx, s := open(t)
	create(t, ctx, s, nil)
	other := types.UID("other")
	_, _, err := remove(t, ctx, s, &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &other}})
	if !apierrors.IsConflict(err) || !strings.Contains(err.Error(),
		"the UID in the precondition (other) does not match the UID in record") {
		t.Fatalf("another UID: %v", err)
	}
	_, _, err = remove(t, ctx, s,
		&metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: new("1")}})
	if !apierrors.IsConflict(err) || !strings.Contains(err.Error(),
		"the ResourceVersion in the precondition (1) does not match the ResourceVersion in record") {
		t.Fatalf("another version: %v", err)
	}
}

// L1.81: the second binding conflicts; the UID of a Binding is a precondition.
func TestBindingConflicts(t *testing.T) {
	ctx, s := open(t)
	create(t, ctx, s, func(p *corev1.Pod) { p.Spec.NodeName = "" })
	bind := s.Resources["pods/binding"].(rest.NamedCreater)
	send := func(uid types.UID) error {
		b := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: uid},
			Target: corev1.ObjectReference{Kind: "Node", Name: "n1"}}
		_, err := bind.Create(ctx, "p", b, rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
		return err
	}
	if err := send("other"); !apierrors.IsConflict(err) {
		t.Fatalf("binding of another pod of that name: %v", err)
	}
	if err := send(""); err != nil {
		t.Fatal(err)
	}
	if err := send(""); !apierrors.IsConflict(err) ||
		!strings.Contains(err.Error(), `pods/binding "p": pod p is already assigned to node "n1"`) {
		t.Fatalf("second binding: %v", err)
	}
	if p, err := stored(ctx, s); err != nil || p.Spec.NodeName != "n1" || p.Generation != 1 {
		t.Fatalf("bound pod: %v, %+v", err, p)
	}
}

// L1.100, L1.101
func TestEvictionMarksAndDeletes(t *testing.T) {
	ctx, s := open(t)
	p := create(t, ctx, s, nil)
	p.Status.Phase = corev1.PodRunning
	status := s.Resources["pods/status"].(rest.Updater)
	if _, _, err := status.Update(ctx, "p", rest.DefaultUpdatedObjectInfo(p), rest.ValidateAllObjectFunc,
		rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	evict := s.Resources["pods/eviction"].(rest.NamedCreater)
	out, err := evict.Create(ctx, "p", &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "p"}},
		rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
	if err != nil || out.(*metav1.Status).Status != metav1.StatusSuccess {
		t.Fatalf("%v, %v", out, err)
	}
	p, err = stored(ctx, s)
	if err != nil || p.DeletionTimestamp == nil || p.Generation != 2 {
		t.Fatalf("evicted pod: %v, %+v", err, p)
	}
	if c := podstatus.Condition(p.Status.Conditions, corev1.DisruptionTarget); c == nil ||
		c.Status != corev1.ConditionTrue ||
		c.Reason != "EvictionByEvictionAPI" || c.Message != "Eviction API: evicting" {
		t.Fatalf("condition %+v", c)
	}
}

// changingPods is a reader that finds one budget; during each of its first reads, so many of them, the pod changes.
type changingPods struct {
	admission.Reader
	budget  *policyv1.PodDisruptionBudget
	changes int
	change  func()
}

func (r *changingPods) List(_ context.Context, _ schema.GroupResource, _ string,
	each func(runtime.Object) bool) error {
	if r.changes--; r.changes >= 0 {
		r.change()
	}
	each(r.budget)
	return nil
}

// L1.104: the eviction of a pod that is not ready is tried again when the pod changes meanwhile, not rejected at
// once: its status changes often.
func TestEvictionOfAChangingPod(t *testing.T) {
	for changes, refused := range map[int]bool{3: false, evictionSteps: true} {
		ctx, s := open(t)
		p := create(t, ctx, s, nil)
		status := s.Resources["pods/status"].(rest.Updater)
		n := 0
		change := func() {
			p, err := stored(ctx, s)
			if err != nil {
				t.Fatal(err)
			}
			n++
			p.Status.Phase, p.Status.Message = corev1.PodRunning, strconv.Itoa(n)
			if _, _, err := status.Update(ctx, "p", rest.DefaultUpdatedObjectInfo(p), rest.ValidateAllObjectFunc,
				rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		change()
		r := s.Resources["pods/eviction"].(*evictionREST)
		r.pause = func(context.Context) error { return nil }
		r.reader = &changingPods{changes: changes, change: change, budget: &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Name: "b", Namespace: p.Namespace},
			Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{},
				UnhealthyPodEvictionPolicy: new(policyv1.AlwaysAllow)}}}
		_, err := r.Create(ctx, "p", &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "p"}},
			rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
		if refused != apierrors.IsTooManyRequests(err) || !refused && err != nil {
			t.Errorf("after %d changes: %v", changes, err)
		}
	}
}

// L1.102–L1.110, W13.62: a budget allows one eviction and rejects the next.
func TestEvictionTakesFromTheBudget(t *testing.T) {
	b := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "b", Namespace: "ns"},
		Spec:   policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{}},
		Status: policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: 1, CurrentHealthy: 2, DesiredHealthy: 1}}
	budgets := &budgetStore{budget: b}
	r := &evictionREST{storages: func(schema.GroupResource) rest.Storage { return budgets },
		pause: func(context.Context) error { return nil }}
	p := podWith(nil)
	if err := r.take(t.Context(), p, "b", true); err != nil || budgets.writes != 0 {
		t.Fatalf("dry run: %v, %d writes", err, budgets.writes)
	}
	budgets.conflicts = 2
	if err := r.take(t.Context(), p, "b", false); err != nil {
		t.Fatal(err)
	}
	if _, ok := budgets.budget.Status.DisruptedPods["p"]; !ok || budgets.budget.Status.DisruptionsAllowed != 0 {
		t.Fatalf("budget after an eviction: %+v", budgets.budget.Status)
	}
	budgets.budget.Status.CurrentHealthy = 1
	if err := r.take(t.Context(), p, "b", false); !apierrors.IsTooManyRequests(err) {
		t.Fatalf("second eviction: %v", err)
	}
	budgets.budget.Status.DisruptionsAllowed, budgets.conflicts = 1, evictionSteps
	if err := r.take(t.Context(), p, "b", false); !apierrors.IsTimeout(err) {
		t.Fatalf("conflicts without end: %v", err)
	}
}

// The pod is replaced by another one of the same name after its budget has allowed the eviction: the new pod is
// evicted only if the budget allows that, too.
func TestEvictionOfAReplacedPod(t *testing.T) {
	for allowed, replaced := range map[int32]bool{1: true, 2: false} {
		ctx, s := open(t)
		run := func() types.UID {
			p := create(t, ctx, s, nil)
			p.Status.Phase = corev1.PodRunning
			if _, _, err := s.Resources["pods/status"].(rest.Updater).Update(ctx, "p",
				rest.DefaultUpdatedObjectInfo(p), rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false,
				&metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			return p.UID
		}
		run()
		later, once := types.UID(""), false
		b := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "b", Namespace: "ns"},
			Spec:   policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{}},
			Status: policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: allowed}}
		budgets := &budgetStore{budget: b, written: func() {
			if once {
				return
			}
			once = true
			if _, _, err := s.Resources["pods"].(rest.GracefulDeleter).Delete(ctx, "p", rest.ValidateAllObjectFunc,
				&metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
				t.Fatal(err)
			}
			later = run()
		}}
		r := s.Resources["pods/eviction"].(*evictionREST)
		r.pause = func(context.Context) error { return nil }
		r.reader, r.storages = &changingPods{budget: b}, func(schema.GroupResource) rest.Storage { return budgets }
		_, err := r.Create(ctx, "p", &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "p"}},
			rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
		p, failed := stored(ctx, s)
		if failed != nil || p.UID != later {
			t.Fatalf("the later pod: %v, %v", p, failed)
		}
		if left := p.DeletionTimestamp == nil; left != replaced || left != apierrors.IsTooManyRequests(err) {
			t.Errorf("%d disruptions allowed: %v, the later pod is left: %v", allowed, err, left)
		}
	}
}

// budgetStore stores one budget, and fails the next writes with a conflict.
type budgetStore struct {
	budget            *policyv1.PodDisruptionBudget
	conflicts, writes int
	written           func() // called after each write; may be nil
}

func (*budgetStore) New() runtime.Object { return &policyv1.PodDisruptionBudget{} }

func (*budgetStore) Destroy() {}

func (s *budgetStore) Get(context.Context, string, *metav1.GetOptions) (runtime.Object, error) {
	return s.budget, nil
}

func (s *budgetStore) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, _ rest.ValidateObjectFunc,
	_ rest.ValidateObjectUpdateFunc, _ bool, _ *metav1.UpdateOptions) (runtime.Object, bool, error) {
	if s.conflicts > 0 {
		s.conflicts--
		return nil, false, apierrors.NewConflict(disruptionBudgets, name, nil)
	}
	obj, err := info.UpdatedObject(ctx, s.budget)
	if err != nil {
		return nil, false, err
	}
	s.budget = obj.(*policyv1.PodDisruptionBudget)
	if s.writes++; s.written != nil {
		s.written()
	}
	return obj, false, nil
}
