package podcgroups

import (
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/cgroups"
	corev1 "k8s.io/api/core/v1"

	"carob/internal/core/resources"
)

// Reservation is a cgroup of other processes of the node, and the resources that are reserved for it. The administrator
// makes the cgroup (S11.69).
type Reservation struct {
	For     string // "system" or "kube"
	Cgroup  string // its path from the root of the hierarchies; for the systemd driver the name of a slice
	Limits  corev1.ResourceList
	CPUOnly bool // only the CPU weight is set, no limit
}

// Message is the event of a reservation that is enforced (S11.123).
func (r *Reservation) Message() string {
	return fmt.Sprintf("Updated limits on %s reserved cgroup %s", r.For, r.Cgroup)
}

// EnforceReserved limits existing cgroups to what is reserved for them (S11.124).
func (m *Manager) EnforceReserved(list []Reservation) error {
	for i := range list {
		if err := m.enforceReserved(&list[i]); err != nil {
			kind := strings.ToUpper(list[i].For[:1]) + list[i].For[1:] + " Reserved"
			if list[i].CPUOnly {
				kind += " Compressible"
			}
			//nolint:staticcheck // upstream's words
			return fmt.Errorf("Failed to enforce %s Cgroup Limits on %q: %w", kind, list[i].Cgroup, err)
		}
	}
	return nil
}

func (m *Manager) enforceReserved(r *Reservation) error {
	cm, err := m.driver(m.reservedPath(r.Cgroup), nil)
	if err != nil {
		return err
	}
	values, controllers := m.reservedValues(r)
	dirs := cm.GetPaths()
	if m.v2 {
		controllers = []string{""}
	}
	for _, controller := range controllers {
		dir := dirs[controller]
		if dir == "" {
			return fmt.Errorf("the host has no cgroup controller %s", controller)
		}
		if _, err := os.Stat(dir); err != nil {
			return fmt.Errorf("cgroup %q does not exist: %w", r.Cgroup, err)
		}
	}
	return cm.Set(values)
}

// reservedPath is the path of a cgroup from the root of the hierarchies.
func (m *Manager) reservedPath(name string) resources.CgroupPath {
	if m.systemd { // a slice's name has the path to it
		return strings.Split(strings.TrimSuffix(path.Base(name), ".slice"), "-")
	}
	return strings.Split(strings.Trim(name, "/"), "/")
}

// reservedValues are the limits of a reserved cgroup, and the controllers that it needs for them.
func (m *Manager) reservedValues(r *Reservation) (values *cgroups.Resources, controllers []string) {
	values = &cgroups.Resources{SkipDevices: true, SkipFreezeOnSet: true}
	if q, ok := r.Limits[corev1.ResourceCPU]; ok {
		m.cpu(values, resources.CPUShares(q.MilliValue()))
		controllers = append(controllers, "cpu")
	}
	if r.CPUOnly {
		return values, controllers
	}
	if q, ok := r.Limits[corev1.ResourceMemory]; ok {
		values.Memory = q.Value()
		controllers = append(controllers, "memory")
		if m.v2 { // gate MemoryQoS
			values.Unified = map[string]string{"memory.min": strconv.FormatInt(q.Value(), 10)}
		}
	}
	if q, ok := r.Limits["pid"]; ok {
		values.PidsLimit = new(q.Value())
		controllers = append(controllers, "pids")
	}
	for _, name := range slices.Sorted(maps.Keys(r.Limits)) {
		size, ok := strings.CutPrefix(string(name), corev1.ResourceHugePagesPrefix)
		if !ok || !m.has("hugetlb", "hugetlb.") {
			continue
		}
		q := r.Limits[name]
		values.HugetlbLimit = append(values.HugetlbLimit,
			&cgroups.HugepageLimit{Pagesize: kernelPageSize(size), Limit: uint64(q.Value())})
	}
	return values, controllers
}
