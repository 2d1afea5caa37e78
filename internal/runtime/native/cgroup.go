package native

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// hierarchy is one mounted cgroup tree.
type hierarchy struct {
	name        string // what stands below /sys/fs/cgroup: "cpu,cpuacct", "systemd", "" on v2
	mount       string
	controllers []string
	unified     bool // version 2
}

func (h *hierarchy) has(controller string) bool {
	return slices.Contains(h.controllers, controller)
}

// cgroups is how this host does cgroups: version 2, or every mounted hierarchy
// of version 1. On hybrid hosts the unified tree holds no controllers and is left
// alone but by those that systemd must not take for its unit's.
type cgroups struct {
	v2     bool
	tree   []hierarchy
	hybrid string // where the unified tree of a hybrid host is mounted
}

// whole are the cgroups with the unified tree of a hybrid host as one more
// hierarchy: systemd looks there for the processes of a unit.
func (c *cgroups) whole() *cgroups {
	if c.hybrid == "" {
		return c
	}
	return &cgroups{tree: append(slices.Clone(c.tree), hierarchy{name: "unified", mount: c.hybrid, unified: true})}
}

// findCgroups reads a mountinfo file.
func findCgroups(mountinfo []byte) (*cgroups, error) {
	var v1 []hierarchy
	var unified string
	seen := map[string]bool{}
	for sc := bufio.NewScanner(bytes.NewReader(mountinfo)); sc.Scan(); {
		before, after, ok := strings.Cut(sc.Text(), " - ")
		f, g := strings.Fields(before), strings.Fields(after)
		if !ok || len(f) < 5 || len(g) < 3 || f[3] != "/" {
			continue // only whole trees; a bind of a part is another container's view
		}
		switch g[0] {
		case "cgroup2":
			if unified == "" {
				unified = f[4]
			}
		case "cgroup":
			h := hierarchy{name: filepath.Base(f[4]), mount: f[4]}
			for o := range strings.SplitSeq(g[2], ",") {
				switch o {
				case "rw", "ro", "xattr", "noprefix", "clone_children", "favordynmods", "nofavordynmods", "none":
				default:
					if !strings.HasPrefix(o, "release_agent=") {
						h.controllers = append(h.controllers, o)
					}
				}
			}
			key := strings.Join(h.controllers, ",")
			if len(h.controllers) > 0 && !seen[key] {
				seen[key] = true
				v1 = append(v1, h)
			}
		}
	}
	for _, h := range v1 {
		if h.has("memory") || h.has("cpu") || h.has("pids") {
			return &cgroups{tree: v1, hybrid: unified}, nil
		}
	}
	if unified == "" {
		return nil, errors.New("no cgroup file system is mounted")
	}
	return &cgroups{v2: true, tree: []hierarchy{{mount: unified, unified: true}}}, nil
}

// of answers where a controller's files of the group are; "" when the host has none.
func (c *cgroups) of(controller, group string) string {
	if c.v2 {
		return c.tree[0].mount + group
	}
	for i := range c.tree {
		if c.tree[i].has(controller) {
			return c.tree[i].mount + group
		}
	}
	return ""
}

// entry is how a process with one thread gets into a group, without cgroup.procs: a write to that file holds
// the lock of all cgroups for a grace period of RCU, 5 to 20 ms, when none was written to just before.
// A thread that moves itself by "0" in tasks needs none (Linux 5.5), nor does one that is made in its group.
type entry struct {
	tasks   []string // version 1: the files that it writes "0" to
	cpu     int      // which of them shares out processor time; -1 for none
	unified string   // version 2: the directory that it is cloned into; "" for none
}

func (c *cgroups) entry(group string) entry {
	e := entry{tasks: []string{}, cpu: -1}
	for i := range c.tree {
		h := &c.tree[i]
		if h.unified {
			e.unified = h.mount + group
			continue
		}
		if h.has("cpu") {
			e.cpu = len(e.tasks)
		}
		e.tasks = append(e.tasks, h.mount+group+"/tasks")
	}
	return e
}

