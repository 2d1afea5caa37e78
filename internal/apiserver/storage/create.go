package storage

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.etcd.io/etcd/server/v3/config"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// create creates the directory of a new member if there is none, or one that was never written to;
// state is what checkFiles found in it.
//
// etcd creates its database, its log, and the log's first entry, the member itself, one after the
// other. A process that ends in between leaves a log without a member: the next start finds a log
// and waits for a leader that is never elected. So all three are created in another directory,
// which is renamed when it is complete.
//
//	member.new/{snap/db,wal/0…0.wal} ──synced──▶ member
func create(cfg config.ServerConfig, state memberState) error {
	if state == memberUsed {
		return nil
	}
	dir, half := cfg.MemberDir(), cfg.MemberDir()+".new"
	for _, left := range []string{half, dir} {
		if err := os.RemoveAll(left); err != nil {
			return fmt.Errorf("remove the files of an interrupted start: %w", err)
		}
	}
	if err := fillMember(cfg, half); err != nil {
		return fmt.Errorf("make the etcd member: %w", err)
	}
	if err := os.Rename(half, dir); err != nil {
		return fmt.Errorf("make the etcd member: %w", err)
	}
	return syncDirs(cfg, filepath.Dir(dir))
}

// fillMember writes what etcd itself would have written by the time it runs.
func fillMember(cfg config.ServerConfig, dir string) error {
	snap, logs := filepath.Join(dir, "snap"), filepath.Join(dir, "wal")
	if err := os.MkdirAll(snap, 0o700); err != nil {
		return err
	}
	db, err := bolt.Open(filepath.Join(snap, "db"), 0o600, &bolt.Options{NoSync: cfg.UnsafeNoFsync})
	if err != nil {
		return err
	}
	if err := db.Close(); err != nil {
		return err
	}
	cluster, err := membership.NewClusterFromURLsMap(cfg.Logger, cfg.InitialClusterToken, cfg.InitialPeerURLsMap)
	if err != nil {
		return err
	}
	self := cluster.MemberByName(cfg.Name)
	identity, err := proto.Marshal(&etcdserverpb.Metadata{NodeID: new(uint64(self.ID)),
		ClusterID: new(uint64(cluster.ID()))})
	if err != nil {
		return err
	}
	w, err := wal.Create(cfg.Logger, logs, identity)
	if err != nil {
		return err
	}
	if cfg.UnsafeNoFsync {
		w.SetUnsafeNoFsync()
	}
	first, err := joins(self)
	if err == nil {
		err = w.Save(&raftpb.HardState{Term: new(first.GetTerm()), Commit: new(first.GetIndex())},
			[]*raftpb.Entry{first})
	}
	if err := errors.Join(err, w.Close()); err != nil {
		return err
	}
	if err := released(logs, lockTime); err != nil {
		return err
	}
	return syncDirs(cfg, snap, logs, dir)
}

// lockTime is how long a process may have the lock of a new log. One that carob starts has it for a moment.
const lockTime = 30 * time.Second

// released waits until no process has the lock of a closed log, at most for the given time. A lock belongs to the open
// file, and a process that carob starts meanwhile has all of carob's open files until it runs its program: etcd, which
// only tries to lock the log, would take it for that of another etcd.
func released(logs string, within time.Duration) error {
	names, err := filepath.Glob(filepath.Join(logs, "*.wal"))
	if err != nil {
		return err
	}
	end := time.NewTimer(within)
	defer end.Stop()
	for _, name := range names {
		for {
			free, err := isFree(name)
			if err == nil && free {
				break
			}
			if err == nil {
				err = awaitLock(name, end.C)
			}
			if err != nil {
				return fmt.Errorf("wait for the lock of %s: %w", name, err)
			}
		}
	}
	return nil
}

// isFree reports whether no process has the lock of a file.
func isFree(name string) (bool, error) {
	syscall.ForkLock.RLock() // no child process inherits the file that is opened here
	defer syscall.ForkLock.RUnlock()
	f, err := fileutil.TryLockFile(name, os.O_WRONLY, fileutil.PrivateFileMode)
	if errors.Is(err, fileutil.ErrLocked) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, f.Close()
}

// awaitLock waits until the lock of a file is free once. If the time is up first, a goroutine goes on waiting; carob
// ends with the error.
func awaitLock(name string, end <-chan time.Time) error {
	free := make(chan error, 1)
	go func() {
		f, err := fileutil.LockFile(name, os.O_WRONLY, fileutil.PrivateFileMode)
		if err == nil {
			err = f.Close()
		}
		free <- err
	}()
	select {
	case err := <-free:
		return err
	case <-end:
		return fmt.Errorf("%s has it; end that process and start carob again", holders(name))
	}
}

// holders are the other processes that have a file open.
func holders(name string) string {
	file, err := os.Stat(name)
	if err != nil {
		return "an unknown process"
	}
	var list []string
	links, _ := filepath.Glob("/proc/[0-9]*/fd/*") // what cannot be read is not listed
	for _, link := range links {
		pid := strings.Split(link, "/")[2]
		if target, err := os.Readlink(link); err != nil || filepath.Base(target) != filepath.Base(name) ||
			pid == strconv.Itoa(os.Getpid()) {
			continue
		}
		open, err := os.Stat(link)
		command, _ := os.ReadFile("/proc/" + pid + "/comm") // it may have ended
		what := fmt.Sprintf("process %s (%q)", pid, strings.TrimSpace(string(command)))
		if err == nil && os.SameFile(open, file) && !slices.Contains(list, what) {
			list = append(list, what)
		}
	}
	if len(list) == 0 {
		return "a process that is not visible"
	}
	return strings.Join(list, " or ")
}

// joins is the first entry of a log: the member becomes one.
func joins(self *membership.Member) (*raftpb.Entry, error) {
	text, err := json.Marshal(self)
	if err != nil {
		return nil, err
	}
	change, err := proto.Marshal(&raftpb.ConfChange{Type: raftpb.ConfChangeAddNode.Enum(), NodeId: new(uint64(self.ID)),
		Context: text})
	if err != nil {
		return nil, err
	}
	return &raftpb.Entry{Type: raftpb.EntryConfChange.Enum(), Term: new(uint64(1)), Index: new(uint64(1)),
		Data: change}, nil
}

// syncDirs makes the names in directories survive a power failure.
func syncDirs(cfg config.ServerConfig, dirs ...string) error {
	if cfg.UnsafeNoFsync {
		return nil
	}
	for _, dir := range dirs {
		d, err := os.Open(dir)
		if err != nil {
			return fmt.Errorf("sync %s: %w", dir, err)
		}
		if err := errors.Join(d.Sync(), d.Close()); err != nil {
			return fmt.Errorf("sync %s: %w", dir, err)
		}
	}
	return nil
}

// memberState is the state of a member according to its files.
type memberState int

const (
	memberUsed memberState = iota
	// memberUnborn is one that never had a leader, so that nothing was ever written through it:
	// there are no files, or an older carob was interrupted when it created them.
	memberUnborn
)

// stateOf returns whether a member was ever written to: applied is the newest log entry in the
// database.
func stateOf(applied uint64, log logged) memberState {
	if applied == 0 && log.first == 0 && log.settled == 0 {
		return memberUnborn
	}
	return memberUsed
}
