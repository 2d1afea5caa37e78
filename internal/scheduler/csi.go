package scheduler

import (
	"context"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"carob/internal/core/volume"
)

// csiWatches is the scheduler's state of CSI drivers. Nothing is watched before the first volume or
// class of a driver; then pods with claims are held until all lists were delivered.
type csiWatches struct {
	start       func() // starts the watches; nil: they run already, or the watches of volumes do not run yet
	watched     bool
	drivers     map[string]*storagev1.CSIDriver
	nodes       map[string]*storagev1.CSINode
	capacities  map[string]*storagev1.CSIStorageCapacity // by namespace/name
	attachments map[string]*storagev1.VolumeAttachment
}

func newCSIWatches() csiWatches {
	return csiWatches{drivers: map[string]*storagev1.CSIDriver{}, nodes: map[string]*storagev1.CSINode{},
		capacities: map[string]*storagev1.CSIStorageCapacity{}, attachments: map[string]*storagev1.VolumeAttachment{}}
}

// watchDrivers starts the watches of CSI drivers, once.
func (s *Scheduler) watchDrivers() {
	w := s.volumes
	if w.csi.start == nil || w.csi.watched {
		return
	}
	w.csi.watched = true
	for _, kind := range []string{"CSIDriver", "CSINode", "CSIStorageCapacity", "VolumeAttachment"} {
		w.missing[kind] = true
	}
	w.csi.start()
	w.csi.start = nil
}

// startDrivers returns a function that starts the watches.
func (s *Scheduler) startDrivers(ctx context.Context, run func(func())) func() {
	return func() {
		api, w := s.client.StorageV1(), &s.volumes.csi
		reflect(ctx, run, "csidrivers", &storagev1.CSIDriver{}, csiFeed(s, "CSIDriver", w.drivers),
			everything(api.CSIDrivers(), &storagev1.CSIDriver{}))
		reflect(ctx, run, "csinodes", &storagev1.CSINode{}, csiFeed(s, "CSINode", w.nodes),
			everything(api.CSINodes(), &storagev1.CSINode{}))
		reflect(ctx, run, "csistoragecapacities", &storagev1.CSIStorageCapacity{},
			csiFeed(s, "CSIStorageCapacity", w.capacities),
			everything(api.CSIStorageCapacities(metav1.NamespaceAll), &storagev1.CSIStorageCapacity{}))
		reflect(ctx, run, "volumeattachments", &storagev1.VolumeAttachment{},
			csiFeed(s, "VolumeAttachment", w.attachments),
			everything(api.VolumeAttachments(), &storagev1.VolumeAttachment{}))
	}
}

// csiFeed keeps the objects of a kind in a map. A change may make pods schedulable (S2.30, S2.31).
func csiFeed[T metav1.Object](s *Scheduler, kind string, known map[string]T) cache.ReflectorStore {
	key := func(o T) string { return o.GetNamespace() + "/" + o.GetName() }
	return kindFeed(s, s.volumes.missing, kind, func(o T) { known[key(o)] = o; s.requeueForVolumes() },
		func(o T) { delete(known, key(o)); s.requeueForVolumes() }, func() []T { return values(known) })
}

// knownDrivers implements volume.Drivers.
type knownDrivers struct{ s *Scheduler }

func (k knownDrivers) Driver(name string) *storagev1.CSIDriver {
	return k.s.volumes.csi.drivers["/"+name]
}

func (k knownDrivers) DriversOn(node string) *storagev1.CSINode {
	return k.s.volumes.csi.nodes["/"+node]
}

func (k knownDrivers) Capacities() []*storagev1.CSIStorageCapacity {
	return values(k.s.volumes.csi.capacities)
}

func (k knownDrivers) AttachedTo(node string) []*storagev1.VolumeAttachment {
	var list []*storagev1.VolumeAttachment
	for _, a := range k.s.volumes.csi.attachments { // any order: the reader's
		if a.Spec.NodeName == node {
			list = append(list, a)
		}
	}
	return list
}

func (k knownDrivers) ClaimsOn(node string, yield func(namespace, name string)) {
	n := k.s.cluster.Node(node)
	if n == nil {
		return
	}
	for _, p := range n.Pods() {
		for _, c := range p.Claims {
			yield(p.Object.Namespace, c.Name)
		}
	}
}

var _ volume.Drivers = knownDrivers{}
