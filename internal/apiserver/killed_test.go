package apiserver

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	clientcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	restclient "k8s.io/client-go/rest"
)

const (
	// killedDir and killedAddress tell a child process of the test which directory to serve, and
	// where.
	killedDir, killedAddress = "CAROB_TEST_SERVE", "CAROB_TEST_ADDRESS"
	// kills is how often the test kills the server; releases are tested with 200 kills.
	kills = "KILLS"

	writers = 4
)

// TestServeUntilKilled is the child.
func TestServeUntilKilled(t *testing.T) {
	dir := os.Getenv(killedDir)
	if dir == "" {
		t.Skip("run by TestKilledWhileWriting")
	}
	cfg := newConfig(t, dir)
	cfg.UnsafeNoFsync = false
	_ = cfg.Listener.Close()
	var err error
	if cfg.Listener, err = net.Listen("tcp", os.Getenv(killedAddress)); err != nil {
		t.Fatal(err)
	}
	s, err := New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		<-s.Ready()
		fmt.Println("ready")
	}()
	t.Fatal(s.Run(t.Context()))
}

// write is one acknowledged write: the version and value that were stored, or a deletion.
type write struct {
	value   int
	version uint64
	gone    bool // deleted after value
	going   bool // a deletion was sent, with unknown result
}

// ledger records what the server acknowledged to clients, and what a watch delivered.
type ledger struct {
	mu       sync.Mutex
	stored   map[string]write  // newest acknowledged write by name
	versions map[uint64]string // all acknowledged writes
	arrived  chan struct{}     // one for each acknowledged write
}

func (l *ledger) put(name string, w write) {
	l.mu.Lock()
	l.stored[name] = w
	if w.version > 0 {
		l.versions[w.version] = name
	}
	l.mu.Unlock()
	if w.going {
		return
	}
	select {
	case l.arrived <- struct{}{}:
	default:
	}
}

// The server is killed again and again while clients write and one watches. No acknowledged write
// may be lost, and a watch that resumes may neither skip nor repeat an event.
func TestKilledWhileWriting(t *testing.T) {
	times := 12
	if n, err := strconv.Atoi(os.Getenv(kills)); err == nil {
		times = n
	}
	dir := t.TempDir()
	cfg := newConfig(t, dir)
	address := cfg.Listener.Addr().String()
	_ = cfg.Listener.Close()
	c, err := kubernetes.NewForConfig(&restclient.Config{Host: "https://" + address, QPS: -1,
		TLSClientConfig: restclient.TLSClientConfig{CAData: cfg.PKI.CAPEM, CertData: cfg.PKI.Admin.Pair().CertPEM,
			KeyData: cfg.PKI.Admin.Pair().KeyPEM}})
	if err != nil {
		t.Fatal(err)
	}
	configs := c.CoreV1().ConfigMaps(metav1.NamespaceDefault)
	l := &ledger{stored: map[string]write{}, versions: map[uint64]string{}, arrived: make(chan struct{}, 1)}
	w := &follower{seen: map[uint64]string{}, view: map[string]string{}}
	random := rand.New(rand.NewPCG(1, uint64(times)))
	for range times {
		stop := serveUntilKilled(t, dir, address)
		// Neither the caches nor the store may start with less than was acknowledged.
		for _, opts := range []metav1.ListOptions{{ResourceVersion: "0"}, {}} {
			list, err := configs.List(t.Context(), opts)
			if err != nil {
				t.Fatal(err)
			}
			if v, newest := version(t, list.ResourceVersion),
				slices.Max(append(slices.Collect(maps.Keys(l.versions)), 0)); v < newest {
				t.Errorf("a list of version %q after a restart shows version %d, but %d was acknowledged",
					opts.ResourceVersion, v, newest)
			}
			l.check(t, list.Items)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for i := range writers {
			wg.Go(func() { writeUntil(ctx, configs, l, i) })
		}
		wg.Go(func() { w.follow(ctx, t, configs) })
		for range 1 + random.IntN(40) {
			<-l.arrived
		}
		stop()
		cancel()
		wg.Wait()
	}
	stop := serveUntilKilled(t, dir, address)
	defer stop()
	list, err := configs.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.catchUp(t, configs, version(t, list.ResourceVersion)); err != nil {
		t.Fatal(err)
	}
	l.check(t, list.Items)
	w.check(t, l, list.Items)
	t.Logf("%d kills, %d acknowledged writes, %d events, %d of them deletions, %d lists anew", times, len(l.versions),
		len(w.seen), w.deleted, w.lists)
	if w.deleted == 0 {
		t.Error("nothing was deleted")
	}
}

func (l *ledger) check(t *testing.T, items []corev1.ConfigMap) {
	t.Helper()
	found := map[string]int{}
	for _, m := range items {
		found[m.Name], _ = strconv.Atoi(m.Data["n"])
	}
	for name, want := range l.stored {
		// A later write may be stored without acknowledgement.
		got, ok := found[name]
		switch {
		case !ok && !want.gone && !want.going, ok && got < want.value:
			t.Errorf("%s: stored %d (there: %v), but %d was acknowledged", name, got, ok, want.value)
		case ok && want.gone && got <= want.value:
			t.Errorf("%s: stored %d, but its deletion was acknowledged", name, got)
		}
	}
}

// serveUntilKilled starts a child that serves dir, and returns a function that kills it.
func serveUntilKilled(t *testing.T, dir, address string) (kill func()) {
	t.Helper()
	child := exec.Command(os.Args[0], "-test.run=^TestServeUntilKilled$")
	child.Env = append(os.Environ(), killedDir+"="+dir, killedAddress+"="+address)
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(out); ; {
		if !lines.Scan() {
			_ = child.Wait()
			t.Fatal("the server ended before it was killed")
		}
		if lines.Text() == "ready" {
			break
		}
		t.Log(lines.Text())
	}
	return sync.OnceFunc(func() {
		_ = child.Process.Kill()
		_ = child.Wait()
	})
}

// writeUntil creates, updates, and deletes its own objects until ctx ends or the server is gone.
func writeUntil(ctx context.Context, configs clientcorev1.ConfigMapInterface, l *ledger, writer int) {
	for n := 0; ctx.Err() == nil; n++ {
		name := fmt.Sprintf("w%d-%d", writer, n%7)
		l.mu.Lock()
		was := l.stored[name]
		value := was.value + 1
		l.mu.Unlock()
		if n%5 == 4 && was.value > 0 && !was.gone {
			was.going = true
			l.put(name, was)
			err := configs.Delete(ctx, name, metav1.DeleteOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				return // killed
			}
			l.put(name, write{value: was.value, gone: true})
			continue
		}
		m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name},
			Data: map[string]string{"n": strconv.Itoa(value)}}
		got, err := configs.Update(ctx, m, metav1.UpdateOptions{})
		if apierrors.IsNotFound(err) {
			got, err = configs.Create(ctx, m, metav1.CreateOptions{})
		}
		if err != nil {
			if apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) {
				continue
			}
			return // killed
		}
		v, _ := strconv.ParseUint(got.ResourceVersion, 10, 64)
		l.put(name, write{value: value, version: v})
	}
}

