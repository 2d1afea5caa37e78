// Package host lists what containers leave on a machine: network namespaces, mounts, links, nft tables, cgroups and
// processes. The end-to-end tests compare the lists before and after; it changes nothing.
package host

import (
	"bufio"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
)

// Snapshot is one look at the host: kind of thing → its names.
type Snapshot map[string][]string

// Take lists the current state of the host. Processes are identified by their command lines.
func Take() (Snapshot, error) {
	s := Snapshot{}
	var err error
	if s["mount"], err = mounts(); err != nil {
		return nil, err
	}
	if s["link"], err = links(); err != nil {
		return nil, err
	}
	if s["cgroup"], err = cgroups(); err != nil {
		return nil, err
	}
	if s["nft"], err = lines("nft", "list", "tables"); err != nil {
		return nil, err
	}
	s["netns"], s["process"], err = processes()
	return s, err
}

// Diff lists what is in after and not in before, as "kind: name".
func Diff(before, after Snapshot) []string {
	var left []string
	for kind, names := range after {
		was := map[string]int{}
		for _, n := range before[kind] {
			was[n]++
		}
		for _, n := range names {
			if was[n] == 0 {
				left = append(left, kind+": "+n)
				continue
			}
			was[n]--
		}
	}
	sort.Strings(left)
	return left
}

func mounts() ([]string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var all []string
	for sc := bufio.NewScanner(f); sc.Scan(); {
		if fields := strings.Fields(sc.Text()); len(fields) > 4 {
			all = append(all, fields[4])
		}
	}
	return all, nil
}

func links() ([]string, error) {
	entries, err := os.ReadDir("/sys/class/net")
	if err != nil {
		return nil, err
	}
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all, nil
}

func cgroups() ([]string, error) {
	var all []string
	err := filepath.WalkDir("/sys/fs/cgroup", func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && ofContainers(p) { // else removed while walking
			all = append(all, p)
		}
		return nil
	})
	return all, err
}

// ofContainers reports whether a cgroup is one of carob's or another container engine's: sessions and services come and
// go by themselves.
func ofContainers(group string) bool {
	return strings.Contains(group, "carob") || strings.Contains(group, "kubepods") || strings.Contains(group, "k8s.io")
}

func lines(cmd string, args ...string) ([]string, error) {
	out, err := exec.Command(cmd, args...).Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cmd, err)
	}
	var all []string
	for l := range strings.Lines(string(out)) {
		all = append(all, strings.TrimSpace(l))
	}
	return all, nil
}

// processes lists what runs in a cgroup of a carob or of a container engine, or
// is a carob, by cgroup and command line; and the network namespaces that such processes hold.
func processes() (netns, procs []string, err error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, nil, err
	}
	seen := map[string]bool{}
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		cmd, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err != nil || len(cmd) == 0 {
			continue // ended, or a kernel thread
		}
		group := cgroupOf(e.Name())
		line := strings.TrimSpace(strings.ReplaceAll(string(cmd), "\x00", " "))
		if group == "" && !strings.HasPrefix(filepath.Base(strings.Fields(line + " ?")[0]), "carob") {
			continue
		}
		procs = append(procs, strings.TrimSpace(group+" "+line))
		if ns, err := os.Readlink(filepath.Join("/proc", e.Name(), "ns/net")); err == nil && !seen[ns] {
			seen[ns] = true
			netns = append(netns, ns)
		}
	}
	return netns, procs, nil
}

// cgroupOf is the cgroup of a process that runs in a container or beside one; empty for others.
func cgroupOf(pid string) string {
	b, err := os.ReadFile(filepath.Join("/proc", pid, "cgroup"))
	if err != nil {
		return ""
	}
	for l := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSpace(l), ":", 3)
		if len(f) == 3 && ofContainers(f[2]) {
			return f[2]
		}
	}
	return ""
}

// Of keeps what bears one of the marks: on a machine that runs other things, too,
// the rest may be theirs.
func Of(left []string, marks ...string) []string {
	var own []string
	for _, l := range left {
		for _, m := range marks {
			if strings.Contains(l, m) {
				own = append(own, l)
				break
			}
		}
	}
	return own
}
