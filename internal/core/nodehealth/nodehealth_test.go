package nodehealth

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
)

func start() time.Time { return time.Unix(10_000, 0) }

func nodeWith(ready corev1.ConditionStatus, taints ...corev1.Taint) *corev1.Node {
	n := &corev1.Node{Spec: corev1.NodeSpec{Taints: taints}}
	if ready != "" {
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready, Reason: "R"}}
	}
	return n
}

func taint(key string, effect corev1.TaintEffect) corev1.Taint {
	return corev1.Taint{Key: key, Effect: effect}
}

func names(taints []corev1.Taint) []string {
	list := []string{}
	for i := range taints {
		list = append(list, taints[i].ToString())
	}
	return list
}

func TestDecide(t *testing.T) { // L7.160, L7.162
	const noSchedule, noExecute = corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute
	notReady := taint(corev1.TaintNodeNotReady, noSchedule)
	pressed := nodeWith(corev1.ConditionTrue)
	pressed.Spec.Unschedulable = true
	pressed.Status.Conditions = append(pressed.Status.Conditions,
		corev1.NodeCondition{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionTrue},
		corev1.NodeCondition{Type: corev1.NodeDiskPressure, Status: corev1.ConditionFalse})
	for name, test := range map[string]struct {
		node    *corev1.Node
		silent  time.Duration
		allDown bool
		ready   corev1.ConditionStatus
		reason  string // of the Ready condition to write
		taints  []string
		wake    time.Duration // after now; 0 for none
	}{
		"ready": {nodeWith(corev1.ConditionTrue), 0, false, "True", "", []string{}, Grace},
		"becomes ready": {nodeWith(corev1.ConditionTrue, notReady, taint(corev1.TaintNodeUnreachable, noExecute)), 0,
			false, "True", "", []string{}, Grace},
		"keeps others'": {nodeWith(corev1.ConditionTrue, taint("mine", noExecute), notReady), 0, false, "True", "",
			[]string{"mine:NoExecute"}, Grace},
		"not ready": {nodeWith(corev1.ConditionFalse, notReady), 0, false, "False", "",
			[]string{"node.kubernetes.io/not-ready:NoSchedule", "node.kubernetes.io/not-ready:NoExecute"}, Grace},
		"just not silent": {nodeWith(corev1.ConditionTrue), Grace - 1, false, "True", "", []string{}, 1},
		"silent": {nodeWith(corev1.ConditionTrue), Grace, false, "Unknown", "NodeStatusUnknown",
			[]string{"node.kubernetes.io/unreachable:NoSchedule", "node.kubernetes.io/unreachable:NoExecute"}, 0},
		"silent as all are": {nodeWith(corev1.ConditionTrue), Grace, true, "Unknown", "NodeStatusUnknown",
			[]string{"node.kubernetes.io/unreachable:NoSchedule"}, 0},
		"newborn": {nodeWith("", notReady), Grace, false, "", "",
			[]string{"node.kubernetes.io/not-ready:NoSchedule"}, FirstGrace - Grace},
		"never said a word": {nodeWith("", notReady), FirstGrace, false, "Unknown", "NodeStatusNeverUpdated",
			[]string{"node.kubernetes.io/unreachable:NoSchedule", "node.kubernetes.io/unreachable:NoExecute"}, 0},
		"under pressure": {pressed, 0, false, "True", "",
			[]string{"node.kubernetes.io/unschedulable:NoSchedule", "node.kubernetes.io/memory-pressure:NoSchedule"},
			Grace},
	} {
		now := start()
		out := Decide(Input{Now: now, Node: test.node, LastSeen: now.Add(-test.silent), AllDown: test.allDown,
			Evict: true})
		reason := ""
		if c := find(out.Conditions, corev1.NodeReady); c != nil {
			reason = c.Reason
		}
		wake := time.Duration(0)
		if !out.Wake.IsZero() {
			wake = out.Wake.Sub(now)
		}
		if out.Ready != test.ready || reason != test.reason || !slices.Equal(names(out.Taints), test.taints) ||
			wake != test.wake {
			t.Errorf("%s: %s %q %v wake %v", name, out.Ready, reason, names(out.Taints), wake)
		}
		if out.Tainting == slices.Equal(names(out.Taints), names(test.node.Spec.Taints)) {
			t.Errorf("%s: Tainting is %v", name, out.Tainting)
		}
	}
}

