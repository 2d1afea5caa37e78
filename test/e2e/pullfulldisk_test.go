package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"carob/internal/base/testwait"
)

// slowRegistry is a mirror of all registries that stops in the middle of each layer that is larger than half a
// megabyte, until it is told to go on.
type slowRegistry struct {
	dir     string        // of its hosts.toml
	halfway chan struct{} // one for each layer of which half was sent

	mu     sync.Mutex
	open   chan struct{} // closed: layers are sent at once
	layers map[string]int
}

func newSlowRegistry(t *testing.T) *slowRegistry {
	t.Helper()
	r := &slowRegistry{dir: tempDir(t), halfway: make(chan struct{}, 100), open: make(chan struct{}),
		layers: map[string]int{}}
	srv := httptest.NewServer(r)
	t.Cleanup(srv.Close)
	t.Cleanup(r.release) // first
	if err := os.Mkdir(filepath.Join(r.dir, "_default"), 0o755); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(r.dir, "_default", "hosts.toml"),
		fmt.Sprintf("[host.%q]\n  capabilities = [\"pull\", \"resolve\"]\n", srv.URL))
	return r
}

func (r *slowRegistry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.Method == http.MethodGet && strings.Contains(req.URL.Path, "/blobs/") {
		r.mu.Lock()
		r.layers[filepath.Base(req.URL.Path)]++
		open := r.open
		r.mu.Unlock()
		w = &slowWriter{ResponseWriter: w, r: r, req: req, open: open}
	}
	mirrors.srv.Handler.ServeHTTP(w, req)
}

// release sends what was held back; hold holds the layers back that are asked for from now on, and counts anew.
func (r *slowRegistry) release() {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-r.open:
	default:
		close(r.open)
	}
}

func (r *slowRegistry) hold() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open, r.layers = make(chan struct{}), map[string]int{}
	for len(r.halfway) > 0 {
		<-r.halfway
	}
}

// requests is how often the layer that was requested most often was requested.
func (r *slowRegistry) requests() (most int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range r.layers {
		most = max(most, n)
	}
	return most
}

type slowWriter struct {
	http.ResponseWriter
	r    *slowRegistry
	req  *http.Request
	open chan struct{}
	sent int
}

func (w *slowWriter) Write(p []byte) (int, error) {
	const half = 1 << 19
	if w.sent < half && w.sent+len(p) >= half {
		select {
		case <-w.open:
		default:
			_ = http.NewResponseController(w.ResponseWriter).Flush()
			w.r.halfway <- struct{}{}
			select {
			case <-w.open:
			case <-w.req.Context().Done():
			}
		}
	}
	n, err := w.ResponseWriter.Write(p)
	w.sent += n
	return n, err
}

