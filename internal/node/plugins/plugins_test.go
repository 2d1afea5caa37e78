package plugins

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"carob/internal/base/backoff"
)

// plugin is a plugin that registers at a socket.
type plugin struct {
	registration.UnimplementedRegistrationServer
	info     *registration.PluginInfo
	reported chan *registration.RegistrationStatus
	fail     error // of the call with the result
}

func (p *plugin) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return p.info, nil
}

func (p *plugin) NotifyRegistrationStatus(_ context.Context, s *registration.RegistrationStatus) (
	*registration.RegistrationStatusResponse, error) {
	p.reported <- s
	return &registration.RegistrationStatusResponse{}, p.fail
}

// serve opens the socket; stop closes and removes it.
func (p *plugin) serve(t *testing.T, socket string) (stop func()) {
	t.Helper()
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	registration.RegisterRegistrationServer(s, p)
	go func() { _ = s.Serve(ln) }()
	t.Cleanup(s.Stop)
	return s.GracefulStop // the answer to a call that has begun is still sent
}

func newPlugin(kind, name string, versions ...string) *plugin {
	return &plugin{info: &registration.PluginInfo{Type: kind, Name: name, SupportedVersions: versions},
		reported: make(chan *registration.RegistrationStatus, 10)}
}

// handler records its calls: "+name" and, when a plugin is gone, "-name" with the cause.
type handler struct {
	calls chan string
	err   error
}

func (h *handler) Register(ctx context.Context, p Plugin) (func(), error) {
	if h.err != nil {
		return nil, h.err
	}
	h.calls <- "+" + p.Name + " " + p.Endpoint + " " + strings.Join(p.Versions, ",")
	return func() {
		cause := ""
		if errors.Is(context.Cause(ctx), ErrGone) {
			cause = " gone"
		}
		h.calls <- "-" + p.Name + cause
	}, nil
}

// next is what a channel has next.
func next[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(time.Minute):
		t.Fatalf("%s: nothing happened", what)
		panic("unreachable")
	}
}

type watching struct {
	*Watcher
	dir     string
	handler *handler
	stop    func()
}

