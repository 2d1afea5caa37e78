// Package volumes is PersistentVolumes and PersistentVolumeClaims, and the validation of the volume
// sources that pods and persistent volumes share (docs/spec/storage-and-node.md).
package volumes
