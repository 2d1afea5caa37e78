package storage

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

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
			return fmt.Errorf("remove what a start that broke off left: %w", err)
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
	if err := released(logs); err != nil {
		return err
	}
	return syncDirs(cfg, snap, logs, dir)
}

// released waits until no process has the lock of a closed log. A lock belongs to the open file, and a process that
// carob starts meanwhile has all of carob's open files until it runs its program: etcd, which only tries to lock the
// log, would take it for that of another etcd.
func released(logs string) error {
	names, err := filepath.Glob(filepath.Join(logs, "*.wal"))
	if err != nil {
		return err
	}
	syscall.ForkLock.RLock() // nobody inherits the file that is opened here
	defer syscall.ForkLock.RUnlock()
	for _, name := range names {
		f, err := fileutil.LockFile(name, os.O_WRONLY, fileutil.PrivateFileMode)
		if err != nil {
			return fmt.Errorf("wait for the lock of %s: %w", name, err)
		}
		if err := f.Close(); err != nil {
			return fmt.Errorf("wait for the lock of %s: %w", name, err)
		}
	}
	return nil
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