// open opens the directory to be cloned into; nil for none.
func (e *entry) open() (*os.File, error) {
	if e.unified == "" {
		return nil, nil
	}
	return os.Open(e.unified)
}

// controllersV2 are those a container can use; the others stay with the host.
var controllersV2 = []string{"cpu", "cpuset", "io", "memory", "pids", "hugetlb", "misc"}

// make makes the group in every hierarchy, with whatever is missing above it.
func (c *cgroups) make(group string) error {
	for i := range c.tree {
		h := &c.tree[i]
		if err := h.make(group, c.v2); err != nil {
			return fmt.Errorf("making cgroup %s: %w", h.mount+group, err)
		}
	}
	return nil
}

func (h *hierarchy) make(group string, v2 bool) error {
	dir := h.mount + group
	err := unix.Mkdir(dir, 0o755)
	if errors.Is(err, unix.ENOENT) {
		if group == "" || group == "/" {
			return err
		}
		if err := h.make(parentGroup(group), v2); err != nil {
			return err
		}
		err = unix.Mkdir(dir, 0o755)
	}
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	if v2 {
		return h.delegate(parentGroup(group))
	}
	if h.has("cpuset") {
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			if _, err := h.inherit(group, file); err != nil {
				return err
			}
		}
	}
	return nil
}

// inherit gives a cpuset that is empty, and so takes no process, what its parent has;
// the parent may be empty as well, made by somebody else a moment ago.
func (h *hierarchy) inherit(group, file string) (string, error) {
	path := h.mount + group + "/" + file
	b, err := os.ReadFile(path)
	if value := strings.TrimSpace(string(b)); err != nil || value != "" || group == "" {
		return value, err
	}
	value, err := h.inherit(parentGroup(group), file)
	if err != nil {
		return "", err
	}
	return value, put(path, value)
}

// delegate switches on, for the children of a group, every controller the group has.
// It may have none yet, made by somebody else a moment ago.
func (h *hierarchy) delegate(group string) error {
	dir := h.mount + group
	have, err := os.ReadFile(dir + "/cgroup.controllers")
	if err == nil && len(bytes.TrimSpace(have)) == 0 && group != "" {
		if err = h.delegate(parentGroup(group)); err == nil {
			have, err = os.ReadFile(dir + "/cgroup.controllers")
		}
	}
	if err != nil {
		return err
	}
	on, err := os.ReadFile(dir + "/cgroup.subtree_control")
	if err != nil {
		return err
	}
	var want []string
	for _, c := range controllersV2 {
		if slices.Contains(strings.Fields(string(have)), c) && !slices.Contains(strings.Fields(string(on)), c) {
			want = append(want, "+"+c)
		}
	}
	if len(want) == 0 {
		return nil
	}
	if put(dir+"/cgroup.subtree_control", strings.Join(want, " ")) == nil {
		return nil
	}
	// One that the kernel refuses (cpu with real-time processes) must not cost the others.
	for _, w := range want {
		_ = put(dir+"/cgroup.subtree_control", w)
	}
	return nil
}

func parentGroup(group string) string {
	if i := strings.LastIndexByte(group, '/'); i > 0 {
		return group[:i]
	}
	return ""
}

