package volumes

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"carob/internal/controllers/controllertest"
	"carob/internal/controllers/metrics"
	"carob/internal/core/volume"
)

// S1.96
func TestMetrics(t *testing.T) {
	metrics.Register()
	inTest(t, func(t *testing.T) {
		before := controllertest.Metrics(t)
		classless := wanting("late", "")
		classless.Spec.StorageClassName = nil
		attributes := wanting("fast", "none")
		attributes.Spec.VolumeAttributesClassName = new("gold")
		driven := offering("driven", "other")
		driven.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "csi.example.com", VolumeHandle: "h"}
		driven.Spec.VolumeMode = new(corev1.PersistentVolumeBlock)
		local := offering("local", "slow")
		local.Spec.Local = &corev1.LocalVolumeSource{Path: "/x"}
		local.Status.Phase = corev1.VolumeAvailable
		api := controllertest.New(classless, attributes, wanting("has", "slow"), local, driven,
			&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "def",
				Annotations: map[string]string{volume.DefaultClass: "true"}}, Provisioner: "x.example.com"})
		start(t, api)
		time.Sleep(time.Second)
		synctest.Wait()
		now := controllertest.Metrics(t)
		for name, want := range map[string]float64{
			"pv_collector_total_pv_count{kubernetes.io/local-volume,Filesystem}":   1,
			"pv_collector_total_pv_count{kubernetes.io/csi:csi.example.com,Block}": 1,
			"pv_collector_bound_pv_count{slow}":                                    1,
			"pv_collector_unbound_pv_count{other}":                                 1,
			"pv_collector_bound_pvc_count{ns,slow,}":                               1,
			"pv_collector_unbound_pvc_count{ns,none,gold}":                         1,
			"pv_collector_unbound_pvc_count{ns,def,}":                              1,
		} {
			if now[name] != want {
				t.Errorf("%s is %v, want %v", name, now[name], want)
			}
		}
		controllertest.Grown(t, before, map[string]float64{"retroactive_storageclass_total": 1,
			"retroactive_storageclass_errors_total": 0})
	})
}

// How long a claim waited for its provisioner, and a volume for its deletion (S1.96). A claim that is deleted meanwhile
// does not count.
func TestOperationSeconds(t *testing.T) {
	metrics.Register()
	inTest(t, func(t *testing.T) {
		before := controllertest.Metrics(t)
		const provisioner = "x.example.com"
		provided := wanting("provided", "c")
		provided.Annotations = map[string]string{volume.StorageProvisioner: provisioner}
		gone := wanting("gone", "c")
		gone.Annotations = provided.Annotations
		api := controllertest.New(provided, gone, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "c"},
			Provisioner: provisioner})
		start(t, api)
		time.Sleep(5 * time.Second)
		made := offering("pv", "c")
		made.Annotations = map[string]string{volume.ProvisionedBy: provisioner}
		made.Spec.ClaimRef = volume.Ref(provided)
		made.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
		api.Put(made)
		api.Remove(gone)
		time.Sleep(time.Second)
		api.Remove(provided)
		time.Sleep(20 * time.Second)
		api.Remove(made)
		time.Sleep(time.Second)
		synctest.Wait()
		const name = "volume_operation_total_seconds{"
		controllertest.Grown(t, before, map[string]float64{name + "delete," + provisioner + "}": 1,
			name + "provision," + provisioner + "}": 1})
	})
}
