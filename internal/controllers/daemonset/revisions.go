package daemonset

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"carob/internal/controllers/children"
	"carob/internal/controllers/source"
	"carob/internal/core/workload"
	"carob/internal/core/workload/daemonset"
)

// revise creates or changes the revision of the set's template if necessary, and returns its hash and the older
// revisions (W4.60a, W4.60b). It relabels pods with the hash of a duplicate.
func (t turn) revise(ctx context.Context, selector labels.Selector, pods []*corev1.Pod) (hash string,
	old []*appsv1.ControllerRevision, err error) {
	claims := workload.Claim(t.owner.Owner, selector, source.Candidates[*appsv1.ControllerRevision](t.Revisions, t.set),
		nil)
	revisions, err := children.Settle(ctx, t.keeper, t.owner, claims,
		t.keeper.RevisionChange(t.set.Namespace, t.Revisions, t.live))
	if err != nil {
		return "", nil, err
	}
	r, err := daemonset.Revise(t.set, revisions, pods)
	if err != nil {
		return "", nil, err
	}
	for _, x := range r.Label {
		hash := daemonset.HashOf(x)
		if err := t.change(ctx, x, func(x *appsv1.ControllerRevision) {
			metav1.SetMetaDataLabel(&x.ObjectMeta, appsv1.DefaultDaemonSetUniqueLabelKey, hash)
		}); err != nil {
			return "", nil, err
		}
	}
	if r.Create {
		stored, err := t.create(ctx, r.Current)
		if err != nil {
			return "", nil, err
		}
		return daemonset.HashOf(stored), r.Old, nil
	}
	hash = daemonset.HashOf(r.Current)
	for _, p := range r.Relabel {
		if err := t.relabel(ctx, p, hash); err != nil {
			return "", nil, err
		}
	}
	if err := t.keeper.DeleteRevisions(ctx, t.owner, t.Revisions, r.Duplicates); err != nil {
		return "", nil, err
	}
	if len(r.Relabel) > 0 {
		return "", nil, errRelabelled
	}
	if r.Raise != 0 {
		err = t.change(ctx, r.Current, func(x *appsv1.ControllerRevision) { x.Revision = r.Raise })
	}
	return hash, r.Old, err
}

// errRelabelled means that pods were relabelled; the set is reconciled again when the watch shows it.
var errRelabelled = errors.New("pods were relabelled")

// change updates the latest version of a revision, which may have changed in this turn.
func (t turn) change(ctx context.Context, r *appsv1.ControllerRevision, f func(*appsv1.ControllerRevision)) error {
	api := t.keeper.Client.AppsV1().ControllerRevisions(r.Namespace)
	live, err := api.Get(ctx, r.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read revision %s: %w", r.Name, err)
	}
	f(live)
	stored, err := api.Update(ctx, live, metav1.UpdateOptions{})
	if err != nil {
		return fmt.Errorf("change revision %s: %w", r.Name, err)
	}
	t.keeper.Fresh.Wrote(t.owner.Key, t.Revisions, stored)
	return nil
}

// create creates a revision. If another revision has its name, the set's collision count is incremented, and the next
// reconciliation uses another name.
func (t turn) create(ctx context.Context, r *appsv1.ControllerRevision) (*appsv1.ControllerRevision, error) {
	api := t.keeper.Client.AppsV1()
	made, err := api.ControllerRevisions(r.Namespace).Create(ctx, r, metav1.CreateOptions{})
	if err == nil {
		t.keeper.Fresh.Wrote(t.owner.Key, t.Revisions, made)
		return made, nil
	}
	if !apierrors.IsAlreadyExists(err) || children.NamespaceEnds(err) {
		return nil, fmt.Errorf("create revision %s: %w", r.Name, err)
	}
	there, getErr := api.ControllerRevisions(r.Namespace).Get(ctx, r.Name, metav1.GetOptions{})
	if getErr != nil {
		return nil, fmt.Errorf("read revision %s, whose name is taken: %w", r.Name, getErr)
	}
	if daemonset.Same(there, r) {
		return there, nil
	}
	set, getErr := api.DaemonSets(r.Namespace).Get(ctx, t.set.Name, metav1.GetOptions{})
	if getErr != nil {
		return nil, fmt.Errorf("read DaemonSet %s: %w", t.owner.Key, getErr)
	}
	known, stored := ptr.Deref(t.set.Status.CollisionCount, 0), ptr.Deref(set.Status.CollisionCount, 0)
	if known != stored || set.UID != t.set.UID {
		return nil, fmt.Errorf(
			"found a stale collision count (%d, expected %d) of DaemonSet %q while processing; will retry until it is updated", known, stored, t.set.Name)
	}
	set.Status.CollisionCount = new(stored + 1)
	if set, getErr = api.DaemonSets(r.Namespace).UpdateStatus(ctx, set, metav1.UpdateOptions{}); getErr != nil {
		return nil, fmt.Errorf("raise the collision count of DaemonSet %s: %w", t.owner.Key, getErr)
	}
	t.keeper.Fresh.Wrote(t.owner.Key, t.Sets, set)
	return nil, fmt.Errorf("create revision %s: %w", r.Name, err)
}

// relabel sets the hash label of a pod.
func (t turn) relabel(ctx context.Context, pod *corev1.Pod, hash string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID,
		"labels": map[string]string{appsv1.DefaultDaemonSetUniqueLabelKey: hash}}})
	if err != nil {
		return err
	}
	patched, err := t.keeper.Client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, patch,
		metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("relabel pod %s: %w", pod.Name, err)
	}
	t.keeper.Fresh.Wrote(t.owner.Key, t.Pods, patched)
	return nil
}