func watch(t *testing.T, prepare func(dir string)) watching {
	t.Helper()
	dir, err := os.MkdirTemp("", "plugins") // paths of sockets have 107 bytes at most
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if prepare != nil {
		prepare(dir)
	}
	h := &handler{calls: make(chan string, 20)}
	w, err := New(Config{Dir: dir, Handlers: map[string]Handler{"CSIPlugin": h,
		"Refused": &handler{err: errors.New("version 9 is too new")}}, Logger: klog.Background()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	stopped := false
	stop := func() {
		if cancel(); !stopped {
			stopped = true
			if err := next(t, "the end of Run", done); err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(stop)
	return watching{Watcher: w, dir: dir, handler: h, stop: stop}
}

// A plugin that was there before, one that comes later in a new directory, one that restarts: each is registered,
// notified, and unregistered when its socket is removed or the agent ends (S4.1 to S4.5).
func TestRegistration(t *testing.T) {
	early := newPlugin("CSIPlugin", "early", "1.0.0")
	w := watch(t, func(dir string) { early.serve(t, filepath.Join(dir, "early.sock")) })
	if got, want := next(t, "early", w.handler.calls), "+early "+w.dir+"/early.sock 1.0.0"; got != want {
		t.Errorf("registered %q, want %q", got, want)
	}
	if s := next(t, "early's status", early.reported); !s.PluginRegistered || s.Error != "" {
		t.Errorf("told %v", s)
	}
	below := filepath.Join(w.dir, "late")
	if err := os.Mkdir(below, 0o700); err != nil {
		t.Fatal(err)
	}
	late := newPlugin("CSIPlugin", "late")
	late.info.Endpoint = "/run/late.sock"
	stop := late.serve(t, filepath.Join(below, "reg.sock"))
	if got := next(t, "late", w.handler.calls); got != "+late /run/late.sock " {
		t.Errorf("registered %q", got)
	}
	next(t, "late's status", late.reported)
	stop() // removes the socket
	if got := next(t, "the end of late", w.handler.calls); got != "-late gone" {
		t.Errorf("after its socket went: %q", got)
	}
	late.serve(t, filepath.Join(below, "reg.sock"))
	if got := next(t, "late again", w.handler.calls); got != "+late /run/late.sock " {
		t.Errorf("after its restart: %q", got)
	}
	next(t, "late's second status", late.reported)
	w.stop()
	ends := []string{next(t, "the end", w.handler.calls), next(t, "the end", w.handler.calls)}
	if slices.Sort(ends); !slices.Equal(ends, []string{"-early", "-late"}) {
		t.Errorf("when the agent ends: %q", ends)
	}
}

// Plugins in a directory that is renamed are unregistered, and registered by their new paths; the directory stays
// watched, and is not when it is moved away. The kernel reports a renamed directory twice: a plugin may be registered
// twice, too.
func TestRenamedDirectory(t *testing.T) {
	w := watch(t, nil)
	until := func(want string) {
		t.Helper()
		for next(t, want, w.handler.calls) != want {
		}
	}
	before, after := filepath.Join(w.dir, "before"), filepath.Join(w.dir, "after")
	if err := os.MkdirAll(filepath.Join(before, "deep"), 0o700); err != nil {
		t.Fatal(err)
	}
	newPlugin("CSIPlugin", "a").serve(t, filepath.Join(before, "deep", "s"))
	until("+a " + before + "/deep/s ")
	if err := os.Rename(before, after); err != nil {
		t.Fatal(err)
	}
	until("-a gone")
	until("+a " + after + "/deep/s ")
	newPlugin("CSIPlugin", "b").serve(t, filepath.Join(after, "deep", "t"))
	until("+b " + after + "/deep/t ")
	outside, err := os.MkdirTemp("", "plugins")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(outside) })
	if err := os.Rename(after, filepath.Join(outside, "away")); err != nil {
		t.Fatal(err)
	}
	newPlugin("CSIPlugin", "c").serve(t, filepath.Join(w.dir, "c")) // found after what happened before
	until("+c " + w.dir + "/c ")
	if left := w.notify.WatchList(); !slices.Equal(left, []string{w.dir}) {
		t.Errorf("after the directory was moved away, %q are watched", left)
	}
	w.stop()
	if len(w.known) != 1 {
		t.Errorf("%d plugins of a directory that was moved away are registered", len(w.known)-1)
	}
}

// A plugin is gone when something else is moved over its socket, and when its socket went while events were lost.
func TestSocketsThatGoUnseen(t *testing.T) {
	w := watch(t, nil)
	socket := filepath.Join(w.dir, "p.sock")
	newPlugin("CSIPlugin", "p").serve(t, socket)
	next(t, "the plugin", w.handler.calls)
	file := filepath.Join(t.TempDir(), "file")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Rename(file, socket)); err != nil {
		t.Fatal(err)
	}
	if got := next(t, "the end of the plugin", w.handler.calls); got != "-p gone" {
		t.Errorf("after its socket became a file: %q", got)
	}
	w.stop()

	h := &handler{calls: make(chan string, 20)}
	lost, err := New(Config{Dir: t.TempDir(), Handlers: map[string]Handler{"CSIPlugin": h}, Logger: klog.Background()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lost.notify.Close() }()
	socket = filepath.Join(lost.cfg.Dir, "q")
	newPlugin("CSIPlugin", "q").serve(t, socket)
	for _, want := range []string{"+q " + socket + " ", "-q gone"} {
		if err := lost.lookAtAll(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := next(t, want, h.calls); got != want {
			t.Errorf("%q, want %q", got, want)
		}
		_ = os.Remove(socket)
	}
}

// Plugins that cannot be used get the reason, with the kubelet's text, and are called again.
func TestRefused(t *testing.T) {
	w := watch(t, nil)
	for _, c := range []struct{ name, kind, want string }{
		{"unknown", "TimeMachine", "RegisterPlugin error -- no handler registered for plugin type: TimeMachine at socket "},
		{"refused", "Refused", "RegisterPlugin error -- plugin registration failed with err: version 9 is too new"},
		{"bad\x1bname", "CSIPlugin", "RegisterPlugin error -- plugin validation failed with err: a name of 8 bytes"},
	} {
		p := newPlugin(c.kind, c.name)
		p.serve(t, filepath.Join(w.dir, c.kind+".sock"))
		for range 2 { // the second time after a pause
			if s := next(t, c.name, p.reported); s.PluginRegistered || !strings.HasPrefix(s.Error, c.want) {
				t.Errorf("%q was told %v", c.name, s)
			}
		}
	}
	// Hidden files are ignored (S4.1).
	hidden, seen := newPlugin("CSIPlugin", "hidden"), newPlugin("CSIPlugin", "seen")
	hidden.serve(t, filepath.Join(w.dir, ".hidden.sock"))
	seen.serve(t, filepath.Join(w.dir, "seen.sock"))
	if got := next(t, "seen", w.handler.calls); !strings.HasPrefix(got, "+seen ") {
		t.Errorf("registered %q", got)
	}
	w.stop()
	if w.known[filepath.Join(w.dir, ".hidden.sock")].end != nil ||
		w.known[filepath.Join(w.dir, "seen.sock")].end == nil {
		t.Errorf("%d sockets were looked at: a hidden one, or not all others", len(w.known))
	}
}

// The information of plugins is validated: they are not part of carob.
func TestHostileInfos(t *testing.T) {
	long := strings.Repeat("x", maxText+1)
	for name, c := range map[string]struct {
		info *registration.PluginInfo
		ok   bool
	}{
		"good": {&registration.PluginInfo{Name: "a", Endpoint: "/run/a.sock", SupportedVersions: []string{"1"}},
			true},
		"its own socket":       {&registration.PluginInfo{Name: "a"}, true},
		"a long name":          {&registration.PluginInfo{Name: long}, false},
		"a long type":          {&registration.PluginInfo{Type: long}, false},
		"a control character":  {&registration.PluginInfo{Name: "a\nb"}, false},
		"not UTF-8":            {&registration.PluginInfo{SupportedVersions: []string{"\xff"}}, false},
		"a relative endpoint":  {&registration.PluginInfo{Endpoint: "a.sock"}, false},
		"an endpoint with ..":  {&registration.PluginInfo{Endpoint: "/run/../etc/a.sock"}, false},
		"a NUL in an endpoint": {&registration.PluginInfo{Endpoint: "/run/a\x00.sock"}, false},
		"many versions":        {&registration.PluginInfo{SupportedVersions: make([]string, maxVersions+1)}, false},
	} {
		p, err := checked("/plugins/reg.sock", c.info)
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
		if c.info.Endpoint == "" && err == nil && p.Endpoint != "/plugins/reg.sock" {
			t.Errorf("%s: endpoint %q", name, p.Endpoint)
		}
	}
}

// failing answers each call with an error.
type failing struct {
	registration.UnimplementedRegistrationServer
	message string
}

func (f *failing) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return nil, status.Error(codes.OutOfRange, f.message)
}

// An error of a plugin keeps its code, and its message becomes short enough for an event, and valid.
func TestHostileErrors(t *testing.T) {
	long := strings.Repeat("é", 1<<19)
	for message, want := range map[string]string{
		"out of order": "out of order",
		"a\xffb":       "a\ufffdb",
		long:           strings.Repeat("é", maxText/2) + "... (1048576 bytes)",
		"x" + long:     "x" + strings.Repeat("é", maxText/2-1) + "?... (1048577 bytes)",
	} {
		dir, err := os.MkdirTemp("", "plugins")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		ln, err := net.Listen("unix", filepath.Join(dir, "s"))
		if err != nil {
			t.Fatal(err)
		}
		s := grpc.NewServer()
		registration.RegisterRegistrationServer(s, &failing{message: message})
		go func() { _ = s.Serve(ln) }()
		t.Cleanup(s.Stop)
		conn, err := Dial(filepath.Join(dir, "s"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		_, err = registration.NewRegistrationClient(conn).GetInfo(t.Context(), &registration.InfoRequest{})
		if status.Code(err) != codes.OutOfRange || status.Convert(err).Message() != want {
			t.Errorf("%.20q: code %s, message %.5000q", message, status.Code(err), status.Convert(err).Message())
		}
	}
}

// exclusive takes one plugin at a time, as a driver's name has one.
type exclusive struct {
	calls chan string
	taken atomic.Bool
	hold  chan struct{} // a registration ends when it is closed; nil: at once
}

func (e *exclusive) Register(_ context.Context, p Plugin) (func(), error) {
	if e.taken.Swap(true) {
		e.calls <- "refused " + p.Name
		return nil, errors.New("another plugin has the name")
	}
	e.calls <- "registered " + p.Name
	return func() {
		if e.hold != nil {
			<-e.hold
		}
		e.taken.Store(false)
	}, nil
}

// A plugin that is refused because of another one is registered when that one is gone, and not after its delay, which
// grows to two minutes.
func TestRefusedUntilAnotherLeaves(t *testing.T) {
	e := &exclusive{calls: make(chan string, 20)}
	dir := e.watch(t)
	first := newPlugin("CSIPlugin", "first", "1.0.0")
	stop := first.serve(t, filepath.Join(dir, "first.sock"))
	if got := next(t, "the first", e.calls); got != "registered first" {
		t.Fatal(got)
	}
	next(t, "its status", first.reported)
	second := newPlugin("CSIPlugin", "second", "1.0.0")
	second.serve(t, filepath.Join(dir, "second.sock"))
	if got := next(t, "the second", e.calls); got != "refused second" {
		t.Fatal(got)
	}
	next(t, "its status", second.reported)
	stop()
	if got := next(t, "the second again", e.calls); got != "registered second" {
		t.Error(got)
	}
}

// The same if the report to the other one, that it is registered, fails: then it is not. It waits for its next try.
func TestRefusedUntilTheReportOfAnotherFails(t *testing.T) {
	e := &exclusive{calls: make(chan string, 20), hold: make(chan struct{})}
	dir := e.watch(t)
	end := sync.OnceFunc(func() { close(e.hold) })
	t.Cleanup(end)
	first := newPlugin("CSIPlugin", "first", "1.0.0")
	first.fail = errors.New("not now")
	first.serve(t, filepath.Join(dir, "first.sock"))
	if got := next(t, "the first", e.calls); got != "registered first" {
		t.Fatal(got)
	}
	second := newPlugin("CSIPlugin", "second", "1.0.0")
	second.fail = first.fail
	second.serve(t, filepath.Join(dir, "second.sock"))
	if got := next(t, "the second", e.calls); got != "refused second" {
		t.Fatal(got)
	}
	end()
	if got := next(t, "the second again", e.calls); got != "registered second" {
		t.Error(got)
	}
	third := newPlugin("CSIPlugin", "third", "1.0.0")
	third.serve(t, filepath.Join(dir, "third.sock"))
	got := next(t, "the third", e.calls)
	if got == "refused third" { // the second one's registration has not ended yet
		got = next(t, "the third again", e.calls)
	}
	if got != "registered third" {
		t.Error(got)
	}
}

// watch watches a new directory.
func (e *exclusive) watch(t *testing.T) (dir string) {
	dir, err := os.MkdirTemp("", "plugins") // paths of sockets have 107 bytes at most
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	w, err := New(Config{Dir: dir, Handlers: map[string]Handler{"CSIPlugin": e}, Logger: klog.Background()})
	if err != nil {
		t.Fatal(err)
	}
	w.delays = backoff.Exponential{Initial: time.Hour, Max: time.Hour}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	t.Cleanup(func() { cancel(); _ = next(t, "the end of Run", done) })
	return dir
}
