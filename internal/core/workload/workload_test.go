package workload

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

var noon = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

func owner() Owner {
	return Owner{&appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "web", UID: "owner"}},
		appsv1.SchemeGroupVersion.WithKind("ReplicaSet")}
}

func pod(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name, UID: types.UID(name),
		Labels: map[string]string{"app": "web"}}}
	for _, c := range change {
		c(p)
	}
	return p
}

func controlledBy(uid string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{UID: types.UID(uid), Controller: new(true)}}
	}
}

func label(app string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Labels = map[string]string{"app": app} }
}

func ending(p *corev1.Pod)    { p.DeletionTimestamp = &metav1.Time{Time: noon} }
func elsewhere(p *corev1.Pod) { p.Namespace = "m" }

func ready(ago time.Duration) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.Phase = corev1.PodRunning
		p.Spec.NodeName = "node"
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue,
			LastTransitionTime: metav1.NewTime(noon.Add(-ago))}}
	}
}

func names(pods []*corev1.Pod) string {
	var out []string
	for _, p := range pods {
		out = append(out, p.Name)
	}
	return strings.Join(out, " ")
}

func TestClaim(t *testing.T) {
	pods := []*corev1.Pod{
		pod("mine", controlledBy("owner")), pod("mine-ending", controlledBy("owner"), ending),
		pod("mine-elsewhere", controlledBy("owner"), elsewhere),
		pod("strayed", controlledBy("owner"), label("db")), pod("orphan"), pod("orphan-ending", ending),
		pod("orphan-db", label("db")),
		pod("others", controlledBy("another")), pod("orphan-elsewhere", elsewhere), pod("orphan-unfit"),
		pod("mine-unfit", controlledBy("owner")),
	}
	fits := func(p *corev1.Pod) bool { return !strings.HasSuffix(p.Name, "unfit") }
	selector := labels.SelectorFromSet(labels.Set{"app": "web"})
	c := Claim(owner(), selector, pods, fits)
	if names(c.Mine) != "mine mine-ending" || names(c.Adopt) != "orphan" || names(c.Release) != "strayed mine-unfit" {
		t.Errorf("W0.21, W0.23, W0.26: mine %q, adopt %q, release %q", names(c.Mine), names(c.Adopt), names(c.Release))
	}
	o := owner()
	o.Object.(*appsv1.ReplicaSet).DeletionTimestamp = &metav1.Time{Time: noon}
	c = Claim(o, selector, pods, fits)
	if names(c.Mine) != "mine mine-ending" || len(c.Adopt)+len(c.Release) > 0 {
		t.Errorf("W0.24: an owner that is being deleted: mine %q, adopt %q, release %q", names(c.Mine), names(c.Adopt),
			names(c.Release))
	}
}

func TestCheckAdoption(t *testing.T) {
	o, live := owner(), owner().Object.(*appsv1.ReplicaSet)
	if err := CheckAdoption(o, live); err != nil {
		t.Error(err)
	}
	live.DeletionTimestamp = &metav1.Time{Time: noon}
	if err := CheckAdoption(o,
		live); fmt.Sprint(err) != "n/web has just been deleted at 2026-11-22 12:00:00 +0000 UTC" {
		t.Errorf("W0.22: %v", err)
	}
	live.UID = "b"
	if err := CheckAdoption(o, live); fmt.Sprint(err) != "original ReplicaSet n/web is gone: got uid b, wanted owner" {
		t.Errorf("W0.22: %v", err)
	}
}

func TestPatches(t *testing.T) {
	for want, got := range map[string][]byte{
		`{"metadata":{"uid":"a","ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"web","uid":"owner","controller":true,"blockOwnerDeletion":true}],"finalizers":["f"]}}`: AdoptPatch(owner(), pod("a"), "f"),
		`{"metadata":{"uid":"a","ownerReferences":[{"$patch":"delete","uid":"owner"}]}}`:                                                                                                      ReleasePatch(owner(), pod("a")),
		`{"metadata":{"uid":"a","ownerReferences":[{"$patch":"delete","uid":"owner"}],"$deleteFromPrimitiveList/finalizers":["f"]}}`:                                                          ReleasePatch(owner(), pod("a"), "f"),
	} {
		if string(got) != want || !json.Valid(got) {
			t.Errorf("patch\n%s\nwant\n%s", got, want)
		}
	}
}

