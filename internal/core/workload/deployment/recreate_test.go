package deployment

import (
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// W2.50, W2.51: as long as the controller of an old set does not know that its size is 0, it may be making
// pods. Seed 424 of sim/deployments found the overlap.
func TestRecreateWaitsForTheOldSet(t *testing.T) {
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "web", UID: "d", Generation: 2}}
	d.Spec = appsv1.DeploymentSpec{Replicas: new(int32(3)), RevisionHistoryLimit: new(int32(2)),
		ProgressDeadlineSeconds: new(int32(600)),
		Selector:                &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		Strategy:                appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}}
	d.Spec.Template.Labels = map[string]string{"app": "web"}
	d.Spec.Template.Spec.Containers = []corev1.Container{{Name: "c", Image: "new"}}
	old := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "web-old", UID: "s", Generation: 2,
		Labels: d.Spec.Template.Labels}, Spec: appsv1.ReplicaSetSpec{Replicas: new(int32(0)), Selector: d.Spec.Selector,
		Template: *d.Spec.Template.DeepCopy()}}
	old.Spec.Template.Spec.Containers[0].Image = "old"
	for _, observed := range []int64{1, 2} {
		set := old.DeepCopy()
		set.Status.ObservedGeneration = observed
		plan := Decide(Input{Deployment: d, Sets: []*appsv1.ReplicaSet{set}, Now: time.Unix(1e9, 0),
			Running: func(types.UID) bool { return false }})
		creates := false
		for _, s := range plan.Steps {
			creates = creates || s.Create != nil
		}
		if creates != (observed == 2) {
			t.Errorf("generation %d is observed: a new set is created: %v", observed, creates)
		}
	}
}
