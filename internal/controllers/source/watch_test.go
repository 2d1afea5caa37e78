package source

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"

	"carob/internal/base/zerocopy"
)

func pod(name, uid, version string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name, UID: types.UID(uid),
		ResourceVersion: version}}
}

// recorder records the calls of a watch's listeners.
type recorder struct {
	*Watch
	log []string
}

func listen(t *testing.T) *recorder {
	t.Helper()
	h := &recorder{Watch: Pods(fake.NewClientset())}
	text := func(o metav1.Object) string {
		if o == nil {
			return "-"
		}
		return fmt.Sprintf("%s/%s@%s", o.GetName(), o.GetUID(), o.GetResourceVersion())
	}
	if err := h.OnChange(func(before,
		after metav1.Object) {
		h.log = append(h.log, text(before)+" "+text(after))
	}); err != nil {
		t.Fatal(err)
	}
	if err := h.OnProgress(func(v uint64) { h.log = append(h.log, fmt.Sprint(v)) }); err != nil {
		t.Fatal(err)
	}
	return h
}

func (h *recorder) expect(t *testing.T, what string, err error, want ...string) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %v", what, err)
	}
	if !slices.Equal(h.log, want) {
		t.Errorf("%s: heard %q, want %q", what, h.log, want)
	}
	h.log = nil
}

func TestListeners(t *testing.T) {
	h := listen(t)
	h.expect(t, "first list", h.Replace([]any{pod("a", "1", "5")}, "7"), "- a/1@5", "7")
	select {
	case <-h.Synced():
	default:
		t.Error("not synced after the first list")
	}
	h.expect(t, "new", h.Add(pod("b", "2", "8")), "- b/2@8", "8")
	h.expect(t, "twice", h.Add(pod("b", "2", "8")), "b/2@8 b/2@8")
	h.expect(t, "changed", h.Update(pod("b", "2", "10")), "b/2@8 b/2@10", "10")
	h.expect(t, "late", h.Update(pod("b", "2", "9")))
	if p := Get[*corev1.Pod](h.Watch, "n/b"); p.ResourceVersion != "10" {
		t.Errorf("a late event left version %s", p.ResourceVersion)
	}
	h.expect(t, "another of the name", h.Add(pod("b", "3", "12")), "b/2@10 -", "- b/3@12", "12")
	h.expect(t, "gone", h.Delete(pod("b", "3", "13")), "b/3@13 -", "13")
	h.expect(t, "gone twice", h.Delete(pod("b", "3", "13")))
	h.expect(t, "bookmark", h.Bookmark("20"), "20")
	// Missed changes: a changed, c was added, and d was added and removed.
	h.expect(t, "another list", h.Replace([]any{pod("a", "4", "25"), pod("c", "5", "24")}, "30"), "a/1@5 -", "- a/4@25",
		"- c/5@24", "30")
	h.expect(t, "the same list", h.Replace([]any{pod("a", "4", "25"), pod("c", "5", "24")}, "31"), "31")
	h.expect(t, "an empty list", h.Replace([]any{pod("a", "4", "25")}, "33"), "c/5@24 -", "33")
	if h.Version() != 33 {
		t.Errorf("Version %d", h.Version())
	}
	if err := h.Bookmark("x"); err == nil {
		t.Error("a version that is not a number is taken")
	}
	h.started.Store(true)
	if err := h.OnChange(nil); !errors.Is(err, errStarted) {
		t.Errorf("a listener that is added late: %v", err)
	}
}

// With client-go's mutation detector on, as in "make test", a modification of a watch's object ends the process: one
// from before the watch, while it runs, and right before it ends.
func TestModifiedObject(t *testing.T) {
	if when := os.Getenv("MODIFY"); when != "" {
		synctest.Test(t, func(t *testing.T) { modifyObject(t, when) })
		return
	}
	for _, when := range []string{"before", "during", "at the end"} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestModifiedObject$", "-test.timeout=20s")
		cmd.Env = append(os.Environ(), "MODIFY="+when, "KUBE_CACHE_MUTATION_DETECTOR=true")
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "cache *v1.Pod modified") {
			t.Errorf("%s: %v:\n%s", when, err, out)
		}
	}
}

func modifyObject(t *testing.T, when string) {
	object := pod("a", "1", "1")
	w := Pods(fake.NewClientset(object))
	modify := func() { Get[*corev1.Pod](w, "n/a").Labels = map[string]string{"modified": "yes"} }
	if when == "before" {
		if err := w.Replace([]any{object}, "1"); err != nil {
			t.Fatal(err)
		}
		modify()
	}
	ctx, cancel := context.WithCancel(t.Context())
	go w.Run(ctx) // until it panics
	<-w.Synced()
	synctest.Wait()
	switch when {
	case "during":
		modify()
		time.Sleep(mutationPeriod + time.Second)
	case "at the end":
		modify()
	}
	cancel()
	if when != "at the end" {
		t.Error("the watch has ended")
	}
	synctest.Wait()
}

