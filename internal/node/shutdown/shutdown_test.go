package shutdown

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/godbus/dbus/v5"
	"github.com/godbus/dbus/v5/prop"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/eviction"
	"carob/internal/core/podlife"
	"carob/internal/node/pods"
	testbus "carob/test/dbus"
)

// world is a Manager with a logind and pods that take a time each to end.
type world struct {
	*Manager
	begin        time.Time
	shuttingDown chan bool
	lost         chan error // the connection ends
	fail         error
	busy         error // of the next request for a lock

	mu      sync.Mutex
	delay   time.Duration
	down    bool // what logind says to who asks
	pods    map[types.UID]*pods.View
	ends    map[types.UID]time.Duration
	log     []string
	changed chan struct{}
}

func (w *world) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.log = append(w.log, fmt.Sprintf("%s ", time.Since(w.begin))+fmt.Sprintf(format, args...))
}

func (w *world) Delay(context.Context) (time.Duration, error) { return w.delay, nil }
func (w *world) Extend(_ context.Context, d time.Duration) error {
	w.note("extend to %s", d)
	w.delay = d
	return nil
}
func (w *world) Close() error { return nil }
func (w *world) Down(context.Context) (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.down, nil
}

func (w *world) Inhibit(context.Context) (func() error, error) {
	if err := w.busy; err != nil {
		w.busy = nil
		w.note("no lock")
		return nil, err
	}
	w.note("lock")
	return func() error { w.note("release"); return nil }, nil
}

func (w *world) Next(ctx context.Context) (bool, error) {
	select {
	case down := <-w.shuttingDown:
		return down, nil
	case err := <-w.lost:
		return false, err
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

// podList is the world as the pods of the node.
type podList struct{ *world }

func (l podList) List() []pods.View {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []pods.View
	for _, v := range l.pods {
		all = append(all, *v)
	}
	slices.SortFunc(all, func(a, b pods.View) int { return strings.Compare(a.Pod.Name, b.Pod.Name) })
	return all
}

func (l podList) ByUID(uid types.UID) (pods.View, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	v, ok := l.pods[uid]
	if !ok {
		return pods.View{}, false
	}
	return *v, true
}

func (l podList) Next(types.UID) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed
}

func (l podList) Stop(uid types.UID, s podlife.Stop) error {
	l.note("stop %s %s grace %s %s", uid, s.Reason, *s.Grace, s.Condition.Reason)
	time.AfterFunc(l.ends[uid], func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.pods[uid].Life = podlife.Terminated
		close(l.changed)
		l.changed = make(chan struct{})
	})
	return nil
}

func (w *world) add(name string, priority int32, ends time.Duration) {
	grace := int64(30)
	w.pods[types.UID(name)] = &pods.View{Life: podlife.Syncing, Pod: &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)},
		Spec:       corev1.PodSpec{Priority: &priority, TerminationGracePeriodSeconds: &grace},
	}}
	w.ends[types.UID(name)] = ends
}

func start(t *testing.T, edit func(*world)) *world {
	w := &world{
		begin: time.Now(), shuttingDown: make(chan bool), lost: make(chan error), delay: time.Hour,
		pods: map[types.UID]*pods.View{},
		ends: map[types.UID]time.Duration{}, changed: make(chan struct{}),
	}
	edit(w)
	w.Manager = New(Config{
		Steps: eviction.ShutdownSteps(time.Minute, 20*time.Second),
		Open: func(context.Context) (Login, error) {
			if w.fail != nil {
				w.note("no logind")
				return nil, w.fail
			}
			return w, nil
		},
		Event:   func(kind, reason, message string) { w.note("event %s %s: %s", kind, reason, message) },
		Changed: func() { w.note("report, down %t", w.Manager.Down()) },
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { w.Run(ctx, podList{w}); close(done) }()
	t.Cleanup(func() { cancel(); <-done })
	return w
}

func (w *world) expect(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	w.mu.Lock()
	got := w.log
	w.log = nil
	w.mu.Unlock()
	if !slices.Equal(got, want) {
		t.Errorf("got\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

// L7.155, L7.156
func TestPodsEndInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, func(w *world) {
			w.delay = 5 * time.Second
			w.add("critical", 2_000_000_000, time.Second)
			w.add("plain", 0, 10*time.Second)
			w.add("stubborn", 0, time.Hour)
		})
		w.expect(t, "0s extend to 1m0s", "0s lock")
		w.shuttingDown <- true
		time.Sleep(50 * time.Second)
		w.expect(t, "0s report, down true", "0s event Normal Shutdown: Shutdown manager detected shutdown event",
			"0s stop plain Terminated grace 30s TerminationByKubelet",
			"0s stop stubborn Terminated grace 30s TerminationByKubelet",
			"40s stop critical Terminated grace 20s TerminationByKubelet", "41s release")
		w.shuttingDown <- false
		w.expect(t, "50s report, down false",
			"50s event Normal Shutdown: Shutdown manager detected shutdown cancellation", "50s lock")
	})
}

func TestLogindThatIsMissingIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, func(w *world) { w.fail = errors.New("no bus") })
		time.Sleep(4 * time.Second)
		w.expect(t, "0s no logind", "1s no logind", "3s no logind")
	})
}

