package localpath

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"carob/internal/controllers/controllertest"
	"carob/internal/controllers/inventory"
	"carob/internal/controllers/source"
	"carob/internal/controllers/volumes"
	"carob/internal/core/volume"
)

// fakeDisk keeps names instead of data.
type fakeDisk struct {
	mu     sync.Mutex
	places map[string]int64
	log    []string
	fail   error
}

func (d *fakeDisk) Bases() []string { return []string{"/base"} }

func (d *fakeDisk) do(what string, p volume.LocalPlace) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fail != nil {
		return d.fail
	}
	d.log = append(d.log, what+" "+p.Name)
	if what == "remove" {
		delete(d.places, p.Name)
	} else {
		d.places[p.Name] = p.Size
	}
	return nil
}

func (d *fakeDisk) Make(_ context.Context, p volume.LocalPlace) (string, string, error) {
	return "/base/" + p.Name, "none", d.do("make", p)
}

func (d *fakeDisk) Resize(_ context.Context, p volume.LocalPlace) error { return d.do("resize", p) }
func (d *fakeDisk) Remove(_ context.Context, p volume.LocalPlace) error { return d.do("remove", p) }
func (d *fakeDisk) Sweep(_ context.Context, known func(string) bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for name := range d.places {
		pv, _, _ := strings.Cut(name, "_")
		if !known(pv) {
			delete(d.places, name)
			d.log = append(d.log, "sweep "+name)
		}
	}
	return nil
}

func (d *fakeDisk) did() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	log := d.log
	d.log = nil
	return log
}

type noReaders struct{}

func (noReaders) AddReader(inventory.Reader) {}

// start runs binder and provisioner of node n1.
func start(t *testing.T, api *controllertest.API, disk Disk) *record.FakeRecorder {
	t.Helper()
	events := record.NewFakeRecorder(1000)
	claims, pods, nodes := source.VolumeClaims(api), source.Pods(api), source.Nodes(api)
	persistent, classes := source.Volumes(api), source.StorageClasses(api)
	binder, err := volumes.New(api, events, events, noReaders{}, volumes.Watches{Claims: claims, Pods: pods,
		Volumes: persistent,
		Classes: classes})
	if err != nil {
		t.Fatal(err)
	}
	c, err := New(api, events, "n1", disk, Watches{Claims: claims, Nodes: nodes, Volumes: persistent, Classes: classes})
	if err != nil {
		t.Fatal(err)
	}
	controllertest.Run(t, binder, claims, pods, nodes)
	controllertest.Run(t, c)
	return events
}

func objects() *controllertest.API {
	api := controllertest.New(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
	for _, c := range volume.LocalClasses() {
		api.Put(c)
	}
	return api
}

func claim(name string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: new("local-path"),
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}}},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending}}
}

func selectNode(t *testing.T, api *controllertest.API, name, node string) {
	t.Helper()
	if !controllertest.Change(api, "ns", name, func(c *corev1.PersistentVolumeClaim) {
		if c.Annotations == nil {
			c.Annotations = map[string]string{}
		}
		c.Annotations[volume.SelectedNode] = node
	}) {
		t.Fatal("there is no claim", name)
	}
}

