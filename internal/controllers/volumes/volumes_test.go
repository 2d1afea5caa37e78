package volumes

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	ktesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"

	"carob/internal/controllers/controllertest"
	"carob/internal/controllers/inventory"
	"carob/internal/controllers/source"
	"carob/internal/core/volume"
)

// readers keeps the reader that the controller registers.
type readers struct{ reader inventory.Reader }

func (r *readers) AddReader(reader inventory.Reader) { r.reader = reader }

func kindOf(plural string) inventory.Kind {
	return inventory.Kind{GroupVersionResource: corev1.SchemeGroupVersion.WithResource(plural)}
}

// start runs the controller.
func start(t *testing.T, api *controllertest.API) (*record.FakeRecorder, inventory.Reader) {
	t.Helper()
	return startWith(t, api, api)
}

// startWith runs it with a client of its own.
func startWith(t *testing.T, api *controllertest.API, client kubernetes.Interface) (*record.FakeRecorder,
	inventory.Reader) {
	t.Helper()
	events, all := record.NewFakeRecorder(1000), &readers{}
	claims, pods := source.VolumeClaims(api), source.Pods(api)
	c, err := New(client, events, events, all, Watches{Claims: claims, Pods: pods, Volumes: source.Volumes(api),
		Classes: source.StorageClasses(api)})
	if err != nil {
		t.Fatal(err)
	}
	controllertest.Run(t, c, claims, pods)
	return events, all.reader
}

// wanting returns a claim of a class; "" requests a volume without a class.
func wanting(name, class string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)},
		Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &class,
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}}},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending}}
}

func offering(name, class string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)},
		Spec: corev1.PersistentVolumeSpec{StorageClassName: class,
			AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}}}
}

// boundTo binds a volume to a claim.
func boundTo(v *corev1.PersistentVolume, c *corev1.PersistentVolumeClaim) *corev1.PersistentVolume {
	v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: c.Namespace, Name: c.Name, UID: c.UID}
	v.Status.Phase = corev1.VolumeBound
	return v
}

func lateClass(name string) *storagev1.StorageClass {
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name},
		Provisioner:       "kubernetes.io/no-provisioner",
		VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer)}
}

// state formats which claim has which volume, and the phases: "claim=volume(Bound,Bound)".
func state(api *controllertest.API) (out []string) {
	volumes := map[string]*corev1.PersistentVolume{}
	for _, v := range controllertest.All[*corev1.PersistentVolume](api) {
		volumes[v.Name] = v
	}
	for _, c := range controllertest.All[*corev1.PersistentVolumeClaim](api) {
		v := volumes[c.Spec.VolumeName]
		delete(volumes, c.Spec.VolumeName)
		text := fmt.Sprintf("%s=%s(%s", c.Name, c.Spec.VolumeName, c.Status.Phase)
		if v != nil {
			text += "," + string(v.Status.Phase)
			if r := v.Spec.ClaimRef; r == nil || r.UID != c.UID {
				text += ",of another"
			}
		}
		out = append(out, text+")")
	}
	for name, v := range volumes {
		out = append(out, fmt.Sprintf("=%s(%s)", name, v.Status.Phase))
	}
	slices.Sort(out)
	return out
}

func inTest(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, test)
}

// listed reports whether the controller has read the volumes of the API.
func listed(api *controllertest.API) bool {
	return slices.ContainsFunc(api.Actions(), func(a ktesting.Action) bool {
		return a.GetResource().Resource == "persistentvolumes" && a.GetVerb() != "create"
	})
}

// Without claims and volumes, no additional watches run.
func TestFirstClaimOrVolume(t *testing.T) {
	for what, begin := range map[string]func(*controllertest.API, inventory.Reader){
		"a claim": func(api *controllertest.API, _ inventory.Reader) { api.Put(wanting("c", "")) },
		"a volume": func(_ *controllertest.API, r inventory.Reader) {
			r.Changed(kindOf("persistentvolumes"), nil)
		},
		"a volume that is listed": func(_ *controllertest.API, r inventory.Reader) {
			r.Relisted(kindOf("persistentvolumes"),
				[]*metav1.PartialObjectMetadata{{}})
		},
	} {
		inTest(t, func(t *testing.T) {
			api := controllertest.New()
			_, reader := start(t, api)
			reader.Changed(kindOf("secrets"), nil)
			api.Put(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}})
			time.Sleep(time.Hour)
			if listed(api) {
				t.Fatalf("volumes are read before %s", what)
			}
			begin(api, reader)
			time.Sleep(time.Second)
			if !listed(api) {
				t.Errorf("volumes are not read after %s", what)
			}
		})
	}
}

