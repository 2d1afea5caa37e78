package quota

import (
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// cluster is what rules look up.
type cluster struct {
	classes []*resourcev1.DeviceClass
	pods    []*corev1.Pod
	claims  []*resourcev1.ResourceClaim
	err     error
}

func (c *cluster) Classes() ([]*resourcev1.DeviceClass, error) { return c.classes, c.err }

func (c *cluster) Claims(string) ([]*resourcev1.ResourceClaim, error) { return c.claims, c.err }

func (c *cluster) Pod(_, name string) (*corev1.Pod, error) {
	for _, p := range c.pods {
		if p.Name == name {
			return p, c.err
		}
	}
	return nil, c.err
}

// exactly is a claim of devices of a class.
func exactly(name, class string, n int64) *resourcev1.ResourceClaim {
	return &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{
			{Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: class,
				AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: n}}}}}}
}

// madeFor is a claim that the scheduler made for the extended resources of a pod.
func madeFor(pod types.UID, name, class string, n int64, at int64) *resourcev1.ResourceClaim {
	c := exactly(name, class, n)
	c.CreationTimestamp = metav1.Unix(at, 0)
	c.Annotations = map[string]string{resourcev1.ExtendedResourceClaimAnnotation: "true"}
	c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "p", UID: pod,
		Controller: new(true)}}
	return c
}

const (
	byClass = "gold.deviceclass.resource.k8s.io/devices"
	implied = "requests.deviceclass.resource.kubernetes.io/gold"
	named   = "requests.example.com/gpu"
)

// Devices count as the extended resource of their class, once: what the pod already counts is not counted again for
// the claim that was made for it.
func TestExtendedResourcesOfClaims(t *testing.T) {
	gold := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gold"},
		Spec: resourcev1.DeviceClassSpec{ExtendedResourceName: new("example.com/gpu")}}
	tin := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "tin"}}
	pod := func(change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "p1"},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{
				Requests: list("example.com/gpu", "2", implied[len(requests):], "1")}}}}}
		if change != nil {
			change(p)
		}
		return p
	}
	claimed := func(name string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: name}
		}
	}
	const object = "count/resourceclaims.resource.k8s.io=1 "
	full := object + byClass + "=4 " + implied + "=4 " + named + "=4"
	rest := object + byClass + "=4 " + implied + "=3 " + named + "=2"
	other := exactly("of-somebody", "gold", 4)
	other.OwnerReferences = madeFor("p1", "", "gold", 4, 10).OwnerReferences
	for _, c := range []struct {
		name, want string
		claim      *resourcev1.ResourceClaim
		pod        *corev1.Pod
		claims     []*resourcev1.ResourceClaim
	}{
		{"a claim of its own", full, exactly("a", "gold", 4), pod(nil), nil},
		{"a class without a name", object + "requests.deviceclass.resource.kubernetes.io/tin=4 " +
			"tin.deviceclass.resource.k8s.io/devices=4", exactly("a", "tin", 4), nil, nil},
		{"made for a pod that has it", rest, madeFor("p1", "a", "gold", 4, 10), pod(claimed("a")), nil},
		{"made for a pod that has another one", full, madeFor("p1", "a", "gold", 4, 10), pod(claimed("b")), nil},
		{"made for another pod with this name", full, madeFor("p0", "a", "gold", 4, 10), pod(claimed("a")), nil},
		{"made for a pod that is gone", full, madeFor("p1", "a", "gold", 4, 10), nil, nil},
		{"made for a pod that has ended", full, madeFor("p1", "a", "gold", 4, 10), pod(func(p *corev1.Pod) {
			claimed("a")(p)
			p.Status.Phase = corev1.PodSucceeded
		}), nil},
		{"the first one for a pod", rest, madeFor("p1", "b", "gold", 4, 10), pod(nil),
			[]*resourcev1.ResourceClaim{madeFor("p1", "b", "gold", 4, 10), madeFor("p1", "a", "gold", 4, 11),
				madeFor("p2", "a", "gold", 4, 9), exactly("z", "gold", 4)}},
		{"a later one for a pod", full, madeFor("p1", "a", "gold", 4, 11), pod(nil),
			[]*resourcev1.ResourceClaim{madeFor("p1", "b", "gold", 4, 10)}},
		{"one of two at the same time", full, madeFor("p1", "b", "gold", 4, 10), pod(nil),
			[]*resourcev1.ResourceClaim{madeFor("p1", "a", "gold", 4, 10)}},
		{"a pod owns it for another reason", full, other, pod(nil), nil},
	} {
		look := &cluster{classes: []*resourcev1.DeviceClass{tin, gold}, claims: c.claims}
		if c.pod != nil {
			look.pods = []*corev1.Pod{c.pod}
		}
		k := deviceClaimRules(look)
		got, err := k.Usage(c.claim, time.Unix(1000, 0))
		if err != nil || amounts(got) != c.want {
			t.Errorf("%s: %s, %v\nwant %s", c.name, amounts(got), err, c.want)
		}
		for name := range got {
			if !k.Concerns(name) {
				t.Errorf("%s: %s is used, but Concerns is false for it", c.name, name)
			}
		}
	}
	look := &cluster{classes: []*resourcev1.DeviceClass{tin, gold}}
	for _, name := range []corev1.ResourceName{"requests.example.com/other", "requests.cpu", "example.com/gpu",
		"requests.deviceclass.resource.kubernetes.io/none"} {
		if deviceClaimRules(look).Concerns(name) {
			t.Errorf("%s is no resource of a class", name)
		}
	}
}

// What cannot be looked up is an error, not a lower usage.
func TestLookupFails(t *testing.T) {
	k := deviceClaimRules(&cluster{err: errors.New("no answer")})
	if used, err := k.Usage(exactly("a", "gold", 1), time.Unix(1000, 0)); err == nil || !k.Concerns(named) {
		t.Errorf("used %s", amounts(used))
	}
}
