package node

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Without an API server, each request is answered at once: nothing is there, and why (S14.1).
func TestStandaloneClient(t *testing.T) {
	c, err := standaloneClient()
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	for name, err := range map[string]error{
		"get": func() error {
			_, err := c.CoreV1().Secrets("a").Get(ctx, "b", metav1.GetOptions{})
			return err
		}(),
		"create": func() error {
			_, err := c.CoreV1().Pods("a").Create(ctx, &corev1.Pod{}, metav1.CreateOptions{})
			return err
		}(),
		"update": func() error {
			_, err := c.CoreV1().Pods("a").UpdateStatus(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "b"}},
				metav1.UpdateOptions{})
			return err
		}(),
		"delete": c.CoreV1().Pods("a").Delete(ctx, "b", metav1.DeleteOptions{}),
		"class": func() error {
			_, err := c.NodeV1().RuntimeClasses().Get(ctx, "gvisor", metav1.GetOptions{})
			return err
		}(),
		"watch": func() error {
			_, err := c.CoreV1().Pods("a").Watch(ctx, metav1.ListOptions{})
			return err
		}(),
	} {
		if !apierrors.IsNotFound(err) || !strings.Contains(err.Error(), "standalone mode, no API client") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
