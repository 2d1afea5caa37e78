package static

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"carob/internal/base/atomicfile"
)

// SourceConfig is the location of the manifests and the receiver of their pods.
type SourceConfig struct {
	Path string // a directory of manifests, or one file
	Node string // name of the node
	// Cache is a directory for the last usable text of each manifest, so that a running pod stays if carob starts while
	// its manifest cannot be used; empty: none.
	Cache string
	// Complete fills in the defaults of a pod and validates it.
	Complete func(*corev1.Pod) error
	// Wanted gets the pods of all manifests, after each change.
	Wanted func([]*corev1.Pod)
}

// Source turns manifest files into pods. The kernel announces changes; Wake has all files
// checked, in case an announcement was lost.
type Source struct {
	cfg          SourceConfig
	poke         chan struct{} // capacity 1
	files        map[string]*file
	wantedCalled bool // Wanted was called
}

// file is one manifest as it was last read.
type file struct {
	size    int64
	changed time.Time
	inode   uint64
	pod     *corev1.Pod // the last valid one; nil: there was none
	problem string      // already logged
}

// settleTime is how long a manifest must not have changed before it is read: its writer may not have finished.
const settleTime = 100 * time.Millisecond

// NewSource returns a Source; nothing is read before Run.
func NewSource(cfg SourceConfig) *Source {
	return &Source{cfg: cfg, poke: make(chan struct{}, 1), files: map[string]*file{}}
}

// Wake causes a check of the directory. It never blocks.
func (s *Source) Wake() {
	select {
	case s.poke <- struct{}{}:
	default:
	}
}

// Run reads the manifests and follows their changes until ctx ends.
func (s *Source) Run(ctx context.Context) error {
	w, err := fsnotify.NewWatcher()
	if err != nil { // all processes of a user together have 128 instances, and pods may be of this user
		klog.FromContext(ctx).Error(err, "Pod manifests cannot be watched; they are checked when the node is reported")
		return s.follow(ctx, nil)
	}
	defer w.Close()
	return s.follow(ctx, w)
}

// follow follows the changes that w reports, and Wake; w may be nil.
func (s *Source) follow(ctx context.Context, w *fsnotify.Watcher) error {
	var events <-chan fsnotify.Event
	var lost <-chan error
	if w != nil {
		events, lost = w.Events, w.Errors
	}
	dir := s.cfg.Path
	if info, err := os.Stat(dir); err == nil && !info.IsDir() {
		dir = filepath.Dir(dir)
	}
	log := klog.FromContext(ctx)
	watched := false
	watch := func() {
		if !watched && w != nil { // a directory that was removed and created again needs a new watch
			watched = w.Add(dir) == nil
		}
	}
	watch()
	if err := s.look(ctx); err != nil { // continuing without them would end running pods
		return fmt.Errorf("list the pod manifests: %w", err)
	}
	settle := time.NewTimer(time.Hour)
	settle.Stop()
	defer settle.Stop()
	for {
		planned := false
		select {
		case <-ctx.Done():
			return nil
		case ev := <-events:
			planned = true
			if ev.Name == dir && ev.Has(fsnotify.Remove|fsnotify.Rename) {
				watched = false
			}
			if !hidden(ev.Name) {
				settle.Reset(settleTime)
			}
		case err := <-lost:
			planned = true
			log.V(2).Info("Watching the pod manifests", "err", err)
			settle.Reset(settleTime)
		case <-settle.C:
		case <-s.poke:
		}
		if !planned {
			watch()
			if err := s.look(ctx); err != nil {
				log.Error(err, "Pod manifests cannot be listed; static pods stay as they are")
			}
		}
	}
}

func hidden(path string) bool { return strings.HasPrefix(filepath.Base(path), ".") }

// look reads what changed, and passes the pods on if they changed.
func (s *Source) look(ctx context.Context) error {
	log := klog.FromContext(ctx)
	paths, err := s.list()
	if err != nil {
		return err
	}
	news := !s.wantedCalled
	for path := range s.files {
		if !slices.Contains(paths, path) {
			news = news || s.files[path].pod != nil
			delete(s.files, path)
		}
	}
	for _, path := range paths {
		news = s.read(log, path) || news
	}
	if news {
		if err := s.forget(paths); err != nil {
			log.Error(err, "Removing the copies of pod manifests that are gone failed")
		}
		s.wantedCalled = true
		s.cfg.Wanted(s.wanted(log, paths))
	}
	return nil
}

