// Package plugins finds the plugins of a node that register by a socket in one directory, as the kubelet's plugin
// watcher does, and hands them to the part that uses plugins of their type. The node agent drives it. It must never
// call a plugin for anything but its registration.
//
// Without plugins, there is one goroutine, which waits for changes of the directory.
//
// Contract: S4.A in docs/spec/storage-and-node.md.
package plugins

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/fsnotify/fsnotify"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"carob/internal/base/backoff"
)

// Limits of a registration (S0.39).
const (
	infoTimeout   = 10 * time.Second // of the connection and the first call
	notifyTimeout = 5 * time.Second
	firstRetry    = 500 * time.Millisecond
	pollPeriod    = 10 * time.Second
	maxRetry      = 2*time.Minute + 2*time.Second
	maxText       = 4096 // bytes of a text of a plugin
	maxVersions   = 64
)

// ErrGone is the cause of the end of a registration's context if its socket was removed or created again: with any
// other cause the agent ends, and the plugin stays.
var ErrGone = errors.New("the plugin is gone")

// Plugin is the information that a plugin provides about itself.
type Plugin struct {
	Name     string
	Endpoint string // path of the socket to call it by; clean and absolute
	Versions []string
}

// Handler uses plugins of one type. It is called from several goroutines.
type Handler interface {
	// Register registers a plugin. The returned function is called once, when the plugin is gone.
	Register(ctx context.Context, p Plugin) (unregister func(), err error)
}

// Config is what a Watcher works with.
type Config struct {
	Dir      string // of the sockets; made if it is missing
	Handlers map[string]Handler
	Logger   klog.Logger
}

// Watcher watches the directory. Create it with New and call Run once.
type Watcher struct {
	cfg    Config
	notify *fsnotify.Watcher   // nil: the kernel has no instance left
	tick   <-chan time.Time    // see poll; nil: the kernel reports all changes
	known  map[string]attended // by the path of the socket; of Run
	all    sync.WaitGroup
	delays backoff.Exponential // between two tries to register a plugin

	mu   sync.Mutex
	left chan struct{} // closed, and made again, when a registration ends
}

// attended is a socket whose plugin is, or is being, registered.
type attended struct {
	end  func()      // ends the work for it, and waits for its end
	file fs.FileInfo // of the socket
}

// New starts to watch: plugins that register from now on are found by Run.
func New(cfg Config) (*Watcher, error) {
	if err := os.MkdirAll(cfg.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the directory of plugins: %w", err)
	}
	w := &Watcher{cfg: cfg, known: map[string]attended{}, left: make(chan struct{}),
		delays: backoff.Exponential{Initial: firstRetry, Max: maxRetry}}
	notify, err := fsnotify.NewWatcher()
	if err == nil {
		w.notify = notify
	} else { // all processes of a user together have 128 instances, and pods may be of this user
		w.poll(err)
	}
	return w, nil
}

// poll has the whole directory examined every ten seconds, because the kernel does not report changes of all of it.
func (w *Watcher) poll(err error) {
	if w.tick == nil {
		w.cfg.Logger.Error(err, "The directory of plugins cannot be watched; it is examined every 10 seconds")
		w.tick = time.Tick(pollPeriod)
	}
}

// Run registers plugins until ctx ends; then it unregisters all.
func (w *Watcher) Run(ctx context.Context) error {
	var events <-chan fsnotify.Event
	var lost <-chan error
	if w.notify != nil {
		defer func() { _ = w.notify.Close() }()
		events, lost = w.notify.Events, w.notify.Errors
	}
	defer w.all.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := w.walk(ctx, w.cfg.Dir, false); err != nil {
		return err
	}
	for {
		select {
		case <-w.tick:
			if err := w.lookAtAll(ctx); err != nil {
				w.cfg.Logger.V(2).Info("The directory of plugins cannot be examined", "err", err)
			}
		case <-ctx.Done():
			return nil
		case e, ok := <-events:
			if !ok {
				return nil
			}
			w.event(ctx, e)
		case err, ok := <-lost:
			if !ok {
				return nil
			}
			w.cfg.Logger.Error(err, "Watching the directory of plugins failed; looking at all of it")
			if err := w.lookAtAll(ctx); err != nil {
				return err
			}
		}
	}
}

