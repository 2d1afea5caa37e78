package runtimehandler

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

type classes map[string]string

func (c classes) Get(_ context.Context, name string, _ metav1.GetOptions) (*nodev1.RuntimeClass, error) {
	if h, ok := c[name]; ok {
		return &nodev1.RuntimeClass{Handler: h}, nil
	}
	return nil, errors.New("not found")
}

func podOf(uid, class string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid)}}
	if class != "" {
		pod.Spec.RuntimeClassName = &class
	}
	return pod
}

// A pod keeps its handler, whatever becomes of the class; without the class it has none, not the default one.
func TestOf(t *testing.T) {
	all := classes{"g": "gvisor"}
	f := New(all)
	want := func(pod *corev1.Pod, handler string, ok bool) {
		t.Helper()
		if got, err := f.Of(t.Context(), pod); got != handler || (err == nil) != ok {
			t.Errorf("pod %s: %q, %v", pod.UID, got, err)
		}
	}
	want(podOf("plain", ""), "", true)
	want(podOf("a", "g"), "gvisor", true)
	want(podOf("b", "missing"), "", false)
	all["g"] = "kata"
	want(podOf("a", "g"), "gvisor", true)
	want(podOf("c", "g"), "kata", true)
	delete(all, "g")
	want(podOf("a", "g"), "gvisor", true)
	f.Forget("a")
	want(podOf("a", "g"), "", false)
}
