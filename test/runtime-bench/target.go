package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"carob/internal/network/bridge"
	"carob/internal/runtime/remote"
	"carob/test/containerd"
	"carob/test/images/build"
)

// target is one runtime under measurement.
type target struct {
	name, title string
	dir         string
	group       string // cgroup of all that belongs to it
	socket      string
	cri         *remote.Runtime
	launch      func() error // starts the daemon's process
	kill        func() error // ends it as a crash would
	pid         func() int
	end         func() error // ends it for good and removes what it made
}

func open(ctx context.Context, o options, name string) (t *target, err error) {
	dir, err := os.MkdirTemp("", "rb-")
	if err != nil {
		return nil, err
	}
	t = &target{name: name, dir: dir, group: fmt.Sprintf("/runtime-bench-%d-%s", os.Getpid(), name)}
	if err := t.makeGroups(o.weight); err != nil {
		return nil, errors.Join(err, t.removeGroups(), os.RemoveAll(dir))
	}
	builder := build.Builder{Dir: o.images}
	archives := map[string]string{}
	for _, n := range []string{"busybox", "pause"} {
		if archives[n], err = builder.Build(ctx, n); err != nil {
			return nil, err
		}
	}
	octet := os.Getpid() % 100
	if name == "native" {
		err = t.openNative(settings{Cgroup: t.group, Bridge: fmt.Sprintf("rb%d", os.Getpid()),
			Subnet: fmt.Sprintf("198.18.%d.0/24", octet), Archive: archives["busybox"]})
	} else {
		err = t.openContainerd(ctx, o, name, fmt.Sprintf("198.18.%d.0/24", 100+octet), archives["pause"],
			archives["busybox"])
	}
	if err == nil {
		err = t.connect(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, t.close())
	}
	v, err := t.cri.Version(ctx, nil)
	if err != nil {
		return nil, errors.Join(err, t.close())
	}
	t.title = v.RuntimeName + " " + v.RuntimeVersion
	if name != "native" {
		t.title = v.RuntimeName + " " + strings.TrimPrefix(v.RuntimeVersion, "v") + " + " + ociVersion(o, name)
	}
	return t, nil
}

func (t *target) openNative(set settings) error {
	b, err := json.Marshal(set)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(t.dir, "settings.json"), b, 0o600); err != nil {
		return err
	}
	t.socket = filepath.Join(t.dir, "c.sock")
	self, err := os.Executable()
	if err != nil {
		return err
	}
	var cmd *exec.Cmd
	t.launch = func() error {
		script := "for f; do echo 0 >$f || exit 1; done; exec " + self
		cmd = exec.Command("sh", append([]string{"-c", script, "sh"}, t.procs()...)...)
		cmd.Env = append(os.Environ(), serveDir+"="+t.dir)
		cmd.Stderr = os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		return cmd.Start()
	}
	t.kill = func() error {
		err := cmd.Process.Kill()
		_ = cmd.Wait() // killed
		return err
	}
	t.pid = func() int { return cmd.Process.Pid }
	t.end = func() error {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			return err
		}
		err := cmd.Wait()
		cfg, cerr := set.network(t.dir)
		if cerr != nil {
			return errors.Join(err, cerr)
		}
		return errors.Join(err, bridge.Destroy(cfg))
	}
	return t.launch()
}

func (t *target) openContainerd(ctx context.Context, o options, name, subnet string, archives ...string) error {
	c := containerd.Options{Dir: t.dir, Bridge: fmt.Sprintf("rb%d", os.Getpid()), Subnet: subnet, OCIRuntime: name,
		Programs: o.programs, Join: t.procs()}
	if o.programs != "" {
		var err error
		if c.Programs, err = filepath.Abs(o.programs); err != nil {
			return err
		}
		if p := filepath.Join(c.Programs, name); executable(p) {
			c.OCIRuntime = p
		}
	}
	d, err := containerd.StartWith(ctx, c, archives...)
	if err != nil {
		return err
	}
	t.socket = d.Socket()
	t.launch, t.kill, t.pid, t.end = d.Launch, d.Kill, d.PID, d.Close
	return nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func executable(path string) bool {
	_, err := exec.LookPath(path)
	return err == nil
}

// ociVersion is "runc 1.5.2".
func ociVersion(o options, name string) string {
	p := filepath.Join(o.programs, name)
	if o.programs == "" || !executable(p) {
		p = name
	}
	out, err := exec.Command(p, "--version").Output()
	f := strings.Fields(string(out))
	if err != nil || len(f) < 3 {
		return name
	}
	return name + " " + f[2]
}

// connect waits until the runtime answers at its socket. It dials anew each time:
// gRPC would wait between its own tries.
func (t *target) connect(ctx context.Context) error {
	deadline := time.Now().Add(time.Minute)
	for {
		c, err := net.Dial("unix", t.socket)
		if err == nil {
			_ = c.Close()
			t.cri, err = remote.Dial(ctx, "unix://"+t.socket)
		}
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s does not answer: %w", t.name, err)
		}
		time.Sleep(time.Millisecond)
	}
}