// follower watches, and resumes from the last version that it received.
type follower struct {
	at    uint64            // everything up to here is known
	seen  map[uint64]string // events, by version
	spans [][2]uint64       // versions after the first up to the second were watched
	view  map[string]string // the objects as a client that follows the watch has them
	lists int
	// deleted counts the received deletions.
	deleted int
}

func (w *follower) follow(ctx context.Context, t *testing.T, configs clientcorev1.ConfigMapInterface) {
	for ctx.Err() == nil {
		if err := w.session(ctx, t, configs, 0); err != nil {
			return // killed
		}
	}
}

// catchUp follows until it has received version.
func (w *follower) catchUp(t *testing.T, configs clientcorev1.ConfigMapInterface, version uint64) error {
	for w.at < version {
		if err := w.session(t.Context(), t, configs, version); err != nil {
			return err
		}
	}
	return nil
}

// session is one watch, after a list if there is no version to resume from. It ends with the
// connection, or when until (unless zero) is reached.
func (w *follower) session(ctx context.Context, t *testing.T, configs clientcorev1.ConfigMapInterface,
	until uint64) error {
	if w.at == 0 {
		list, err := configs.List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		w.lists++
		w.at = version(t, list.ResourceVersion)
		clear(w.view)
		for _, m := range list.Items {
			w.view[m.Name] = m.Data["n"]
		}
	}
	if until > 0 && w.at >= until {
		return nil
	}
	watching, err := configs.Watch(ctx,
		metav1.ListOptions{ResourceVersion: strconv.FormatUint(w.at, 10), AllowWatchBookmarks: true})
	if err != nil {
		if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
			w.at = 0
			return nil
		}
		return err
	}
	defer watching.Stop()
	from := w.at
	defer func() { w.spans = append(w.spans, [2]uint64{from, max(from, w.at)}) }()
	for e := range watching.ResultChan() {
		if e.Type == watch.Error {
			err := apierrors.FromObject(e.Object)
			if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
				from, w.at = 0, 0
				return nil
			}
			return err
		}
		m := e.Object.(*corev1.ConfigMap)
		v := version(t, m.ResourceVersion)
		if e.Type == watch.Bookmark {
			w.at = max(w.at, v)
		} else {
			if v <= w.at {
				t.Errorf("version %d of %s came after %d", v, m.Name, w.at)
			}
			w.expect(t, e.Type, m)
			w.at, w.seen[v] = v, m.Name
		}
		if until > 0 && w.at >= until {
			return nil
		}
	}
	return ctx.Err()
}

// expect applies an event, which must be possible: otherwise an event was skipped.
func (w *follower) expect(t *testing.T, what watch.EventType, m *corev1.ConfigMap) {
	if _, known := w.view[m.Name]; known != (what != watch.Added) {
		t.Errorf("%s of %s, which is there: %v", what, m.Name, known)
	}
	if w.view[m.Name] = m.Data["n"]; what == watch.Deleted {
		delete(w.view, m.Name)
		w.deleted++
	}
}

func (w *follower) check(t *testing.T, l *ledger, items []corev1.ConfigMap) {
	t.Helper()
	for v, name := range l.versions {
		watched := slices.ContainsFunc(w.spans, func(s [2]uint64) bool { return s[0] < v && v <= s[1] })
		if watched && w.seen[v] != name {
			t.Errorf("the watch left out version %d of %s", v, name)
		}
	}
	want := map[string]string{}
	for _, m := range items {
		want[m.Name] = m.Data["n"]
	}
	if !maps.Equal(w.view, want) {
		t.Errorf("a client that watched holds %v, stored is %v", w.view, want)
	}
}

func version(t *testing.T, s string) uint64 {
	v, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Errorf("resource version %q: %v", s, err)
	}
	return v
}
