package apiserver

import (
	"maps"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	appsv1apply "k8s.io/client-go/applyconfigurations/apps/v1"
	autoscalingv1apply "k8s.io/client-go/applyconfigurations/autoscaling/v1"
	corev1apply "k8s.io/client-go/applyconfigurations/core/v1"
	metav1apply "k8s.io/client-go/applyconfigurations/meta/v1"
)

// testScaleOwner checks that server-side apply records who scaled a workload.
func testScaleOwner(t *testing.T, r *running) {
	ctx, c := t.Context(), r.admin(t).AppsV1().Deployments("default")
	labels := map[string]string{"app": "owned"}
	want := func(replicas int32) *appsv1apply.DeploymentApplyConfiguration {
		return appsv1apply.Deployment("owned", "default").WithSpec(appsv1apply.DeploymentSpec().WithReplicas(replicas).
			WithSelector(metav1apply.LabelSelector().WithMatchLabels(labels)).
			WithTemplate(corev1apply.PodTemplateSpec().WithLabels(labels).WithSpec(
				corev1apply.PodSpec().WithContainers(corev1apply.Container().WithName("c").WithImage("i")))))
	}
	if _, err := c.Apply(ctx, want(1), metav1.ApplyOptions{FieldManager: "chart"}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Patch(ctx, "owned", types.MergePatchType, []byte(`{"spec":{"replicas":7}}`),
		metav1.PatchOptions{FieldManager: "ops"}, "scale"); err != nil {
		t.Fatal(err)
	}
	d, err := c.Get(ctx, "owned", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	owners := map[string]string{}
	for _, m := range d.ManagedFields {
		if strings.Contains(m.FieldsV1.GetRawString(), "f:replicas") {
			owners[m.Manager] = m.APIVersion + " " + m.Subresource
		}
	}
	if *d.Spec.Replicas != 7 || !maps.Equal(owners, map[string]string{"ops": "apps/v1 scale"}) {
		t.Errorf("%d replicas, owned by %v", *d.Spec.Replicas, owners)
	}
	if _, err := c.Apply(ctx, want(3), metav1.ApplyOptions{FieldManager: "chart"}); !apierrors.IsConflict(err) ||
		!strings.Contains(err.Error(), `conflict with "ops" with subresource "scale"`) {
		t.Errorf("an apply over somebody's scale: %v", err)
	}
	if d, err = c.Apply(ctx, want(3), metav1.ApplyOptions{FieldManager: "chart", Force: true}); err != nil ||
		*d.Spec.Replicas != 3 {
		t.Errorf("a forced apply: %v", err)
	}
	if s, err := c.ApplyScale(ctx, "owned",
		autoscalingv1apply.Scale().WithSpec(autoscalingv1apply.ScaleSpec().WithReplicas(5)),
		metav1.ApplyOptions{FieldManager: "ops"}); !apierrors.IsConflict(err) {
		t.Errorf("an applied scale over the chart's: %v, %v", s, err)
	}
}