// A claim waits for a pod, gets a directory and a volume on the node that the scheduler chose, grows, and when it
// is deleted, its data is deleted before the volume's finalizer is removed (S17.1 to S17.7, S3.21, S3.26).
func TestLifeOfAClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, disk := objects(), &fakeDisk{places: map[string]int64{}}
		api.Late = func() time.Duration { return 3 * time.Millisecond }
		events := start(t, api, disk)
		c := claim("c")
		c.UID = "u1"
		api.Put(c)
		time.Sleep(time.Second)
		controllertest.Equal(t, "events", controllertest.Events(events),
			"Normal WaitForFirstConsumer waiting for first consumer to be created before binding")
		controllertest.Equal(t, "writes without a pod", api.Log())
		selectNode(t, api, "c", "n1")
		time.Sleep(time.Second)
		controllertest.Equal(t, "writes", api.Log(), "update persistentvolumeclaims c",
			"create persistentvolumes pvc-u1", "update persistentvolumes/status pvc-u1",
			"update persistentvolumeclaims c", "update persistentvolumeclaims/status c")
		controllertest.Equal(t, "disk", disk.did(), "make pvc-u1_ns_c")
		got := controllertest.Events(events)
		slices.Sort(got)
		got = slices.Compact(got) // repeated with each reconciliation, as upstream
		controllertest.Equal(t, "events", got, "Normal ExternalProvisioning Waiting for a volume to be created either by "+
			"the external provisioner 'rancher.io/local-path' or manually by the system administrator. If volume creation is "+
			"delayed, please verify that the provisioner is running and correctly registered.",
			`Normal Provisioning External provisioner is provisioning volume for claim "ns/c"`,
			"Normal ProvisioningSucceeded Successfully provisioned volume pvc-u1")
		v := controllertest.All[*corev1.PersistentVolume](api)[0]
		bound := controllertest.All[*corev1.PersistentVolumeClaim](api)[0]
		if v.Spec.Local == nil || v.Spec.Local.Path != "/base/pvc-u1_ns_c" || v.Status.Phase != corev1.VolumeBound ||
			bound.Status.Phase != corev1.ClaimBound || bound.Spec.VolumeName != v.Name ||
			v.Spec.ClaimRef.UID != "u1" || v.Spec.NodeAffinity == nil {
			t.Errorf("%+v, %+v", v, bound)
		}
		controllertest.Change(api, "ns", "c", func(c *corev1.PersistentVolumeClaim) {
			c.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("2Gi")
		})
		time.Sleep(time.Second)
		controllertest.Equal(t, "writes of a resize", api.Log(), "update persistentvolumes pvc-u1",
			"update persistentvolumeclaims/status c")
		controllertest.Equal(t, "disk", disk.did(), "resize pvc-u1_ns_c")
		api.Remove(bound)
		time.Sleep(time.Second)
		controllertest.Equal(t, "writes of a deletion", api.Log(), "update persistentvolumes/status pvc-u1",
			"delete persistentvolumes pvc-u1", "update persistentvolumes pvc-u1")
		controllertest.Equal(t, "disk", disk.did(), "remove pvc-u1_ns_c")
		if left := controllertest.All[*corev1.PersistentVolume](api); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
	})
}

// A directory that was created for a claim is removed if the claim is deleted before its volume exists; a lost
// response causes no duplicates.
func TestNothingIsLeaked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, disk := objects(), &fakeDisk{places: map[string]int64{}}
		refuse, lost := true, false
		api.Before = func(verb string, gvr schema.GroupVersionResource, _ metav1.Object) error {
			if refuse && verb == "create" && gvr.Resource == "persistentvolumes" {
				return errors.New("the API is away")
			}
			return nil
		}
		api.After = func(verb string, gvr schema.GroupVersionResource, _ metav1.Object) error {
			if !lost && verb == "create" && gvr.Resource == "persistentvolumes" {
				lost = true
				return errors.New("connection reset")
			}
			return nil
		}
		start(t, api, disk)
		for _, name := range []string{"a", "b"} {
			c := claim(name)
			c.UID = types.UID("u-" + name)
			api.Put(c)
			selectNode(t, api, name, "n1")
		}
		time.Sleep(10 * time.Second)
		if len(disk.places) == 0 {
			t.Fatal("nothing was made")
		}
		api.Remove(controllertest.All[*corev1.PersistentVolumeClaim](api)[0])
		time.Sleep(10 * time.Second)
		refuse = false
		time.Sleep(2 * time.Minute)
		list := controllertest.All[*corev1.PersistentVolume](api)
		if len(list) != 1 || list[0].Status.Phase != corev1.VolumeBound || len(disk.places) != 1 {
			t.Errorf("%d volumes, places %v", len(list), disk.places)
		}
	})
}