func (t *target) close() error {
	var err error
	if t.cri != nil {
		err = t.removeAll(context.Background())
		_ = t.cri.Close()
	}
	if t.end != nil {
		err = errors.Join(err, t.end())
	}
	return errors.Join(err, t.removeGroups(), os.RemoveAll(t.dir))
}

// hierarchies are the mounted cgroup trees with controllers.
func hierarchies() []string {
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		return []string{"/sys/fs/cgroup"}
	}
	all, _ := filepath.Glob("/sys/fs/cgroup/*/cgroup.procs")
	var dirs []string
	for _, f := range all {
		d := filepath.Dir(f)
		if fi, err := os.Lstat(d); err == nil && fi.Mode()&os.ModeSymlink == 0 && filepath.Base(d) != "unified" {
			dirs = append(dirs, d)
		}
	}
	return dirs
}

// makeGroups makes the daemon's cgroup; it is in the parent of the pods' cgroup.
func (t *target) makeGroups(weight bool) error {
	for _, h := range hierarchies() {
		for _, g := range []string{t.group, t.group + "/daemon"} {
			if err := os.Mkdir(h+g, 0o755); err != nil {
				return err
			}
			for _, f := range []string{"cpuset.cpus", "cpuset.mems"} { // a new cpuset of version 1 is empty
				if b, err := os.ReadFile(h + "/" + f); err == nil {
					if err := os.WriteFile(h+g+"/"+f, b, 0o644); err != nil {
						return err
					}
				}
			}
		}
		if !weight {
			continue
		}
		for file, most := range map[string]string{"cpu.shares": "262144", "cpu.weight": "10000"} {
			if _, err := os.Stat(h + t.group + "/" + file); err != nil {
				continue
			}
			self := h + t.group + "-client"
			if err := errors.Join(os.WriteFile(h+t.group+"/"+file, []byte(most), 0o644), os.Mkdir(self, 0o755),
				os.WriteFile(self+"/"+file, []byte(most), 0o644),
				os.WriteFile(self+"/cgroup.procs", []byte("0"), 0o644)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (t *target) procs() []string {
	var files []string
	for _, h := range hierarchies() {
		files = append(files, h+t.group+"/daemon/cgroup.procs")
	}
	return files
}

func (t *target) removeGroups() error {
	var errs []error
	for _, h := range hierarchies() {
		if self := h + t.group + "-client"; exists(self) {
			errs = append(errs, os.WriteFile(h+"/cgroup.procs", []byte("0"), 0o644), syscall.Rmdir(self))
		}
	}
	tops, _ := filepath.Glob("/sys/fs/cgroup/*" + t.group) // runc makes one in a tree without controllers, too
	for _, top := range append(tops, "/sys/fs/cgroup"+t.group) {
		var dirs []string
		_ = filepath.WalkDir(top, func(p string, d os.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, p)
			}
			return nil
		})
		for _, d := range slices.Backward(dirs) {
			err := syscall.Rmdir(d)
			for range 200 { // the last process left a moment ago
				if !errors.Is(err, syscall.EBUSY) {
					break
				}
				time.Sleep(5 * time.Millisecond)
				err = syscall.Rmdir(d)
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", d, err))
			}
		}
	}
	return errors.Join(errs...)
}

// cpu is the processor time that everything in the runtime's cgroup has used, in ms.
func (t *target) cpu() float64 {
	for _, h := range hierarchies() {
		if b, err := os.ReadFile(h + t.group + "/cpuacct.usage"); err == nil {
			n, _ := strconv.ParseFloat(strings.TrimSpace(string(b)), 64)
			return n / 1e6
		}
		if us := field(h+t.group+"/cpu.stat", "usage_usec"); us > 0 {
			return us / 1000
		}
	}
	return 0
}

// helpersMB sums the proportional memory of what stands beside the daemon and the
// applications: monitors, shims, pause.
func (t *target) helpersMB() float64 {
	sum := 0.0
	_ = filepath.WalkDir(hierarchies()[0]+t.group, func(p string, d os.DirEntry, err error) error {
		if err != nil || d.Name() != "cgroup.procs" {
			return nil //nolint:nilerr // a cgroup that has gone holds nothing
		}
		b, _ := os.ReadFile(p)
		for pid := range strings.FieldsSeq(string(b)) {
			comm, _ := os.ReadFile("/proc/" + pid + "/comm")
			if pid != strconv.Itoa(t.pid()) && strings.TrimSpace(string(comm)) != "sleep" {
				sum += field("/proc/"+pid+"/smaps_rollup", "Pss:") / 1024
			}
		}
		return nil
	})
	return sum
}

// field is the first number after a key at the beginning of a line.
func field(path, key string) float64 {
	b, _ := os.ReadFile(path)
	for l := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(l, key); ok {
			n, _ := strconv.ParseFloat(strings.Fields(v)[0], 64)
			return n
		}
	}
	return 0
}
