package workload

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Ranking has criteria for the order of deletion in addition to those of all workloads.
type Ranking struct {
	// Costs ranks by the annotation with the deletion cost of a pod (W0.52).
	Costs bool
	// Related are active pods of the same owner's siblings, by node (W0.53); nil ranks by none.
	Related map[string]int
	// Now, unless zero, compares ages by powers of two (W0.54, W0.56).
	Now time.Time
}

// RankForDeletion returns pods in the order of their deletion (W0.50 to W0.57). It does not change
// its argument.
func RankForDeletion(pods []*corev1.Pod, r Ranking) []*corev1.Pod {
	sorted := slices.Clone(pods)
	slices.SortStableFunc(sorted, r.compare)
	return sorted
}

// PodsOnNodes counts active pods by node, for Ranking.Related.
func PodsOnNodes(pods []*corev1.Pod) map[string]int {
	on := map[string]int{}
	for _, p := range pods {
		if Active(p) {
			on[p.Spec.NodeName]++
		}
	}
	return on
}

func (r Ranking) compare(a, b *corev1.Pod) int {
	costs := 0
	if r.Costs {
		costs = cmp.Compare(deletionCost(a), deletionCost(b))
	}
	regularA, sidecarsA := restarts(a)
	regularB, sidecarsB := restarts(b)
	return cmp.Or(
		yes(a.Spec.NodeName != "", b.Spec.NodeName != ""),
		cmp.Compare(phaseRank(a), phaseRank(b)),
		yes(Ready(a), Ready(b)),
		costs,
		cmp.Compare(r.Related[b.Spec.NodeName], r.Related[a.Spec.NodeName]),
		r.younger(readySince(a), readySince(b), a, b),
		cmp.Compare(regularB, regularA),
		cmp.Compare(sidecarsB, sidecarsA),
		r.younger(&a.CreationTimestamp, &b.CreationTimestamp, a, b),
	)
}

// yes orders false before true.
func yes(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

func phaseRank(p *corev1.Pod) int {
	switch p.Status.Phase {
	case corev1.PodUnknown:
		return 1
	case corev1.PodRunning:
		return 2
	}
	return 0
}

// younger orders the later time before the earlier one, none before any.
func (r Ranking) younger(a, b *metav1.Time, of, and *corev1.Pod) int {
	if a == nil || b == nil || a.Equal(b) {
		return 0
	}
	if r.Now.IsZero() || a.IsZero() || b.IsZero() {
		return cmp.Or(yes(!a.IsZero(), !b.IsZero()), b.Compare(a.Time))
	}
	return cmp.Or(cmp.Compare(ageRank(r.Now.Sub(a.Time)), ageRank(r.Now.Sub(b.Time))), cmp.Compare(of.UID, and.UID))
}

func ageRank(age time.Duration) int64 {
	if age <= 0 {
		return -1
	}
	return int64(math.Log2(float64(age)))
}

func deletionCost(p *corev1.Pod) int32 {
	text := p.Annotations[corev1.PodDeletionCost]
	if len(text) == 0 || text[0] == '+' || text != "0" && text[0] == '0' {
		return 0 // not in the form of an integer
	}
	cost, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		return 0
	}
	return int32(cost)
}

// restarts returns the maximum restart count of a regular container, and of a sidecar.
func restarts(p *corev1.Pod) (regular, sidecars int32) {
	for i := range p.Status.ContainerStatuses {
		regular = max(regular, p.Status.ContainerStatuses[i].RestartCount)
	}
	for i := range p.Status.InitContainerStatuses {
		s := &p.Status.InitContainerStatuses[i]
		if slices.ContainsFunc(p.Spec.InitContainers, func(c corev1.Container) bool {
			return c.Name == s.Name && c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
		}) {
			sidecars = max(sidecars, s.RestartCount)
		}
	}
	return regular, sidecars
}
