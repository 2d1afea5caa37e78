package children

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"

	"carob/internal/controllers/freshness"
	"carob/internal/controllers/source"
	"carob/internal/core/workload"
)

var podResource = schema.GroupResource{Resource: "pods"}

// world is a Keeper with an API whose responses the test chooses.
type world struct {
	*Keeper
	api    *fake.Clientset
	events *record.FakeRecorder
	sets   *source.Watch
	owner  Owner
	woken  []string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	api := fake.NewClientset()
	w := &world{api: api, events: record.NewFakeRecorder(100), sets: source.ReplicaSets(api)}
	pods := source.Pods(api)
	fresh, err := freshness.New(func(key string) { w.woken = append(w.woken, key) }, pods, w.sets)
	if err != nil {
		t.Fatal(err)
	}
	for _, watch := range []*source.Watch{pods, w.sets} {
		if err := watch.Replace(nil, "10"); err != nil {
			t.Fatal(err)
		}
	}
	w.Keeper = &Keeper{Client: api, Events: w.events, Fresh: fresh, Pods: pods}
	set := replicaSet("rs", "owner", "x")
	w.owner = Owner{Owner: workload.Owner{Object: set, Kind: appsv1.SchemeGroupVersion.WithKind("ReplicaSet")},
		Runtime: set, Key: "ns/rs"}
	return w
}

func replicaSet(name string, uid types.UID, app string) *appsv1.ReplicaSet {
	return &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: uid, ResourceVersion: "5"},
		Spec:       appsv1.ReplicaSetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}}}
}

func pod(name string, version int, owner *appsv1.ReplicaSet) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name),
		ResourceVersion: strconv.Itoa(version), Labels: map[string]string{"app": "x"}}}
	if owner != nil {
		p.OwnerReferences = []metav1.OwnerReference{
			*metav1.NewControllerRef(owner, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))}
	}
	return p
}

// on answers requests of a verb for pods.
func (w *world) on(verb string, answer func(clienttesting.Action) (runtime.Object, error)) {
	w.api.PrependReactor(verb, "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		o, err := answer(a)
		return true, o, err
	})
}

// newEvents returns the events since the last call.
func (w *world) newEvents() (out []string) {
	for {
		select {
		case e := <-w.events.Events:
			out = append(out, e)
		default:
			slices.Sort(out)
			return out
		}
	}
}

// W0.41: batches of 1, 2, 4 …; a batch with an error is the last. W0.34, W0.35: events.
func TestCreatePodsInWaves(t *testing.T) {
	w := newWorld(t)
	requests := 0
	w.on("create", func(clienttesting.Action) (runtime.Object, error) {
		if requests++; requests == 5 {
			return nil, apierrors.NewForbidden(podResource, "p", errors.New("quota"))
		}
		return pod("p"+strconv.Itoa(requests), 100+requests, nil), nil
	})
	made, err := w.CreatePods(t.Context(), w.owner, 20,
		func(int) (*corev1.Pod, error) { return pod("new", 0, nil), nil })
	if made != 6 || requests != 7 || !apierrors.IsForbidden(err) {
		t.Errorf("%d of %d requests made a pod: %v", made, requests, err)
	}
	events := w.newEvents()
	if n := len(slices.DeleteFunc(slices.Clone(events),
		func(e string) bool { return !strings.HasPrefix(e, "Normal SuccessfulCreate Created pod: p") })); n != 6 ||
		len(events) != 7 || !strings.HasPrefix(events[6], "Warning FailedCreate Error creating: ") {
		t.Errorf("events %q", events)
	}
	// The key is reconciled again when the watch shows the pods.
	if w.Fresh.Fresh("ns/rs") {
		t.Error("fresh although the watch does not show the pods")
	}
	if err := w.Pods.Bookmark("107"); err != nil {
		t.Fatal(err)
	}
	if !w.Fresh.Fresh("ns/rs") || !slices.Contains(w.woken, "ns/rs") {
		t.Errorf("woken %q", w.woken)
	}
	requests = 10
	if made, err = w.CreatePods(t.Context(), w.owner, 3,
		func(i int) (*corev1.Pod, error) { return nil, errors.New("no pod " + strconv.Itoa(i)) }); made != 0 ||
		err == nil || err.Error() != "no pod 0" || requests != 10 {
		t.Errorf("%d pods, %d requests: %v", made, requests, err)
	}
}