func (w *Watcher) event(ctx context.Context, e fsnotify.Event) {
	switch {
	case e.Has(fsnotify.Remove) || e.Has(fsnotify.Rename):
		w.goneBelow(e.Name)
		// A renamed directory reports this a second time, maybe by its new name, and its watch has ended.
		if st, err := os.Lstat(e.Name); err == nil && st.IsDir() {
			w.appeared(ctx, e.Name)
		}
	case e.Has(fsnotify.Create):
		w.appeared(ctx, e.Name)
	}
}

func (w *Watcher) appeared(ctx context.Context, path string) {
	if err := w.walk(ctx, path, false); err != nil {
		w.cfg.Logger.Error(err, "A new entry of the directory of plugins is not watched", "path", path)
	}
}

// goneBelow unregisters the plugin of a path, and all plugins below it if it was a directory; these have other paths
// now, or are outside.
func (w *Watcher) goneBelow(path string) {
	w.gone(path)
	for socket := range w.known { // any order: plugins are independent
		if strings.HasPrefix(socket, path+"/") {
			w.gone(socket)
		}
	}
	if w.notify == nil {
		return
	}
	for _, dir := range w.notify.WatchList() {
		if dir == path && path != w.cfg.Dir || strings.HasPrefix(dir, path+"/") {
			_ = w.notify.Remove(dir) // it may have ended with the directory
		}
	}
}

// gone unregisters the plugin whose socket was at a path, if there was one.
func (w *Watcher) gone(path string) {
	if a, ok := w.known[path]; ok {
		delete(w.known, path)
		a.end()
	}
}

// lookAtAll examines the whole directory after events were lost: sockets may have been removed, too.
func (w *Watcher) lookAtAll(ctx context.Context) error {
	for path := range w.known { // any order: plugins are independent
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			w.gone(path)
		}
	}
	return w.walk(ctx, w.cfg.Dir, true)
}

// walk examines a path that appeared, and everything below it (S4.1). If all is examined again, sockets that are the
// same keep their registrations.
func (w *Watcher) walk(ctx context.Context, top string, again bool) error {
	return filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			if path == w.cfg.Dir {
				return fmt.Errorf("read the directory of plugins: %w", err)
			}
			return nil // it was removed meanwhile
		case path != w.cfg.Dir && strings.HasPrefix(entry.Name(), "."):
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		case entry.IsDir():
			if w.notify == nil {
				break
			}
			if err := w.notify.Add(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				w.poll(fmt.Errorf("watch %s: %w", path, err))
			}
		case entry.Type()&fs.ModeSocket != 0:
			w.found(ctx, path, again)
		default:
			w.gone(path) // something else was moved over its socket
		}
		return nil
	})
}

// found begins to register the plugin behind a socket, anew if there was one before (S4.5), unless the socket is only
// looked at again and is the same.
func (w *Watcher) found(ctx context.Context, path string, again bool) {
	file, err := os.Lstat(path)
	if err != nil {
		w.gone(path) // just removed
		return
	}
	if a, ok := w.known[path]; ok {
		if again && os.SameFile(a.file, file) && a.file.ModTime().Equal(file.ModTime()) {
			return
		}
		a.end()
	}
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	w.known[path] = attended{end: func() { cancel(ErrGone); <-done }, file: file}
	w.all.Go(func() {
		defer close(done)
		defer cancel(nil)
		w.serve(ctx, path)
	})
}

// anyLeft returns a channel that is closed when the next registration ends.
func (w *Watcher) anyLeft() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.left
}

// hasLeft wakes all that wait for the end of a registration.
func (w *Watcher) hasLeft() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.left)
	w.left = make(chan struct{})
}

// serve registers a plugin, repeatedly until that succeeds, and unregisters it when ctx ends. It tries again at once
// when the registration of another plugin ends, because that may be the one on account of which this one was refused.
func (w *Watcher) serve(ctx context.Context, path string) {
	for n := 1; ; n++ {
		left := w.anyLeft()
		unregister, err := w.register(ctx, path)
		if err == nil {
			<-ctx.Done()
			unregister()
			return
		}
		if ctx.Err() != nil {
			return
		}
		w.cfg.Logger.Info("Registering a plugin failed", "socket", path, "err", err)
		if _, ok := errors.AsType[*refusedError](err); !ok {
			left = nil // two to which reports fail would wake each other without an end
		}
		select {
		case <-ctx.Done():
			return
		case <-left:
			n = 0
		case <-time.After(w.delays.Delay(n)):
		}
	}
}

