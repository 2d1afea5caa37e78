package plan

import (
	"fmt"
	"regexp"
	"slices"

	"github.com/containerd/containerd/v2/core/mount"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The parts of a label in policies. A level is a sensitivity with categories, or a range of two:
// s0:c1,c5.c9-s1. None of them can contain a character that ends a part, a mount option, or a
// string.
var (
	selinuxName  = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]{0,254}$`)
	selinuxLevel = regexp.MustCompile(
		`^([A-Za-z][A-Za-z0-9_]*)(:\w+([,.]\w+)*)?(-[A-Za-z][A-Za-z0-9_]*(:\w+([,.]\w+)*)?)?$`)
)

// maxSelinuxLevel is in bytes. The options of a mount have to fit into a page, with the paths of the image.
const maxSelinuxLevel = 512

// SELinuxLabels returns the labels for CRI's options: the one of the process, and the one of the
// container's own files. Without options there are none.
func SELinuxLabels(o *cri.SELinuxOption) (process, files string, err error) {
	for _, part := range []struct {
		name, value string
		is          *regexp.Regexp
	}{{"user", o.GetUser(), selinuxName}, {"role", o.GetRole(), selinuxName}, {"type", o.GetType(), selinuxName},
		{"level", o.GetLevel(), selinuxLevel}} {
		if part.value != "" && (!part.is.MatchString(part.value) || len(part.value) > maxSelinuxLevel) {
			return "", "", fmt.Errorf("SELinux options: %q is not a %s", part.value, part.name)
		}
	}
	if o == nil || o.Type == "" && o.Level == "" {
		return "", "", nil
	}
	or := func(s, d string) string {
		if s == "" {
			return d
		}
		return s
	}
	level := or(o.Level, "s0")
	return fmt.Sprintf("%s:%s:%s:%s", or(o.User, "system_u"), or(o.Role, "system_r"), or(o.Type, "container_t"), level),
		"system_u:object_r:container_file_t:" + level, nil
}

// context is the mount option that gives a label to all files of a mount.
func (pl *Container) context() string { return `context="` + pl.FileLabel + `"` }

// labelled returns a mount whose files have the container's label. A bind mount
// shows files that have labels of their own.
func (pl *Container) labelled(m mount.Mount) mount.Mount {
	if pl.FileLabel != "" && m.Type == "overlay" {
		m.Options = append(slices.Clip(m.Options), pl.context())
	}
	return m
}