// W0.40: a namespace that is being deleted causes no event.
func TestCreateInTerminatingNamespace(t *testing.T) {
	w := newWorld(t)
	ends := apierrors.NewForbidden(podResource, "p", errors.New("is being terminated"))
	ends.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	w.on("create", func(clienttesting.Action) (runtime.Object, error) { return nil, ends })
	err := w.CreatePod(t.Context(), w.owner, pod("new", 0, nil))
	if events := w.newEvents(); !NamespaceEnds(err) || len(events) != 0 {
		t.Errorf("%v, events %q", err, events)
	}
}

// W0.36, W0.37, W0.39: by UID; a pod that no longer exists counts as deleted.
func TestDeletePods(t *testing.T) {
	w := newWorld(t)
	w.on("delete", func(a clienttesting.Action) (runtime.Object, error) {
		del := a.(clienttesting.DeleteActionImpl) //nolint:errcheck,forcetypeassert // the verb says so
		if p := del.DeleteOptions.Preconditions; p == nil || p.UID == nil || *p.UID != types.UID("uid-"+del.Name) {
			t.Errorf("delete %s with preconditions %v", del.Name, p)
		}
		switch del.Name {
		case "gone":
			return nil, apierrors.NewNotFound(podResource, "gone")
		case "held":
			return nil, apierrors.NewInternalError(errors.New("no"))
		case "kept":
			return nil, apierrors.NewForbidden(podResource, "kept", errors.New("no"))
		}
		return nil, nil
	})
	refused, err := w.DeletePods(t.Context(), w.owner, []*corev1.Pod{pod("a", 1, nil), pod("gone", 2, nil)})
	if err != nil || len(refused) > 0 {
		t.Error(refused, err)
	}
	if events := w.newEvents(); !slices.Equal(events, []string{"Normal SuccessfulDelete Deleted pod: a"}) {
		t.Errorf("events %q", events)
	}
	// The fate of the held one is unknown; the kept one certainly exists.
	refused, err = w.DeletePods(t.Context(), w.owner,
		[]*corev1.Pod{pod("b", 3, nil), pod("held", 4, nil), pod("kept", 5, nil)})
	if err == nil || !strings.HasPrefix(err.Error(), "unable to delete pods: ") {
		t.Error(err)
	}
	if len(refused) != 1 || refused[0].Name != "kept" {
		t.Errorf("refused: %v", refused)
	}
	if events := w.newEvents(); len(events) != 3 ||
		!strings.HasPrefix(events[1], "Warning FailedDelete Error deleting: ") {
		t.Errorf("events %q", events)
	}
}