// The volume is bound first, then the claim: at no time does a bound claim have an unbound volume.
func TestBinding(t *testing.T) { // S1.E, S1.F
	inTest(t, func(t *testing.T) {
		api := controllertest.New()
		start(t, api)
		api.Put(offering("v", ""))
		api.Put(wanting("c", ""))
		time.Sleep(time.Second)
		controllertest.Equal(t, "state", state(api), "c=v(Bound,Bound)")
		var order []string
		for _, w := range api.Log() {
			if w != "update persistentvolumes/status v" { // Available first, if the volume came before the claim
				order = append(order, w)
			}
		}
		controllertest.Equal(t, "writes", order, "update persistentvolumes v", "update persistentvolumeclaims c",
			"update persistentvolumeclaims/status c")
		time.Sleep(time.Hour)
		controllertest.Equal(t, "writes of an hour", api.Log())
		api.Remove(controllertest.All[*corev1.PersistentVolumeClaim](api)[0])
		time.Sleep(time.Second)
		controllertest.Equal(t, "state without the claim", state(api), "=v(Released)")
	})
}

// A webhook removes an annotation that binds a claim, each time it is written: other claims are bound, and the claim is
// tried again with growing waits.
func TestWritesThatAreReverted(t *testing.T) {
	inTest(t, func(t *testing.T) {
		api := controllertest.New()
		api.Before = func(_ string, gvr schema.GroupVersionResource, o metav1.Object) error {
			if gvr.Resource == "persistentvolumeclaims" && o.GetName() == "a" {
				annotations := maps.Clone(o.GetAnnotations())
				delete(annotations, volume.BindCompleted)
				o.SetAnnotations(annotations)
			}
			return nil
		}
		start(t, api)
		api.Put(offering("v", ""))
		api.Put(wanting("a", ""))
		time.Sleep(time.Second)
		api.Put(offering("w", ""))
		api.Put(wanting("b", ""))
		time.Sleep(time.Minute)
		if now := state(api); !slices.Contains(now, "b=w(Bound,Bound)") {
			t.Errorf("state %q", now)
		}
		api.Before = nil
		time.Sleep(2 * time.Minute)
		controllertest.Equal(t, "state", state(api), "a=v(Bound,Bound)", "b=w(Bound,Bound)")
	})
}

// A volume that comes makes only those claims decide again that may be bound to it.
func TestVolumesThatNoClaimCanUse(t *testing.T) {
	inTest(t, func(t *testing.T) {
		api := controllertest.New()
		events, _ := start(t, api)
		const claims = 30
		for i := range claims {
			api.Put(wanting(fmt.Sprint("c", i), "a"))
		}
		named := wanting("named", "a")
		named.Spec.VolumeName = "b0"
		api.Put(named)
		time.Sleep(again / 2)
		decisions := func() (n int) {
			for len(events.Events) > 0 {
				<-events.Events
				n++
			}
			return n
		}
		if n := decisions(); n < claims {
			t.Fatalf("%d events of %d claims", n, claims)
		}
		for i := range 5 {
			api.Put(offering(fmt.Sprint("b", i), "b"))
		}
		time.Sleep(again / 4)
		if n := decisions(); n > 2 { // b0 came, and became available: the claim that names it has another class
			t.Errorf("%d decisions", n)
		}
		api.Put(offering("a", "a"))
		time.Sleep(again / 8)
		bound := 0
		for _, c := range controllertest.All[*corev1.PersistentVolumeClaim](api) {
			if c.Status.Phase == corev1.ClaimBound {
				bound++
			}
		}
		if bound != 1 {
			t.Errorf("%d claims are bound: %q", bound, state(api))
		}
	})
}

// A webhook takes 30 s for each write of the claims of one namespace: those of another are bound meanwhile, and each
// volume gets one claim.
func TestSlowWrites(t *testing.T) {
	inTest(t, func(t *testing.T) {
		api := controllertest.New()
		startWith(t, api, controllertest.Slow{Interface: api, Namespace: "slow",
			Wait: func() { time.Sleep(30 * time.Second) }})
		const claims = 10 // of each namespace
		for i := range claims {
			c := wanting(fmt.Sprint("slow", i), "")
			c.Namespace = "slow"
			api.Put(c)
		}
		for i := range 2 * claims {
			api.Put(offering(fmt.Sprint("v", i), ""))
		}
		time.Sleep(5 * time.Second)
		for i := range claims {
			api.Put(wanting(fmt.Sprint("other", i), ""))
		}
		time.Sleep(5 * time.Second)
		bound := func(namespace string) (n int) {
			volumes := map[string]bool{}
			for _, c := range controllertest.All[*corev1.PersistentVolumeClaim](api) {
				if c.Namespace == namespace && c.Status.Phase == corev1.ClaimBound && !volumes[c.Spec.VolumeName] {
					volumes[c.Spec.VolumeName] = true
					n++
				}
			}
			return n
		}
		if n := bound("ns"); n != claims {
			t.Errorf("%d of %d claims are bound: %q", n, claims, state(api))
		}
		time.Sleep(10 * time.Minute)
		if n := bound("slow"); n != claims {
			t.Errorf("%d of %d slow claims are bound: %q", n, claims, state(api))
		}
		for _, s := range state(api) {
			if strings.Contains(s, "of another") || strings.Contains(s, "Available") {
				t.Errorf("state %q", state(api))
			}
		}
	})
}