// A deleted node is unselected, so that the scheduler chooses again; claims that cannot be provisioned
// have events with the reason.
func TestClaimsThatCannotBeProvisioned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, disk := objects(), &fakeDisk{places: map[string]int64{}}
		events := start(t, api, disk)
		api.Put(claim("gone"))
		selectNode(t, api, "gone", "n9")
		shared := claim("shared")
		shared.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
		api.Put(shared)
		selectNode(t, api, "shared", "n1")
		huge := claim("huge")
		huge.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1e30")}
		api.Put(huge)
		selectNode(t, api, "huge", "n1")
		time.Sleep(time.Second)
		got := controllertest.Events(events)
		for _, want := range []string{`failed to provision volume with StorageClass "local-path": node "n9" not found`,
			`failed to provision volume with StorageClass "local-path": NodePath only supports ReadWriteOnce and ` +
				`ReadWriteOncePod (1.22+) access modes`,
			`failed to provision volume with StorageClass "local-path": a size of 1e30 is more than any disk can have`} {
			if !slices.Contains(got, "Warning ProvisioningFailed "+want) {
				t.Errorf("no event %q in %q", want, got)
			}
		}
		for _, c := range controllertest.All[*corev1.PersistentVolumeClaim](api) {
			if _, selected := c.Annotations[volume.SelectedNode]; selected != (c.Name != "gone") {
				t.Errorf("%s: annotations %v", c.Name, c.Annotations)
			}
		}
		controllertest.Equal(t, "disk", disk.did())
	})
}

// A user who may create volumes cannot make the provisioner delete data that it did not create
// (S3.27).
func TestForgedVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, disk := objects(), &fakeDisk{places: map[string]int64{}}
		start(t, api, disk)
		for name, path := range map[string]string{"pvc-a": "/etc", "pvc-b": "/base/pvc-other_ns_c", "pvc-c": "/base",
			"pvc-d": "/base/../etc/pvc-d_x", "pvc-e": "/base/pvc-e_x/../../etc"} {
			api.Put(&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name,
				Annotations: map[string]string{volume.ProvisionedBy: volume.LocalProvisioner, volume.LocalNode: "n1"},
				Finalizers:  []string{volume.LocalFinalizer}},
				Spec: corev1.PersistentVolumeSpec{PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
					ClaimRef: &corev1.ObjectReference{Namespace: "ns", Name: "x", UID: "gone"},
					PersistentVolumeSource: corev1.PersistentVolumeSource{
						Local: &corev1.LocalVolumeSource{Path: path}}},
				Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeReleased}})
		}
		api.Put(claim("wakes"))
		time.Sleep(time.Minute)
		controllertest.Equal(t, "disk", disk.did())
		if n := len(controllertest.All[*corev1.PersistentVolume](api)); n != 5 {
			t.Errorf("%d volumes are left, want 5", n)
		}
	})
}

// A webhook refuses writes as if the object did not exist, or as a conflict: they are tried again, with growing waits.
func TestRefusedWrites(t *testing.T) {
	refused := func(t *testing.T, api *controllertest.API, verb, resource string, refusal error, cause func()) {
		t.Helper()
		end := controllertest.Refuse(api, verb, resource, refusal)
		cause()
		time.Sleep(time.Minute)
		// For the claim and for the volume, by two controllers.
		if n := end(); n < 2 || n > 3*controllertest.MostTries {
			t.Errorf("%s %s, %v: %d attempts", verb, resource, refusal, n)
		}
		time.Sleep(2 * time.Minute)
	}
	for _, refusal := range append(controllertest.Refusals(corev1.Resource("persistentvolumes")),
		apierrors.NewAlreadyExists(corev1.Resource("persistentvolumes"), "x")) {
		synctest.Test(t, func(t *testing.T) {
			api, disk := objects(), &fakeDisk{places: map[string]int64{}}
			start(t, api, disk)
			c := claim("c")
			c.UID = "u1"
			refused(t, api, "create", "persistentvolumes", refusal, func() {
				api.Put(c)
				selectNode(t, api, "c", "n1")
			})
			bound := controllertest.All[*corev1.PersistentVolumeClaim](api)[0]
			if bound.Status.Phase != corev1.ClaimBound {
				t.Fatalf("%v: %+v", refusal, bound.Status)
			}
			refused(t, api, "update", "persistentvolumes", refusal, func() {
				controllertest.Change(api, "ns", "c", func(c *corev1.PersistentVolumeClaim) {
					c.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("2Gi")
				})
			})
			capacity := controllertest.All[*corev1.PersistentVolume](api)[0].Spec.Capacity
			if capacity.Storage().String() != "2Gi" {
				t.Errorf("%v: %v", refusal, capacity)
			}
			refused(t, api, "delete", "persistentvolumes", refusal, func() { api.Remove(bound) })
			if left := controllertest.All[*corev1.PersistentVolume](api); len(left) > 0 {
				t.Errorf("%v: left %v", refusal, left)
			}
		})
	}
}
