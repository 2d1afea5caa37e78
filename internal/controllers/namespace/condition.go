package namespace

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"

	"carob/internal/base/confirm"
)

// findings is the result of one pass over a namespace.
type findings struct {
	discovery  error   // discovery was incomplete
	content    []error // of the kinds of which not all objects could be deleted, in any order
	remaining  map[schema.GroupVersionResource]int
	finalizers map[string]int
}

func (f *findings) add(c cleared) {
	if c.err != nil {
		f.content = append(f.content, c.err)
	}
	if c.remaining > 0 {
		f.remaining[c.kind] = c.remaining
	}
	for _, name := range c.finalizers {
		f.finalizers[name]++
	}
}

func (f *findings) nothingLeft() bool {
	return f.discovery == nil && len(f.content) == 0 && len(f.remaining) == 0
}

// conditions returns upstream's conditions and messages. Each condition is set, to true or false.
func (f *findings) conditions() []corev1.NamespaceCondition {
	condition := func(t corev1.NamespaceConditionType, bad bool, badReason, badMessage, goodReason,
		goodMessage string) corev1.NamespaceCondition {
		if bad {
			return corev1.NamespaceCondition{Type: t, Status: corev1.ConditionTrue, Reason: badReason,
				Message: badMessage}
		}
		return corev1.NamespaceCondition{Type: t, Status: corev1.ConditionFalse, Reason: goodReason,
			Message: goodMessage}
	}
	return []corev1.NamespaceCondition{
		condition(corev1.NamespaceDeletionDiscoveryFailure, f.discovery != nil,
			"DiscoveryFailed", f.discoveryText(),
			"ResourcesDiscovered", "All resources successfully discovered"),
		condition(corev1.NamespaceDeletionGVParsingFailure, false, "", "",
			"ParsedGroupVersions", "All legacy kube types successfully parsed"),
		condition(corev1.NamespaceDeletionContentFailure, len(f.content) > 0,
			"ContentDeletionFailed", f.contentText(),
			"ContentDeleted", "All content successfully deleted, may be waiting on finalization"),
		condition(corev1.NamespaceContentRemaining, len(f.remaining) > 0,
			"SomeResourcesRemain", "Some resources are remaining: "+f.remainingText(),
			"ContentRemoved", "All content successfully removed"),
		condition(corev1.NamespaceFinalizersRemaining, len(f.finalizers) > 0,
			"SomeFinalizersRemain", "Some content in the namespace has finalizers remaining: "+f.finalizersText(),
			"ContentHasNoFinalizers", "All content-preserving finalizers finished"),
	}
}

func (f *findings) discoveryText() string {
	if failed, ok := errors.AsType[*discovery.ErrGroupDiscoveryFailed](f.discovery); ok {
		return fmt.Sprintf("Discovery failed for some groups, %d failing: %v", len(failed.Groups), f.discovery)
	}
	return fmt.Sprint(f.discovery)
}

// contentText sorts the errors: a text that changes with the order of the answers would change the status, and each
// change of the status starts another pass.
func (f *findings) contentText() string {
	texts := make([]string, 0, len(f.content))
	for _, err := range f.content {
		texts = append(texts, err.Error())
	}
	slices.Sort(texts)
	return fmt.Sprintf("Failed to delete all resource types, %d remaining: %s", len(texts), strings.Join(texts, ", "))
}

func (f *findings) remainingText() string {
	texts := make([]string, 0, len(f.remaining))
	for gvr, n := range f.remaining {
		texts = append(texts, fmt.Sprintf("%s.%s has %d resource instances", gvr.Resource, gvr.Group, n))
	}
	slices.Sort(texts)
	return strings.Join(texts, ", ")
}

func (f *findings) finalizersText() string {
	texts := make([]string, 0, len(f.finalizers))
	for _, name := range slices.Sorted(maps.Keys(f.finalizers)) {
		texts = append(texts, fmt.Sprintf("%s in %d resource instances", name, f.finalizers[name]))
	}
	return strings.Join(texts, ", ")
}

// publish writes the conditions of a deletion to the namespace's status, if it has changed.
func (c *Controller) publish(ctx context.Context, n *corev1.Namespace, f findings) error {
	changed := n.DeepCopy()
	if !merge(&changed.Status, f.conditions(), time.Now()) {
		return nil
	}
	_, err := c.client.CoreV1().Namespaces().UpdateStatus(ctx, changed, metav1.UpdateOptions{})
	err = confirm.Overtaken(ctx, n, err, confirm.By(c.client.CoreV1().Namespaces().Get, n.Name))
	if err == nil {
		return nil
	}
	return fmt.Errorf("write conditions of namespace %q: %w", n.Name, err)
}

// merge sets the conditions and reports whether one of them has changed.
func merge(status *corev1.NamespaceStatus, conditions []corev1.NamespaceCondition, now time.Time) bool {
	news := false
	for _, c := range conditions {
		c.LastTransitionTime = metav1.NewTime(now)
		i := slices.IndexFunc(status.Conditions, func(o corev1.NamespaceCondition) bool { return o.Type == c.Type })
		if i < 0 {
			status.Conditions = append(status.Conditions, c)
			news = true
			continue
		}
		old := &status.Conditions[i]
		if old.Status == c.Status && old.Reason == c.Reason && old.Message == c.Message {
			continue
		}
		if old.Status == c.Status {
			c.LastTransitionTime = old.LastTransitionTime
		}
		*old = c
		news = true
	}
	return news
}