// Late watches do not cause a volume with two claims.
func TestLateWatches(t *testing.T) {
	inTest(t, func(t *testing.T) {
		api := controllertest.New(offering("v1", ""), offering("v2", ""))
		api.Late = func() time.Duration { return 3 * time.Second }
		start(t, api)
		for _, name := range []string{"a", "b", "c"} {
			api.Put(wanting(name, ""))
		}
		time.Sleep(20 * time.Second)
		var phases []string
		for _, c := range controllertest.All[*corev1.PersistentVolumeClaim](api) {
			phases = append(phases, string(c.Status.Phase))
		}
		slices.Sort(phases)
		controllertest.Equal(t, "phases", phases, "Bound", "Bound", "Pending")
		for _, s := range state(api) { // any claim may be the one that waits
			if strings.Contains(s, "of another") || strings.Contains(s, "Available") {
				t.Errorf("state %q", state(api))
			}
		}
	})
}

// A pending claim is checked when a volume is added, not only every 15 s.
func TestPendingClaims(t *testing.T) {
	inTest(t, func(t *testing.T) {
		api := controllertest.New()
		events, _ := start(t, api)
		api.Put(wanting("c", ""))
		time.Sleep(16 * time.Second)
		none := "Normal FailedBinding no persistent volumes available for this claim and no storage class is set"
		controllertest.Equal(t, "events", controllertest.Events(events), none, none)
		api.Put(offering("v", ""))
		time.Sleep(time.Second)
		controllertest.Equal(t, "state", state(api), "c=v(Bound,Bound)")
		api.Log()
		later := wanting("later", "")
		later.Spec.StorageClassName = nil // it takes the default class when there is one (S1.33)
		api.Put(later)
		time.Sleep(time.Second)
		class := lateClass("standard")
		class.Annotations = map[string]string{"storageclass.kubernetes.io/is-default-class": "true"}
		api.Put(class)
		time.Sleep(time.Second)
		for _, c := range controllertest.All[*corev1.PersistentVolumeClaim](api) {
			if c.Name == "later" && (c.Spec.StorageClassName == nil || *c.Spec.StorageClassName != "standard") {
				t.Errorf("the class is %v", c.Spec.StorageClassName)
			}
		}
		api.Remove(later)
		controllertest.Events(events)
		time.Sleep(time.Minute)
		controllertest.Equal(t, "events about a claim that is gone", controllertest.Events(events))
	})
}

// Events of a claim with WaitForFirstConsumer name the pods that it waits for, as soon as they
// exist.
func TestWaitForFirstConsumer(t *testing.T) { // S1.43
	inTest(t, func(t *testing.T) {
		api := controllertest.New(lateClass("late"))
		events, _ := start(t, api)
		pod := func(name, node string, phase corev1.PodPhase) *corev1.Pod {
			return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
				Spec: corev1.PodSpec{NodeName: node, Volumes: []corev1.Volume{{Name: "v",
					VolumeSource: corev1.VolumeSource{
						PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}}},
				Status: corev1.PodStatus{Phase: phase}}
		}
		expect := func(what string, want ...string) {
			t.Helper()
			time.Sleep(time.Second)
			controllertest.Equal(t, what, controllertest.Events(events), want...)
		}
		api.Put(wanting("c", "late"))
		expect("alone", "Normal WaitForFirstConsumer waiting for first consumer to be created before binding")
		api.Put(pod("scheduled", "n1", corev1.PodRunning))
		expect("with a pod that has a node")
		api.Put(pod("other", "", corev1.PodPending))
		expect("with a pod", "Normal WaitForPodScheduled waiting for pod other to be scheduled")
		api.Put(pod("ended", "", corev1.PodFailed))
		expect("with a pod that ended", "Normal WaitForPodScheduled waiting for pod other to be scheduled")
		api.Put(pod("first", "", corev1.PodPending))
		expect("with two", "Normal WaitForPodScheduled waiting for pods first,other to be scheduled")
		controllertest.Equal(t, "state", state(api), "c=(Pending)")
	})
}

