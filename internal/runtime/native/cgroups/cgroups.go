// Package cgroups creates, limits, measures, and removes the cgroups of containers: on hosts with
// version 1, version 2, or both, through the kernel's files or through systemd.
//
// The native runtime drives it, with cgroups as paths below each hierarchy ("/kubepods/pod1/id").
// It must never depend on what a pod is, change a cgroup that is not passed to it, or write to cgroup.procs (see
// Entry).
//
// Contract: docs/spec/pod-lifecycle.md.
package cgroups

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Hierarchy is one mounted cgroup tree.
type Hierarchy struct {
	Name        string   // below /sys/fs/cgroup: "cpu,cpuacct", "systemd", "" on v2
	Mount       string   // path
	Controllers []string // version 1 only
	unified     bool     // version 2
}

func (h *Hierarchy) has(controller string) bool {
	return slices.Contains(h.Controllers, controller)
}

// Hierarchies are the cgroup trees of this host: the one of version 2, or every mounted one of
// version 1. On hybrid hosts, the unified tree has no controllers and is not used, except for
// processes that systemd must not assign to its unit (Whole). Nothing in it changes after Find: it
// is safe for concurrent use.
type Hierarchies struct {
	V2     bool        // one tree, of version 2
	Tree   []Hierarchy // at least one
	hybrid string      // where the unified tree of a hybrid host is mounted
}

// Whole returns the hierarchies with the unified tree of a hybrid host as an additional one: systemd finds the
// processes of a unit there.
func (c *Hierarchies) Whole() *Hierarchies {
	if c.hybrid == "" {
		return c
	}
	return &Hierarchies{Tree: append(slices.Clone(c.Tree), Hierarchy{Name: "unified", Mount: c.hybrid, unified: true})}
}

// Find finds the hierarchies in the text of a mountinfo file; it is an error if there are none.
func Find(mountinfo []byte) (*Hierarchies, error) {
	var v1 []Hierarchy
	var unified string
	seen := map[string]bool{}
	for line := range strings.Lines(string(mountinfo)) { // an overlay of many layers has a line over 64 KiB
		before, after, ok := strings.Cut(line, " - ")
		f, g := strings.Fields(before), strings.Fields(after)
		if !ok || len(f) < 5 || len(g) < 3 || f[3] != "/" {
			continue // only whole trees; a bind mount of a part is another container's view
		}
		switch g[0] {
		case "cgroup2":
			if unified == "" {
				unified = f[4]
			}
		case "cgroup":
			h := Hierarchy{Name: filepath.Base(f[4]), Mount: f[4]}
			for o := range strings.SplitSeq(g[2], ",") {
				switch o {
				case "rw", "ro", "xattr", "noprefix", "clone_children", "favordynmods", "nofavordynmods", "none":
				default:
					if !strings.HasPrefix(o, "release_agent=") {
						h.Controllers = append(h.Controllers, o)
					}
				}
			}
			key := strings.Join(h.Controllers, ",")
			if len(h.Controllers) > 0 && !seen[key] {
				seen[key] = true
				v1 = append(v1, h)
			}
		}
	}
	for _, h := range v1 {
		if h.has("memory") || h.has("cpu") || h.has("pids") {
			return &Hierarchies{Tree: v1, hybrid: unified}, nil
		}
	}
	if unified == "" {
		return nil, errors.New("no cgroup file system is mounted")
	}
	return &Hierarchies{V2: true, Tree: []Hierarchy{{Mount: unified, unified: true}}}, nil
}

// Of returns the path of a controller's files of the cgroup; "" if the host has none.
func (c *Hierarchies) Of(controller, group string) string {
	if c.V2 {
		return c.Tree[0].Mount + group
	}
	for i := range c.Tree {
		if c.Tree[i].has(controller) {
			return c.Tree[i].Mount + group
		}
	}
	return ""
}

// Entry returns the way into the cgroup.
func (c *Hierarchies) Entry(group string) Entry {
	e := Entry{Tasks: []string{}, CPU: -1, Memory: -1}
	for i := range c.Tree {
		h := &c.Tree[i]
		if h.unified {
			e.unified = h.Mount + group
			continue
		}
		if h.has("cpu") {
			e.CPU = len(e.Tasks)
		}
		if h.has("memory") {
			e.Memory = len(e.Tasks)
		}
		e.Tasks = append(e.Tasks, h.Mount+group+"/tasks")
	}
	return e
}

// controllersV2 are the controllers that containers use; the others stay with the host.
var controllersV2 = []string{"cpu", "cpuset", "io", "memory", "pids", "hugetlb", "misc"}

// Make creates the cgroup in every hierarchy, with missing parents.
func (c *Hierarchies) Make(group string) error {
	for i := range c.Tree {
		if err := c.Tree[i].makeGroup(group, c.V2); err != nil {
			return err
		}
	}
	return nil
}

// MakeFirst creates the group in the hierarchy of one controller only; Make does the rest.
func (c *Hierarchies) MakeFirst(controller, group string) error {
	for i := range c.Tree {
		if c.Tree[i].has(controller) {
			return c.Tree[i].makeGroup(group, c.V2)
		}
	}
	return nil
}

func (h *Hierarchy) makeGroup(group string, v2 bool) error {
	if err := h.make(group, v2); err != nil {
		return fmt.Errorf("making cgroup %s: %w", h.Mount+group, err)
	}
	return nil
}

