package pinning

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/cpuset"

	"carob/internal/core/pinning"
)

// maxFile is how many bytes of a file of sysfs are read.
const maxFile = 64 << 10

// Discover reads from sysfs, mounted at sys, which CPUs and NUMA nodes are online. memory is that of the machine in
// bytes, for a kernel without NUMA support.
func Discover(sys string, memory uint64) (*pinning.Topology, error) {
	d := discovery{cpus: filepath.Join(sys, "devices/system/cpu"), nodes: filepath.Join(sys, "devices/system/node")}
	online, err := d.list(d.cpus, "online")
	if err != nil {
		return nil, fmt.Errorf("discover the CPUs of the machine: %w", err)
	}
	if online.IsEmpty() {
		return nil, errors.New("discover the CPUs of the machine: could not detect number of cpus")
	}
	t := &pinning.Topology{}
	nodeOf, err := d.readNodes(t, online, memory)
	if err != nil {
		return nil, fmt.Errorf("discover the NUMA nodes of the machine: %w", err)
	}
	for _, id := range online.List() {
		c, err := d.cpu(id, online)
		if err != nil {
			return nil, fmt.Errorf("discover CPU %d: %w", id, err)
		}
		node, known := nodeOf[id]
		if !known {
			return nil, fmt.Errorf("discover CPU %d: it belongs to no NUMA node", id)
		}
		c.Node = node
		t.CPUs = append(t.CPUs, c)
	}
	return t, nil
}

// checkReserved returns an error if the machine lacks a CPU that is reserved, whatever the policies (S11.68).
func checkReserved(sys string, reserved cpuset.CPUSet) error {
	if reserved.IsEmpty() {
		return nil
	}
	online, err := discovery{}.list(filepath.Join(sys, "devices/system/cpu"), "online")
	if err != nil {
		return fmt.Errorf("discover the CPUs of the machine: %w", err)
	}
	if !reserved.IsSubsetOf(online) {
		return fmt.Errorf("reserved-cpus: %s is not a subset of online-cpus: %s", reserved, online)
	}
	return nil
}

type discovery struct{ cpus, nodes string }

// text is the content of a file, without surrounding white space.
func text(path ...string) (string, error) {
	f, err := os.Open(filepath.Join(path...))
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return "", err
	}
	if len(b) > maxFile {
		return "", fmt.Errorf("%s has more than %d bytes", f.Name(), maxFile)
	}
	return strings.TrimSpace(string(b)), nil
}

func (discovery) list(path ...string) (cpuset.CPUSet, error) {
	s, err := text(path...)
	if err != nil {
		return cpuset.New(), err
	}
	set, err := pinning.ParseCPUs(s)
	if err != nil {
		return set, fmt.Errorf("%s: %w", filepath.Join(path...), err)
	}
	return set, nil
}

// number reads a number that is not negative; missing: the file does not exist, or contains -1, as on virtual machines.
func number(path ...string) (n int, missing bool, err error) {
	s, err := text(path...)
	if errors.Is(err, fs.ErrNotExist) || err == nil && s == "-1" {
		return 0, true, nil
	}
	if err != nil {
		return 0, false, err
	}
	u, err := strconv.ParseUint(s, 10, 31)
	if err != nil {
		return 0, false, fmt.Errorf("%s: %.64q is not a number", filepath.Join(path...), s)
	}
	return int(u), false, nil
}

// cpu reads what a CPU shares with others. If the kernel does not report it, there is one socket, and each core has one
// CPU.
func (d discovery) cpu(id int, online cpuset.CPUSet) (pinning.CPU, error) {
	dir := filepath.Join(d.cpus, fmt.Sprintf("cpu%d", id))
	c := pinning.CPU{ID: id, Core: id}
	var err error
	if c.Socket, _, err = number(dir, "topology/physical_package_id"); err != nil {
		return c, err
	}
	for _, name := range []string{"topology/core_cpus_list", "topology/thread_siblings_list"} {
		siblings, err := d.list(dir, name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return c, err
		case !siblings.Contains(id):
			return c, fmt.Errorf("%s does not list the CPU itself", filepath.Join(dir, name))
		}
		c.Core = siblings.Intersection(online).List()[0]
		break
	}
	c.Cache, err = d.cache(dir, c.Socket, online)
	return c, err
}

