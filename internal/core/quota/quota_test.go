package quota

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

func amounts(list corev1.ResourceList) string {
	var out []string
	for name, q := range list {
		out = append(out, fmt.Sprintf("%s=%s", name, q.String()))
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func list(pairs ...string) corev1.ResourceList {
	out := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		out[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return out
}

func TestUsage(t *testing.T) {
	now := time.Unix(1000, 0)
	pod := func(change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c",
			Resources: corev1.ResourceRequirements{
				Requests: list("cpu", "1", "memory", "1Gi", "example.com/gpu", "2", "hugepages-2Mi", "4Mi"),
				Limits:   list("cpu", "2", "example.com/gpu", "2")}}}}}
		if change != nil {
			change(p)
		}
		return p
	}
	gone := metav1.NewTime(now.Add(-31 * time.Second))
	for _, c := range []struct {
		name, want string
		o          runtime.Object
	}{
		{"a pod", "count/pods=1 cpu=1 hugepages-2Mi=4Mi limits.cpu=2 memory=1Gi pods=1 requests.cpu=1 requests.example.com/gpu=2 requests.hugepages-2Mi=4Mi requests.memory=1Gi", pod(nil)},
		{"a pod that ended", "count/pods=1", pod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })},
		{"a pod that should be gone", "count/pods=1",
			pod(func(p *corev1.Pod) { p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &gone, new(int64(30)) })},
		{"a pod whose grace is longer than a duration", "count/pods=1 cpu=1 hugepages-2Mi=4Mi limits.cpu=2 memory=1Gi " +
			"pods=1 requests.cpu=1 requests.example.com/gpu=2 requests.hugepages-2Mi=4Mi requests.memory=1Gi",
			pod(func(p *corev1.Pod) {
				p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &gone, new(int64(math.MaxInt64))
			})},
		{"a service", "count/services=1 services.loadbalancers=0 services.nodeports=0 services=1", &corev1.Service{}},
		{"a load balancer without ports", "count/services=1 services.loadbalancers=1 services.nodeports=1 services=1",
			&corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer,
				AllocateLoadBalancerNodePorts: new(false), Ports: []corev1.ServicePort{{NodePort: 30000}, {}}}}},
		{"a claim", "count/persistentvolumeclaims=1 gold.storageclass.storage.k8s.io/persistentvolumeclaims=1 gold.storageclass.storage.k8s.io/requests.storage=2Gi persistentvolumeclaims=1 requests.storage=2Gi",
			&corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: new("gold"),
				Resources: corev1.VolumeResourceRequirements{Requests: list("storage", "1Gi")}},
				Status: corev1.PersistentVolumeClaimStatus{AllocatedResources: list("storage", "2Gi")}}},
		{"devices", "a.deviceclass.resource.k8s.io/devices=5 b.deviceclass.resource.k8s.io/devices=32 count/resourceclaims.resource.k8s.io=1",
			&resourcev1.ResourceClaim{Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{
				Requests: []resourcev1.DeviceRequest{
					{Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "a",
						AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 2}},
					{FirstAvailable: []resourcev1.DeviceSubRequest{
						{DeviceClassName: "a", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 3},
						{DeviceClassName: "a", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1},
						{DeviceClassName: "b", AllocationMode: resourcev1.DeviceAllocationModeAll}}},
				}}}}},
	} {
		found := false
		for _, k := range Kinds(nil) {
			got, err := k.Usage(c.o, now)
			if err != nil {
				continue
			}
			found = true
			if amounts(got) != c.want {
				t.Errorf("%s: %s\nwant %s", c.name, amounts(got), c.want)
			}
			for name := range got {
				if !k.Concerns(name) {
					t.Errorf("%s: %s is used, but Concerns is false for it", c.name, name)
				}
			}
		}
		if !found {
			t.Errorf("%s: no usage is computed", c.name)
		}
	}
}

func TestScopes(t *testing.T) {
	p := &corev1.Pod{Spec: corev1.PodSpec{PriorityClassName: "high", ActiveDeadlineSeconds: new(int64(5)),
		Containers: []corev1.Container{{Name: "c"}}}}
	for _, c := range []struct {
		scope  corev1.ResourceQuotaScope
		op     corev1.ScopeSelectorOperator
		values []string
		in     bool
	}{
		{corev1.ResourceQuotaScopeTerminating, corev1.ScopeSelectorOpExists, nil, true},
		{corev1.ResourceQuotaScopeNotTerminating, corev1.ScopeSelectorOpExists, nil, false},
		{corev1.ResourceQuotaScopeBestEffort, corev1.ScopeSelectorOpExists, nil, true},
		{corev1.ResourceQuotaScopeNotBestEffort, corev1.ScopeSelectorOpExists, nil, false},
		{corev1.ResourceQuotaScopePriorityClass, corev1.ScopeSelectorOpExists, nil, true},
		{corev1.ResourceQuotaScopePriorityClass, corev1.ScopeSelectorOpIn, []string{"high"}, true},
		{corev1.ResourceQuotaScopePriorityClass, corev1.ScopeSelectorOpNotIn, []string{"high"}, false},
		{corev1.ResourceQuotaScopeCrossNamespacePodAffinity, corev1.ScopeSelectorOpExists, nil, false},
		{corev1.ResourceQuotaScopeVolumeAttributesClass, corev1.ScopeSelectorOpExists, nil, false},
	} {
		in, err := podInScope(corev1.ScopedResourceSelectorRequirement{ScopeName: c.scope, Operator: c.op,
			Values: c.values}, p)
		if err != nil || in != c.in {
			t.Errorf("%s %s %v: %v, %v", c.scope, c.op, c.values, in, err)
		}
	}
	p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
		PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{
			{PodAffinityTerm: corev1.PodAffinityTerm{Namespaces: []string{"other"}}}}}}
	if in, _ := podInScope(
		corev1.ScopedResourceSelectorRequirement{ScopeName: corev1.ResourceQuotaScopeCrossNamespacePodAffinity,
			Operator: corev1.ScopeSelectorOpExists}, p); !in {
		t.Error("a term with a namespace is not across namespaces")
	}
}

func TestRequiredContainerResources(t *testing.T) {
	p := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "b"},
		{Name: "a", Resources: corev1.ResourceRequirements{Limits: list("memory", "1")}}}}}
	err := podMissing([]corev1.ResourceName{"limits.memory", "requests.cpu", "pods"}, p)
	if err == nil || err.Error() != "must specify limits.memory for: b; requests.cpu for: a,b" {
		t.Errorf("%v", err)
	}
	p.Spec.Resources = &corev1.ResourceRequirements{Limits: list("memory", "1")}
	if err := podMissing([]corev1.ResourceName{"limits.memory"}, p); err != nil {
		t.Errorf("the pod has pod-level resources: %v", err)
	}
}
