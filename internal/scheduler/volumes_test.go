package scheduler

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/volume"
)

func gibibyte() corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
}

func volumeClaim(name, class string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("pvc-" + name)},
		Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &class,
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: gibibyte()}},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending}}
}

func mounting(p *corev1.Pod, claims ...string) *corev1.Pod {
	for _, c := range claims {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: c, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: c}}})
	}
	return p
}

func localVolume(name, class, node string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("pv-" + name)},
		Spec: corev1.PersistentVolumeSpec{Capacity: gibibyte(), StorageClassName: class,
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{
					{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}}}}}}},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeAvailable}}
}

func lateClass(name, provisioner string) *storagev1.StorageClass {
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("sc-" + name)},
		Provisioner: provisioner, VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer)}
}

func (w *world) volumeClaim(name string, change func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	w.Helper()
	api := w.client.CoreV1().PersistentVolumeClaims("default")
	c, err := api.Get(w.Context(), name, metav1.GetOptions{})
	if err != nil {
		w.Fatal(err)
	}
	if change != nil {
		c = c.DeepCopy()
		change(c)
		if c, err = api.Update(w.Context(), c, metav1.UpdateOptions{}); err != nil {
			w.Fatal(err)
		}
		synctest.Wait()
	}
	return c
}

// bindTo binds a claim like the binder.
func bindTo(pv string) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) {
		c.Spec.VolumeName = pv
		if c.Annotations == nil {
			c.Annotations = map[string]string{}
		}
		c.Annotations[volume.BindCompleted] = "yes"
		c.Status.Phase = corev1.ClaimBound
	}
}

func (w *world) message(pod string) string {
	w.Helper()
	return w.condition(pod, corev1.PodScheduled).Message
}

// S2.21, S2.22: the claim gets its node, the pod is bound as soon as the claim is, to the node of its volume.
func TestProvisionedVolume(t *testing.T) {
	inWorld(t, []runtime.Object{node("n1", "4"), lateClass("late", "x.example.com"), volumeClaim("data", "late")},
		func(w *world) {
			w.create(mounting(pod("a", "1"), "data"))
			w.on("a", "")
			if at := w.volumeClaim("data", nil).Annotations[volume.SelectedNode]; at != "n1" {
				w.Fatalf("node %q is selected", at)
			}
			if _, err := w.client.CoreV1().PersistentVolumes().Create(w.Context(), localVolume("v", "late", "n1"),
				metav1.CreateOptions{}); err != nil {
				w.Fatal(err)
			}
			synctest.Wait()
			w.on("a", "")
			w.volumeClaim("data", bindTo("v"))
			w.on("a", "n1")
		})
}

// S2.12, S2.20: each pod gets a different existing volume, on the volume's node, although the watch does not show
// the first binding yet.
func TestStaticVolumes(t *testing.T) {
	inWorld(t, []runtime.Object{node("n1", "4"), node("n2", "4"), lateClass("static", "kubernetes.io/no-provisioner"),
		volumeClaim("one", "static"), volumeClaim("two", "static"), volumeClaim("three", "static"),
		localVolume("v1", "static", "n1"), localVolume("v2", "static", "n2")}, func(w *world) {
		w.create(mounting(pod("a", "1"), "one"))
		w.create(mounting(pod("b", "1"), "two"))
		w.create(mounting(pod("c", "1"), "three"))
		owners := map[string]string{}
		for _, name := range []string{"v1", "v2"} {
			v, err := w.client.CoreV1().PersistentVolumes().Get(w.Context(), name, metav1.GetOptions{})
			if err != nil || v.Spec.ClaimRef == nil || v.Annotations[volume.BoundByController] == "" {
				w.Fatalf("%s: %+v, %v", name, v, err)
			}
			owners[v.Spec.ClaimRef.Name] = name
			w.volumeClaim(v.Spec.ClaimRef.Name, bindTo(name))
		}
		if len(owners) != 2 {
			w.Errorf("owners %v", owners)
		}
		w.on("a", "n"+owners["one"][1:])
		w.on("b", "n"+owners["two"][1:])
		if m := w.message("c"); !strings.HasPrefix(m,
			"0/2 nodes are available: 2 node(s) didn't find available persistent volumes to bind.") {
			w.Errorf("message %q", m)
		}
		if _, err := w.client.CoreV1().PersistentVolumes().Create(w.Context(), localVolume("v3", "static", "n2"),
			metav1.CreateOptions{}); err != nil {
			w.Fatal(err)
		}
		time.Sleep(20 * time.Second)
		synctest.Wait()
		w.volumeClaim("three", bindTo("v3"))
		w.on("c", "n2")
	})
}

