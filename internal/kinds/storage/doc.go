// Package storage is the group storage.k8s.io: StorageClasses, VolumeAttachments, CSIDrivers,
// CSINodes, CSIStorageCapacities, and VolumeAttributesClasses. Package apiserver/storage stores
// objects of all kinds.
package storage
