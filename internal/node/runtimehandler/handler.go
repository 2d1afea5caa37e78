// Package runtimehandler finds the runtime handler of a pod: that of its RuntimeClass. The executor and the image
// manager use it. It must never return two handlers for one pod.
package runtimehandler

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Classes reads the runtime classes of the cluster.
type Classes interface {
	Get(ctx context.Context, name string, options metav1.GetOptions) (*nodev1.RuntimeClass, error)
}

// Finder finds handlers. It stores the result for each pod, so that a class that is deleted, or made
// again with another handler, does not move the images and containers of a pod to another runtime. It is
// safe for concurrent use.
type Finder struct {
	classes Classes

	mu    sync.Mutex
	known map[types.UID]string
}

// New returns a Finder without stored results.
func New(classes Classes) *Finder {
	return &Finder{classes: classes, known: map[types.UID]string{}}
}

// Of is the handler of the pod, empty for the default one. A pod whose class cannot be read must not run with the
// default handler.
func (f *Finder) Of(ctx context.Context, pod *corev1.Pod) (string, error) {
	name := pod.Spec.RuntimeClassName
	if name == nil || *name == "" {
		return "", nil
	}
	f.mu.Lock()
	handler, ok := f.known[pod.UID]
	f.mu.Unlock()
	if ok {
		return handler, nil
	}
	class, err := f.classes.Get(ctx, *name, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("get the runtime class of the pod: %w", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if handler, ok := f.known[pod.UID]; ok {
		return handler, nil
	}
	f.known[pod.UID] = class.Handler
	return class.Handler, nil
}

// Forget drops what is remembered of a pod.
func (f *Finder) Forget(uid types.UID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.known, uid)
}
