// Package hooks runs the hooks of a container: programs of the host that a CDI specification names, with the semantics
// of the OCI runtime-spec. They run while the helper waits, before it leaves the host's files:
//
//	prestart, createRuntime   in the host's namespaces, the container's mounts are made
//	createContainer           in the container's mount namespace, before its root is "/"
//	poststart                 when the container's process runs; a failure is logged
//	poststop                  when the container is removed; a failure is logged
//
// startContainer, which would run inside of the container, is rejected where devices are read. The runtime calls this
// package at each moment; it must never keep anything about a container.
package hooks

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"carob/internal/base/openfile"
	"carob/internal/base/seconds"
	"carob/internal/runtime/native/plan"
)

// patienceByDefault is the time limit of a hook that has none of its own.
const patienceByDefault = 2 * time.Minute

// WriteBundle writes what hooks expect in the container's bundle, which is in memory: the
// environment, and a config.json with the path of the root as seen from the container's mount
// namespace.
func WriteBundle(dir string, pl *plan.Container) error {
	argv, err := plan.Command(pl.Config, &pl.Image.Config)
	if err != nil {
		return err
	}
	sc := pl.Config.GetLinux().GetSecurityContext()
	b, err := json.Marshal(&specs.Spec{
		Version: specs.Version, Hostname: pl.Hostname, Annotations: pl.Config.Annotations, Hooks: pl.Hooks,
		Root: &specs.Root{Path: pl.RootDir, Readonly: sc.GetReadonlyRootfs()},
		Process: &specs.Process{Args: argv, Env: plan.Environment(pl.Config, &pl.Image.Config, pl.Hostname),
			Cwd: plan.WorkingDir(pl.Config, &pl.Image.Config), Terminal: pl.Config.Tty},
		Linux: &specs.Linux{CgroupsPath: pl.Cgroup},
	})
	if err != nil {
		return fmt.Errorf("describing the container to its hooks: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), b, 0o600); err != nil {
		return fmt.Errorf("describing the container to its hooks: %w", err)
	}
	return nil
}

// Create runs the hooks of a container whose helper, the process of its state, waits.
func Create(ctx context.Context, all *specs.Hooks, st *specs.State) error {
	first := all.Prestart //nolint:staticcheck // old, not gone
	if err := runAll(ctx, slices.Concat(first, all.CreateRuntime), st); err != nil {
		return err
	}
	if len(all.CreateContainer) == 0 {
		return nil
	}
	return inMountNamespace(st.Pid, func() error { return runAll(ctx, all.CreateContainer, st) })
}

// runAll runs hooks up to the first that fails.
func runAll(ctx context.Context, all []specs.Hook, st *specs.State) error {
	for _, h := range all {
		if err := run(ctx, h, st); err != nil {
			return err
		}
	}
	return nil
}

// Late runs the hooks whose failure has no consequence: poststart, and poststop.
func Late(ctx context.Context, name string, all []specs.Hook, st *specs.State) {
	for _, h := range all {
		if err := run(context.WithoutCancel(ctx), h, st); err != nil {
			klog.FromContext(ctx).Error(err, "Hook of a container failed", "hook", name, "container", st.ID)
		}
	}
}

// run runs one hook to its end.
func run(ctx context.Context, h specs.Hook, st *specs.State) error {
	in, err := json.Marshal(st)
	if err != nil {
		return fmt.Errorf("describing the container to hook %s: %w", h.Path, err)
	}
	patience := patienceByDefault
	if h.Timeout != nil {
		patience = seconds.Duration(int64(*h.Timeout))
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, h.Path)
	if len(h.Args) > 0 {
		cmd.Args = h.Args
	}
	cmd.Env = append([]string{}, h.Env...) // nil would mean the environment of carob
	cmd.Stdin = bytes.NewReader(in)
	cmd.WaitDelay = time.Second // processes that it left behind may keep its output open
	out, err := cmd.CombinedOutput()
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("it did not end within %s", patience)
	}
	if err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return fmt.Errorf("running hook %s: %w: %s", h.Path, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// inMountNamespace calls f on a thread in the mount namespace of a process; programs that f starts
// are in it, too.
func inMountNamespace(pid int, f func() error) error {
	done := make(chan error, 1)
	go onSpareThread(func() {
		done <- func() error {
			ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", pid))
			if err != nil {
				return fmt.Errorf("entering the container's mount namespace: %w", err)
			}
			defer ns.Close()
			if err := errors.Join(unix.Unshare(unix.CLONE_FS),
				unix.Setns(openfile.FD(ns), unix.CLONE_NEWNS)); err != nil {
				return fmt.Errorf("entering the container's mount namespace: %w", err)
			}
			return f()
		}()
	})
	return <-done
}

// onSpareThread calls f on a thread that ends afterwards; it is called as a goroutine. The main
// thread cannot be used: it cannot end, and /proc/self shows its mounts.
func onSpareThread(f func()) {
	goruntime.LockOSThread()
	if unix.Gettid() == unix.Getpid() {
		defer goruntime.UnlockOSThread()
		done := make(chan struct{})
		go func() {
			defer close(done)
			goruntime.LockOSThread() // another one: this goroutine holds the main thread
			f()
		}()
		<-done
		return
	}
	f() // still locked: the runtime ends the thread
}
