package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	coordinationv1ac "k8s.io/client-go/applyconfigurations/coordination/v1"
	"k8s.io/client-go/kubernetes"
)

// nodes is how many there are.
const nodes = 3

func nodeName(i int) string { return fmt.Sprint("node-", i) }

func isConflict(err error) bool { return apierrors.IsConflict(err) }

func (s *side) hasAccount(ctx context.Context, namespace string) bool {
	_, err := s.client.CoreV1().ServiceAccounts(namespace).Get(ctx, "default", metav1.GetOptions{})
	return err == nil
}

// makeNodes makes nodes that are ready, and keeps their leases fresh.
func (s *side) makeNodes(ctx context.Context) error {
	room := corev1.ResourceList{"cpu": resource.MustParse("32"), "memory": resource.MustParse("64Gi"),
		"pods": resource.MustParse("500")}
	for i := range nodes {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName(i),
			Labels: map[string]string{corev1.LabelHostname: nodeName(i), corev1.LabelOSStable: "linux"}},
			Status: corev1.NodeStatus{Allocatable: room, Capacity: room, Conditions: []corev1.NodeCondition{
				{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}}}}
		made, err := s.client.CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		made.Spec.Taints = nil // of a node that is not ready yet
		if _, err = s.client.CoreV1().Nodes().Update(ctx, made, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	renew := func() error {
		leases := s.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
		for i := range nodes {
			lease := coordinationv1ac.Lease(nodeName(i), corev1.NamespaceNodeLease).WithSpec(
				coordinationv1ac.LeaseSpec().WithHolderIdentity(nodeName(i)).WithLeaseDurationSeconds(40).
					WithRenewTime(metav1.NowMicro()))
			_, err := leases.Apply(ctx, lease, metav1.ApplyOptions{FieldManager: "kubelet", Force: true})
			if err != nil {
				return err
			}
		}
		return nil
	}
	if err := renew(); err != nil {
		return err
	}
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(10 * time.Second):
				if err := renew(); err != nil && ctx.Err() == nil {
					fmt.Fprintln(os.Stderr, "renew the leases of nodes:", err)
				}
			}
		}
	}()
	return nil
}

// kubelet acts for all nodes of a side, in one namespace. Pods that differ in nothing but their name are alike to it:
// what it does to the first of them on one side it may do to another on the other side.
type kubelet struct {
	context.Context //nolint:containedctx // of one step
	client          kubernetes.Interface
	namespace       string
	all             []corev1.Pod // in the same order on both sides
	now             metav1.Time  // of this step, the same on both sides
}

func newKubelet(ctx context.Context, s *side, namespace string, now time.Time) (*kubelet, error) {
	list, err := s.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	k := &kubelet{Context: ctx, client: s.client, namespace: namespace, all: list.Items,
		now: metav1.NewTime(now)}
	slices.SortFunc(k.all, func(a, b corev1.Pod) int {
		return cmp.Or(cmp.Compare(class(&a), class(&b)), cmp.Compare(a.Name, b.Name))
	})
	return k, nil
}

// class is what distinguishes a pod from others except its name.
func class(p *corev1.Pod) string {
	owner, node := "", ""
	if ref := metav1.GetControllerOf(p); ref != nil {
		if owner = ref.Kind + "/" + ref.Name; ref.Kind == "DaemonSet" {
			node = target(p)
		}
	}
	ready := slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
	return fmt.Sprintf("%s %s %s %s %s ready=%t bound=%t deleted=%t %v %s", owner, plain(p.Name), node,
		p.Annotations["batch.kubernetes.io/job-completion-index"], p.Status.Phase, ready, p.Spec.NodeName != "",
		p.DeletionTimestamp != nil, p.Finalizers, p.Spec.Containers[0].Image)
}

// target is the node that a pod of a DaemonSet is for.
func target(p *corev1.Pod) string {
	if p.Spec.Affinity == nil || p.Spec.Affinity.NodeAffinity == nil {
		return ""
	}
	required := p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	if required == nil || len(required.NodeSelectorTerms) == 0 || len(required.NodeSelectorTerms[0].MatchFields) == 0 {
		return ""
	}
	return required.NodeSelectorTerms[0].MatchFields[0].Values[0]
}

