package resources

import (
	"fmt"
	"math"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"pgregory.net/rapid"
)

// withMemory is a pod of one container; empty quantities are not set.
func withMemory(request, limit, podRequest, podLimit string) *corev1.Pod {
	list := func(q string) corev1.ResourceList {
		if q == "" {
			return nil
		}
		return corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(q)}
	}
	pod := &corev1.Pod{}
	pod.Spec.Containers = []corev1.Container{{Name: "c"}}
	r := &pod.Spec.Containers[0].Resources
	r.Requests, r.Limits = list(request), list(limit)
	if podRequest+podLimit != "" {
		pod.Spec.Resources = &corev1.ResourceRequirements{Requests: list(podRequest), Limits: list(podLimit)}
	}
	return pod
}

// guaranteed adds equal CPU.
func guaranteed(pod *corev1.Pod) *corev1.Pod {
	r := &pod.Spec.Containers[0].Resources
	r.Requests[corev1.ResourceCPU], r.Limits[corev1.ResourceCPU] = resource.MustParse("1"), resource.MustParse("1")
	return pod
}

// S11.140 to S11.142, with 1 GiB of memory for pods.
func TestMemoryQoS(t *testing.T) {
	off, tiered, slow := MemoryQoS{}, MemoryQoS{Tiered: true}, MemoryQoS{Tiered: true, Throttling: 0.9}
	for name, tt := range map[string]struct {
		q              MemoryQoS
		pod            *corev1.Pod
		container, own string
		tiers          MemoryTiers
	}{
		"off": {off, withMemory("64Mi", "128Mi", "", ""), "map[memory.low:0 memory.min:0]", "map[]", MemoryTiers{}},
		"best effort": {tiered, withMemory("", "", "", ""), "map[memory.low:0 memory.min:0]", "map[]",
			MemoryTiers{}},
		"burstable": {tiered, withMemory("64Mi", "128Mi", "", ""), "map[memory.low:67108864]",
			"map[memory.low:67108864]", MemoryTiers{Burstable: 64 << 20}},
		"guaranteed": {slow, guaranteed(withMemory("64Mi", "64Mi", "", "")), "map[memory.min:67108864]",
			"map[memory.min:67108864]", MemoryTiers{Guaranteed: 64 << 20}},
		// 64 Mi + 0.9 × 64 Mi = 127506841.6, in whole pages
		"throttled": {slow, withMemory("64Mi", "128Mi", "", ""), "map[memory.high:127504384 memory.low:67108864]",
			"map[memory.low:67108864]", MemoryTiers{Burstable: 64 << 20}},
		"throttled, not kept": {MemoryQoS{Throttling: 0.5}, withMemory("", "1Mi", "", ""),
			"map[memory.high:524288 memory.low:0 memory.min:0]", "map[]", MemoryTiers{}},
		"without a limit": {MemoryQoS{Throttling: 0.5}, withMemory("", "", "", ""),
			"map[memory.high:536870912 memory.low:0 memory.min:0]", "map[]", MemoryTiers{}},
		"more than the node": {slow, withMemory("2Gi", "", "", ""), "map[memory.low:2147483648]",
			"map[memory.low:2147483648]", MemoryTiers{Burstable: 2 << 30}},
		"less than a page": {MemoryQoS{Throttling: 0.5}, withMemory("", "4Ki", "", ""),
			"map[memory.low:0 memory.min:0]", "map[]", MemoryTiers{}},
		"limit of the pod": {slow, withMemory("64Mi", "", "64Mi", "128Mi"), "map[memory.low:67108864]",
			"map[memory.high:127504384 memory.low:67108864]", MemoryTiers{Burstable: 64 << 20}},
		"pod whose limit is its request": {slow, withMemory("64Mi", "", "64Mi", "64Mi"), "map[memory.low:67108864]",
			"map[memory.low:67108864]", MemoryTiers{Burstable: 64 << 20}},
	} {
		got := fmt.Sprint(tt.q.Container(tt.pod, &tt.pod.Spec.Containers[0], 1<<30))
		if own := fmt.Sprint(tt.q.Pod(tt.pod)); got != tt.container || own != tt.own {
			t.Errorf("%s: container %s, want %s; pod %s, want %s", name, got, tt.container, own, tt.own)
		}
		if tiers := tt.q.Tiers(tt.pod); tiers != tt.tiers {
			t.Errorf("%s: %+v, want %+v", name, tiers, tt.tiers)
		}
	}
	node, burstable := MemoryTiers{Guaranteed: 3, Burstable: 5}.Files()
	if fmt.Sprint(node, burstable) != "map[memory.low:5 memory.min:8] map[memory.low:5]" {
		t.Error(node, burstable)
	}
}

// A container is never throttled below its request or above its limit, and at a multiple of the
// page size.
func TestMemoryHigh(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		request := rapid.Int64Range(0, math.MaxInt64/2).Draw(t, "request")
		limit := request + rapid.Int64Range(0, 1<<50).Draw(t, "more")
		q := MemoryQoS{Throttling: rapid.Float64Range(math.SmallestNonzeroFloat64, 1).Draw(t, "factor")}
		files := map[string]string{}
		q.throttle(files, request, limit)
		text, ok := files[memoryHigh]
		if !ok {
			return
		}
		var high int64
		if _, err := fmt.Sscan(text, &high); err != nil || high%pageSize != 0 || high <= request {
			t.Fatalf("request %d, limit %d: %s, %v", request, limit, text, err)
		}
		if float64(high) > float64(limit) { // up to the precision of a float
			t.Fatalf("request %d, limit %d: %d", request, limit, high)
		}
	})
}
