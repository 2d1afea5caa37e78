package main

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// workload is one case, after those of upstream's scheduler_perf.
type workload struct {
	name string
	pod  func(i int) *corev1.Pod
	// before are pods that are on nodes before the measurement; nil for none.
	before func(nodes int) []*corev1.Pod
	// waits marks a pod that fits no node.
	waits func(i int) bool
	churn bool // nodes and pods come and go meanwhile
}

func caseNames() []string {
	var names []string
	for _, c := range cases() {
		names = append(names, c.name)
	}
	return names
}

func cases() []workload {
	grouped := func(i int) map[string]string { return map[string]string{"app": fmt.Sprint("a", i%10)} }
	terms := func(key string, i int) []corev1.PodAffinityTerm {
		return []corev1.PodAffinityTerm{{TopologyKey: key,
			LabelSelector: &metav1.LabelSelector{MatchLabels: grouped(i)}}}
	}
	return []workload{
		{name: "basic", pod: func(i int) *corev1.Pod { return pod(i, "100m", nil) }},
		{name: "anti-affinity", pod: func(i int) *corev1.Pod {
			p := pod(i, "100m", grouped(i))
			p.Spec.Affinity = &corev1.Affinity{
				PodAntiAffinity: &corev1.PodAntiAffinity{
					RequiredDuringSchedulingIgnoredDuringExecution: terms(corev1.LabelHostname, i)}}
			return p
		}},
		{name: "affinity", pod: func(i int) *corev1.Pod {
			p := pod(i, "100m", grouped(i))
			p.Spec.Affinity = &corev1.Affinity{
				PodAffinity: &corev1.PodAffinity{
					RequiredDuringSchedulingIgnoredDuringExecution: terms(corev1.LabelTopologyZone, i)}}
			return p
		}},
		{name: "spread", pod: func(i int) *corev1.Pod {
			p := pod(i, "100m", grouped(i))
			p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: 5,
				TopologyKey:       corev1.LabelTopologyZone,
				WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: &metav1.LabelSelector{MatchLabels: grouped(i)}}}
			return p
		}},
		{name: "unschedulable", pod: func(i int) *corev1.Pod {
			if i%5 == 0 {
				return pod(i, "64", nil)
			}
			return pod(i, "100m", nil)
		}, waits: func(i int) bool { return i%5 == 0 }},
		{name: "preemption", pod: func(i int) *corev1.Pod {
			p := pod(i, "16", nil)
			p.Spec.PriorityClassName = "system-cluster-critical"
			return p
		}, before: func(nodes int) []*corev1.Pod { // each node is full of pods of no importance
			var low []*corev1.Pod
			for i := range 2 * nodes {
				p := pod(i, "16", nil)
				p.Name, p.Spec.NodeName = fmt.Sprint("low-", i), nodeName(i%nodes)
				low = append(low, p)
			}
			return low
		}},
		{name: "churn", pod: func(i int) *corev1.Pod { return pod(i, "100m", nil) }, churn: true},
	}
}

func pod(i int, cpu string, labels map[string]string) *corev1.Pod {
	seconds := int64(0)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprint("p-", i), Labels: labels},
		Spec: corev1.PodSpec{TerminationGracePeriodSeconds: &seconds,
			Containers: []corev1.Container{{Name: "c", Image: "registry.example/none:1",
				Resources: corev1.ResourceRequirements{
					Requests: corev1.ResourceList{"cpu": resource.MustParse(cpu),
						"memory": resource.MustParse("128Mi")},
				}}}},
	}
}

func nodeName(i int) string { return fmt.Sprintf("node-%05d", i) }

func node(i int) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: nodeName(i),
			Labels: map[string]string{corev1.LabelHostname: nodeName(i),
				corev1.LabelTopologyZone: fmt.Sprint("zone-", i%10)}},
		Status: corev1.NodeStatus{
			Allocatable: corev1.ResourceList{"cpu": resource.MustParse("32"), "memory": resource.MustParse("64Gi"),
				"pods": resource.MustParse("110")},
			Capacity: corev1.ResourceList{"cpu": resource.MustParse("32"), "memory": resource.MustParse("64Gi"),
				"pods": resource.MustParse("110")},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
}
