package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// change is a request to an object that is there, as kubectl sends it.
func (w *writer) change() step {
	var there []string
	for _, name := range slices.Sorted(maps.Keys(w.there)) {
		if w.there[name] && resources[name[:1]] != "" {
			there = append(there, name)
		}
	}
	if len(there) == 0 {
		return w.deployment()
	}
	name := there[w.r.IntN(len(there))]
	kinds := []func(name string) step{w.scale, w.scale, w.restart}
	switch name[:1] {
	case "d":
		kinds = append(kinds, w.pause, w.undo, w.undo)
	case "s":
		kinds = append(kinds, w.revert, w.revert)
	case "m":
		kinds = []func(name string) step{w.restart, w.revert, w.revert}
	case "r", "c":
		kinds = kinds[:2]
	}
	return kinds[w.r.IntN(len(kinds))](name)
}

// resources are those of the names in a script: the first letter is the kind.
var resources = map[string]string{"d": "deployments", "r": "replicasets", "c": "replicationcontrollers",
	"s": "statefulsets", "m": "daemonsets"}

// patch changes one object by a patch.
func patch(ctx context.Context, c api, ns, name string, kind types.PatchType, body []byte, sub ...string) error {
	var err error
	switch name[:1] {
	case "d":
		_, err = c.AppsV1().Deployments(ns).Patch(ctx, name, kind, body, metav1.PatchOptions{}, sub...)
	case "r":
		_, err = c.AppsV1().ReplicaSets(ns).Patch(ctx, name, kind, body, metav1.PatchOptions{}, sub...)
	case "c":
		_, err = c.CoreV1().ReplicationControllers(ns).Patch(ctx, name, kind, body, metav1.PatchOptions{}, sub...)
	case "s":
		_, err = c.AppsV1().StatefulSets(ns).Patch(ctx, name, kind, body, metav1.PatchOptions{}, sub...)
	case "m":
		_, err = c.AppsV1().DaemonSets(ns).Patch(ctx, name, kind, body, metav1.PatchOptions{}, sub...)
	default:
		err = fmt.Errorf("no kind has objects called %s", name)
	}
	return err
}

func (w *writer) merge(what, name, body string, sub ...string) step {
	return step{name: what + " " + name, do: func(ctx context.Context, c api, ns string) error {
		return patch(ctx, c, ns, name, types.MergePatchType, []byte(body), sub...)
	}}
}

func (w *writer) scale(name string) step {
	n := w.r.IntN(5)
	return w.merge(fmt.Sprintf("scale to %d", n), name, fmt.Sprintf(`{"spec":{"replicas":%d}}`, n), "scale")
}

func (w *writer) pause(name string) step {
	paused := w.r.IntN(2) == 0
	return w.merge(fmt.Sprintf("paused %t", paused), name, fmt.Sprintf(`{"spec":{"paused":%t}}`, paused))
}

func (w *writer) restart(name string) step {
	return w.merge("restart", name, fmt.Sprintf(
		`{"spec":{"template":{"metadata":{"annotations":{"kubectl.kubernetes.io/restartedAt":"%d"}}}}}`, w.r.IntN(3)))
}

// undo gives a Deployment the template that it had before, as kubectl rollout undo does.
func (w *writer) undo(name string) step {
	return step{name: "undo " + name, do: func(ctx context.Context, c api, ns string) error {
		for {
			d, err := c.AppsV1().Deployments(ns).Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if d.Spec.Paused {
				return errors.New("a paused Deployment is not rolled back")
			}
			list, err := c.AppsV1().ReplicaSets(ns).List(ctx, metav1.ListOptions{})
			if err != nil {
				return err
			}
			owned := slices.DeleteFunc(list.Items, func(s appsv1.ReplicaSet) bool {
				return !metav1.IsControlledBy(&s, d)
			})
			slices.SortFunc(owned, func(a, b appsv1.ReplicaSet) int { return cmp.Compare(revision(&b), revision(&a)) })
			if len(owned) < 2 {
				return errors.New("no revision before this one")
			}
			d.Spec.Template = owned[1].Spec.Template
			delete(d.Spec.Template.Labels, appsv1.DefaultDeploymentUniqueLabelKey)
			if _, err = c.AppsV1().Deployments(ns).Update(ctx, d, metav1.UpdateOptions{}); !isConflict(err) {
				return err
			}
		}
	}}
}