// A volume is not released because the watch of claims is late: the API is read first.
func TestVolumeIsNotReleasedByLateWatch(t *testing.T) { // S1.74
	for _, there := range []bool{true, false} {
		inTest(t, func(t *testing.T) {
			c := wanting("c", "")
			c.Spec.VolumeName = "v"
			api := controllertest.New()
			api.LateOf = func(gvr schema.GroupVersionResource) time.Duration {
				if gvr.Resource == "persistentvolumeclaims" {
					return time.Hour
				}
				return 0
			}
			_, reader := start(t, api)
			reader.Changed(kindOf("persistentvolumes"), nil)
			if there {
				api.Put(c)
			}
			api.Put(boundTo(offering("v", ""), c))
			time.Sleep(time.Minute)
			want := []string{"c=v(Pending,Bound)"}
			if !there {
				want = []string{"=v(Released)"}
			}
			controllertest.Equal(t, fmt.Sprintf("state, claim there: %v", there), state(api), want...)
		})
	}
	inTest(t, func(t *testing.T) { // without a response, the volume is not released
		api := controllertest.New(boundTo(offering("v", ""), wanting("c", "")))
		api.PrependReactor("get", "persistentvolumeclaims", func(ktesting.Action) (bool, runtime.Object, error) {
			return true, nil, errors.New("the API is away")
		})
		_, reader := start(t, api)
		reader.Changed(kindOf("persistentvolumes"), nil)
		time.Sleep(time.Minute)
		controllertest.Equal(t, "state", state(api), "=v(Bound)")
	})
}

// With conflicts, lost responses, rejections, and watches that deliver late, twice, or start over: every claim that
// can be bound is bound in the end, and a volume never has two claims.
func TestConvergesUnderFaults(t *testing.T) {
	for seed := range uint64(8) {
		inTest(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			api := controllertest.New()
			broken := true
			fails := func(o metav1.Object) error {
				switch {
				case !broken || random.IntN(4) > 0:
					return nil
				case random.IntN(2) == 0:
					return apierrors.NewConflict(schema.GroupResource{}, o.GetName(), errors.New("changed"))
				default:
					return errors.New("the connection broke")
				}
			}
			owners := map[string]types.UID{} // of volumes
			api.Before = func(_ string, _ schema.GroupVersionResource, o metav1.Object) error { return fails(o) }
			api.After = func(_ string, _ schema.GroupVersionResource, o metav1.Object) error {
				if c, ok := o.(*corev1.PersistentVolumeClaim); ok && c.Spec.VolumeName != "" {
					if other := owners[c.Spec.VolumeName]; other != "" && other != c.UID {
						t.Errorf("seed %d: volume %s is given to %s and %s", seed, c.Spec.VolumeName, other, c.UID)
					}
					owners[c.Spec.VolumeName] = c.UID
				}
				return fails(o)
			}
			api.Late = func() time.Duration { return time.Duration(random.IntN(400)) * time.Millisecond }
			api.Faults = func() controllertest.Fault {
				if !broken {
					return controllertest.None
				}
				return controllertest.Fault(random.IntN(3))
			}
			start(t, api)
			for i := range 6 {
				time.Sleep(time.Duration(random.IntN(500)) * time.Millisecond)
				if i < 4 {
					api.Put(offering(fmt.Sprint("v", i), ""))
				}
				api.Put(wanting(fmt.Sprint("c", i), ""))
			}
			time.Sleep(10 * time.Second)
			broken = false
			time.Sleep(5 * time.Minute)
			bound := 0
			for _, s := range state(api) {
				var name, v string
				_, _ = fmt.Sscanf(s, "%2s=%2s(Bound,Bound)", &name, &v)
				if s == name+"="+v+"(Bound,Bound)" {
					bound++
				}
			}
			if bound != 4 {
				t.Errorf("seed %d: %q", seed, state(api))
			}
		})
	}
}

// A webhook refuses writes as if the object did not exist, or as a conflict: they are tried again, with growing waits.
func TestRefusedWrites(t *testing.T) {
	for _, resource := range []string{"persistentvolumeclaims", "persistentvolumes"} {
		for _, refusal := range controllertest.Refusals(corev1.Resource(resource)) {
			inTest(t, func(t *testing.T) {
				api := controllertest.New()
				end := controllertest.Refuse(api, "update", resource, refusal)
				start(t, api)
				api.Put(offering("v", ""))
				api.Put(wanting("a", ""))
				time.Sleep(time.Minute)
				if n := end(); n < 2 || n > 2*controllertest.MostTries { // for the claim, and for the volume
					t.Errorf("%v: %d attempts", refusal, n)
				}
				time.Sleep(2 * time.Minute)
				controllertest.Equal(t, "state", state(api), "a=v(Bound,Bound)")
			})
		}
	}
}
