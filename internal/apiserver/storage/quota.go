package storage

import (
	"context"
	"errors"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"k8s.io/klog/v2"

	"carob/internal/base/errkind"
)

// A database that has reached its quota accepts only deletions until its alarm is cleared.
// No operator can do that for a database in this process, so carob does when there is space again. Its
// file never shrinks by itself, and the file is what counts.
//
//	full ──a write fails────▶ space inside of the file? ──no──▶ full
//	                                   └──yes──▶ rewritten, alarm cleared

// clearTime is the timeout of the request that clears the alarm.
const clearTime = 10 * time.Second

// noRoom reports whether a write failed because the database is full.
func noRoom(err error) bool { return errors.Is(err, rpctypes.ErrGRPCNoSpace) }

// isFull reports whether the database accepts only deletions.
func isFull(s *etcdserver.EtcdServer) bool {
	return slices.ContainsFunc(s.Alarms(), func(a *pb.AlarmMember) bool { return a.GetAlarm() == pb.AlarmType_NOSPACE })
}

// fullError is the health check's error for a full database; nil for any other.
func fullError(s *etcdserver.EtcdServer) error {
	if !isFull(s) {
		return nil
	}
	b := s.Backend()
	return errkind.Errorf(errkind.Exhausted,
		"the database in %s is full: %d MB of at most %d MB, %d MB in use; delete objects that are not needed; "+
			"some minutes later it accepts writes again",
		s.Cfg.DataDir, b.Size()>>20, s.Cfg.QuotaBackendBytes>>20, b.SizeInUse()>>20)
}

// enough reports whether size leaves enough space to continue.
func enough(size, quota int64) bool { return size < quota/10*9 }

// makeRoom lets a full database accept writes again if its content is small enough. Nothing is read
// or written while its file is rewritten.
func makeRoom(s *etcdserver.EtcdServer) {
	b, quota := s.Backend(), s.Cfg.QuotaBackendBytes
	if !isFull(s) || !enough(b.SizeInUse(), quota) {
		return
	}
	if !enough(b.Size(), quota) {
		if err := b.Defrag(); err != nil {
			klog.Background().Error(err, "The file of the full database cannot be compacted", "directory", s.Cfg.DataDir)
			return
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), clearTime)
	defer cancel()
	if _, err := s.Alarm(ctx, &pb.AlarmRequest{MemberID: uint64(s.MemberID()), Action: pb.AlarmRequest_DEACTIVATE,
		Alarm: pb.AlarmType_NOSPACE}); err != nil {
		klog.Background().Error(err, "The database has space again, but its alarm cannot be cleared", "directory", s.Cfg.DataDir)
		return
	}
	klog.Background().Info("The database has room again", "directory", s.Cfg.DataDir, "size", b.Size())
}