// S2.2 to S2.7, S2.11, S2.55: why a pod has to wait, and that it continues when the reason is gone.
func TestVolumeRefusals(t *testing.T) {
	single := volumeClaim("single", "late")
	single.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
	bindTo("v-single")(single)
	elsewhere := volumeClaim("elsewhere", "late")
	bindTo("v-elsewhere")(elsewhere)
	vSingle, vElsewhere := localVolume("v-single", "late", "n1"), localVolume("v-elsewhere", "late", "n2")
	vSingle.Spec.ClaimRef, vElsewhere.Spec.ClaimRef = volume.Ref(single), volume.Ref(elsewhere)
	inWorld(t, []runtime.Object{node("n1", "4"), lateClass("late", "x.example.com"), single, elsewhere,
		volumeClaim("immediate", "none"), vSingle, vElsewhere},
		func(w *world) {
			for claim, want := range map[string]string{
				"missing":   `0/1 nodes are available: persistentvolumeclaim "missing" not found.`,
				"immediate": "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims.",
				"elsewhere": "0/1 nodes are available: 1 node(s) didn't match PersistentVolume's node affinity.",
			} {
				w.create(mounting(pod(claim, "100m"), claim))
				w.on(claim, "")
				if m := w.message(claim); !strings.HasPrefix(m, want) {
					w.Errorf("%s: %q, want %q", claim, m, want)
				}
			}
			w.create(mounting(pod("first", "100m"), "single"))
			w.on("first", "n1")
			w.create(mounting(pod("second", "100m"), "single"))
			if m := w.message("second"); !strings.Contains(m, "ReadWriteOncePod access mode already in-use") {
				w.Errorf("message %q", m)
			}
			if err := w.client.CoreV1().Pods("default").Delete(w.Context(), "first",
				metav1.DeleteOptions{}); err != nil {
				w.Fatal(err)
			}
			c := volumeClaim("missing", "late")
			if _, err := w.client.CoreV1().PersistentVolumeClaims("default").Create(w.Context(), c,
				metav1.CreateOptions{}); err != nil {
				w.Fatal(err)
			}
			w.volumeClaim("immediate", bindTo("v-single"))
			time.Sleep(20 * time.Second)
			synctest.Wait()
			w.on("second", "n1")
			w.on("immediate", "n1")
			if w.volumeClaim("missing", nil).Annotations[volume.SelectedNode] != "n1" {
				w.Errorf("the claim that was created late is not provisioned: %q", w.message("missing"))
			}
		})
}

// S2.55: a pod preempts a less important one that uses its ReadWriteOncePod claim, and only that one; not a more
// important one.
func TestPreemptionForAClaim(t *testing.T) {
	single := volumeClaim("single", "late")
	single.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
	bindTo("v-single")(single)
	v := localVolume("v-single", "late", "n1")
	v.Spec.NodeAffinity = nil
	v.Spec.ClaimRef = volume.Ref(single)
	inWorld(t, []runtime.Object{node("n1", "4"), node("n2", "4"), lateClass("late", "x.example.com"), single, v},
		func(w *world) {
			w.create(withPriority(mounting(pod("user", "100m"), "single"), 5))
			for i := range 4 {
				w.create(pod("other"+strconv.Itoa(i), "100m"))
			}
			w.create(withPriority(mounting(pod("lower", "100m"), "single"), 4))
			w.on("lower", "")
			w.create(withPriority(mounting(pod("higher", "100m"), "single"), 6))
			time.Sleep(20 * time.Second)
			synctest.Wait()
			pods, err := w.client.CoreV1().Pods("default").List(w.Context(), metav1.ListOptions{})
			if err != nil {
				w.Fatal(err)
			}
			for _, p := range pods.Items {
				if assigned := p.Spec.NodeName != ""; p.Name == "user" || assigned == (p.Name == "lower") {
					w.Errorf("%s is on node %q", p.Name, p.Spec.NodeName)
				}
			}
			if len(pods.Items) != 6 {
				w.Errorf("%d pods", len(pods.Items))
			}
		})
}