func TestBehind(t *testing.T) {
	conflict := apierrors.NewConflict(podResource, "p", errors.New("newer"))
	planned := pod("p", 20, nil)
	other := pod("p", 21, nil)
	other.UID = "another"
	for _, c := range []struct {
		name   string
		err    error
		live   *corev1.Pod
		failed error
		behind bool
	}{
		{"a newer version is stored", conflict, pod("p", 21, nil), nil, true},
		{"the same version: somebody else says conflict", conflict, pod("p", 20, nil), nil, false},
		{"gone", apierrors.NewNotFound(podResource, "p"), nil, apierrors.NewNotFound(podResource, "p"), true},
		{"another object of its name", conflict, other, nil, true},
		{"nobody knows", conflict, nil, errors.New("no connection"), false},
		{"no answer, and it is stored", apierrors.NewInternalError(errors.New("no")), pod("p", 21, nil), nil, true},
		{"no answer, and it is not stored", errors.New("timeout"), pod("p", 20, nil), nil, false},
		{"refused", apierrors.NewForbidden(podResource, "p", errors.New("no")), pod("p", 21, nil), nil, false},
	} {
		w := newWorld(t)
		if err := w.Pods.Add(pod("p", 15, nil)); err != nil {
			t.Fatal(err)
		}
		err := w.Behind(t.Context(), "ns/rs", w.Pods, planned, c.err,
			func(context.Context) (metav1.Object, error) { return c.live, c.failed })
		if (err == nil) != c.behind || err != nil && !errors.Is(err, c.err) {
			t.Errorf("%s: %v", c.name, err)
		}
		if w.Fresh.Fresh("ns/rs") == c.behind {
			t.Errorf("%s: planned again before the watch shows it: %v", c.name, c.behind)
		}
	}
}

// A deletion that a webhook refuses as NotFound or Conflict did not happen: its key must not wait for it.
func TestGone(t *testing.T) {
	notFound, conflict := apierrors.NewNotFound(podResource, "p"), apierrors.NewConflict(podResource, "p",
		errors.New("no"))
	other, ending := pod("p", 21, nil), pod("p", 21, nil)
	other.UID, ending.DeletionTimestamp = "another", new(metav1.Now())
	for _, c := range []struct {
		name   string
		err    error
		live   *corev1.Pod
		failed error
		gone   bool
	}{
		{"deleted", nil, nil, errors.New("not read"), true},
		{"deleted before", notFound, nil, notFound, true},
		{"ends already", notFound, ending, nil, true},
		{"another one of its name", conflict, other, nil, true},
		{"refused as not found", notFound, pod("p", 20, nil), nil, false},
		{"refused as a conflict", conflict, pod("p", 20, nil), nil, false},
		{"nobody knows", notFound, nil, errors.New("no connection"), false},
		{"refused", apierrors.NewForbidden(podResource, "p", errors.New("no")), nil, notFound, false},
	} {
		w := newWorld(t)
		if err := w.Pods.Add(pod("p", 20, nil)); err != nil {
			t.Fatal(err)
		}
		err := w.Gone(t.Context(), "ns/rs", w.Pods, pod("p", 20, nil), c.err,
			func(context.Context) (metav1.Object, error) { return c.live, c.failed })
		if (err == nil) != c.gone || err != nil && !errors.Is(err, c.err) {
			t.Errorf("%s: %v", c.name, err)
		}
		if w.Fresh.Fresh("ns/rs") == c.gone {
			t.Errorf("%s: the key waits: %v", c.name, !c.gone)
		}
	}
}

func TestRefused(t *testing.T) {
	for _, c := range []struct {
		err  error
		want bool
	}{
		{apierrors.NewConflict(podResource, "p", errors.New("newer")), true},
		{apierrors.NewForbidden(podResource, "p", errors.New("quota")), true},
		{apierrors.NewInternalError(errors.New("no")), false},
		{apierrors.NewTimeoutError("late", 1), false},
		{context.DeadlineExceeded, false},
	} {
		if got := Refused(c.err); got != c.want {
			t.Errorf("%v: refused %v", c.err, got)
		}
	}
}

