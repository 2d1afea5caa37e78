package controllertest

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	typedv1 "k8s.io/client-go/kubernetes/typed/core/v1"
)

// Slow is a client like another, but each write of a pod or claim in one namespace takes long, as with a webhook there
// that does not answer.
type Slow struct {
	kubernetes.Interface
	Namespace string
	Wait      func() // called before each of them
}

// CoreV1 implements kubernetes.Interface.
func (s Slow) CoreV1() typedv1.CoreV1Interface { return slowCore{s.Interface.CoreV1(), s} }

type slowCore struct {
	typedv1.CoreV1Interface
	slow Slow
}

func (c slowCore) Pods(namespace string) typedv1.PodInterface {
	pods := c.CoreV1Interface.Pods(namespace)
	if namespace == c.slow.Namespace {
		return slowPods{pods, c.slow.Wait}
	}
	return pods
}

func (c slowCore) PersistentVolumeClaims(namespace string) typedv1.PersistentVolumeClaimInterface {
	claims := c.CoreV1Interface.PersistentVolumeClaims(namespace)
	if namespace == c.slow.Namespace {
		return slowClaims{claims, c.slow.Wait}
	}
	return claims
}

type slowPods struct {
	typedv1.PodInterface
	wait func()
}

func (p slowPods) Patch(ctx context.Context, name string, how types.PatchType, data []byte, o metav1.PatchOptions,
	subresources ...string) (*corev1.Pod, error) {
	p.wait()
	return p.PodInterface.Patch(ctx, name, how, data, o, subresources...)
}

func (p slowPods) Delete(ctx context.Context, name string, o metav1.DeleteOptions) error {
	p.wait()
	return p.PodInterface.Delete(ctx, name, o)
}

type slowClaims struct {
	typedv1.PersistentVolumeClaimInterface
	wait func()
}

func (c slowClaims) Update(ctx context.Context, claim *corev1.PersistentVolumeClaim,
	o metav1.UpdateOptions) (*corev1.PersistentVolumeClaim, error) {
	c.wait()
	return c.PersistentVolumeClaimInterface.Update(ctx, claim, o)
}

func (c slowClaims) UpdateStatus(ctx context.Context, claim *corev1.PersistentVolumeClaim,
	o metav1.UpdateOptions) (*corev1.PersistentVolumeClaim, error) {
	c.wait()
	return c.PersistentVolumeClaimInterface.UpdateStatus(ctx, claim, o)
}
