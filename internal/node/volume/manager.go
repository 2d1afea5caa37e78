package volume

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/podlife"
	"carob/internal/node/spec"
)

// Manager implements spec.Disk and owns everything below <root>/pods.
type Manager struct{}

var _ spec.Disk = (*Manager)(nil)

// New makes a Manager; nothing happens before Prepare and Run.
func New(cfg Config) *Manager { panic("unfinished") }

// Run keeps volume contents and tokens current until ctx ends.
func (m *Manager) Run(ctx context.Context) error { panic("unfinished") }

// Prepare makes the pod's directories (0750) and sets up all its volumes; what
// stands already is left alone. The error names each volume that failed.
func (m *Manager) Prepare(ctx context.Context, pod *corev1.Pod) error { panic("unfinished") }

// Update tells that the pod object changed (labels and annotations show in downward API volumes).
func (m *Manager) Update(pod *corev1.Pod) { panic("unfinished") }

// State tells what stands for the pod.
func (m *Manager) State(pod *corev1.Pod) podlife.VolumeState { panic("unfinished") }

// Remove unmounts and deletes everything of the pod. It may be repeated.
func (m *Manager) Remove(ctx context.Context, uid types.UID) error { panic("unfinished") }

// OnDisk lists the pods that have a directory, for the clean-up at start.
func (m *Manager) OnDisk() ([]types.UID, error) { panic("unfinished") }

// TerminationMessage reads the last 4096 bytes of a termination message file of the pod (L3.150).
func (m *Manager) TerminationMessage(path string) (string, error) { panic("unfinished") }

// Volumes implements spec.Disk.
func (m *Manager) Volumes(uid types.UID) map[string]spec.Volume { panic("unfinished") }

// SubPath implements spec.Disk.
func (m *Manager) SubPath(ctx context.Context, req spec.SubPath) (string, error) { panic("unfinished") }

// HostsFile implements spec.Disk.
func (m *Manager) HostsFile(uid types.UID, content []byte) (string, error) { panic("unfinished") }

// TerminationLog implements spec.Disk.
func (m *Manager) TerminationLog(uid types.UID, container string) (string, error) { panic("unfinished") }

// ReadFile implements spec.Disk.
func (m *Manager) ReadFile(uid types.UID, volume, path string) ([]byte, error) { panic("unfinished") }