// The API server's own objects are kept without a copy: they must not be modified, and a copy takes memory.
func TestSharedObjects(t *testing.T) {
	shared := pod("a", "1", "5")
	shared.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "m"}}
	shared.Spec.Containers = []corev1.Container{{Name: "c", Image: "i"}}
	before := shared.DeepCopy()
	w := newWatch(sharing{&corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "7"}}, shared}, &corev1.Pod{},
		fields.Everything(), slimPod, nil)
	seen := make(chan struct{})
	if err := w.OnChange(func(_, _ metav1.Object) { close(seen) }); err != nil {
		t.Fatal(err)
	}
	go w.Run(t.Context())
	<-seen
	if p := Get[*corev1.Pod](w, "n/a"); p != shared || !equality.Semantic.DeepEqual(p, before) {
		t.Errorf("kept %+v", p)
	}
}

// Controllers that share a watch may all run it: it lists once, and each call ends with its
// context.
func TestRunTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		w, ended := Pods(client), 0
		ctx, cancel := context.WithCancel(t.Context())
		for range 3 {
			go func() { w.Run(ctx); ended++ }()
			synctest.Wait()
		}
		if n := len(client.Actions()); n != 2 || ended != 0 {
			t.Errorf("%d requests, want a list and a watch; %d calls ended early", n, ended)
		}
		cancel()
		synctest.Wait()
		if ended != 3 {
			t.Errorf("%d calls ended, want 3", ended)
		}
	})
}

// sharing is a client whose server shares an empty list, and a watch with one object.
type sharing struct {
	list *corev1.PodList
	pod  *corev1.Pod
}

func example() runtime.Object { return &corev1.Pod{} }

func (h sharing) List(ctx context.Context, _ metav1.ListOptions) (*corev1.PodList, error) {
	zerocopy.ResponseFor(ctx, example).SetList(h.list)
	return &corev1.PodList{}, nil
}

func (h sharing) Watch(ctx context.Context, _ metav1.ListOptions) (watch.Interface, error) {
	w := watch.NewFakeWithChanSize(1, false)
	w.Add(h.pod)
	zerocopy.ResponseFor(ctx, example).SetWatch(w)
	return watch.NewFake(), nil
}

func TestCandidates(t *testing.T) {
	h := listen(t)
	owner := &corev1.ReplicationController{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "o", UID: "owner"}}
	mine, others, elsewhere := pod("mine", "1", "1"), pod("others", "2", "2"), pod("elsewhere", "3", "3")
	mine.OwnerReferences = []metav1.OwnerReference{{UID: "x"}, {UID: "owner", Controller: new(true)}}
	others.OwnerReferences = []metav1.OwnerReference{{UID: "other", Controller: new(true)}}
	elsewhere.Namespace = "m"
	free := pod("free", "4", "4")
	free.OwnerReferences = []metav1.OwnerReference{{UID: "owner"}} // an owner that is not its controller
	if err := h.Replace([]any{mine, others, elsewhere, free}, "9"); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range Candidates[*corev1.Pod](h.Watch, owner) {
		names = append(names, p.Name)
	}
	if !slices.Equal(names, []string{"mine", "free"}) {
		t.Errorf("candidates %q", names)
	}
}

// Fields that a controller reads are kept; large fields that no controller reads are dropped.
func TestSlimPod(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	p := pod("a", "1", "1")
	p.Annotations = map[string]string{corev1.PodDeletionCost: "3"}
	p.Finalizers = []string{"f"}
	p.Spec = corev1.PodSpec{
		InitContainers: []corev1.Container{{Name: "side", RestartPolicy: &always, Command: []string{"x"}}},
		Containers:     []corev1.Container{{Name: "c", Image: "i", Env: []corev1.EnvVar{{Name: "E"}}}},
		Volumes: []corev1.Volume{{Name: "v"}, {Name: "w", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim"}}}},
	}
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", RestartCount: 4, ImageID: "sha"}}
	obj, err := slimPod(p)
	if err != nil {
		t.Fatal(err)
	}
	s := obj.(*corev1.Pod)
	switch {
	case s == p || p.Spec.Containers[0].Image != "i":
		t.Error("the object passed to the watch has changed")
	case s.Annotations[corev1.PodDeletionCost] != "3", s.Finalizers[0] != "f",
		*s.Spec.InitContainers[0].RestartPolicy != always, s.Status.ContainerStatuses[0].RestartCount != 4,
		len(s.Spec.Volumes) != 1 || s.Spec.Volumes[0].PersistentVolumeClaim.ClaimName != "claim":
		t.Errorf("something is missing: %+v", s)
	case s.Spec.Containers[0].Image != "" || s.Spec.Containers[0].Env != nil ||
		s.Spec.InitContainers[0].Command != nil || s.Status.ContainerStatuses[0].ImageID != "":
		t.Errorf("too much is kept: %+v", s)
	}
}
