package attach

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ktesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"

	"carob/internal/controllers/controllertest"
	"carob/internal/controllers/inventory"
	"carob/internal/controllers/metrics"
	"carob/internal/controllers/source"
	"carob/internal/core/volume"
)

type noReaders struct{}

func (noReaders) AddReader(inventory.Reader) {}

const driver = "csi.example.com"

var handle = volume.Handle{Driver: driver, ID: "h"}

// start runs the controller with a node, a claim that is bound to a volume of a driver, and a pod that uses it.
func start(t *testing.T, api *controllertest.API) *record.FakeRecorder {
	t.Helper()
	api.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: corev1.NodeStatus{
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}})
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "c"},
		Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv"}}
	api.Put(claim)
	api.Put(&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"},
		Spec: corev1.PersistentVolumeSpec{ClaimRef: volume.Ref(claim),
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: driver, VolumeHandle: "h"}}}})
	api.Put(podOn("n1"))
	in := Watches{Pods: source.Pods(api), Nodes: source.Nodes(api), Claims: source.VolumeClaims(api),
		Volumes: source.Volumes(api), Attachments: source.VolumeAttachments(api), Drivers: source.CSIDrivers(api)}
	events := record.NewFakeRecorder(100)
	c, err := New(api, events, noReaders{}, in)
	if err != nil {
		t.Fatal(err)
	}
	controllertest.Run(t, c, in.Pods, in.Nodes, in.Claims, in.Volumes)
	return events
}

func podOn(node string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"},
		Spec: corev1.PodSpec{NodeName: node, Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}}}}
}

// settle waits until watches and the controller are idle.
func settle() { time.Sleep(time.Second); synctest.Wait() }

func attachments(api *controllertest.API) []string {
	var names []string
	for _, a := range controllertest.All[*storagev1.VolumeAttachment](api) {
		names = append(names, a.Name)
	}
	return names
}

// A volume is attached, reported in the node's status, kept while the node uses it, and detached; attachments of
// other creators stay.
func TestAttachment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		other := "pv"
		api := controllertest.New(&storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "foreign"},
			Spec: storagev1.VolumeAttachmentSpec{Attacher: "x", NodeName: "n1",
				Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &other}}})
		metrics.Register()
		events := start(t, api)
		settle()
		measured := func(wanted, attached float64) {
			t.Helper()
			now := controllertest.Metrics(t)
			for name, want := range map[string]float64{"actual": attached, "desired": wanted} {
				name = "attachdetach_controller_total_volumes{" + plugin(driver) + "," + name + "_state_of_world}"
				if now[name] != want {
					t.Errorf("%s is %v, want %v", name, now[name], want)
				}
			}
			const used = "storage_count_attachable_volumes_in_use{n1,kubernetes.io/csi:" + driver + "}"
			if now[used] != wanted {
				t.Errorf("%s is %v, want %v", used, now[used], wanted)
			}
		}
		measured(1, 0)
		mine := handle.AttachmentName("n1")
		controllertest.Equal(t, "attachments", attachments(api), mine, "foreign")
		controllertest.Change(api, "", mine, func(a *storagev1.VolumeAttachment) { a.Status.Attached = true })
		settle()
		node := controllertest.All[*corev1.Node](api)[0]
		if len(node.Status.VolumesAttached) != 1 || node.Status.VolumesAttached[0].Name != handle.UniqueName() {
			t.Fatalf("attached: %+v", node.Status)
		}
		controllertest.Equal(t, "events", controllertest.Events(events),
			`Normal SuccessfulAttachVolume AttachVolume.Attach succeeded for volume "pv" `)
		controllertest.Change(api, "", "n1", func(n *corev1.Node) {
			n.Status.VolumesInUse = []corev1.UniqueVolumeName{handle.UniqueName()}
		})
		api.Remove(podOn("n1"))
		settle()
		time.Sleep(time.Hour)
		settle()
		controllertest.Equal(t, "attachments while the node uses it", attachments(api), mine, "foreign")
		measured(0, 1)
		controllertest.Change(api, "", "n1", func(n *corev1.Node) { n.Status.VolumesInUse = nil })
		settle()
		controllertest.Equal(t, "attachments at the end", attachments(api), "foreign")
		measured(0, 0)
		if n := controllertest.All[*corev1.Node](api)[0]; len(n.Status.VolumesAttached) != 0 {
			t.Errorf("attached: %+v", n.Status.VolumesAttached)
		}
		controllertest.Equal(t, "events", controllertest.Events(events))
	})
}

