package volumes

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"carob/internal/controllers/metrics"
	"carob/internal/core/volume"
)

// operations measures how long claims wait for their provisioners, and volumes for their deletion (S1.96). Both begin
// when this controller sees the wait, so that what began before its start counts from there.
type operations struct {
	mu      sync.Mutex
	running map[string]operation
}

type operation struct {
	plugin, name string
	began        time.Time
}

// begin begins an operation, unless it runs.
func (o *operations) begin(key, plugin, name string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, ok := o.running[key]; !ok {
		o.running[key] = operation{plugin, name, time.Now()}
	}
}

// end ends an operation, if it runs; done: it succeeded.
func (o *operations) end(key string, done bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if op, ok := o.running[key]; ok && done {
		metrics.VolumeSeconds.WithLabelValues(op.plugin, op.name).Observe(time.Since(op.began).Seconds())
	}
	delete(o.running, key)
}

// claim follows the operation of a claim.
func (o *operations) claim(c *corev1.PersistentVolumeClaim) {
	key := claimKey(c.Namespace, c.Name)
	provisioner := c.Annotations[volume.StorageProvisioner]
	switch {
	case c.Status.Phase == corev1.ClaimBound:
		o.end(key, true)
	case c.Spec.VolumeName == "" && provisioner != "" && c.DeletionTimestamp == nil:
		o.begin(key, provisioner, "provision")
	}
}

// volume follows the operation of a volume.
func (o *operations) volume(v *corev1.PersistentVolume) {
	deleted := v.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete
	if provisioner := v.Annotations[volume.ProvisionedBy]; provisioner != "" && deleted &&
		v.Status.Phase == corev1.VolumeReleased {
		o.begin("volume/"+v.Name, provisioner, "delete")
	}
}
