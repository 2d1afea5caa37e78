package spec

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Resolver is a parsed resolv.conf.
type Resolver struct{ Nameservers, Searches, Options []string }

// ParseResolver reads a resolv.conf.
func ParseResolver(text []byte) Resolver { panic("unfinished") }

// Find returns the container of that name of whatever kind (regular, init or
// ephemeral) and the field path for its events, or nil.
func Find(pod *corev1.Pod, name string) (c *corev1.Container, fieldPath string) { panic("unfinished") }

// Hash of name and image decides whether a container's definition changed (L3.66).
func Hash(c *corev1.Container) string { panic("unfinished") }

// Assemble fetches what the container refers to, has its files made and builds
// the request. Every error but a context's is a CreateContainerConfigError (L3.89).
func Assemble(ctx context.Context, in ContainerInput, f Fetcher, d Disk) (*cri.ContainerConfig, error) {
	panic("unfinished")
}

// ContainerConfig builds the request for one instance of a container.
func ContainerConfig(in ContainerInput) (*cri.ContainerConfig, error) { panic("unfinished") }

// Restored is what the labels and annotations of a container in the runtime tell (L3.164).
type Restored struct {
	PodName, PodNamespace, PodUID, Name string
	RestartCount                        int
	Hash                                string
	TerminationMessagePath              string
	TerminationMessagePolicy            corev1.TerminationMessagePolicy
	PreStop                             *corev1.Lifecycle
	DeletionGrace, TerminationGrace     *int64 // seconds
}

// Restore reads labels and annotations that ContainerConfig wrote.
func Restore(labels, annotations map[string]string) Restored { panic("unfinished") }

// PodLogDir is the log directory of a pod below the log root (L3.155).
func PodLogDir(root string, pod *corev1.Pod) string { panic("unfinished") }