// A driver may declare that its volumes need no attachment, and the wait for a lost node ends after six
// minutes.
func TestNotAttachedAndLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := controllertest.New(&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driver},
			Spec: storagev1.CSIDriverSpec{AttachRequired: new(false)}})
		start(t, api)
		settle()
		controllertest.Equal(t, "attachments", attachments(api))
	})
	synctest.Test(t, func(t *testing.T) {
		api := controllertest.New()
		start(t, api)
		settle()
		controllertest.Change(api, "", "n1", func(n *corev1.Node) {
			n.Status.VolumesInUse = []corev1.UniqueVolumeName{handle.UniqueName()}
			n.Status.Conditions[0].Status = corev1.ConditionUnknown
		})
		api.Remove(podOn("n1"))
		time.Sleep(5 * time.Minute)
		settle()
		controllertest.Equal(t, "attachments after 5 minutes", attachments(api), handle.AttachmentName("n1"))
		time.Sleep(time.Minute)
		settle()
		controllertest.Equal(t, "attachments after 6 minutes", attachments(api))
	})
}

// Two nodes need an exclusive volume at once, and the watch shows the attachment of the first one late: the volume is
// attached to one node at a time, and to the other one when the first has released it.
func TestExclusiveVolumeWithLateWatch(t *testing.T) {
	for _, late := range []time.Duration{0, 3 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			api := controllertest.New()
			api.Late = func() time.Duration { return late }
			second := podOn("n2")
			second.Name = "q"
			api.Put(second)
			api.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}, Status: corev1.NodeStatus{
				Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}})
			start(t, api)
			time.Sleep(20 * time.Second)
			synctest.Wait()
			first := attachments(api)
			if len(first) != 1 {
				t.Fatalf("late by %v: attached to %d nodes at once", late, len(first))
			}
			winner, other := podOn("n1"), "n2"
			if first[0] == handle.AttachmentName("n2") {
				winner, other = second, "n1"
			}
			api.Remove(winner)
			time.Sleep(20 * time.Second)
			synctest.Wait()
			controllertest.Equal(t, "attachments after the first pod", attachments(api), handle.AttachmentName(other))
			// And back: what was created long ago does not block.
			back := winner.DeepCopy()
			back.Name, back.UID, back.ResourceVersion = "r", "r", ""
			api.Put(back)
			time.Sleep(20 * time.Second)
			for _, name := range []string{"p", "q"} {
				gone := podOn(other)
				gone.Name = name
				api.Remove(gone)
			}
			time.Sleep(20 * time.Second)
			synctest.Wait()
			controllertest.Equal(t, "attachments at the end", attachments(api), first[0])
		})
	}
}

// A webhook refuses writes as if the object did not exist, or as a conflict: they are tried again, with growing waits.
func TestRefusedWrites(t *testing.T) {
	mine := handle.AttachmentName("n1")
	for _, refusal := range controllertest.Refusals(corev1.Resource("x")) {
		synctest.Test(t, func(t *testing.T) {
			api := controllertest.New()
			start(t, api)
			settle()
			end := controllertest.Refuse(api, "patch", "nodes", refusal)
			controllertest.Change(api, "", mine, func(a *storagev1.VolumeAttachment) { a.Status.Attached = true })
			time.Sleep(time.Minute)
			if n := end(); n < 2 || n > controllertest.MostTries {
				t.Errorf("%v: %d attempts", refusal, n)
			}
			time.Sleep(time.Minute)
			if n := controllertest.All[*corev1.Node](api)[0]; len(n.Status.VolumesAttached) != 1 {
				t.Errorf("%v: attached %v", refusal, n.Status.VolumesAttached)
			}
			end = controllertest.Refuse(api, "delete", "volumeattachments", refusal)
			api.Remove(podOn("n1"))
			time.Sleep(time.Minute)
			if n := end(); n < 2 || n > controllertest.MostTries {
				t.Errorf("%v: %d deletions", refusal, n)
			}
			time.Sleep(2 * time.Minute)
			controllertest.Equal(t, "attachments", attachments(api))
		})
	}
}

// An attachment of one driver is refused for ever: volumes of others are attached meanwhile.
func TestRefusalOfOneVolume(t *testing.T) {
	const second = "second.example.com"
	for refused, other := range map[string]string{driver: second, second: driver} {
		synctest.Test(t, func(t *testing.T) {
			api := controllertest.New()
			api.PrependReactor("create", "volumeattachments", func(a ktesting.Action) (bool, runtime.Object, error) {
				made, _ := a.(ktesting.CreateAction).GetObject().(*storagev1.VolumeAttachment)
				if made.Spec.Attacher == refused {
					return true, nil, apierrors.NewForbidden(storagev1.Resource("volumeattachments"), made.Name, nil)
				}
				return false, nil, nil
			})
			claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "d", UID: "d"},
				Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pw"}}
			api.Put(claim)
			api.Put(&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pw"},
				Spec: corev1.PersistentVolumeSpec{ClaimRef: volume.Ref(claim),
					PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
						Driver: second, VolumeHandle: "h"}}}})
			pod := podOn("n1")
			pod.Name, pod.Spec.Volumes[0].PersistentVolumeClaim.ClaimName = "q", "d"
			api.Put(pod)
			start(t, api)
			settle()
			want := volume.Handle{Driver: other, ID: "h"}.AttachmentName("n1")
			controllertest.Equal(t, "attachments beside "+refused, attachments(api), want)
		})
	}
}
