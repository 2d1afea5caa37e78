package storage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.etcd.io/etcd/server/v3/config"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.uber.org/zap"
)

// An interrupted start leaves a directory that can be started, whichever of the first files exist,
// of this carob or of an older one.
func TestFirstStartBrokenOff(t *testing.T) {
	settings := func(dir string) config.ServerConfig {
		return serverConfig(Config{Dir: dir, NoFsync: true}, zap.NewNop())
	}
	must := func(t *testing.T, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, leave := range map[string]func(t *testing.T, dir string){
		"nothing": func(*testing.T, string) {},
		"an empty member": func(t *testing.T,
			dir string) {
			must(t, os.MkdirAll(filepath.Join(dir, "member/snap"), 0o700))
		},
		"half of the new member": func(t *testing.T,
			dir string) {
			must(t, os.MkdirAll(filepath.Join(dir, "member.new/snap"), 0o700))
		},
		"the new member, unnamed": func(t *testing.T,
			dir string) {
			must(t, fillMember(settings(dir), filepath.Join(dir, "member.new")))
		},
		"a member that never ran": func(t *testing.T, dir string) { must(t, create(settings(dir), memberUnborn)) },
		"half, beside an old half": func(t *testing.T, dir string) {
			must(t, os.MkdirAll(filepath.Join(dir, "member/snap"), 0o700))
			must(t, fillMember(settings(dir), filepath.Join(dir, "member.new")))
		},
		"old: a database": func(t *testing.T, dir string) {
			must(t, os.MkdirAll(filepath.Dir(dbFile(dir)), 0o700))
			db, err := bolt.Open(dbFile(dir), 0o600, nil)
			must(t, err)
			must(t, db.Close())
		},
		"old: an empty database": func(t *testing.T, dir string) {
			must(t, os.MkdirAll(filepath.Dir(dbFile(dir)), 0o700))
			must(t, os.WriteFile(dbFile(dir), nil, 0o600))
		},
		"old: half of a log": func(t *testing.T, dir string) {
			must(t, os.MkdirAll(filepath.Join(dir, "member/wal.tmp"), 0o700))
			must(t, os.WriteFile(filepath.Join(dir, "member/wal.tmp/0000000000000000-0000000000000000.wal"), nil,
				0o600))
		},
		"old: a log without a member": func(t *testing.T, dir string) {
			must(t, os.MkdirAll(filepath.Dir(dbFile(dir)), 0o700))
			db, err := bolt.Open(dbFile(dir), 0o600, nil)
			must(t, err)
			must(t, db.Close())
			must(t, freshLog(dir))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			leave(t, dir)
			must(t, whole(t, dir, 0))
			must(t, whole(t, dir, 0))
			if _, err := os.Stat(filepath.Join(dir, "member.new")); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("member.new stays: %v", err)
			}
		})
	}
}

// A member with content is never created again, whichever of its files is missing.
func TestUsedMemberIsKept(t *testing.T) {
	origin := t.TempDir()
	fill(t, origin, 5)
	for name, spoil := range map[string]func(dir string) error{
		"no log":           func(dir string) error { return os.RemoveAll(filepath.Join(dir, "member/wal")) },
		"an empty log":     func(dir string) error { return os.Truncate(logFile(t, dir), 0) },
		"a log of its own": func(dir string) error { return freshLog(dir) },
		"a damaged database": func(dir string) error {
			return os.WriteFile(dbFile(dir), []byte(strings.Repeat("x", 1<<15)), 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := copyDir(t, origin)
			if err := spoil(dir); err != nil {
				t.Fatal(err)
			}
			if err := whole(t, dir, 5); err == nil {
				t.Error("it opens")
			}
			if _, err := os.Stat(dbFile(dir)); err != nil {
				t.Errorf("the database is gone: %v", err)
			}
		})
	}
	// Without its database, the log alone restores everything: it has all entries from the first.
	dir := copyDir(t, origin)
	state, err := checkFiles(dir)
	if err != nil || state != memberUsed {
		t.Errorf("a whole one: %v, %v", state, err)
	}
}

// freshLog replaces a log by one without entries.
func freshLog(dir string) error {
	logs := filepath.Join(dir, "member/wal")
	if err := os.RemoveAll(logs); err != nil {
		return err
	}
	w, err := wal.Create(zap.NewNop(), logs, nil)
	if err != nil {
		return err
	}
	return w.Close()
}

// A start that is cancelled while etcd looks for its leader ends without a panic, and the next one
// starts.
func TestStartCalledOff(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancelCause(t.Context())
	stopped := errors.New("asked to stop")
	cancel(stopped)
	if e, err := Open(ctx, Config{Dir: dir, NoFsync: true}); err == nil {
		e.Close()
		t.Fatal("it opens")
	}
	e := &Engine{failure: newFailure()}
	if err := e.start(t.Context(), Config{Dir: dir, NoFsync: true}); err != nil {
		t.Fatal(err)
	}
	e.Close() // as Open does if campaign failed: there is no housekeeping yet
	if err := whole(t, dir, 0); err != nil {
		t.Fatal(err)
	}
}

// A process that carob was starting when it closed the log of a new member has the log's lock until it runs its
// program: the member is there only when the lock is free.
func TestLogLockedByAProcessThatStarts(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "0.wal")
	f, err := fileutil.TryLockFile(name, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	child := exec.CommandContext(t.Context(), "cat") // until its input ends
	child.ExtraFiles = []*os.File{f.File}
	in, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(child.Start(), f.Close()); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- released(dir, time.Hour) }()
	for waits := false; !waits; { // /proc/locks marks those who wait for a lock
		locks, err := os.ReadFile("/proc/locks")
		if err != nil {
			t.Fatal(err)
		}
		st, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		inode := fmt.Sprintf(":%d ", st.Sys().(*syscall.Stat_t).Ino)
		for line := range strings.Lines(string(locks)) {
			waits = waits || strings.Contains(line, "-> ") && strings.Contains(line, inode)
		}
		select {
		case err := <-done:
			t.Fatalf("the log is taken for free while a process has its lock (%v)", err)
		default:
		}
		runtime.Gosched()
	}
	if err := released(dir, time.Millisecond); err == nil ||
		!strings.Contains(err.Error(), fmt.Sprintf(`process %d ("cat") has it`, child.Process.Pid)) {
		t.Errorf("a lock that is never free: %v", err)
	}
	if err := errors.Join(in.Close(), child.Wait(), <-done); err != nil {
		t.Fatal(err)
	}
	if f, err = fileutil.TryLockFile(name, os.O_WRONLY, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}
