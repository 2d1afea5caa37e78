package admission

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
)

// A quota of an extended resource limits the devices of ResourceClaims, too; a claim that the scheduler makes for a pod
// uses only what the pod does not count.
func TestQuotaOfExtendedResources(t *testing.T) {
	const gpus, name = corev1.ResourceName("requests.example.com/gpu"), corev1.ResourceName("example.com/gpu")
	two := corev1.ResourceList{gpus: resource.MustParse("2")}
	c := usual()
	c["resourcequotas"] = append(c["resourcequotas"], &corev1.ResourceQuota{ObjectMeta: named("q"),
		Spec: corev1.ResourceQuotaSpec{Hard: two}, Status: corev1.ResourceQuotaStatus{Hard: two, Used: two}})
	c["deviceclasses"] = append(c["deviceclasses"], &resourcev1.DeviceClass{ObjectMeta: named("gold"),
		Spec: resourcev1.DeviceClassSpec{ExtendedResourceName: new(string(name))}})
	pod := newTestPod(func(p *corev1.Pod) {
		p.UID = "u"
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{name: resource.MustParse("2")}
	})
	c["pods"] = append(c["pods"], pod)
	stop := make(chan struct{})
	defer close(stop)
	quota, err := NewQuota(c, nil, nil, stop)
	if err != nil {
		t.Fatal(err)
	}
	for _, made := range []bool{true, false} {
		claim := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "claim"},
			Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{
				{Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gold",
					AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 2}}}}}}
		if made {
			claim.Annotations = map[string]string{resourcev1.ExtendedResourceClaimAnnotation: "true"}
			claim.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name,
				UID: pod.UID, Controller: new(true)}}
		}
		err := quota.(admission.ValidationInterface).Validate(t.Context(), admission.NewAttributesRecord(claim, nil,
			resourcev1.SchemeGroupVersion.WithKind("ResourceClaim"), "ns", "claim",
			resourcev1.SchemeGroupVersion.WithResource("resourceclaims"), "", admission.Create,
			&metav1.CreateOptions{}, false, admin), nil)
		if made && err != nil || !made && !apierrors.IsForbidden(err) {
			t.Errorf("made for a pod %v: %v", made, err)
		}
	}
}
