package main

import (
	"context"
	"encoding/json"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// writeAlone makes the requests that a scheduler makes for the waiting pods of a case, and decides nothing: the nodes
// are taken in turn, and for a preemption the victims, too. No scheduler of this API server can bind faster. It goes on
// until ctx ends.
func writeAlone(ctx context.Context, kubeconfig string) error {
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	cfg.QPS, cfg.ContentType = -1, "application/vnd.kubernetes.protobuf"
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	pods, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	var waiting, low []*corev1.Pod
	for i := range pods.Items {
		switch p := &pods.Items[i]; {
		case p.Labels["churn"] != "": // it comes and goes
		case p.Spec.NodeName != "":
			low = append(low, p)
		default:
			waiting = append(waiting, p)
		}
	}
	w := writer{client}
	on := make([]string, len(waiting))
	err = parallel(len(waiting), func(i int) error {
		p := waiting[i]
		switch {
		case p.Spec.Containers[0].Resources.Requests.Cpu().Value() == 64: // fits nowhere
			return w.refuse(ctx, p, "")
		case p.Spec.Priority != nil && *p.Spec.Priority > 0:
			v := low[i]
			on[i] = v.Spec.NodeName
			if err := w.refuse(ctx, p, on[i]); err != nil {
				return err
			}
			if err := w.remove(ctx, v); err != nil {
				return err
			}
		default:
			on[i] = nodes.Items[i%len(nodes.Items)].Name
		}
		return client.CoreV1().Pods(namespace).Bind(ctx, &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: p.Name, UID: p.UID},
			Target:     corev1.ObjectReference{Kind: "Node", Name: on[i]}}, metav1.CreateOptions{})
	})
	if err == nil { // the events of bindings come after the bindings, as carob's scheduler writes them
		err = parallel(len(waiting), func(i int) error {
			if on[i] == "" {
				return nil
			}
			return w.event(ctx, waiting[i], "1", on[i])
		})
	}
	if err == nil {
		<-ctx.Done()
	}
	return err
}

type writer struct{ client kubernetes.Interface }

// refuse writes that no node was found, and the nominated node, if there is one.
func (w writer) refuse(ctx context.Context, p *corev1.Pod, nominated string) error {
	status := map[string]any{"conditions": []corev1.PodCondition{{Type: corev1.PodScheduled,
		Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "0 nodes are available."}}}
	if nominated != "" {
		status["nominatedNodeName"] = nominated
	}
	if err := w.patch(ctx, p, status); err != nil {
		return err
	}
	return w.event(ctx, p, "2", nominated)
}

// remove marks a victim and deletes it.
func (w writer) remove(ctx context.Context, v *corev1.Pod) error {
	if err := w.patch(ctx, v, map[string]any{"conditions": []corev1.PodCondition{{Type: corev1.DisruptionTarget,
		Status: corev1.ConditionTrue, Reason: corev1.PodReasonPreemptionByScheduler}}}); err != nil {
		return err
	}
	if err := w.client.CoreV1().Pods(namespace).Delete(ctx, v.Name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	return w.event(ctx, v, "3", v.Spec.NodeName)
}

func (w writer) patch(ctx context.Context, p *corev1.Pod, status map[string]any) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": p.UID}, "status": status})
	if err != nil {
		return err
	}
	_, err = w.client.CoreV1().Pods(namespace).Patch(ctx, p.Name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{}, "status")
	return err
}

func (w writer) event(ctx context.Context, p *corev1.Pod, suffix, on string) error {
	e := event(p, on)
	e.Name = p.Name + "." + string(p.UID) + suffix
	_, err := w.client.EventsV1().Events(namespace).Create(ctx, e, metav1.CreateOptions{})
	return err
}
