package cluster

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"carob/internal/sim/fakeapi"
	"carob/internal/sim/storage"
)

// precious is the priority of the pods of StatefulSets with claims: their data may be on one node only, so that they
// preempt others there.
const precious = 500

// addClaims gives a set claim templates and a retention policy.
func (w *world) addClaims(s *appsv1.StatefulSet) {
	s.Spec.Template.Spec.Priority = new(int32(precious))
	// All pods of a set fit on the smallest node, because the claims of all of them may be there.
	s.Spec.Template.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] =
		*resource.NewMilliQuantity(int64(1+w.IntN(2))*unit, resource.DecimalSI)
	s.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{storage.Template("data",
		[]string{storage.Local, storage.Local, storage.Late, storage.Immediate}[w.IntN(4)])}
	if w.IntN(3) == 0 {
		s.Spec.VolumeClaimTemplates = append(s.Spec.VolumeClaimTemplates, storage.Template("log",
			[]string{storage.Local, storage.Late, storage.Immediate}[w.IntN(3)]))
	}
	w.setPolicy(s)
}

// setPolicy sets a retention policy, or none.
func (w *world) setPolicy(s *appsv1.StatefulSet) {
	all := []appsv1.PersistentVolumeClaimRetentionPolicyType{appsv1.RetainPersistentVolumeClaimRetentionPolicyType,
		appsv1.DeletePersistentVolumeClaimRetentionPolicyType}
	if s.Spec.PersistentVolumeClaimRetentionPolicy = nil; w.IntN(5) > 0 {
		s.Spec.PersistentVolumeClaimRetentionPolicy = &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{
			WhenDeleted: all[w.IntN(2)], WhenScaled: all[w.IntN(2)]}
	}
}

// changeStorage is what users do with sets that have claims, and with claims and volumes.
func (w *world) changeStorage() {
	w.storage.Supply(w.IntN(4))
	all := fakeapi.All[*appsv1.StatefulSet](w.API)
	switch n := w.IntN(10); {
	case len(all) == 0:
		w.Create(w.set("db"))
	case n < 5:
		edit(w, all[0], func(s *appsv1.StatefulSet) { s.Spec.Replicas = w.number(0, 4) })
	case n < 6:
		edit(w, all[0], w.setPolicy)
	case n < 7:
		w.discard(all[0])
	case n < 8:
		w.storage.Repair()
	default:
		w.storage.DeleteSome()
	}
}

// shrinkSet scales the set down, or deletes it: what becomes of its claims is certain, because all is as wanted.
func (w *world) shrinkSet() {
	all := fakeapi.All[*appsv1.StatefulSet](w.API)
	if len(all) == 0 {
		return
	}
	if size := int(*all[0].Spec.Replicas); size > 0 && w.IntN(2) == 0 {
		size = w.IntN(size)
		w.storage.Expect(all[0], size)
		w.logf("%s is scaled down to %d", all[0].Name, size)
		edit(w, all[0], func(s *appsv1.StatefulSet) { s.Spec.Replicas = new(int32(size)) }) //nolint:gosec // small
		return
	}
	w.storage.Expect(all[0], -1)
	w.discard(all[0])
}