func (h *Hierarchy) make(group string, v2 bool) error {
	dir := h.Mount + group
	err := unix.Mkdir(dir, 0o755)
	if errors.Is(err, unix.ENOENT) {
		if group == "" || group == "/" {
			return err
		}
		if err := h.make(Parent(group), v2); err != nil {
			return err
		}
		err = unix.Mkdir(dir, 0o755)
	}
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	if v2 {
		return h.delegate(Parent(group))
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

// inherit gives an empty cpuset, which accepts no process, the values of its parent; the parent
// may be empty as well, if another process created it a moment ago.
func (h *Hierarchy) inherit(group, file string) (string, error) {
	path := h.Mount + group + "/" + file
	b, err := os.ReadFile(path)
	if value := strings.TrimSpace(string(b)); err != nil || value != "" || group == "" {
		return value, err
	}
	value, err := h.inherit(Parent(group), file)
	if err != nil {
		return "", err
	}
	return value, writeFile(path, value)
}

// delegate enables every controller of a cgroup for its children. It may have none yet, if
// another process created it a moment ago.
func (h *Hierarchy) delegate(group string) error {
	dir := h.Mount + group
	have, err := os.ReadFile(dir + "/cgroup.controllers")
	if err == nil && len(bytes.TrimSpace(have)) == 0 && group != "" {
		if err = h.delegate(Parent(group)); err == nil {
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
	if writeFile(dir+"/cgroup.subtree_control", strings.Join(want, " ")) == nil {
		return nil
	}
	// A controller that the kernel rejects (cpu with real-time processes) must not affect the
	// others.
	for _, w := range want {
		_ = writeFile(dir+"/cgroup.subtree_control", w)
	}
	return nil
}

// Parent returns the parent cgroup; "" at the top.
func Parent(group string) string {
	if i := strings.LastIndexByte(group, '/'); i > 0 {
		return group[:i]
	}
	return ""
}

// Remove removes an empty cgroup, and first those below it.
func (c *Hierarchies) Remove(group string) error {
	var errs []error
	for i := range c.Tree {
		if err := removeGroup(c.Tree[i].Mount+group, false); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// End removes a cgroup with all its processes. A helper whose monitor was killed may still be entering the cgroup, one
// hierarchy after the other: it is killed wherever it is found; once the cgroup is gone, it cannot enter and fails.
func (c *Hierarchies) End(group string) error {
	var errs []error
	for i := range c.Tree {
		if err := removeGroup(c.Tree[i].Mount+group, true); err != nil {
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
	// The last process leaves its cgroup a moment after it was reaped.
	for wait := 100 * time.Microsecond; ; wait *= 2 {
		err := unix.Rmdir(dir)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || wait > patience {
			return fmt.Errorf("removing cgroup %s: %w", dir, err)
		}
		if kill {
			for _, pid := range PIDsBelow(dir) {
				_ = unix.Kill(pid, unix.SIGKILL) // may have ended
			}
		}
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("removing cgroup %s: %w", dir, err)
		}
		for _, e := range entries {
			if e.IsDir() {
				_ = removeGroup(dir+"/"+e.Name(), kill) // if it stays, this one stays, too
			}
		}
		time.Sleep(wait) //nolint:forbidigo // the kernel does not report when the last process has left
	}
}

// KillAll kills every process of the cgroup and of those below it.
func (c *Hierarchies) KillAll(group string) {
	if c.V2 {
		err := writeFile(c.Tree[0].Mount+group+"/cgroup.kill", "1")
		if err == nil {
			return
		}
		if _, missing := os.Lstat(c.Tree[0].Mount + group); errors.Is(err, unix.ENOENT) && missing != nil {
			return
		}
	}
	dir := c.Of("pids", group)
	if dir == "" {
		dir = c.Tree[0].Mount + group
	}
	freezer := c.Of("freezer", group)
	if !c.V2 && freezer != "" {
		// Frozen processes cannot fork new ones while the list is read.
		if writeFile(freezer+"/freezer.state", "FROZEN") == nil {
			defer c.Thaw(group)
		}
	}
	for _, pid := range PIDsBelow(dir) {
		_ = unix.Kill(pid, unix.SIGKILL) // may have ended
	}
}

// Thaw lets the processes of a frozen cgroup of version 1 run: a signal that kills them would wait. In version 2 it
// does not.
func (c *Hierarchies) Thaw(group string) {
	if freezer := c.Of("freezer", group); !c.V2 && freezer != "" {
		_ = writeFile(freezer+"/freezer.state", "THAWED") // fails if the cgroup is gone
	}
}

// PIDs returns the processes of the cgroup and of those below it.
func (c *Hierarchies) PIDs(group string) []int {
	dir := c.Of("pids", group)
	if dir == "" {
		dir = c.Tree[0].Mount + group
	}
	return PIDsBelow(dir)
}

// PIDsBelow returns the processes of the cgroup with directory dir and of those below it.
func PIDsBelow(dir string) []int {
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
			pids = append(pids, PIDsBelow(dir+"/"+e.Name())...)
		}
	}
	return pids
}

// OOMFile opens the file that counts the cgroup's OOM kills; nil if there is none.
func (c *Hierarchies) OOMFile(group string) *os.File {
	name := c.Of("memory", group)
	if name == "" {
		return nil
	}
	if c.V2 {
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

// writeFile writes to a file of the kernel in one write.
func writeFile(path, value string) error {
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
