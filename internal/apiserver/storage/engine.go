// Package storage stores the API server's objects: etcd in the same process (or an external
// cluster), one client for it, and for each kind a store with a watch cache on top. The apiserver
// package drives it. It must never listen on a socket, change the working directory, or exit the
// process: fatal failures of etcd become errors.
//
//	Open: lock ─> bootstrap ─> raft running ─> campaign ─> leading (Open returns)
//	           └ error: in use, corrupt, no space            └ Failed: a write to the disk failed
package storage

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"expvar"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/types"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"go.etcd.io/etcd/server/v3/config"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	etcderrors "go.etcd.io/etcd/server/v3/etcdserver/errors"
	"go.etcd.io/etcd/server/v3/features"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
	"k8s.io/apiserver/pkg/storage"
	etcdfeature "k8s.io/apiserver/pkg/storage/feature"

	"carob/internal/base/errkind"
	"carob/internal/base/gctuning"
)

// Config configures where the objects are stored.
type Config struct {
	// Dir is embedded etcd's directory, created with mode 0700 if it is missing.
	Dir string
	// Servers, if not empty, are the client URLs of an external etcd cluster.
	Servers []string
	// TLS is for external https servers; nil otherwise.
	TLS *tls.Config
	// NoFsync skips syncing to disk.
	NoFsync bool
	// Quota is the maximum size of embedded etcd's database in bytes; 0 means 8 GiB.
	Quota int64
}

// Engine is a running store. Close releases it; its methods may be called from any goroutine.
type Engine struct {
	// Client is the one client that all stores share.
	Client *kubernetes.Client

	server       *etcdserver.EtcdServer // nil for an external cluster
	lock         *os.File
	local        localRequests
	housekeeping *housekeeping
	logFiles     *logFiles
	keepPages    func() // returns when releasePages does not run any more; nil before the start
	failure      *failure
	close        sync.Once
	health       health
	writes       writes
}

const (
	memberName = "carob"
	// The single member elects itself when campaign makes it, so the tick only controls leases and self-checks; a
	// slow one keeps an idle server asleep. Both together are also etcd's timeout of a request: 13 s.
	tickMillis    = 2000
	electionTicks = 2
	leadTimeout   = 30 * time.Second
	// externalTimeout is the timeout of the first request to an external cluster.
	externalTimeout = 10 * time.Second
	maxRequest      = 3 << 19 // 1.5 MiB, etcd's own default
	snapshotEvery   = 10_000  // log entries between snapshots on disk
	// A slow follower would need these; there is none. Zero would be the default, 5,000.
	catchUp      = 10
	defaultQuota = 8 << 30 // bytes, the maximum that etcd's documentation recommends
	// Watches learn versions to resume from before these are compacted.
	progressEvery = 2 * time.Minute
	never         = 24 * 365 * time.Hour
)

// Open starts the engine and returns when it can be written to. The error has the kind
// errkind.InUse if another process uses the directory, Corrupt if its content cannot be read,
// Exhausted if the disk is full.
func Open(ctx context.Context, cfg Config) (*Engine, error) {
	if len(cfg.Servers) > 0 {
		return openExternal(ctx, cfg)
	}
	lock, err := lockDir(cfg.Dir)
	if err != nil {
		return nil, err
	}
	e := &Engine{lock: lock, failure: newFailure()}
	if err := e.start(ctx, cfg); err != nil {
		e.Close()
		return nil, explain(cfg.Dir, err)
	}
	useWatchProgress()
	logs := e.server.Cfg.WALDir()
	e.logFiles = newLogFiles(logs, cfg.NoFsync || !overwrites(logs))
	e.housekeeping = newHousekeeping(e.server, e.logFiles)
	e.keepPages = gctuning.OnSettle(e.releasePages)
	if isFull(e.server) {
		e.housekeeping.refused()
	}
	e.Client = &kubernetes.Client{Client: e.local.client(e.server, e.housekeeping)}
	e.Client.Kubernetes = e.Client
	return e, nil
}

// openExternal sends one request to the cluster: if there is no answer, a wrong address is more
// likely than a cluster that starts soon.
func openExternal(ctx context.Context, cfg Config) (*Engine, error) {
	c, err := kubernetes.New(clientv3.Config{Endpoints: cfg.Servers, TLS: cfg.TLS, DialTimeout: 5 * time.Second,
		DialKeepAliveTime:    30 * time.Second,
		DialKeepAliveTimeout: 10 * time.Second, Logger: zap.NewNop()})
	if err != nil {
		return nil, errkind.Errorf(errkind.Unavailable, "connect to etcd at %s: %w", strings.Join(cfg.Servers, ", "),
			err)
	}
	ctx, cancel := context.WithTimeout(ctx, externalTimeout)
	defer cancel()
	if _, err := c.KV.Get(ctx, "/registry/", clientv3.WithPrefix(), clientv3.WithCountOnly()); err != nil {
		_ = c.Close() // the call before it failed
		return nil, errkind.Errorf(errkind.Unavailable, "etcd at %s does not answer: %w",
			strings.Join(cfg.Servers, ", "), err)
	}
	return &Engine{Client: c, failure: newFailure()}, nil
}