// start binds all pods that may run, and then runs them. Both in one go would let a fast controller delete a pod before
// it is bound, because of another that runs already: such a pod is gone at once, a bound one is being deleted.
func (k *kubelet) start(ready bool) error {
	var errs []error
	var bound []*corev1.Pod
	for i := range k.all {
		p := &k.all[i]
		if p.DeletionTimestamp != nil || p.Status.Phase != corev1.PodPending {
			if ready && p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil {
				bound = append(bound, p)
			}
			continue
		}
		if p.Spec.NodeName == "" {
			node := target(p)
			if node == "" {
				node = nodeName(i % nodes)
			}
			err := k.client.CoreV1().Pods(k.namespace).Bind(k, &corev1.Binding{ObjectMeta: metav1.ObjectMeta{
				Name: p.Name, UID: p.UID}, Target: corev1.ObjectReference{Kind: "Node", Name: node}},
				metav1.CreateOptions{})
			if apierrors.IsNotFound(err) {
				continue // its controller has deleted it since the list
			}
			if err != nil {
				errs = append(errs, err)
				continue
			}
		}
		bound = append(bound, p)
	}
	for _, p := range bound {
		errs = append(errs, k.write(p, corev1.PodRunning, ready))
	}
	return errors.Join(errs...)
}

// running are those that are not being deleted.
func (k *kubelet) running() []*corev1.Pod {
	var out []*corev1.Pod
	for i := range k.all {
		if p := &k.all[i]; p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil {
			out = append(out, p)
		}
	}
	return out
}

func (k *kubelet) finish(which int, phase corev1.PodPhase) error {
	// Of a StatefulSet in order that is scaled down, two pods that have ended wait for each other for ever at upstream
	// (docs/differences.md).
	all := slices.DeleteFunc(k.running(), func(p *corev1.Pod) bool {
		return strings.HasPrefix(p.Name, "s0-")
	})
	if len(all) == 0 {
		return nil
	}
	if err := k.write(all[which%len(all)], phase, false); err != nil {
		return err
	}
	// Upstream's endpoints keep a pod that was not ready and has ended until something else changes
	// (docs/differences.md).
	services, err := k.client.CoreV1().Services(k.namespace).List(k, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, s := range services.Items {
		seen := fmt.Appendf(nil, `{"metadata":{"labels":{"seen":"%d"}}}`, k.now.Unix())
		if _, err := k.client.CoreV1().Services(k.namespace).Patch(k, s.Name, types.MergePatchType, seen,
			metav1.PatchOptions{}); err != nil {
			return err
		}
	}
	return nil
}

func (k *kubelet) unready(which int) error {
	all := k.running()
	if len(all) == 0 {
		return nil
	}
	return k.write(all[which%len(all)], corev1.PodRunning, false)
}

// reap ends the pods that are deleted.
func (k *kubelet) reap() error {
	var errs []error
	for i := range k.all {
		p := &k.all[i]
		if p.DeletionTimestamp == nil {
			continue
		}
		if p.Status.Phase == corev1.PodRunning || p.Status.Phase == corev1.PodPending {
			errs = append(errs, k.write(p, corev1.PodFailed, false))
		}
		err := k.client.CoreV1().Pods(k.namespace).Delete(k, p.Name, metav1.DeleteOptions{
			GracePeriodSeconds: new(int64(0)), Preconditions: metav1.NewUIDPreconditions(string(p.UID))})
		if !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// write stores a pod's status.
func (k *kubelet) write(p *corev1.Pod, phase corev1.PodPhase, ready bool) error {
	for {
		stored, err := k.client.CoreV1().Pods(k.namespace).Get(k, p.Name, metav1.GetOptions{})
		if err != nil || stored.UID != p.UID {
			if apierrors.IsNotFound(err) {
				err = nil
			}
			return err
		}
		now, status := metav1.Now(), corev1.ConditionFalse
		if ready {
			status = corev1.ConditionTrue
		}
		s := &stored.Status
		s.Phase, s.PodIP, s.PodIPs, s.StartTime = phase, "10.1.2.3", []corev1.PodIP{{IP: "10.1.2.3"}}, &now
		s.Conditions = slices.DeleteFunc(s.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady
		})
		s.Conditions = append(s.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: status,
			LastTransitionTime: k.now})
		s.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", Image: "registry.example/a", ImageID: "a",
			Ready: ready, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}}}}
		if phase == corev1.PodFailed || phase == corev1.PodSucceeded {
			code := int32(0)
			if phase == corev1.PodFailed {
				code = 1
			}
			s.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
				ExitCode: code, FinishedAt: now, StartedAt: now}}
		}
		_, err = k.client.CoreV1().Pods(k.namespace).UpdateStatus(k, stored, metav1.UpdateOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if !isConflict(err) {
			return err
		}
	}
}