// leave fills the disk until so many bytes are left for all but root, and returns the path of the file.
func (d *disk) leave(t *testing.T, left int64) string {
	t.Helper()
	path := filepath.Join(d.dir, "filler")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for piece := make([]byte, 1<<20); d.free(t) > left; {
		if _, err := f.Write(piece); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

// storedImages is what the store of images has on disk, as number of files and bytes. Its databases and what
// containers write are not counted.
func storedImages(t *testing.T, c *cluster) (files int, size int64) {
	t.Helper()
	root := filepath.Join(c.DataDir, "runtime", "images")
	err := filepath.WalkDir(root, func(p string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if p == filepath.Join(root, "rw") {
			return fs.SkipDir
		}
		if err != nil || !e.Type().IsRegular() || strings.HasSuffix(p, ".db") {
			return err
		}
		info, err := e.Info()
		if err == nil {
			files++
			size += info.Size()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files, size
}

// free is how much is left on the disk for all but root.
func (d *disk) free(t *testing.T) int64 {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(d.dir, &st); err != nil {
		t.Fatal(err)
	}
	return int64(st.Bavail) * st.Bsize
}

// TestPullsOnAFullDisk: an image is pulled when the disk has no space for it, the disk gets full during a pull, and
// carob is killed during a pull, each for two pods at once. The pods say why they wait, nothing of the image is left,
// and they start by themselves when there is space.
func TestPullsOnAFullDisk(t *testing.T) {
	t.Parallel()
	nativeOnly(t, "images are on the disk")
	d := newDisk(t, 900<<20)
	r := newSlowRegistry(t)
	c, err := newCluster(filepath.Join(d.dir, "data"), "--registry-config", r.dir, "--eviction-hard",
		"memory.available<0%", "--image-gc-high-threshold", "100", "--image-gc-low-threshold", "99")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			c.dumpLog(t)
		}
		r.release()
		_ = os.Remove(filepath.Join(d.dir, "filler"))
		if err := c.end(); err != nil {
			t.Error(err)
		}
	})
	if err := c.up(); err != nil {
		t.Fatal(err)
	}
	r.release()
	c.kubectl(t, "run", "stays", "--image=busybox:1.32.0", "--", "sleep", "3600")
	c.wait(t, "pod/stays", "condition=Ready")
	testwait.Until(t, "the packed layers of the first image are removed, after a sync of the disk", func() error {
		left, err := os.ReadDir(filepath.Join(c.DataDir, "runtime", "images", "content", "blobs", "sha256"))
		if err == nil && len(left) != 2 { // manifest and configuration
			err = fmt.Errorf("%d files", len(left))
		}
		return err
	})
	files, size := storedImages(t, c)
	clean := func(when string) {
		t.Helper()
		testwait.Until(t, "nothing of the image is left, "+when, func() error {
			if f, s := storedImages(t, c); f != files || s != size {
				return fmt.Errorf("%d files with %d bytes, there were %d with %d", f, s, files, size)
			}
			return nil
		})
	}
	both := []string{"one", "two"}
	start := func(image string) {
		t.Helper()
		for _, name := range both {
			c.kubectl(t, "run", name, "--image="+image, "--", "sleep", "3600")
		}
	}
	waits := func() {
		t.Helper()
		for _, name := range both {
			c.hasEvents(t, name, "Warning Failed Failed to pull image ", "no space in "+d.dir)
			c.wait(t, "pod/"+name,
				"jsonpath={.status.containerStatuses[0].state.waiting.reason}=ImagePullBackOff")
			c.shows(t, []string{"no space in " + d.dir}, "get", "pod", name, "-o",
				"jsonpath={.status.containerStatuses[0].state.waiting.message}")
		}
	}
	ends := func(image string) {
		t.Helper()
		for _, name := range both {
			c.wait(t, "pod/"+name, "condition=Ready")
		}
		c.kubectl(t, "delete", "pod", "one", "two", "--grace-period=1")
		c.carob(t, "image", "rm", image)
		clean("after the removal of " + image)
	}
	const left = 60 << 20 // images leave a tenth of the disk

	full := d.leave(t, left)
	start("nginx:1.26")
	waits()
	clean("after a pull on a full disk")
	if err := os.Remove(full); err != nil {
		t.Fatal(err)
	}
	ends("nginx:1.26")

	r.hold()
	start("postgres:15")
	<-r.halfway
	full = d.leave(t, left)
	r.release()
	waits()
	clean("after a pull during which the disk got full")
	if err := os.Remove(full); err != nil {
		t.Fatal(err)
	}
	ends("postgres:15")

	r.hold()
	start("mysql:8.0")
	<-r.halfway
	c.kill(t)
	if f, s := storedImages(t, c); f == files || s == size {
		t.Errorf("the killed pull has left nothing: %d files, %d bytes", f, s)
	}
	r.hold()
	r.release()
	if err := c.up(); err != nil {
		t.Fatal(err)
	}
	ends("mysql:8.0")
	if n := r.requests(); n != 1 {
		t.Errorf("a layer was fetched %d times for two pods", n)
	}
	if s := c.pod(t, "stays").Status.ContainerStatuses[0]; s.RestartCount != 0 || s.State.Running == nil {
		t.Errorf("the container that ran meanwhile: %+v", s)
	}
}
