package children

import (
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"carob/internal/core/workload"
)

// errStray: a webhook or a policy changes the pods that an owner creates, so that they do not count: the selector does
// not match their labels, or a DaemonSet's pod is for no node. The owner needs others, without end.
var errStray = errors.New("the created pods have other labels or another node than requested, and do not count: " +
	"a webhook or a policy changes them")

// The waits before an owner whose pods went astray creates the next one, from the first to the longest.
const (
	firstStray   = time.Second
	longestStray = 10 * time.Minute
)

// Selected is Owner.Counts of an owner that needs nothing but pods that a selector matches.
func Selected(s labels.Selector) func(requested, made *corev1.Pod) bool {
	return func(_, made *corev1.Pod) bool { return s.Matches(labels.Set(made.Labels)) }
}

// Astray records that a child was created which is not the owner's: Waits is true for a while, which grows each time.
func (k *Keeper) Astray(o Owner) {
	known := k.strays.Of(o.Key, o.GetUID(), o.GetGeneration())[""]
	next, _ := known.Next(time.Now(), firstStray, longestStray)
	k.strays.Add(o.Key, o.GetUID(), o.GetGeneration(), map[string]workload.Failure{"": next})
}

// Waits reports whether the owner must not create a child yet, because the last ones went astray.
func (k *Keeper) Waits(o Owner) bool {
	known, found := k.strays.Of(o.Key, o.GetUID(), o.GetGeneration())[""]
	return found && time.Since(known.At) < known.Wait
}

// Forget forgets an owner that is gone.
func (k *Keeper) Forget(key string) { k.strays.Forget(key) }
