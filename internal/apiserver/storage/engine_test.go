package storage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	etcderrors "go.etcd.io/etcd/server/v3/etcdserver/errors"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"carob/internal/base/errkind"
	"carob/internal/base/testwait"
)

func open(t testing.TB, dir string) *Engine {
	t.Helper()
	e, err := Open(t.Context(), Config{Dir: dir, NoFsync: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e
}

func TestReopen(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "etcd")
	e := open(t, dir)
	if _, err := e.Client.Put(t.Context(), "/k", "v"); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if _, err := Open(t.Context(), Config{Dir: dir}); !errkind.Is(err, errkind.InUse) {
		t.Errorf("a second one: %v", err)
	}
	e.Close()
	e.Close()
	e = open(t, dir)
	if r, err := e.Client.KV.Get(t.Context(), "/k"); err != nil || len(r.Kvs) != 1 || string(r.Kvs[0].Value) != "v" {
		t.Errorf("%v, %v", r, err)
	}
	if e.Err() != nil {
		t.Error(e.Err())
	}
}

// Nothing listens: a member's URLs are names in its own records.
func TestDoesNotListen(t *testing.T) {
	a, b := open(t, filepath.Join(t.TempDir(), "a")), open(t, filepath.Join(t.TempDir(), "b"))
	for _, e := range []*Engine{a, b} {
		if _, err := e.Client.Put(t.Context(), "/k", "v"); err != nil {
			t.Error(err)
		}
	}
}

func TestOpenCanceled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if e, err := Open(ctx, Config{Dir: filepath.Join(t.TempDir(), "etcd"), NoFsync: true}); err == nil {
		e.Close() // it may have been faster than the cancellation
	} else if !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// A fatal message of etcd ends the goroutine that logged it, and nothing else.
func TestFailureHook(t *testing.T) {
	f := newFailure()
	ended := make(chan bool)
	go func() {
		reached := false
		defer func() { ended <- reached }()
		f.logger().Fatal("failed to save Raft hard state and entries",
			zap.Error(fmt.Errorf("write x: %w", unix.ENOSPC)))
		reached = true
	}()
	if <-ended {
		t.Error("went on after a fatal message")
	}
	select {
	case <-f.done:
	case <-time.After(testwait.Limit):
		t.Fatal("nobody is told")
	}
	if err := explain("/data/etcd", f.get()); !errkind.Is(err, errkind.Exhausted) || !errors.Is(err, unix.ENOSPC) {
		t.Errorf("%v: %v", errkind.Of(err), err)
	}
}

func TestExplain(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want errkind.Kind
	}{
		{errors.New("wal: crc mismatch"), errkind.Corrupt},
		{fmt.Errorf("x: %w", unix.EROFS), errkind.Denied},
		{errors.New("write /x: no space left on device"), errkind.Exhausted},
		{errors.New("read /x: input/output error"), errkind.Corrupt},
		{fmt.Errorf("x: %w", context.DeadlineExceeded), errkind.Unavailable},
		{context.Canceled, errkind.Unknown},
		{errkind.Errorf(errkind.InUse, "taken"), errkind.InUse},
	} {
		if got := errkind.Of(explain("/d", tc.err)); got != tc.want {
			t.Errorf("%v: %v, want %v", tc.err, got, tc.want)
		}
	}
}

// The engine is closed in the middle of writes, reads, and watches of old versions: none of them
// may use the closed database.
func TestCloseInUse(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "etcd")
	for range 30 {
		e := open(t, dir)
		ctx, cancel := context.WithCancel(t.Context())
		var users sync.WaitGroup
		seen := make(chan struct{}, 1)
		for i := range 8 {
			key := fmt.Sprint("/k", i)
			users.Go(func() {
				for ctx.Err() == nil {
					if _, err := e.Client.Put(ctx, key, "v"); err != nil {
						return
					}
				}
			})
			users.Go(func() {
				for ctx.Err() == nil {
					if _, err := e.Client.KV.Get(ctx, "/k", clientv3.WithPrefix()); err != nil {
						return
					}
				}
			})
			watched := e.Client.Watch(ctx, "/k", clientv3.WithPrefix(), clientv3.WithPrevKV())
			users.Go(func() {
				for range watched {
					select {
					case seen <- struct{}{}:
					default:
					}
				}
			})
		}
		for range 100 {
			<-seen
		}
		e.Close()
		cancel()
		users.Wait()
	}
}

// For the first read, parts of etcd may not know the leader yet.
func TestReadable(t *testing.T) {
	answers := []error{etcderrors.ErrLeaderChanged, etcderrors.ErrLeaderChanged, nil}
	if err := readable(t.Context(), func(context.Context) error {
		err := answers[0]
		answers = answers[1:]
		return err
	}); err != nil || len(answers) != 0 {
		t.Errorf("%v, %d answers left", err, len(answers))
	}
	if err := readable(t.Context(), func(context.Context) error { return etcderrors.ErrStopped }); !errors.Is(err,
		etcderrors.ErrStopped) {
		t.Errorf("%v", err)
	}
}
