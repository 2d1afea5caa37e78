// Package volumes is PersistentVolumes and PersistentVolumeClaims, and the checks of the sources of volumes that
// pods and persistent volumes share (docs/spec/storage-and-node.md).
package volumes
