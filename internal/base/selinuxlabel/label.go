// Package selinuxlabel makes the SELinux labels of containers from the options in a pod's security context: one for the
// process, and one for its files. The native runtime applies them; the node agent mounts volumes with the label of the
// files. Any package may import it: it is pure. It checks each part, because a label becomes a mount option.
package selinuxlabel

import (
	"fmt"
	"regexp"
)

// Options are the parts of a label that the pod gives; "": the default.
type Options struct{ User, Role, Type, Level string }

// The parts of a label in policies. A level is a sensitivity with categories, or a range of two:
// s0:c1,c5.c9-s1. None of them can contain a character that ends a part, a mount option, or a
// string.
var (
	name  = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]{0,254}$`)
	level = regexp.MustCompile(
		`^([A-Za-z][A-Za-z0-9_]*)(:\w+([,.]\w+)*)?(-[A-Za-z][A-Za-z0-9_]*(:\w+([,.]\w+)*)?)?$`)
)

// maxLevel is in bytes. The options of a mount have to fit into a page, with the paths of the image.
const maxLevel = 512

// Labels returns the label of a container's process, and that of its files. Both are "" without a type and a level. As
// with other runtimes the type and the role of the files are fixed.
func Labels(o Options) (process, files string, err error) {
	for _, part := range []struct {
		name, value string
		is          *regexp.Regexp
	}{{"user", o.User, name}, {"role", o.Role, name}, {"type", o.Type, name}, {"level", o.Level, level}} {
		if part.value != "" && (!part.is.MatchString(part.value) || len(part.value) > maxLevel) {
			return "", "", fmt.Errorf("SELinux options: %q is not a %s", part.value, part.name)
		}
	}
	if o.Type == "" && o.Level == "" {
		return "", "", nil
	}
	or := func(s, d string) string {
		if s == "" {
			return d
		}
		return s
	}
	user, sensitivity := or(o.User, "system_u"), or(o.Level, "s0")
	return fmt.Sprintf("%s:%s:%s:%s", user, or(o.Role, "system_r"), or(o.Type, "container_t"), sensitivity),
		user + ":object_r:container_file_t:" + sensitivity, nil
}

// MountOption is the option that gives a label to all files of a mount. The quotes keep the commas of a level from
// ending it.
func MountOption(label string) string { return `context="` + label + `"` }