func TestAvailable(t *testing.T) {
	for _, c := range []struct {
		what string
		pod  *corev1.Pod
		min  int32
		ok   bool
		in   time.Duration
	}{
		{"not ready", pod("a"), 0, false, 0},
		{"ready", pod("a", ready(0)), 0, true, 0},
		{"not for long", pod("a", ready(4*time.Second)), 10, false, 6 * time.Second},
		{"to the moment", pod("a", ready(10*time.Second)), 10, true, 0},
		{"no time", pod("a", ready(0),
			func(p *corev1.Pod) { p.Status.Conditions[0].LastTransitionTime = metav1.Time{} }), 10, false, 0},
		{"no longer ready",
			pod("a", ready(time.Hour), func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse }),
			0, false, 0},
	} {
		ok, at := Available(c.pod, c.min, noon)
		if in := at.Sub(noon); ok != c.ok || at.IsZero() != (c.in == 0) || c.in != 0 && in != c.in {
			t.Errorf("W0.60 %s: %v at %v", c.what, ok, at)
		}
	}
	if at := Earlier(Earlier(time.Time{}, noon), noon.Add(1)); at != noon {
		t.Error("Earlier:", at)
	}
}

func TestNewPod(t *testing.T) {
	template := &corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}, Annotations: map[string]string{"a": "b"},
			Finalizers: []string{"f"}, Name: "ignored"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}},
	}
	p, err := NewPod(owner(), template)
	if err != nil || p.GenerateName != "web-" || p.Name != "" || p.Namespace != "n" || p.Labels["app"] != "web" ||
		p.OwnerReferences[0].APIVersion != "apps/v1" || p.OwnerReferences[0].Kind != "ReplicaSet" ||
		p.OwnerReferences[0].Name != "web" || len(p.OwnerReferences) != 1 ||
		p.Annotations["a"] != "b" || p.Finalizers[0] != "f" ||
		p.Spec.Containers[0].Name != "c" || !*p.OwnerReferences[0].Controller ||
		!*p.OwnerReferences[0].BlockOwnerDeletion || p.OwnerReferences[0].UID != "owner" {
		t.Errorf("W0.20, W0.30, W0.31: %v %+v", err, p)
	}
	p.Labels["app"], p.Spec.Containers[0].Name = "x", "x"
	if template.Labels["app"] != "web" || template.Spec.Containers[0].Name != "c" {
		t.Error("the pod shares something with the template")
	}
	template.Labels = nil
	if _, err := NewPod(owner(), template); fmt.Sprint(err) != "unable to create pods, no labels" {
		t.Errorf("W0.33: %v", err)
	}
	if long := strings.Repeat("a", 253); NamePrefix(long) != long || NamePrefix("a.b") != "a.b-" ||
		NamePrefix("A_b") != "A_b" {
		t.Error("W0.31: prefix")
	}
}

func TestWaves(t *testing.T) {
	for n, want := range map[int][]int{0: nil, 1: {1}, 2: {1, 1}, 10: {1, 2, 4, 3}} {
		if got := Waves(n); !slices.Equal(got, want) {
			t.Errorf("W0.41: %d in waves %v, want %v", n, got, want)
		}
	}
}