// endpoints names an external cluster in messages.
func (e *Engine) endpoints() string { return strings.Join(e.Client.Endpoints(), ", ") }

// Failed returns a channel that is closed when the engine has failed with an error that Err then
// returns.
func (e *Engine) Failed() <-chan struct{} { return e.failure.done }

// Err returns why the engine failed; nil while it runs.
func (e *Engine) Err() error {
	if err := e.failure.get(); err != nil {
		return explain(e.server.Cfg.DataDir, err)
	}
	return nil
}

// Close stops the engine and releases the directory.
func (e *Engine) Close() {
	e.close.Do(func() {
		if e.keepPages != nil {
			e.keepPages()
		}
		if e.Client != nil {
			_ = e.Client.Close() // the in-process client has nothing that could fail
		}
		// A server that failed in the middle of a write holds its own locks: stopping it would
		// block forever, and the process is about to exit anyway.
		if e.server != nil && e.failure.get() == nil {
			e.local.close()
			if e.housekeeping != nil { // not if the start was interrupted
				e.housekeeping.close()
			}
			e.server.HardStop()
		}
		if e.logFiles != nil {
			e.logFiles.close()
		}
		if e.lock != nil {
			_ = e.lock.Close() // releases the lock
		}
	})
}

// lockDir creates dir and locks it against a second process. bbolt has a lock of its own, but would
// wait for it forever.
func lockDir(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the etcd directory: %w", err)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return nil, fmt.Errorf("protect the etcd directory: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the etcd directory: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errkind.Errorf(errkind.InUse, "%s is in use by another running carob", filepath.Dir(dir))
		}
		return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	return f, nil
}

// start runs etcd's bootstrap, which panics or exits on damaged data, in a goroutine that may be
// abandoned, and waits until the member leads.
func (e *Engine) start(ctx context.Context, cfg Config) error {
	sc := serverConfig(cfg, e.failure.logger())
	type result struct {
		server *etcdserver.EtcdServer
		err    error
	}
	started := make(chan result, 1)
	go func() {
		defer func() {
			if r := recover(); r != nil {
				e.failure.set(fmt.Errorf("%v", r))
			}
		}()
		debug.SetPanicOnFault(true) // the database is mapped into memory
		state, err := checkFiles(cfg.Dir)
		if err == nil {
			err = create(sc, state)
		}
		if err != nil {
			started <- result{nil, err}
			return
		}
		server, err := etcdserver.NewServer(sc)
		if err == nil {
			server.Start()
		}
		started <- result{server, err}
	}()
	select {
	case r := <-started:
		if r.err != nil {
			return r.err
		}
		e.server = r.server
	case <-e.failure.done:
		// It failed, perhaps in a goroutine for which bootstrap now waits forever.
		return e.failure.get()
	case <-ctx.Done():
		// Bootstrap takes no context. It is short, and returning before its end would leave files
		// being written without the caller's knowledge.
		select {
		case r := <-started:
			if r.err == nil {
				r.server.HardStop()
			}
		case <-e.failure.done:
		}
		return context.Cause(ctx)
	}
	return e.campaign(ctx)
}

// campaign makes the only member leader at once. Raft would wait for up to two election timeouts;
// the message with which a leader hands over starts an election immediately. Raft checks the
// entries that it has not applied before it becomes a candidate, and etcd drops the first of them
// while it applies: so the message waits until there are none.
//
// Log entries after the last known commit may have been acknowledged before a crash. The leader's
// first entry commits them again, and until then a read would miss them: campaign returns after
// that.
func (e *Engine) campaign(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, leadTimeout)
	defer cancel()
	id := uint64(e.server.MemberID())
	retry := time.NewTicker(time.Millisecond)
	defer retry.Stop()
	for e.server.Lead() != id || !settled(id) {
		if applied() {
			if err := e.server.Process(ctx,
				&raftpb.Message{Type: raftpb.MsgTimeoutNow.Enum(), To: new(id), From: new(id)}); err != nil {
				return fmt.Errorf("elect the etcd leader: %w", err)
			}
		}
		select {
		case <-retry.C:
		case <-e.failure.done:
			return e.failure.get()
		case <-ctx.Done():
			return fmt.Errorf("elect the etcd leader: %w", context.Cause(ctx))
		}
	}
	return readable(ctx, e.server.LinearizableReadNotify)
}

