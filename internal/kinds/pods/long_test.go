package pods

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"carob/internal/base/testwait"
)

// many makes a list of this many items.
func many[T any](n int, item func(name string) T) []T {
	out := make([]T, n)
	for i := range out {
		out[i] = item(fmt.Sprintf("k%07d", i))
	}
	return out
}

// Lists that fill a request do not keep the API server busy for minutes, or need all of its memory.
func TestLongLists(t *testing.T) {
	const n = 40_000
	gated := func(p *corev1.Pod) *corev1.Pod {
		p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "x"}}
		return p
	}
	required := func(p *corev1.Pod) {
		term := corev1.NodeSelectorTerm{
			MatchExpressions: many(n/8, func(name string) corev1.NodeSelectorRequirement {
				return corev1.NodeSelectorRequirement{Key: name, Operator: corev1.NodeSelectorOpExists}
			})}
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{term}}}}
	}
	for name, f := range map[string]func(p *corev1.Pod){
		"label keys": func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
					MatchLabelKeys:    many(4*n, func(name string) string { return name }),
					MismatchLabelKeys: many(4*n, func(name string) string { return name + "x" })}}}}
			ValidatePodCreate(p)
		},
		"spread": func(p *corev1.Pod) {
			p.Spec.TopologySpreadConstraints = many(n, func(name string) corev1.TopologySpreadConstraint {
				return corev1.TopologySpreadConstraint{TopologyKey: name}
			})
			ValidatePodCreate(p)
		},
		"gates": func(p *corev1.Pod) {
			old := p.DeepCopy()
			p.Spec.SchedulingGates = many(n, func(name string) corev1.PodSchedulingGate {
				return corev1.PodSchedulingGate{Name: name}
			})
			validateGateUpdate(p.Spec.SchedulingGates, old.Spec.SchedulingGates, nil)
		},
		"tolerations": func(p *corev1.Pod) {
			list := many(n, func(name string) corev1.Toleration { return corev1.Toleration{Key: name} })
			if errs := validateTolerationUpdate(list, list, nil); len(errs) > 0 {
				t.Error(errs)
			}
		},
		"node affinity of a gated pod": func(p *corev1.Pod) {
			p.ResourceVersion = "1"
			required(gated(p))
			old := p.DeepCopy()
			p.Spec.Tolerations = []corev1.Toleration{{Key: "k", Operator: corev1.TolerationOpExists}}
			if errs := ValidatePodUpdate(p, old); len(errs) > 0 {
				t.Error(errs)
			}
		},
		"pull secrets": func(p *corev1.Pod) {
			p.Spec.ImagePullSecrets = many(n, func(name string) corev1.LocalObjectReference {
				return corev1.LocalObjectReference{Name: name}
			})
			PodWarnings(p)
		},
		"equal ports": func(p *corev1.Pod) {
			p.Spec.Containers[0].Ports = many(n/20, func(string) corev1.ContainerPort {
				return corev1.ContainerPort{ContainerPort: 80, Protocol: corev1.ProtocolTCP}
			})
			if w := PodWarnings(p); len(w) < 50 || len(w) > 1000 {
				t.Error(len(w), "warnings")
			}
		},
		"equal files": func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
				ConfigMap: &corev1.ConfigMapVolumeSource{Items: many(n/20, func(name string) corev1.KeyToPath {
					return corev1.KeyToPath{Key: name, Path: "a"}
				})}}}}
			if w := PodWarnings(p); len(w) < 50 || len(w) > 1000 {
				t.Error(len(w), "warnings")
			}
		},
		"claims": func(p *corev1.Pod) {
			p.Spec.ResourceClaims = many(n/4, func(name string) corev1.PodResourceClaim {
				return corev1.PodResourceClaim{Name: name, ResourceClaimName: new("c")}
			})
			p.Spec.Containers[0].Resources.Claims = many(n/4, func(name string) corev1.ResourceClaim {
				return corev1.ResourceClaim{Name: name}
			})
			ValidatePodCreate(p)
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := parse(t, oneContainer(""))
			if took := testwait.Processor(t, func() { f(p) }); took > 5*time.Second {
				t.Errorf("it took %v", took)
			}
		})
	}
}
