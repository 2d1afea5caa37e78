package scheduler

import (
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

const csiDriver = "csi.example.com"

// csiVolume is a volume of a driver and its claim, bound to each other.
func csiVolume(name string) (*corev1.PersistentVolume, *corev1.PersistentVolumeClaim) {
	c := volumeClaim(name, "csi")
	bindTo("v-" + name)(c)
	return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v-" + name, UID: types.UID("v-" + name)},
		Spec: corev1.PersistentVolumeSpec{Capacity: gibibyte(), StorageClassName: "csi", ClaimRef: volume.Ref(c),
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: csiDriver, VolumeHandle: name}}}}, c
}

func csiNode(name string, limit *int32) *storagev1.CSINode {
	return &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("csi-" + name)},
		Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: csiDriver, NodeID: name,
			Allocatable: &storagev1.VolumeNodeResources{Count: limit}}}}}
}

func (w *world) unschedulable(pod, want string) {
	w.Helper()
	w.on(pod, "")
	if m := w.message(pod); !strings.Contains(m, want) {
		w.Errorf("%s: %q, want %q", pod, m, want)
	}
}

// S2.50, S2.31: a node takes as many volumes as its driver allows, each counted once; waiting pods continue when
// there is room.
func TestVolumeLimits(t *testing.T) {
	v1, c1 := csiVolume("one")
	v2, c2 := csiVolume("two")
	v3, c3 := csiVolume("three")
	attached := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "a"},
		Spec: storagev1.VolumeAttachmentSpec{Attacher: csiDriver, NodeName: "n1",
			Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &v3.Name}}}
	inWorld(t, []runtime.Object{node("n1", "4"), csiNode("n1", new(int32(2))), v1, c1, v2, c2, v3, c3, attached},
		func(w *world) {
			w.create(mounting(pod("a", "1"), "one"))
			w.on("a", "n1")
			w.create(mounting(pod("same", "1"), "one")) // a volume counts once
			w.on("same", "n1")
			w.create(mounting(pod("b", "1"), "two")) // the third is still attached
			w.unschedulable("b", "0/1 nodes are available: 1 node(s) exceed max volume count.")
			if err := w.client.StorageV1().VolumeAttachments().Delete(w.Context(), "a",
				metav1.DeleteOptions{}); err != nil {
				w.Fatal(err)
			}
			time.Sleep(20 * time.Second)
			synctest.Wait()
			w.on("b", "n1")
			w.create(mounting(pod("c", "1"), "three"))
			w.unschedulable("c", "node(s) exceed max volume count")
			if _, err := w.client.StorageV1().CSINodes().Update(w.Context(), csiNode("n1", nil),
				metav1.UpdateOptions{}); err != nil {
				w.Fatal(err)
			}
			time.Sleep(20 * time.Second)
			synctest.Wait()
			w.on("c", "n1")
		})
}

// S2.53: a driver may require that pods run only on nodes with the driver.
func TestMissingDriver(t *testing.T) {
	v, c := csiVolume("one")
	driver := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: csiDriver, UID: "d"},
		Spec: storagev1.CSIDriverSpec{PreventPodSchedulingIfMissing: new(true)}}
	inWorld(t, []runtime.Object{node("n1", "4"), driver, v, c}, func(w *world) {
		w.create(mounting(pod("a", "1"), "one"))
		w.unschedulable("a", "1 csi.example.com CSI driver is not installed on the node")
		if _, err := w.client.StorageV1().CSINodes().Create(w.Context(), csiNode("n1", nil),
			metav1.CreateOptions{}); err != nil {
			w.Fatal(err)
		}
		time.Sleep(20 * time.Second)
		synctest.Wait()
		w.on("a", "n1")
	})
}

// S2.14: a claim is provisioned where its driver has storage for it.
func TestStorageCapacity(t *testing.T) {
	driver := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: csiDriver, UID: "d"},
		Spec: storagev1.CSIDriverSpec{StorageCapacity: new(true)}}
	room := func(name, class, size, node string) *storagev1.CSIStorageCapacity {
		q := resource.MustParse(size)
		return &storagev1.CSIStorageCapacity{ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: name,
			UID: types.UID(name)}, StorageClassName: class, Capacity: &q,
			NodeTopology: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelHostname: node}}}
	}
	n1, n2 := node("n1", "4"), node("n2", "4")
	n1.Labels, n2.Labels = map[string]string{corev1.LabelHostname: "n1"}, map[string]string{corev1.LabelHostname: "n2"}
	anywhere := room("anywhere", "late", "1Ti", "")
	anywhere.NodeTopology = nil // matches nothing
	inWorld(t, []runtime.Object{n1, n2, driver, lateClass("late", csiDriver), volumeClaim("data", "late"), anywhere,
		room("small", "late", "1Mi", "n1"), room("other", "else", "1Ti", "n2")}, func(w *world) {
		w.create(mounting(pod("a", "1"), "data"))
		w.unschedulable("a", "0/2 nodes are available: 2 node(s) did not have enough free storage.")
		if _, err := w.client.StorageV1().CSIStorageCapacities("d").Create(w.Context(),
			room("large", "late", "1Ti", "n2"), metav1.CreateOptions{}); err != nil {
			w.Fatal(err)
		}
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if at := w.volumeClaim("data", nil).Annotations[volume.SelectedNode]; at != "n2" {
			w.Fatalf("node %q is selected: %s", at, w.message("a"))
		}
	})
}
