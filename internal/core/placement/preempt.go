package placement

import (
	"cmp"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/labels"

	"carob/internal/core/volume"
)

// The messages of preemption that found no victims (L2.40).
const (
	preemptionNever      = "not eligible due to preemptionPolicy=Never."
	preemptionOngoing    = "not eligible due to a terminating pod on the nominated node."
	preemptionNoVictims  = "No preemption victims found for incoming pod"
	preemptionNotHelpful = "Preemption is not helpful for scheduling"
)

// Preemption names the victims on a node for a pod, or the reason why removing pods does not help.
type Preemption struct {
	Node    string
	Victims []*Pod   // most important first; not empty when Node is set
	Message string   // for Decision.Message when Node is empty
	Filters []Filter // when Node is empty: the filters that refuse the pod even without the less important pods

	// NoHelp means that removing pods helps on no node: resources reserved for the pod are
	// released.
	NoHelp bool
}

// Preempt looks for the node where removing pods of lower priority has the least impact, after
// Decide found none (L2.50, L2.51).
func (c *Cluster) Preempt(p *Pod, d Decision, budgets []*policyv1.PodDisruptionBudget) Preemption {
	return c.preempt(p, d, budgets, max(len(d.Refusals)*p.profile.MinCandidatesPercentage/100, p.profile.MinCandidates))
}

// MayPreempt is Preempt without disruption budgets: Node is set, to any candidate, when removing
// pods helps somewhere, which is when Preempt finds a node.
func (c *Cluster) MayPreempt(p *Pod, d Decision) Preemption { return c.preempt(p, d, nil, 1) }

func (c *Cluster) preempt(p *Pod, d Decision, budgets []*policyv1.PodDisruptionBudget, enough int) Preemption {
	found, none := c.candidates(p, d, budgets, enough)
	if len(found) == 0 {
		return none
	}
	best := slices.MinFunc(found, harm)
	return Preemption{Node: best.node, Victims: best.pods}
}

// candidates finds nodes where removing pods helps, or returns why there is none. It looks for enough of them, and for
// one on which no disruption budget is violated.
func (c *Cluster) candidates(p *Pod, d Decision, budgets []*policyv1.PodDisruptionBudget, enough int) (
	found []candidate, none Preemption) {
	if !p.profile.Preempts {
		return nil, Preemption{}
	}
	if message := c.mayNotPreempt(p, d); message != "" {
		return nil, Preemption{Message: message}
	}
	g := c.groupOf(p)
	s := &state{p, g.hard, g.affinity}
	version := versionOf(budgets)
	var filters []Filter
	reasons := tally{}
	reasons.add(d.Excluded, preemptionNotHelpful)
	if d.Conflict != "" {
		reasons.add(d.Nodes, preemptionNotHelpful)
	}
	refused := func(why Refusal) {
		reasons.add(1, why.Reasons...)
		if why.Filter != "" && !slices.Contains(filters, why.Filter) {
			filters = append(filters, why.Filter)
		}
	}
	users := c.users(p, d.InUse)
	unharmed := false // one of them violates no budget
	for i := 0; i < len(d.Refusals) && (len(found) < enough || !unharmed); i++ {
		r := &d.Refusals[(d.Next+i)%len(d.Refusals)]
		n := c.Node(r.Node)
		unusable, isUnusable := d.Unusable[r.Node]
		switch {
		case n == nil || !r.Curable:
			reasons.add(1, preemptionNotHelpful)
		case isUnusable:
			refused(unusable)
		default:
			victims, why := c.knownVictims(g, s, n, users, budgets, version)
			if why != nil {
				refused(*why)
			} else if len(victims.pods) > 0 {
				found, unharmed = append(found, victims), unharmed || victims.violating == 0
			}
		}
	}
	return found, Preemption{Message: reasons.unavailable(d.Nodes), Filters: filters, NoHelp: true}
}

func (c *Cluster) mayNotPreempt(p *Pod, d Decision) string {
	if policy := p.Object.Spec.PreemptionPolicy; policy != nil && *policy == corev1.PreemptNever {
		return preemptionNever
	}
	n := c.Node(p.Object.Status.NominatedNodeName)
	if n == nil {
		return ""
	}
	for i := range d.Refusals {
		if d.Refusals[i].Node == n.Object.Name && !d.Refusals[i].Curable {
			return "" // the nominated node can no longer fit: try other nodes
		}
	}
	if n.hasVictimOf(p) {
		return preemptionOngoing
	}
	return ""
}

// hasVictimOf reports whether a pod on the node ends that was preempted, for p or for another pod.
func (n *Node) hasVictimOf(p *Pod) bool {
	return slices.ContainsFunc(n.pods, func(o *Pod) bool {
		return o.Priority < p.Priority && o.Object.DeletionTimestamp != nil && preempted(o.Object)
	})
}

// victimsEnd reports whether p preempts nothing now in any case, because its victims end on its nominated node.
func (c *Cluster) victimsEnd(p *Pod) bool {
	n := c.Node(p.Object.Status.NominatedNodeName)
	if n == nil || !n.hasVictimOf(p) || !c.groupOf(p).local() {
		return false
	}
	r := n.refuses(p)
	if r == nil {
		r = n.lacksFeatures(p)
	}
	return r == nil || r.Curable // if the node can no longer fit, others are tried
}

func preempted(pod *corev1.Pod) bool {
	for i := range pod.Status.Conditions {
		condition := &pod.Status.Conditions[i]
		if condition.Type == corev1.DisruptionTarget {
			return condition.Status == corev1.ConditionTrue && condition.Reason == corev1.PodReasonPreemptionByScheduler
		}
	}
	return false
}

// candidate is a node with the victims on it.
type candidate struct {
	node      string
	pods      []*Pod // most important first
	violating int    // number of violated disruption budgets
}

