package native

import (
	"fmt"
	"slices"

	"carob/internal/runtime/native/plan"
	"carob/internal/runtime/native/selinux"
)

// relabel gives the container's SELinux label to the files of the pod that it mounts, and to the
// volumes for which the agent requests it.
func relabel(pl *plan.Container) error {
	if pl.FileLabel == "" {
		return nil
	}
	var paths []string
	for _, p := range pl.Etc {
		paths = append(paths, p)
	}
	if pl.Shm != "" && pl.Shm != "/dev/shm" {
		paths = append(paths, pl.Shm)
	}
	for _, m := range pl.Config.Mounts {
		if m.SelinuxRelabel && m.HostPath != "" {
			paths = append(paths, m.HostPath)
		}
	}
	for _, m := range pl.RootFS {
		if m.Type == "bind" && !slices.Contains(m.Options, "ro") {
			paths = append(paths, m.Source)
		}
	}
	for _, p := range paths {
		if err := selinux.Relabel(p, pl.FileLabel); err != nil {
			return fmt.Errorf("relabelling %s: %w", p, err)
		}
	}
	return nil
}