func (w *world) set(down bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down = down
}

// What logind announces while there is no connection to it is made up for: the cancellation, after which the node is
// ready again, and a shutdown, also one that began before carob.
func TestShutdownWithoutConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, func(w *world) {
			w.down = true
			w.add("plain", 0, time.Second)
		})
		const begun, cancelled = "event Normal Shutdown: Shutdown manager detected shutdown event",
			"event Normal Shutdown: Shutdown manager detected shutdown cancellation"
		time.Sleep(2 * time.Second)
		w.expect(t, "0s report, down true", "0s "+begun, "0s stop plain Terminated grace 30s TerminationByKubelet")
		w.set(false)
		w.lost <- errors.New("the connection is lost")
		time.Sleep(2 * time.Second)
		w.expect(t, "3s report, down false", "3s "+cancelled, "3s lock")
		w.set(true)
		w.lost <- errors.New("the connection is lost")
		time.Sleep(3 * time.Second)
		w.expect(t, "4s release", "6s report, down true", "6s "+begun)
	})
}

// A lock that logind refuses after a cancellation, because the next shutdown has begun, is tried again.
func TestLockRefusedAfterCancellation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, func(*world) {})
		w.expect(t, "0s lock")
		w.shuttingDown <- true
		synctest.Wait()
		w.busy = errors.New("operation in progress")
		w.shuttingDown <- false
		time.Sleep(2 * time.Second)
		w.expect(t, "0s report, down true", "0s event Normal Shutdown: Shutdown manager detected shutdown event",
			"0s release", "0s report, down false",
			"0s event Normal Shutdown: Shutdown manager detected shutdown cancellation", "0s no lock", "1s lock")
	})
}

// manager is a logind on a bus of its own.
type manager struct {
	locks []*os.File // both ends; a finalizer would close them
}

func (m *manager) Inhibit(what, _, _, mode string) (dbus.UnixFD, *dbus.Error) {
	ours, theirs, err := os.Pipe()
	if err != nil || what != "shutdown" || mode != "delay" {
		return 0, dbus.MakeFailedError(fmt.Errorf("inhibit %s %s: %w", what, mode, err))
	}
	m.locks = append(m.locks, ours, theirs)
	return dbus.UnixFD(theirs.Fd()), nil
}

// TestLogindOverDBus: the calls are those that a bus and a logind understand.
func TestLogindOverDBus(t *testing.T) {
	address, _ := testbus.Start(t, t.TempDir())
	server, err := dbus.Connect(address)
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	fake := &manager{}
	if err := server.Export(fake, loginPath, loginManager); err != nil {
		t.Fatal(err)
	}
	properties, err := prop.Export(server, loginPath,
		prop.Map{loginManager: {"InhibitDelayMaxUSec": {Value: uint64(5_000_000)},
			"PreparingForShutdown": {Value: false}}})
	if err != nil {
		t.Fatal(err)
	}
	// systemd has logind read its settings again.
	hangup := func(unit, _ string, signal int32) *dbus.Error {
		if unit != "systemd-logind.service" || signal != 1 {
			return dbus.MakeFailedError(fmt.Errorf("kill %s with %d", unit, signal))
		}
		properties.SetMust(loginManager, "InhibitDelayMaxUSec", uint64(60_000_000))
		return nil
	}
	if err := server.ExportMethodTable(map[string]any{"KillUnit": hangup}, "/org/freedesktop/systemd1",
		"org.freedesktop.systemd1.Manager"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{loginService, "org.freedesktop.systemd1"} {
		if reply, err := server.RequestName(name, dbus.NameFlagDoNotQueue); err != nil ||
			reply != dbus.RequestNameReplyPrimaryOwner {
			t.Fatalf("take the name %s: %v %v", name, reply, err)
		}
	}

	conf := t.TempDir()
	l, err := openLogin(t.Context(), conf)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if d, err := l.Delay(t.Context()); err != nil || d != 5*time.Second {
		t.Fatalf("delay: %s %v", d, err)
	}
	if err := l.Extend(t.Context(), 59500*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(conf, "99-carob.conf")); err != nil ||
		!strings.Contains(string(text), "[Login]\nInhibitDelayMaxSec=60\n") {
		t.Errorf("%q %v", text, err)
	}
	for _, down := range []bool{false, true} {
		properties.SetMust(loginManager, "PreparingForShutdown", down)
		if got, err := l.Down(t.Context()); err != nil || got != down {
			t.Errorf("down: %t %v, want %t", got, err, down)
		}
	}
	release, err := l.Inhibit(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, down := range []bool{true, false} {
		if err := server.Emit(loginPath, loginManager+".PrepareForShutdown", down); err != nil {
			t.Fatal(err)
		}
		if got, err := l.Next(t.Context()); err != nil || got != down {
			t.Errorf("told %t %v, want %t", got, err, down)
		}
	}
	if err := release(); err != nil {
		t.Fatal(err)
	}
	if err := l.conn.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Next(t.Context()); err == nil {
		t.Error("a lost connection goes unnoticed")
	}
}
