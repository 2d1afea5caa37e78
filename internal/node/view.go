package node

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/node/observe"
	"carob/internal/node/pods"
	"carob/internal/node/stream"
)

// view provides the pods for the server, with their newest status.
type view struct {
	pods     *pods.Manager
	observer *observe.Observer
}

var _ stream.Pods = view{}

// Pod implements stream.Pods.
func (v view) Pod(namespace, name string) *corev1.Pod {
	if p, ok := v.pods.Get(namespace, name); ok {
		return current(p)
	}
	return nil
}

// List implements stream.Pods.
func (v view) List() []*corev1.Pod {
	var list []*corev1.Pod
	for _, p := range v.pods.List() {
		list = append(list, current(p))
	}
	return list
}

func current(p pods.View) *corev1.Pod {
	return &corev1.Pod{TypeMeta: p.Pod.TypeMeta, ObjectMeta: p.Pod.ObjectMeta, Spec: p.Pod.Spec, Status: p.Status}
}

// SandboxID implements stream.Pods.
func (v view) SandboxID(uid types.UID) string { return v.observer.SandboxID(uid) }

// ContainerID implements stream.Pods.
func (v view) ContainerID(uid types.UID, container string) string {
	return v.observer.RunningID(uid, container)
}

// Changed implements stream.Pods.
func (v view) Changed(uid types.UID) <-chan struct{} { return v.pods.Next(uid) }