func revision(s *appsv1.ReplicaSet) int {
	n, _ := strconv.Atoi(s.Annotations["deployment.kubernetes.io/revision"])
	return n
}

// revert gives a StatefulSet or DaemonSet the revision before its last, as kubectl rollout undo does.
func (w *writer) revert(name string) step {
	return step{name: "undo " + name, do: func(ctx context.Context, c api, ns string) error {
		list, err := c.AppsV1().ControllerRevisions(ns).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		own := slices.DeleteFunc(list.Items, func(r appsv1.ControllerRevision) bool {
			ref := metav1.GetControllerOf(&r)
			return ref == nil || ref.Name != name
		})
		if len(own) < 2 {
			return errors.New("no revision before this one")
		}
		slices.SortFunc(own, func(a, b appsv1.ControllerRevision) int { return cmp.Compare(b.Revision, a.Revision) })
		return patch(ctx, c, ns, name, types.StrategicMergePatchType, own[1].Data.Raw)
	}}
}

// drop deletes a running pod, as users do.
func (k *kubelet) drop(which int) error {
	all := k.running()
	if len(all) == 0 {
		return nil
	}
	return k.client.CoreV1().Pods(k.namespace).Delete(k, all[which%len(all)].Name, metav1.DeleteOptions{})
}

// relabel takes a running pod from its controller by its labels, or gives one that was taken back. Those of Jobs keep
// theirs, and those of StatefulSets, whose names are given again.
func (k *kubelet) relabel(which int) error {
	all := slices.DeleteFunc(k.running(), func(p *corev1.Pod) bool {
		return p.Labels["app"] == "" || p.Labels["app"][:1] == "s"
	})
	if len(all) == 0 {
		return nil
	}
	p := all[which%len(all)]
	body := fmt.Sprintf(`{"metadata":{"labels":{"app":"gone","was":%q}}}`, p.Labels["app"])
	if p.Labels["app"] == "gone" {
		body = fmt.Sprintf(`{"metadata":{"labels":{"app":%q,"was":null}}}`, p.Labels["was"])
	}
	_, err := k.client.CoreV1().Pods(k.namespace).Patch(k, p.Name, types.MergePatchType, []byte(body),
		metav1.PatchOptions{})
	return err
}

// taint is what no pod of a script tolerates.
const taint = "differential.carob.dev/away"

// taintNode makes DaemonSets leave a node out, or no longer.
func (w *writer) taintNode() step {
	node, on := nodeName(w.r.IntN(nodes)), w.r.IntN(2) == 0
	return step{name: fmt.Sprintf("taint of %s: %t", node, on), do: func(ctx context.Context, c api, ns string) error {
		if err := setTaint(ctx, c, node, on); err != nil {
			return err
		}
		// Upstream's controller does not look at a set with a pod there until something else happens
		// (docs/differences.md).
		sets, err := c.AppsV1().DaemonSets(ns).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for i := range sets.Items {
			seen := fmt.Appendf(nil, `{"metadata":{"labels":{"seen":"%s-%t"}}}`, node, on)
			if err := patch(ctx, c, ns, sets.Items[i].Name, types.MergePatchType, seen); err != nil {
				return err
			}
		}
		return nil
	}}
}

func setTaint(ctx context.Context, c api, node string, on bool) error {
	for {
		n, err := c.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == taint })
		if on {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: taint, Effect: corev1.TaintEffectNoSchedule})
		}
		if _, err = c.CoreV1().Nodes().Update(ctx, n, metav1.UpdateOptions{}); !isConflict(err) {
			return err
		}
	}
}
