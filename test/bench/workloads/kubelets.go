package main

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// kubelets make pods ready that are bound to nodes.
type kubelets struct {
	client kubernetes.Interface
	want   int64
	ready  atomic.Int64
	all    chan struct{} // closed when so many pods are ready
	work   chan *corev1.Pod
}

func newKubelets(client kubernetes.Interface, pods int) *kubelets {
	return &kubelets{client: client, want: int64(pods), all: make(chan struct{}), work: make(chan *corev1.Pod, pods)}
}

// begin starts them; they end with ctx.
func (k *kubelets) begin(ctx context.Context) error {
	pods := cache.NewSharedIndexInformer(cache.NewListWatchFromClient(k.client.CoreV1().RESTClient(), "pods", namespace,
		fields.Everything()), &corev1.Pod{}, 0, nil)
	note := func(o any) {
		if p, ok := o.(*corev1.Pod); ok && p.Spec.NodeName != "" && p.Status.Phase == corev1.PodPending {
			select {
			case k.work <- p:
			case <-ctx.Done():
			}
		}
	}
	if _, err := pods.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: note,
		UpdateFunc: func(_, o any) { note(o) }}); err != nil {
		return err
	}
	go pods.Run(ctx.Done())
	for range 16 {
		go func() {
			for {
				select {
				case <-ctx.Done():
					return
				case p := <-k.work:
					k.run(ctx, p)
				}
			}
		}()
	}
	return nil
}

// wait returns when all pods are ready.
func (k *kubelets) wait(ctx context.Context) error {
	select {
	case <-k.all:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%d of %d pods are ready: %w", k.ready.Load(), k.want, ctx.Err())
	}
}

func (k *kubelets) run(ctx context.Context, p *corev1.Pod) {
	now := metav1.Now()
	next := p.DeepCopy()
	next.Status.Phase, next.Status.StartTime = corev1.PodRunning, &now
	next.Status.PodIP, next.Status.PodIPs = "10.1.2.3", []corev1.PodIP{{IP: "10.1.2.3"}}
	for _, c := range []corev1.PodConditionType{corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady} {
		next.Status.Conditions = append(next.Status.Conditions, corev1.PodCondition{Type: c,
			Status: corev1.ConditionTrue, LastTransitionTime: now})
	}
	next.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", Ready: true,
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}}}}
	_, err := k.client.CoreV1().Pods(namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
	switch {
	case err == nil:
		if k.ready.Add(1) == k.want {
			close(k.all)
		}
	case !apierrors.IsConflict(err) && ctx.Err() == nil: // a conflict comes with the next event
		fmt.Fprintln(os.Stderr, "make a pod ready:", err)
	}
}

// account returns a channel that is closed when the namespace has the account that pods need.
func (k *kubelets) account(ctx context.Context) <-chan struct{} {
	there := make(chan struct{})
	go func() {
		for ctx.Err() == nil {
			_, err := k.client.CoreV1().ServiceAccounts(namespace).Get(ctx, "default", metav1.GetOptions{})
			if err == nil {
				close(there)
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	}()
	return there
}
