package gateway

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"carob/internal/base/socketstore"
	"carob/internal/base/testwait"
)

// manager is a service manager that keeps sockets.
type manager struct {
	*net.UnixConn
	mu   sync.Mutex
	kept map[string]*os.File
}

func newManager(t *testing.T) *manager {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	m := &manager{UnixConn: c, kept: map[string]*os.File{}}
	t.Setenv("NOTIFY_SOCKET", path)
	done := make(chan struct{})
	go func() {
		defer close(done)
		text, oob := make([]byte, 4096), make([]byte, 4096)
		for {
			n, on, _, _, err := c.ReadMsgUnix(text, oob)
			if err != nil {
				return
			}
			m.received(string(text[:n]), oob[:on])
		}
	}()
	t.Cleanup(func() { _ = c.Close(); <-done })
	return m
}

func (m *manager) received(text string, oob []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, name, _ := strings.Cut(text, "FDNAME=")
	if strings.HasPrefix(text, "FDSTOREREMOVE=1\n") {
		if f := m.kept[name]; f != nil {
			_ = f.Close()
		}
		delete(m.kept, name)
		return
	}
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(messages) != 1 {
		return
	}
	if fds, err := unix.ParseUnixRights(&messages[0]); err == nil && len(fds) == 1 {
		m.kept[name] = os.NewFile(uintptr(fds[0]), name)
	}
}

func (m *manager) has(at string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.kept[socketstore.Name(SocketPrefix, at)] != nil
}

// next is what the next process gets: copies of what is kept.
func (m *manager) next(t *testing.T) *socketstore.Store {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	s := socketstore.Open(SocketPrefix)
	for name, f := range m.kept {
		fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		s.Give(name, os.NewFile(uintptr(fd), name))
	}
	return s
}

// While carob is replaced, no new connection is refused, and what has begun ends.
func TestRestartUnderLoad(t *testing.T) {
	m := newManager(t)
	release := make(chan struct{})
	begun := make(chan struct{}, 1)
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/long" {
			begun <- struct{}{}
			<-release
		}
		fmt.Fprint(w, "ok")
	}))
	defer backend.Close()
	old := newLab(t)
	start := func(l *lab) {
		l.service("a", "", at(backend.URL, "pa"))
		l.ingress("x.example.com", nil, "/=a")
		l.cfg.Sockets = m.next(t)
		l.update()
	}
	start(old)
	testwait.For(t, "the sockets at the service manager", func() bool { return m.has(old.http) && m.has(old.https) })
	get := func(path string) error {
		tr := &http.Transport{DisableKeepAlives: true}
		r, err := http.NewRequest(http.MethodGet, "http://"+old.http+path, nil)
		if err != nil {
			return err
		}
		r.Host = "x.example.com"
		res, err := tr.RoundTrip(r)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if text, err := io.ReadAll(res.Body); err != nil || string(text) != "ok" {
			return fmt.Errorf("%s %q %w", res.Status, text, err)
		}
		return nil
	}
	stop, served := make(chan struct{}), atomic.Int64{}
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for {
				if err := get("/"); err != nil {
					t.Errorf("a request failed: %v", err)
					return
				}
				served.Add(1)
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	long := make(chan error, 1)
	go func() { long <- get("/long") }()
	<-begun
	for range 3 {
		before := served.Load()
		testwait.For(t, "requests", func() bool { return served.Load() > before+20 })
		ended := make(chan struct{})
		go func() { defer close(ended); old.stop() }()
		if begun != nil {
			close(release) // the process ends only after the request
			begun = nil
			if err := <-long; err != nil {
				t.Errorf("the request in flight: %v", err)
			}
		}
		<-ended
		next := newLab(t)
		next.cfg.HTTP, next.cfg.HTTPS, next.http, next.https = old.cfg.HTTP, old.cfg.HTTPS, old.http, old.https
		start(next)
		old = next
	}
	close(stop)
	clients.Wait()
	old.world.Ingresses = nil
	old.update()
	testwait.For(t, "sockets that nobody wants to be forgotten", func() bool { return !m.has(old.http) })
}