// list are the existing manifests, in their order; a missing directory has none.
func (s *Source) list() ([]string, error) {
	info, err := os.Stat(s.cfg.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	case !info.IsDir():
		return []string{s.cfg.Path}, nil
	}
	entries, err := os.ReadDir(s.cfg.Path)
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, e := range entries {
		path := filepath.Join(s.cfg.Path, e.Name())
		if hidden(path) {
			continue
		}
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() { // follows links
			paths = append(paths, path)
		}
	}
	return paths, nil
}

// read reads a manifest that changed and reports whether its pod did. An invalid manifest is
// logged once and leaves the pod as it was.
func (s *Source) read(log klog.Logger, path string) bool {
	f := s.files[path]
	if f == nil {
		f = &file{}
		s.files[path] = f
	}
	info, err := os.Stat(path)
	if err != nil {
		return false // just removed: the next event handles it
	}
	if info.Size() == f.size && info.ModTime().Equal(f.changed) && inode(info) == f.inode && f.problem == "" {
		return false
	}
	f.size, f.changed, f.inode = info.Size(), info.ModTime(), inode(info)
	text, err := readManifest(path)
	var pod *corev1.Pod
	if err == nil {
		pod, err = decode(text, path, s.cfg.Node, s.cfg.Complete, time.Now())
	}
	if err != nil {
		if f.problem != err.Error() {
			f.problem = err.Error()
			log.Error(err, "A pod manifest cannot be used; its pod stays as it was", "file", path)
		}
		if f.pod == nil {
			f.pod = s.saved(path)
			return f.pod != nil
		}
		return false
	}
	f.problem = ""
	if err := s.save(path, text); err != nil {
		log.Error(err, "If this pod manifest cannot be used when carob starts again, its pod will end", "file", path)
	}
	if f.pod != nil && f.pod.UID == pod.UID {
		return false
	}
	f.pod = pod
	return true
}

// readManifest reads a regular file. It never waits for the writer of a named pipe.
func readManifest(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, errors.New("it is not a regular file")
	}
	return io.ReadAll(io.LimitReader(f, maxManifest+1))
}

// cached is where the last usable text of a manifest is kept.
func (s *Source) cached(path string) string {
	sum := sha256.Sum256([]byte(path))
	return filepath.Join(s.cfg.Cache, hex.EncodeToString(sum[:]))
}

// save keeps the text of a manifest.
func (s *Source) save(path string, text []byte) error {
	if s.cfg.Cache == "" {
		return nil
	}
	if old, err := os.ReadFile(s.cached(path)); err == nil && bytes.Equal(old, text) {
		return nil
	}
	if err := os.MkdirAll(s.cfg.Cache, 0o700); err != nil {
		return err
	}
	return atomicfile.Write(s.cached(path), text, 0o600)
}

// saved is the pod of a manifest as it could last be used; nil if it never could.
func (s *Source) saved(path string) *corev1.Pod {
	if s.cfg.Cache == "" {
		return nil
	}
	text, err := readManifest(s.cached(path))
	if err != nil {
		return nil
	}
	pod, err := decode(text, path, s.cfg.Node, s.cfg.Complete, time.Now())
	if err != nil {
		return nil // this version refuses it, too
	}
	return pod
}

// forget removes what is kept of manifests that no longer exist.
func (s *Source) forget(paths []string) error {
	kept, err := os.ReadDir(s.cfg.Cache)
	if s.cfg.Cache == "" || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, k := range kept {
		if !slices.ContainsFunc(paths, func(path string) bool { return filepath.Base(s.cached(path)) == k.Name() }) {
			errs = append(errs, os.Remove(filepath.Join(s.cfg.Cache, k.Name())))
		}
	}
	return errors.Join(errs...)
}

// wanted is the pods of all manifests; of two with one name the first file counts (L3.3).
func (s *Source) wanted(log klog.Logger, paths []string) []*corev1.Pod {
	var pods []*corev1.Pod
	taken := map[types.NamespacedName]string{}
	for _, path := range paths {
		pod := s.files[path].pod
		if pod == nil {
			continue
		}
		name := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
		if other, ok := taken[name]; ok {
			log.Error(nil, "Two manifests have a pod of the same name; the second is ignored", "pod", name, "used",
				other, "ignored", path)
			continue
		}
		taken[name] = path
		pods = append(pods, pod)
	}
	return pods
}

// inode distinguishes a file from one that replaced it.
func inode(info fs.FileInfo) uint64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Ino
	}
	return 0
}
