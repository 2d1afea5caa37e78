package nodeobject

import (
	"bufio"
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"carob/internal/core/eviction"
)

// Machine is the properties of the host. They do not change while it runs.
type Machine struct {
	Hostname string
	Capacity corev1.ResourceList // without pods
	Info     corev1.NodeSystemInfo

	// Reserved is for the system and the node agent, Threshold what hard eviction thresholds leave free; pods may
	// use neither (S11.101).
	Reserved, Threshold corev1.ResourceList
}

// ReadMachine reads the facts of this host; the file system of dataDir counts as ephemeral
// storage.
func ReadMachine(dataDir string) (Machine, error) {
	m := Machine{Capacity: corev1.ResourceList{}}
	var err error
	if m.Hostname, err = os.Hostname(); err != nil {
		return m, fmt.Errorf("read the host name: %w", err)
	}
	m.Capacity[corev1.ResourceCPU] = *resource.NewQuantity(int64(goruntime.NumCPU()), resource.DecimalSI)
	var si unix.Sysinfo_t
	if err := unix.Sysinfo(&si); err != nil {
		return m, fmt.Errorf("read the size of the memory: %w", err)
	}
	m.Capacity[corev1.ResourceMemory] = *resource.NewQuantity(int64(si.Totalram)*int64(si.Unit), resource.BinarySI)
	var fs unix.Statfs_t
	if err := unix.Statfs(dataDir, &fs); err != nil {
		return m, fmt.Errorf("read the size of the file system of %s: %w", dataDir, err)
	}
	m.Capacity[corev1.ResourceEphemeralStorage] = *resource.NewQuantity(int64(fs.Blocks)*fs.Bsize, resource.BinarySI)
	hugePages(m.Capacity, "/sys/kernel/mm/hugepages")

	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return m, fmt.Errorf("read the kernel version: %w", err)
	}
	m.Info = corev1.NodeSystemInfo{
		MachineID:       firstOf("/etc/machine-id", "/var/lib/dbus/machine-id"),
		SystemUUID:      firstOf("/sys/class/dmi/id/product_uuid", "/etc/machine-id"),
		BootID:          firstOf("/proc/sys/kernel/random/boot_id"),
		KernelVersion:   unix.ByteSliceToString(uts.Release[:]),
		OSImage:         osImage("/etc/os-release", "/usr/lib/os-release"),
		OperatingSystem: goruntime.GOOS,
		Architecture:    goruntime.GOARCH,
	}
	if swap := int64(si.Totalswap) * int64(si.Unit); swap > 0 {
		m.Info.Swap = &corev1.NodeSwapStatus{Capacity: &swap}
	}
	return m, nil
}

// Reserve sets what pods may not use: reservations, and hard eviction thresholds for memory and the file system of the
// node (S11.101). A reservation above the capacity is an error (S11.103).
func (m *Machine) Reserve(reserved corev1.ResourceList, thresholds []eviction.Threshold) error {
	for _, name := range slices.Sorted(maps.Keys(reserved)) {
		have, known := m.Capacity[name]
		if want := reserved[name]; known && want.Cmp(have) > 0 {
			//nolint:staticcheck // upstream's words
			return fmt.Errorf("invalid Node Allocatable configuration. Resource %q has a reservation of %v but capacity "+
				"of %v. Expected capacity >= reservation.", name, want.String(), have.String())
		}
	}
	m.Reserved, m.Threshold = reserved, corev1.ResourceList{}
	for _, t := range thresholds {
		name := map[eviction.Signal]corev1.ResourceName{eviction.MemoryAvailable: corev1.ResourceMemory,
			eviction.NodeFsAvailable: corev1.ResourceEphemeralStorage}[t.Signal]
		if name != "" && t.Grace == 0 {
			have := m.Capacity[name]
			m.Threshold[name] = *resource.NewQuantity(t.Min.Of(have.Value()), resource.BinarySI)
		}
	}
	return nil
}

// ForPods is the capacity without what is reserved: the limit of all pods together (S11.121).
func (m *Machine) ForPods() corev1.ResourceList {
	left := m.Capacity.DeepCopy()
	take(left, m.Reserved)
	return left
}

// Allocatable is what pods may request of the capacity (S11.101).
func (m *Machine) Allocatable() corev1.ResourceList {
	a := m.ForPods()
	take(a, m.Threshold)
	pages := corev1.ResourceList{}
	for name, q := range m.Capacity {
		if strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) {
			sum := pages[corev1.ResourceMemory]
			sum.Add(q) // set aside at boot
			pages[corev1.ResourceMemory] = sum
		}
	}
	take(a, pages)
	return a
}

// take subtracts amounts from the available ones; none becomes negative.
func take(from, amounts corev1.ResourceList) {
	for name, q := range amounts {
		have, ok := from[name]
		if !ok {
			continue
		}
		if have.Sub(q); have.Sign() < 0 {
			have = *resource.NewQuantity(0, have.Format)
		}
		from[name] = have
	}
}

func hugePages(capacity corev1.ResourceList, dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return // a kernel without them
	}
	for _, e := range entries {
		kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimPrefix(e.Name(), "hugepages-"), "kB"), 10, 64)
		if err != nil {
			continue
		}
		count, err := strconv.ParseInt(firstOf(filepath.Join(dir, e.Name(), "nr_hugepages")), 10, 64)
		if err != nil {
			continue
		}
		size := resource.NewQuantity(kib<<10, resource.BinarySI)
		name := corev1.ResourceName(corev1.ResourceHugePagesPrefix + size.String())
		capacity[name] = *resource.NewQuantity(count*kib<<10, resource.BinarySI)
	}
}

// firstOf is the trimmed content of the first file that can be read.
func firstOf(paths ...string) string {
	for _, p := range paths {
		if b, err := os.ReadFile(p); err == nil && len(bytes.TrimSpace(b)) > 0 {
			return string(bytes.TrimSpace(b))
		}
	}
	return ""
}

func osImage(paths ...string) string {
	sc := bufio.NewScanner(strings.NewReader(firstOf(paths...)))
	for sc.Scan() {
		if v, ok := strings.CutPrefix(sc.Text(), "PRETTY_NAME="); ok {
			return strings.Trim(v, `"'`)
		}
	}
	return "Linux"
}
