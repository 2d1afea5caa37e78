package plan

import (
	"slices"

	"github.com/containerd/containerd/v2/core/mount"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/base/selinuxlabel"
)

// SELinuxLabels returns the labels for CRI's options: the one of the process, and the one of the
// container's own files. Without options there are none.
func SELinuxLabels(o *cri.SELinuxOption) (process, files string, err error) {
	return selinuxlabel.Labels(selinuxlabel.Options{User: o.GetUser(), Role: o.GetRole(), Type: o.GetType(),
		Level: o.GetLevel()})
}

// context is the mount option that gives the container's label to all files of a mount.
func (pl *Container) context() string { return selinuxlabel.MountOption(pl.FileLabel) }

// labelled returns a mount whose files have the container's label. A bind mount
// shows files that have labels of their own.
func (pl *Container) labelled(m mount.Mount) mount.Mount {
	if pl.FileLabel != "" && m.Type == "overlay" {
		m.Options = append(slices.Clip(m.Options), pl.context())
	}
	return m
}