// remove removes an empty group; groups below it go first.
func (c *cgroups) remove(group string) error {
	var errs []error
	for i := range c.tree {
		if err := removeGroup(c.tree[i].mount+group, false); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// end removes a group with all that runs in it. A helper whose monitor died may
// still be on its way into the group, one hierarchy after the other: it is killed
// where it is found, and once the group is gone it can't join any more and fails.
func (c *cgroups) end(group string) error {
	var errs []error
	for i := range c.tree {
		if err := removeGroup(c.tree[i].mount+group, true); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func removeGroup(dir string, kill bool) error {
	patience := 200 * time.Millisecond
	if kill {
		patience = time.Second
	}
	// The last process leaves its group a moment after it was reaped.
	for wait := 100 * time.Microsecond; ; wait *= 2 {
		err := unix.Rmdir(dir)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || wait > patience {
			return fmt.Errorf("removing cgroup %s: %w", dir, err)
		}
		if kill {
			for _, pid := range pidsBelow(dir) {
				_ = unix.Kill(pid, unix.SIGKILL) // may have ended
			}
		}
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("removing cgroup %s: %w", dir, err)
		}
		for _, e := range entries {
			if e.IsDir() {
				_ = removeGroup(dir+"/"+e.Name(), kill) // if it stays, so does this one
			}
		}
		time.Sleep(wait)
	}
}

// killAll kills every process of the group and of those below it.
func (c *cgroups) killAll(group string) {
	if c.v2 {
		err := put(c.tree[0].mount+group+"/cgroup.kill", "1")
		if err == nil || errors.Is(err, unix.ENOENT) && !exists(c.tree[0].mount+group) {
			return
		}
	}
	dir := c.of("pids", group)
	if dir == "" {
		dir = c.tree[0].mount + group
	}
	freezer := c.of("freezer", group)
	if !c.v2 && freezer != "" {
		// Frozen processes can't fork away from the list.
		if put(freezer+"/freezer.state", "FROZEN") == nil {
			defer func() { _ = put(freezer+"/freezer.state", "THAWED") }() // fails when the group is gone
		}
	}
	for _, pid := range pidsBelow(dir) {
		_ = unix.Kill(pid, unix.SIGKILL) // may have ended
	}
}

// pids are the processes of the group and of those below it.
func (c *cgroups) pids(group string) []int {
	dir := c.of("pids", group)
	if dir == "" {
		dir = c.tree[0].mount + group
	}
	return pidsBelow(dir)
}

func pidsBelow(dir string) []int {
	var pids []int
	b, err := os.ReadFile(dir + "/cgroup.procs")
	if err != nil {
		return nil
	}
	for f := range strings.FieldsSeq(string(b)) {
		var pid int
		if _, err := fmt.Sscan(f, &pid); err == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if e.IsDir() {
			pids = append(pids, pidsBelow(dir+"/"+e.Name())...)
		}
	}
	return pids
}

// oomFile is the open file that counts the group's OOM kills, or nil.
func (c *cgroups) oomFile(group string) *os.File {
	name := c.of("memory", group)
	if name == "" {
		return nil
	}
	if c.v2 {
		name += "/memory.events"
	} else {
		name += "/memory.oom_control"
	}
	f, err := os.Open(name)
	if err != nil {
		return nil
	}
	return f
}

// oomKilled says whether the kernel killed a process of the group for want of
// memory, its own limit's or that of a group above; f is its oomFile, may be nil.
func oomKilled(f *os.File) bool {
	b := make([]byte, 2048)
	n, _ := f.ReadAt(b, 0) // it is short: always io.EOF; an error of a nil file, too
	for line := range bytes.Lines(b[:max(n, 0)]) {
		if count, ok := bytes.CutPrefix(line, []byte("oom_kill ")); ok {
			return !bytes.Equal(bytes.TrimSpace(count), []byte("0"))
		}
	}
	return false
}

// expandSlice is the path of a systemd slice: a-b.slice lives in a.slice.
func expandSlice(slice string) (string, error) {
	name, ok := strings.CutSuffix(slice, ".slice")
	if !ok || strings.Contains(slice, "/") || strings.HasPrefix(name, "-") && name != "-" || strings.HasSuffix(name, "-") && name != "-" || strings.Contains(name, "--") {
		return "", fmt.Errorf("invalid slice name %q", slice)
	}
	if name == "-" {
		return "", nil
	}
	var path, prefix string
	for part := range strings.SplitSeq(name, "-") {
		prefix += part
		path += "/" + prefix + ".slice"
		prefix += "-"
	}
	return path, nil
}

// put writes a file of the kernel in one write.
func put(path, value string) error {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("opening %s: %w", path, err)
	}
	defer unix.Close(fd)
	for {
		_, err = unix.Write(fd, []byte(value))
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("writing %q to %s: %w", value, path, err)
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}