// cache is the last-level cache of a CPU: the lowest CPU that shares it. Without caches, a socket counts as one.
func (d discovery) cache(cpu string, socket int, online cpuset.CPUSet) (int, error) {
	last, level := -1-socket, 2 // only caches beyond the second level are shared by several cores
	entries, err := os.ReadDir(filepath.Join(cpu, "cache"))
	if err != nil {
		return last, nil //nolint:nilerr // as on most virtual machines
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "index") {
			continue
		}
		n, missing, err := number(cpu, "cache", e.Name(), "level")
		if err != nil {
			return last, err
		}
		if missing || n <= level {
			continue
		}
		shared, err := d.list(cpu, "cache", e.Name(), "shared_cpu_list")
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return last, err
		}
		if shared = shared.Intersection(online); !shared.IsEmpty() {
			last, level = shared.List()[0], n
		}
	}
	return last, nil
}

// readNodes reads the NUMA nodes, and sets the node of each CPU.
func (d discovery) readNodes(t *pinning.Topology, online cpuset.CPUSet, memory uint64) (map[int]int, error) {
	of := map[int]int{}
	ids, err := d.list(d.nodes, "online")
	if errors.Is(err, fs.ErrNotExist) {
		for _, cpu := range online.List() {
			of[cpu] = 0
		}
		t.Nodes = []pinning.Node{{Memory: memory, Distances: []uint64{10}}}
		return of, nil
	}
	if err != nil {
		return nil, err
	}
	for _, id := range ids.List() {
		dir := filepath.Join(d.nodes, fmt.Sprintf("node%d", id))
		cpus, err := d.list(dir, "cpulist")
		if err != nil {
			return nil, err
		}
		for _, cpu := range cpus.List() {
			if other, taken := of[cpu]; taken {
				return nil, fmt.Errorf("CPU %d belongs to nodes %d and %d", cpu, other, id)
			}
			of[cpu] = id
		}
		n := pinning.Node{ID: id}
		if n.Memory, err = nodeMemory(filepath.Join(dir, "meminfo")); err != nil {
			return nil, err
		}
		if n.HugePages, err = nodeHugePages(filepath.Join(dir, "hugepages")); err != nil {
			return nil, err
		}
		distances, err := text(dir, "distance")
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for word := range strings.FieldsSeq(distances) {
			far, err := strconv.ParseUint(word, 10, 32)
			if err != nil {
				return nil, fmt.Errorf("%s/distance: %.64q is not a number", dir, word)
			}
			n.Distances = append(n.Distances, far)
		}
		t.Nodes = append(t.Nodes, n)
	}
	return of, nil
}

// nodeMemory reads "Node 0 MemTotal: 1234 kB" as bytes.
func nodeMemory(path string) (uint64, error) {
	s, err := text(path)
	if err != nil {
		return 0, err
	}
	lines := bufio.NewScanner(bytes.NewReader([]byte(s)))
	for lines.Scan() {
		if f := strings.Fields(lines.Text()); len(f) >= 4 && f[2] == "MemTotal:" {
			kib, err := strconv.ParseUint(f[3], 10, 53)
			if err != nil {
				return 0, fmt.Errorf("%s: %.64q is not a number", path, f[3])
			}
			return kib << 10, nil
		}
	}
	return 0, fmt.Errorf("%s has no MemTotal", path)
}

// nodeHugePages are the bytes in huge pages of each size.
func nodeHugePages(dir string) (map[corev1.ResourceName]uint64, error) {
	pages := map[corev1.ResourceName]uint64{}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return pages, nil
	}
	if err != nil {
		return nil, err
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return cmp.Compare(a.Name(), b.Name()) })
	for _, e := range entries {
		kib, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimPrefix(e.Name(), "hugepages-"), "kB"), 10, 40)
		if err != nil {
			continue // not a directory of pages of one size
		}
		count, missing, err := number(dir, e.Name(), "nr_hugepages")
		if err != nil {
			return nil, err
		}
		if !missing {
			size := resource.NewQuantity(int64(kib)<<10, resource.BinarySI)
			pages[corev1.ResourceName(corev1.ResourceHugePagesPrefix+size.String())] = uint64(count) * kib << 10
		}
	}
	return pages, nil
}
