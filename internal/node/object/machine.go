package object

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Machine is what the host says about itself. It does not change while it runs.
type Machine struct {
	Hostname string
	Capacity corev1.ResourceList // without pods
	Info     corev1.NodeSystemInfo
}

// ReadMachine reads the facts of this host; dataDir says which file system counts
// as ephemeral storage.
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

// What stays free for the machine itself: the default hard eviction thresholds (L7.145).
const reservedMemory = 100 << 20

// Allocatable is what pods may use of the capacity.
func (m *Machine) Allocatable() corev1.ResourceList {
	a := m.Capacity.DeepCopy()
	memory := m.Capacity.Memory().Value() - reservedMemory
	for name, q := range m.Capacity {
		if strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) {
			memory -= q.Value() // set aside at boot
		}
	}
	a[corev1.ResourceMemory] = *resource.NewQuantity(max(memory, 0), resource.BinarySI)
	storage := m.Capacity.StorageEphemeral().Value()
	a[corev1.ResourceEphemeralStorage] = *resource.NewQuantity(storage-storage/10, resource.BinarySI)
	return a
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