// S2.23, S2.24: the wait for a volume ends when the class has no provisioner any more, and after ten minutes; the pod
// is tried again.
func TestVolumeWaitEnds(t *testing.T) {
	inWorld(t, []runtime.Object{node("n1", "4"), lateClass("late", "x.example.com"), volumeClaim("data", "late")},
		func(w *world) {
			w.create(mounting(pod("a", "1"), "data"))
			w.volumeClaim("data", func(c *corev1.PersistentVolumeClaim) {
				delete(c.Annotations, volume.SelectedNode)
				c.Annotations["other"] = "x"
			})
			want := `running PreBind plugin "VolumeBinding": binding volumes: provisioning failed for PVC "data"`
			if m := w.message("a"); m != want {
				w.Errorf("message %q, want %q", m, want)
			}
			time.Sleep(30 * time.Second)
			synctest.Wait()
			if w.volumeClaim("data", nil).Annotations[volume.SelectedNode] != "n1" {
				w.Error("the pod is not tried again")
			}
			time.Sleep(11 * time.Minute)
			synctest.Wait()
			want = `running PreBind plugin "VolumeBinding": binding volumes: context deadline exceeded`
			if m := w.message("a"); m != want {
				w.Errorf("message %q, want %q", m, want)
			}
		})
}

// S2.11, L2.50: a pod preempts others only where its volumes can be used, although less important ones run elsewhere.
func TestPreemptionNeedsTheVolume(t *testing.T) {
	bound, v := volumeClaim("data", "static"), localVolume("v", "static", "n2")
	bindTo("v")(bound)
	v.Spec.ClaimRef, v.Status.Phase = volume.Ref(bound), corev1.VolumeBound
	of := func(p *corev1.Pod, priority int32) *corev1.Pod {
		p.Spec.Priority = &priority
		return p
	}
	first, second := of(pod("first", "1"), 1), of(pod("second", "1"), 5)
	first.Spec.NodeName, second.Spec.NodeName = "n1", "n2"
	inWorld(t, []runtime.Object{node("n1", "1"), node("n2", "1"), lateClass("static", "kubernetes.io/no-provisioner"),
		bound, v, first, second}, func(w *world) {
		w.create(mounting(of(pod("third", "1"), 3), "data"))
		w.on("third", "")
		if got, want := w.message("third"), "0/2 nodes are available: 2 Insufficient cpu. preemption: 0/2 nodes are "+
			"available: 1 No preemption victims found for incoming pod, 1 node(s) didn't match PersistentVolume's node "+
			"affinity."; got != want {
			w.Errorf("message %q\nwant %q", got, want)
		}
		w.delete("third")
		w.create(mounting(of(pod("fourth", "1"), 9), "data"))
		if n := w.pod("fourth").Status.NominatedNodeName; n != "n2" {
			w.Errorf("nominated to %q", n)
		}
		list, err := w.client.CoreV1().Pods("default").List(w.Context(), metav1.ListOptions{})
		if err != nil {
			w.Fatal(err)
		}
		var left []string
		for i := range list.Items {
			left = append(left, list.Items[i].Name)
		}
		if slices.Sort(left); !slices.Equal(left, []string{"first", "fourth"}) {
			w.Errorf("pods %v are left", left)
		}
		w.on("fourth", "n2")
	})
}