// The pods of each pair differ in one criterion (and the opposite way in all later ones): the first
// is deleted first.
func TestRank(t *testing.T) {
	costs := func(text string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.PodDeletionCost: text} }
	}
	node := func(n string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.NodeName = n } }
	phase := func(ph corev1.PodPhase) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Status.Phase = ph; p.Status.Conditions = nil }
	}
	restarts := func(regular, sidecar int32) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			always := corev1.ContainerRestartPolicyAlways
			p.Spec.InitContainers = []corev1.Container{{Name: "init"}, {Name: "side", RestartPolicy: &always}}
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "init", RestartCount: 99},
				{Name: "side", RestartCount: sidecar}}
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{RestartCount: regular}}
		}
	}
	made := func(ago time.Duration) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(noon.Add(-ago)) }
	}
	r := Ranking{Costs: true, Related: map[string]int{"node": 2, "full": 5}, Now: noon}
	for _, c := range []struct {
		clause      string
		first, then *corev1.Pod
	}{
		{"W0.51 node", pod("b", phase(corev1.PodRunning)), pod("a", node("node"), phase(corev1.PodPending))},
		{"W0.51 phase", pod("b", node("node"), phase(corev1.PodPending)),
			pod("a", node("node"), phase(corev1.PodUnknown))},
		{"W0.51 phase", pod("b", node("node"), phase(corev1.PodUnknown)),
			pod("a", node("node"), phase(corev1.PodRunning))},
		{"W0.51 ready", pod("b", node("node"), phase(corev1.PodRunning), costs("9")), pod("a", ready(time.Hour))},
		{"W0.2, W0.52", pod("b", ready(time.Hour), costs("-1")), pod("a", ready(0))},
		{"W0.52 malformed", pod("b", ready(time.Hour), costs("+7")), pod("a", ready(0), costs("1"))},
		{"W0.52 malformed", pod("b", ready(time.Hour), costs("007")), pod("a", ready(0), costs("1"))},
		{"W0.53", pod("b", ready(time.Hour), node("full")), pod("a", ready(0))},
		{"W0.54", pod("b", ready(time.Minute)), pod("a", ready(time.Hour), restarts(5, 0))},
		{"W0.54 tie", pod("a", ready(61*time.Minute)), pod("b", ready(60*time.Minute), restarts(5, 0))},
		{"W0.55", pod("b", ready(time.Hour), restarts(3, 0), made(9*time.Hour)),
			pod("a", ready(time.Hour), restarts(2, 8), made(time.Minute))},
		{"W0.55 sidecar", pod("b", ready(time.Hour), restarts(2, 2), made(9*time.Hour)),
			pod("a", ready(time.Hour), restarts(2, 1), made(time.Minute))},
		{"W0.56", pod("b", made(time.Minute)), pod("a", made(time.Hour))},
		{"W0.56 tie", pod("a", made(61*time.Minute)), pod("b", made(60*time.Minute))},
	} {
		for _, in := range [][]*corev1.Pod{{c.first, c.then}, {c.then, c.first}} {
			if got := RankForDeletion(in, r); got[0] != c.first {
				t.Errorf("%s: %s goes first", c.clause, got[0].Name)
			}
		}
	}
	job := Ranking{} // W0.57
	if got := RankForDeletion([]*corev1.Pod{pod("a", ready(61*time.Minute)),
		pod("b", ready(60*time.Minute), costs("5"))}, job); got[0].Name != "b" {
		t.Error("W0.57: times are compared plainly")
	}
	if on := PodsOnNodes([]*corev1.Pod{pod("a", node("x")), pod("b", node("x"), ending),
		pod("c", node("x"), phase(corev1.PodFailed)), pod("d", node("x"))}); on["x"] != 2 {
		t.Errorf("W0.53: %v", on)
	}
}

func TestTemplateHash(t *testing.T) {
	template := &corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	hash := TemplateHash(template, nil)
	for _, again := range []*corev1.PodTemplateSpec{template, template.DeepCopy()} {
		if h := TemplateHash(again, nil); h != hash || h != "cbb89b784" {
			t.Fatalf("W0.63: hash %s, then %s", hash, h)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int32().Draw(t, "collisions")
		h := TemplateHash(template, &n)
		if len(h) > 10 || strings.Trim(h, "456789bcdf") != "" {
			t.Errorf("W0.63: %q", h)
		}
		if h == hash {
			t.Errorf("W0.62: the count of collisions %d has no effect", n)
		}
	})
}

func TestSameTemplate(t *testing.T) {
	a := &corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}}}
	b := a.DeepCopy()
	b.Labels[appsv1.DefaultDeploymentUniqueLabelKey] = "x"
	b.Annotations = map[string]string{}
	if !SameTemplate(a, b) || len(b.Labels) != 2 {
		t.Error("W2.28: the hash label is compared, or was removed")
	}
	b.Annotations["k"] = "v"
	if SameTemplate(a, b) {
		t.Error("W2.28: an annotation is not compared")
	}
}
