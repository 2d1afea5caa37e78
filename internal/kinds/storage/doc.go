// Package storage is the group storage.k8s.io: StorageClasses, VolumeAttachments, CSIDrivers, CSINodes,
// CSIStorageCapacities and VolumeAttributesClasses. How the API server stores objects is in package apiserver/storage.
package storage