// TestDecideSettles: when a decision has been written, the next decision writes nothing.
func TestDecideSettles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		statuses := []corev1.ConditionStatus{"", corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown}
		n := nodeWith(rapid.SampledFrom(statuses).Draw(t, "ready"))
		n.Spec.Unschedulable = rapid.Bool().Draw(t, "cordoned")
		for _, key := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable, "mine"} {
			if rapid.Bool().Draw(t, key) {
				n.Spec.Taints = append(n.Spec.Taints, taint(key, corev1.TaintEffectNoExecute))
			}
		}
		in := Input{Now: start(), Node: n,
			LastSeen: start().Add(-time.Duration(rapid.IntRange(0, 120).Draw(t, "silent")) * time.Second),
			AllDown:  rapid.Bool().Draw(t, "all"), Evict: rapid.Bool().Draw(t, "evict")}
		first := Decide(in)
		written := n.DeepCopy()
		written.Spec.Taints = first.Taints
		written.Status.Conditions = replace(n.Status.Conditions, first.Conditions)
		in.Node = written
		if again := Decide(in); again.Tainting || len(again.Conditions) > 0 || again.Ready != first.Ready {
			t.Fatalf("%+v after %+v", again, first)
		}
		if !first.Wake.IsZero() && !first.Wake.After(in.Now) {
			t.Fatalf("wake in the past: %v", first.Wake)
		}
	})
}

func TestEvictAt(t *testing.T) { // L7.163
	seconds := func(n int64) *int64 { return &n }
	added := metav1.NewTime(start().Add(-time.Minute))
	gone := corev1.Taint{Key: "gone", Effect: corev1.TaintEffectNoExecute, TimeAdded: &added}
	full := taint("full", corev1.TaintEffectNoSchedule)
	tolerate := func(key string, s *int64) corev1.Toleration {
		return corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, TolerationSeconds: s}
	}
	for name, test := range map[string]struct {
		taints      []corev1.Taint
		tolerations []corev1.Toleration
		want        string
	}{
		"no taint":      {nil, nil, "never"},
		"NoSchedule":    {[]corev1.Taint{full}, nil, "never"},
		"not tolerated": {[]corev1.Taint{gone}, nil, "-1m0s"},
		"for ever":      {[]corev1.Taint{gone}, []corev1.Toleration{tolerate("gone", nil)}, "never"},
		"for a while":   {[]corev1.Taint{gone}, []corev1.Toleration{tolerate("gone", seconds(300))}, "4m0s"},
		"the shortest holds": {[]corev1.Taint{gone},
			[]corev1.Toleration{tolerate("gone", nil), tolerate("gone", seconds(300)), tolerate("", seconds(90))},
			"30s"},
		"longer than a duration": {[]corev1.Taint{gone},
			[]corev1.Toleration{tolerate("gone", seconds(math.MaxInt64))},
			fmt.Sprint(9_223_372_036*time.Second - time.Minute)},
		"negative": {[]corev1.Taint{gone}, []corev1.Toleration{tolerate("gone", seconds(-5))}, "-1m0s"},
		"no time of its own": {[]corev1.Taint{taint("x", corev1.TaintEffectNoExecute)},
			[]corev1.Toleration{tolerate("x", seconds(5))}, "5s"},
		"first of two": {[]corev1.Taint{gone, taint("x", corev1.TaintEffectNoExecute)},
			[]corev1.Toleration{tolerate("x", nil)}, "-1m0s"},
	} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{Tolerations: test.tolerations}}
		at, evict := EvictAt(test.taints, pod, start())
		got := "never"
		if evict {
			got = fmt.Sprint(at.Sub(start()))
		}
		if got != test.want {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
	}
}

// L7.163: a pod that comes to a node with an old taint stays for its tolerationSeconds. Otherwise its controller
// replaces it at once, without end. A time in the future, which a client can write, does not make it stay longer.
func TestEvictAtOfALatePod(t *testing.T) {
	added := metav1.NewTime(start().Add(-time.Hour))
	old := []corev1.Taint{{Key: "old", Effect: corev1.TaintEffectNoExecute, TimeAdded: &added}}
	for name, test := range map[string]struct {
		created, scheduled time.Duration
		tolerates          bool
		want               time.Duration
	}{
		"before the taint":      {-2 * time.Hour, -90 * time.Minute, true, -time.Hour + 30*time.Second},
		"after the taint":       {-time.Minute, -time.Minute, true, -30 * time.Second},
		"scheduled late":        {-2 * time.Hour, -time.Second, true, 29 * time.Second},
		"a wrong time":          {-2 * time.Hour, time.Hour, true, 30 * time.Second},
		"does not tolerate it":  {-time.Minute, -time.Minute, false, -time.Minute},
		"created in the future": {time.Hour, time.Hour, true, 30 * time.Second},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(start().Add(test.created))},
			Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled,
				Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(start().Add(test.scheduled))}}}}
		if test.tolerates {
			pod.Spec.Tolerations = []corev1.Toleration{{Key: "old", Operator: corev1.TolerationOpExists,
				Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(30))}}
		}
		if at, evict := EvictAt(old, pod, start()); !evict || at.Sub(start()) != test.want {
			t.Errorf("%s: evicted after %v, want %v", name, at.Sub(start()), test.want)
		}
	}
}