// register tries it once (S4.3).
func (w *Watcher) register(ctx context.Context, path string) (unregister func(), err error) {
	conn, err := Dial(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	client := registration.NewRegistrationClient(conn)
	call, cancel := context.WithTimeout(ctx, infoTimeout)
	defer cancel()
	info, err := client.GetInfo(call, &registration.InfoRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return nil, fmt.Errorf("get the information of a plugin: %w", err)
	}
	unregister, err = w.hand(ctx, path, info)
	result := &registration.RegistrationStatus{PluginRegistered: err == nil}
	if err != nil {
		result.Error = err.Error()
	}
	call, cancel = context.WithTimeout(ctx, notifyTimeout)
	defer cancel()
	if _, notifyErr := client.NotifyRegistrationStatus(call, result); notifyErr != nil {
		if err == nil {
			unregister()
		}
		return nil, errors.Join(err, fmt.Errorf("report the result of the registration to a plugin: %w", notifyErr))
	}
	return unregister, err
}

// Dial returns a connection to the socket of a plugin, which is established when it is used. The
// path is used unchanged. The message of an error that a call returns is valid UTF-8 and has at most 4 KiB: it becomes
// part of events and of the log.
func Dial(path string, more ...grpc.DialOption) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient("passthrough:///plugin", append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithNoProxy(), grpc.WithChainUnaryInterceptor(boundErrors),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		})}, more...)...)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", path, err)
	}
	return conn, nil
}

// boundErrors cuts the messages of errors that a plugin returns.
func boundErrors(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, call grpc.UnaryInvoker,
	opts ...grpc.CallOption) error {
	err := call(ctx, method, req, reply, conn, opts...)
	if err == nil {
		return nil
	}
	s := status.Convert(err)
	message := s.Message()
	if len(message) <= maxText { // gRPC has made it valid UTF-8
		return err
	}
	short := strings.ToValidUTF8(message[:maxText], "?")
	return status.Errorf(s.Code(), "%s... (%d bytes)", short, len(message)) //nolint:wrapcheck // the plugin's error
}

// hand passes a plugin to the handler of its type.
func (w *Watcher) hand(ctx context.Context, path string, info *registration.PluginInfo) (func(), error) {
	p, err := checked(path, info)
	if err != nil {
		return nil, fmt.Errorf("RegisterPlugin error -- plugin validation failed with err: %w", err)
	}
	h := w.cfg.Handlers[info.Type]
	if h == nil {
		return nil, fmt.Errorf("RegisterPlugin error -- no handler registered for plugin type: %s at socket %s",
			info.Type,
			path)
	}
	unregister, err := h.Register(ctx, p)
	if err != nil {
		return nil, &refusedError{fmt.Errorf("RegisterPlugin error -- plugin registration failed with err: %w", err)}
	}
	return func() {
		unregister()
		w.hasLeft()
	}, nil
}

// refusedError is the error of a handler.
type refusedError struct{ error }

func (e *refusedError) Unwrap() error { return e.error }

// checked validates the information of a plugin, which is not trusted.
func checked(path string, info *registration.PluginInfo) (Plugin, error) {
	p := Plugin{Name: info.Name, Endpoint: info.Endpoint, Versions: info.SupportedVersions}
	if p.Endpoint == "" {
		p.Endpoint = path
	}
	if len(p.Versions) > maxVersions {
		return p, fmt.Errorf("%d supported versions, at most %d", len(p.Versions), maxVersions)
	}
	for _, text := range append([]string{info.Type, p.Name, p.Endpoint}, p.Versions...) {
		if len(text) > maxText || !utf8.ValidString(text) || strings.ContainsFunc(text, control) {
			return p, fmt.Errorf("a name of %d bytes, or with characters that no name has", len(text))
		}
	}
	if !filepath.IsAbs(p.Endpoint) || filepath.Clean(p.Endpoint) != p.Endpoint {
		return p, fmt.Errorf("endpoint %q is not an absolute path", p.Endpoint)
	}
	return p, nil
}

func control(r rune) bool { return r < ' ' || r == 0x7f }