// W0.21–W0.24: which children are adopted and released, and when an owner must not adopt.
func TestSettle(t *testing.T) {
	w := newWorld(t)
	patched := map[string]string{}
	w.on("patch", func(a clienttesting.Action) (runtime.Object, error) {
		p := a.(clienttesting.PatchActionImpl) //nolint:errcheck,forcetypeassert // the verb says so
		patched[p.Name] = string(p.Patch)
		switch p.Name {
		case "gone", "left":
			return nil, apierrors.NewNotFound(podResource, p.Name)
		case "held":
			return nil, apierrors.NewForbidden(podResource, p.Name, errors.New("no"))
		}
		return pod(p.Name, 50, nil), nil
	})
	live := w.owner.Object
	how := w.PodChange("ns", func(context.Context) (metav1.Object, error) { return live, nil })
	claims := workload.Claims[*corev1.Pod]{Mine: []*corev1.Pod{pod("mine", 1, nil)},
		Adopt:   []*corev1.Pod{pod("gone", 2, nil), pod("held", 3, nil), pod("orphan", 4, nil)},
		Release: []*corev1.Pod{pod("left", 5, nil), pod("other", 6, nil)}}
	got, err := Settle(t.Context(), w.Keeper, w.owner, claims, how)
	var names []string
	for _, p := range got {
		names = append(names, p.Name)
	}
	if !slices.Equal(names, []string{"mine", "orphan"}) || err == nil ||
		!strings.HasPrefix(err.Error(), "adopt held: ") {
		t.Errorf("%q, %v", names, err)
	}
	if len(patched) != 5 || !strings.Contains(patched["orphan"], `"uid":"owner"`) ||
		!strings.Contains(patched["other"], `"$patch":"delete"`) {
		t.Errorf("patches %v", patched)
	}
	// The owner has been replaced: nothing is adopted, releases continue.
	clear(patched)
	live = replicaSet("rs", "successor", "x")
	got, err = Settle(t.Context(), w.Keeper, w.owner, claims, how)
	if len(got) != 1 || err == nil || strings.Count(err.Error(), "can't adopt Pod ns/") != 3 || len(patched) != 2 {
		t.Errorf("%d children, %v, patches %v", len(got), err, patched)
	}
}

// W0.16: the owners that are queued after a change of a child.
func TestOnChildren(t *testing.T) {
	w := newWorld(t)
	mine, next := replicaSet("rs", "owner", "x"), replicaSet("next", "successor", "y")
	if err := w.sets.Replace([]any{mine, next}, "20"); err != nil {
		t.Fatal(err)
	}
	var woken []string
	err := OnChildren(w.Pods, w.sets, "ReplicaSet", func(owner metav1.Object, l labels.Set) bool {
		return owner.(*appsv1.ReplicaSet).Spec.Selector.MatchLabels["app"] == l["app"]
	}, func(key string) { woken = append(woken, key) })
	if err != nil {
		t.Fatal(err)
	}
	namesake := replicaSet("rs", "namesake", "x")
	version := 30
	change := func(what string, p *corev1.Pod, want ...string) {
		t.Helper()
		version++
		p.ResourceVersion = strconv.Itoa(version)
		if err := w.Pods.Add(p); err != nil {
			t.Fatal(err)
		}
		if slices.Sort(woken); !slices.Equal(woken, want) {
			t.Errorf("%s: woken %q, want %q", what, woken, want)
		}
		woken = nil
	}
	change("an orphan comes", pod("p", 0, nil), "ns/rs")
	change("its labels stay", pod("p", 0, nil))
	relabelled := pod("p", 0, nil)
	relabelled.Labels = map[string]string{"app": "y"}
	change("its labels change", relabelled, "ns/next")
	change("it is adopted", pod("p", 0, mine), "ns/rs")
	change("it changes", pod("p", 0, mine), "ns/rs")
	change("it changes hands", pod("p", 0, next), "ns/next", "ns/rs")
	change("its controller is a namesake", pod("p", 0, namesake), "ns/next")
	change("a namesake's pod changes", pod("p", 0, namesake))
	change("it becomes an orphan", pod("p", 0, nil), "ns/rs")
	change("it comes back", pod("p", 0, mine), "ns/rs")
	if err := w.Pods.Delete(pod("p", version+1, mine)); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(woken, []string{"ns/rs"}) {
		t.Errorf("it is deleted: woken %q", woken)
	}
}