// users are the other pods that use one of these claims.
func (c *Cluster) users(p *Pod, claims []string) []*Pod {
	if len(claims) == 0 {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(c.byNamespace[p.Object.Namespace]), func(o *Pod) bool {
		return o.Object.UID == p.Object.UID || !slices.ContainsFunc(o.Claims, func(pc volume.PodClaim) bool {
			return slices.Contains(claims, pc.Name)
		})
	})
}

// victims finds the fewest and least important pods whose removal makes room on one node, or returns why even removing
// all of them doesn't. The users must be among them.
func (c *Cluster) victims(s *state, n *Node, users []*Pod, budgets []*policyv1.PodDisruptionBudget) (candidate,
	*Refusal) {
	trial := n.with(nil)
	removed := map[*Pod]bool{}
	move := func(other *Pod, by int64) {
		if by < 0 {
			trial.Remove(other.Object.UID)
		} else {
			trial.Add(other)
		}
		removed[other] = by < 0
		s.hard.count(other, n, by)
		s.affinity.count(other, n, by)
	}
	var lower []*Pod
	for _, other := range n.pods {
		if other.Priority < s.pod.Priority {
			lower = append(lower, other)
		}
	}
	if len(lower) == 0 {
		return candidate{}, &Refusal{Reasons: []string{preemptionNoVictims}}
	}
	slices.SortStableFunc(lower, importance)
	for _, other := range lower {
		move(other, -1)
	}
	refusal := func() *Refusal {
		if slices.ContainsFunc(users, func(u *Pod) bool { return !removed[u] }) {
			return &Refusal{Filter: VolumeRestrictions, Reasons: []string{volume.ReasonInUse}}
		}
		return c.refusal(s, trial)
	}
	if r := refusal(); r != nil {
		for _, other := range lower {
			move(other, 1)
		}
		return candidate{}, r
	}
	v := candidate{node: n.Object.Name}
	violating, free := byBudget(lower, budgets)
	for i, group := range [][]*Pod{violating, free} {
		for _, other := range group {
			move(other, 1)
			if refusal() == nil {
				continue // spared
			}
			move(other, -1)
			v.pods = append(v.pods, other)
			if i == 0 {
				v.violating++
			}
		}
	}
	for _, other := range v.pods {
		move(other, 1)
	}
	slices.SortStableFunc(v.pods, importance)
	return v, nil
}

// importance orders pods: higher priority first, then those that run longer.
func importance(a, b *Pod) int {
	if order := cmp.Compare(b.Priority, a.Priority); order != 0 {
		return order
	}
	return started(a).Compare(started(b))
}

// started is when the pod began; a pod that has not yet is the youngest.
func started(p *Pod) time.Time {
	if p.Object.Status.StartTime == nil {
		return time.Unix(math.MaxInt32, 0)
	}
	return p.Object.Status.StartTime.Time
}

// byBudget separates the pods whose removal breaks a disruption budget from the others, keeping
// the order.
func byBudget(pods []*Pod, budgets []*policyv1.PodDisruptionBudget) (violating, free []*Pod) {
	allowed := make([]int32, len(budgets))
	selectors := make([]labels.Selector, len(budgets))
	for i, b := range budgets {
		allowed[i] = b.Status.DisruptionsAllowed
		selectors[i] = selectorOf(b.Spec.Selector)
	}
	for _, p := range pods {
		breaks := false
		for i, b := range budgets {
			if !charges(b, selectors[i], p) {
				continue
			}
			allowed[i]--
			breaks = breaks || allowed[i] < 0
		}
		if breaks {
			violating = append(violating, p)
		} else {
			free = append(free, p)
		}
	}
	return violating, free
}

// charges reports whether the removal of a pod counts against a budget, and was not counted before.
func charges(b *policyv1.PodDisruptionBudget, selector labels.Selector, p *Pod) bool {
	_, counted := b.Status.DisruptedPods[p.Object.Name]
	return b.Namespace == p.Object.Namespace && len(p.Object.Labels) > 0 && !counted &&
		selector.Matches(labels.Set(p.Object.Labels))
}

// Spend counts the victims of a preemption in the list of budgets, so that the next preemption with the same list
// does not allow as many disruptions again. It replaces the budgets that change.
func Spend(budgets []*policyv1.PodDisruptionBudget, victims []*Pod) {
	for i, b := range budgets {
		selector, spent := selectorOf(b.Spec.Selector), int32(0)
		for _, v := range victims {
			if v.Object.DeletionTimestamp == nil && charges(b, selector, v) {
				spent++
			}
		}
		if spent > 0 {
			changed := *b
			changed.Status.DisruptionsAllowed -= spent
			budgets[i] = &changed
		}
	}
}

// harm orders candidates by their impact, the least first (L2.51).
func harm(a, b candidate) int {
	return cmp.Or(
		cmp.Compare(a.violating, b.violating),
		cmp.Compare(a.pods[0].Priority, b.pods[0].Priority),
		cmp.Compare(a.prioritySum(), b.prioritySum()),
		cmp.Compare(len(a.pods), len(b.pods)),
		b.oldest().Compare(a.oldest()),
	)
}

// prioritySum adds up priorities, shifted so that each additional victim increases the sum.
func (v candidate) prioritySum() int64 {
	var sum int64
	for _, p := range v.pods {
		sum += int64(p.Priority) + math.MaxInt32 + 1
	}
	return sum
}

// oldest is the earliest start among the victims of the highest priority.
func (v candidate) oldest() time.Time {
	earliest := started(v.pods[0])
	for _, p := range v.pods {
		if p.Priority == v.pods[0].Priority && started(p).Before(earliest) {
			earliest = started(p)
		}
	}
	return earliest
}