// readable returns when a read has been answered: etcd rejects reads that began before all of its
// parts know the leader, which is a moment later.
func readable(ctx context.Context, read func(context.Context) error) error {
	for {
		err := read(ctx)
		if err == nil {
			return nil
		}
		if !errors.Is(err, etcderrors.ErrLeaderChanged) {
			return fmt.Errorf("read from the new etcd leader: %w", err)
		}
	}
}

// applied reports whether raft itself has applied everything committed.
func applied() bool {
	st, ok := status()
	return ok && st.Applied >= st.GetCommit()
}

// settled reports whether the member leads and its whole log is committed.
func settled(id uint64) bool {
	st, ok := status()
	return ok && st.RaftState == raft.StateLeader && st.GetCommit() >= st.Progress[id].Match
}

// status is the published state of the etcd server that was started last: there is no other way to
// read it.
func status() (raft.Status, bool) {
	published, ok := expvar.Get("raft.status").(expvar.Func)
	if !ok {
		return raft.Status{}, false
	}
	st, ok := published().(raft.Status)
	return st, ok
}

func serverConfig(cfg Config, logger *zap.Logger) config.ServerConfig {
	// The URLs identify the member in its own records; nothing listens on them.
	self := types.URLs{url.URL{Scheme: "http", Host: "127.0.0.1:2380"}}
	return config.ServerConfig{
		Name: memberName, DataDir: cfg.Dir, ClientURLs: self, PeerURLs: self,
		InitialPeerURLsMap: types.URLsMap{memberName: self}, InitialClusterToken: memberName, NewCluster: true,
		SnapshotCount: snapshotEvery, SnapshotCatchUpEntries: catchUp, MaxSnapFiles: 2, MaxWALFiles: 2,
		TickMs: tickMillis, ElectionTicks: electionTicks,
		QuotaBackendBytes: cmp.Or(cfg.Quota, defaultQuota), MaxTxnOps: 128, MaxRequestBytes: maxRequest,
		MaxConcurrentStreams: 1 << 20,
		AuthToken:            "simple", BcryptCost: 10, TokenTTL: 300,
		BackendBatchInterval: byItself, CompactHashCheckTime: never, DowngradeCheckTime: never,
		WatchProgressNotifyInterval: progressEvery,
		WarningApplyDuration:        time.Second, WarningUnaryRequestDuration: time.Second,
		MaxLearners: membership.DefaultMaxLearners, V2Deprecation: config.V2DeprDefault,
		ServerFeatureGate: features.NewDefaultServerFeatureGate(memberName, logger), Metrics: "basic",
		UnsafeNoFsync: cfg.NoFsync, Logger: logger,
	}
}

// explain turns an error of etcd into one line that a user can act on.
func explain(dir string, err error) error {
	switch kind := errkind.Of(err); {
	case kind != errkind.Unknown && kind != errkind.Corrupt, errors.Is(err, context.Canceled):
		return err
	}
	text := err.Error()
	switch {
	case errors.Is(err, unix.ENOSPC) || strings.Contains(text, "no space left on device"):
		return errkind.Errorf(errkind.Exhausted, "the disk that holds %s is full; free some space and start again: %w",
			dir, err)
	case errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EROFS):
		return errkind.Errorf(errkind.Denied, "cannot write to %s: %w", dir, err)
	case strings.Contains(text, "input/output error"):
		return errkind.Errorf(errkind.Corrupt, "the disk that holds %s fails: %w", dir, err)
	case errors.Is(err, context.DeadlineExceeded):
		return errkind.Errorf(errkind.Unavailable, "etcd in %s did not start: %w", dir, err)
	}
	return errkind.Errorf(errkind.Corrupt,
		"the stored cluster state in %s cannot be read (restore a copy, or remove the directory to start empty): %w",
		dir, err)
}

var watchProgressOnce sync.Once

// useWatchProgress makes k8s.io/apiserver use the store's progress requests: its own check
// reads the client's endpoints, and an in-process client has none.
func useWatchProgress() {
	watchProgressOnce.Do(func() {
		etcdfeature.DefaultFeatureSupportChecker = progressSupported{etcdfeature.DefaultFeatureSupportChecker}
	})
}

type progressSupported struct {
	etcdfeature.FeatureSupportChecker
}

func (progressSupported) Supports(f storage.Feature) bool { return f == storage.RequestWatchProgress }
