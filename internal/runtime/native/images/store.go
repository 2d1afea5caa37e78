// Package images is the image store of the native runtime: containerd's content store, metadata
// database, overlay snapshotter, and registry client, used as libraries in this process. The
// runtime drives it, and the node agent for imports. Two stores never share a directory.
//
// An image becomes visible only when it is complete and unpacked. Everything before that belongs to a lease that the
// next Open deletes, so a killed process leaves at most garbage, never half an image. Layers are synced to the disk
// later (sync.go).
//
//	content, ingest ── lease ──▶ snapshots committed ──▶ name recorded (visible)
//	                                                         │ RemoveImage
//	            collected ◀── last container released ◀── name gone
//
// A container's writable layer is two plain directories beside the store, not a snapshot: creating
// one costs no database transaction and no fsync.
//
// It must never mount anything, start a process of an image, or pull on its own.
//
// Contract: docs/spec/pod-lifecycle.md.
package images

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/containerd/containerd/v2/plugins/snapshots/overlay"
	"github.com/containerd/containerd/v2/plugins/snapshots/overlay/overlayutils"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/containerd/platforms"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	bolt "go.etcd.io/bbolt"
	boltErrors "go.etcd.io/bbolt/errors"
	"k8s.io/klog/v2"

	"carob/internal/base/errkind"
	"carob/internal/base/keylock"
	"carob/internal/runtime/native"
)

// namespace is containerd's tenant; this store has one.
const namespace = "carob"

// labelKept marks the name of an imported image on disk; it must never change.
const labelKept = "carob.dev/imported"

// snapshotterName appears in the garbage collector's labels on disk; it must never change.
const snapshotterName = "overlayfs"

// Config configures the store's location and its access to registries.
type Config struct {
	// Root contains everything: content, snapshots, names, writable layers.
	Root string
	// RegistryConfig is a directory in containerd's hosts.toml layout (mirrors, private CAs, client
	// certificates); empty for none. It is read for each pull.
	RegistryConfig string
	// StallTimeout ends a pull that has received no byte for this long; 0 means five minutes.
	StallTimeout time.Duration
	// Downloads is how many layers of one pull are fetched in parallel; 0 means three.
	Downloads int

	bootID    string               // of the machine; "" reads it from the kernel
	syncDisk  func(*os.File) error // syncs the file system of a file; nil for syncfs
	syncDelay time.Duration        // from a pull to the sync; 0 means two seconds

	removeTree func(ctx context.Context, path string) error // removes a layer; nil for removetree.While
}

// Store is an open image store. All methods are safe for concurrent use.
type Store struct {
	cfg       Config
	db        *metadata.DB
	content   boundedContent
	images    images.Store
	leases    leases.Manager
	layers    snapshots.Snapshotter // the overlay directories themselves
	snapshots snapshots.Snapshotter // the same snapshots, tracked by the database
	platform  platforms.MatchComparer
	locks     keylock.Locks
	space     *diskSpace

	// mu protects the index and the holds below; it is never held during I/O on a registry.
	mu     sync.RWMutex
	byID   map[string]*record
	byName map[string]string // reference → id
	kept   map[string]bool   // references that were imported: no registry has them
	bases  map[string]*base  // chain id → the unpacked layers
	spares spares

	syncer    *syncer
	leftovers *leftovers
}

var _ native.Images = (*Store)(nil)

// record is one image, with all of its names.
type record struct {
	id       string // digest of the configuration
	chain    string // chain id of its layers
	config   imagespec.Image
	size     uint64 // bytes of manifest, configuration, and compressed layers
	names    []string
	manifest digest.Digest
}

// base is an unpacked chain of layers below images and writable layers. It is kept as long as any
// of them uses it.
type base struct {
	lower []string // directories, topmost first
	users map[string]bool
}

// Open opens the store in cfg.Root, creates it if necessary, and removes what an earlier process
// left unfinished. Kinds: InUse if another process has it open, Unsupported if the file system does
// not support overlays.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	if cfg.StallTimeout == 0 {
		cfg.StallTimeout = 5 * time.Minute
	}
	if cfg.Downloads == 0 {
		cfg.Downloads = 3
	}
	quietLibraries()
	if strings.ContainsAny(cfg.Root, ",:\\") {
		// These characters separate the options of an overlay and its layers.
		return nil, errkind.Errorf(errkind.Unsupported,
			"image store %s: its path may not hold a comma, a colon or a backslash: choose another data directory",
			cfg.Root)
	}
	if err := os.MkdirAll(filepath.Join(cfg.Root, "rw"), 0o700); err != nil {
		return nil, fmt.Errorf("make image store: %w", err)
	}
	file := filepath.Join(cfg.Root, "meta.db")
	db, err := bolt.Open(file, 0o600, &bolt.Options{Timeout: time.Second})
	if errors.Is(err, boltErrors.ErrTimeout) {
		return nil, errkind.Errorf(errkind.InUse, "image store %s is in use by another process", cfg.Root)
	}
	if err != nil {
		return nil, errkind.Errorf(errkind.Corrupt, "open image database %s: %w", file, err)
	}
	s := &Store{cfg: cfg, platform: platforms.Default(), space: &diskSpace{dir: cfg.Root}, byID: map[string]*record{},
		byName: map[string]string{}, kept: map[string]bool{}, bases: map[string]*base{}, leftovers: newLeftovers(cfg)}
	if s.syncer, err = newSyncer(cfg); err != nil {
		_ = db.Close()
		return nil, err
	}
	if err := s.open(ctx, db); err != nil {
		s.leftovers.close()
		_ = s.syncer.close()
		if s.layers != nil {
			_ = s.layers.Close()
		}
		_ = db.Close()
		return nil, err
	}
	return s, nil
}

// quietLibraries keeps containerd's libraries from writing to standard error; they return their
// errors.
var quietLibraries = sync.OnceFunc(func() { _ = log.SetLevel("fatal") })

func (s *Store) open(ctx context.Context, db *bolt.DB) error {
	ctx = inNamespace(ctx)
	layersDir := filepath.Join(s.cfg.Root, "overlay")
	if _, err := os.Stat(layersDir); errors.Is(err, fs.ErrNotExist) {
		// Only once for each store: the test costs a mount.
		if err := overlayutils.Supported(s.cfg.Root); err != nil {
			return errkind.Errorf(errkind.Unsupported, "the file system of %s cannot store container layers: %w",
				s.cfg.Root, err)
		}
	}
	// Without such a directory, the library's collector fails and leaves partial downloads.
	if err := os.MkdirAll(filepath.Join(s.cfg.Root, "content", "blobs"), 0o755); err != nil {
		return fmt.Errorf("make content store: %w", err)
	}
	blobs, err := local.NewStore(filepath.Join(s.cfg.Root, "content"))
	if err != nil {
		return fmt.Errorf("open content store: %w", err)
	}
	if s.layers, err = overlay.NewSnapshotter(layersDir); err != nil {
		return fmt.Errorf("open layer store: %w", err)
	}
	s.db = metadata.NewDB(db, blobs, map[string]snapshots.Snapshotter{snapshotterName: s.layers})
	if err := s.db.Init(ctx); err != nil {
		return errkind.Errorf(errkind.Corrupt, "read image database: %w", err)
	}
	s.content, s.images = boundedContent{s.db.ContentStore()}, metadata.NewImageStore(s.db)
	s.leases, s.snapshots = metadata.NewLeaseManager(s.db), s.db.Snapshotter(snapshotterName)
	if err := s.removeTorn(ctx); err != nil {
		return err
	}
	if err := s.load(ctx); err != nil {
		return err
	}
	left, err := s.loadRW(ctx)
	if err != nil {
		return err
	}
	if err := s.dropLeftovers(ctx); err != nil {
		return err
	}
	s.leftovers.remove(left...)
	return nil
}

// Close releases the directory; no operation may be in progress.
func (s *Store) Close() error {
	s.leftovers.close()
	s.closeSpares()
	return errors.Join(s.syncer.close(), s.layers.Close(), s.db.Close())
}

func inNamespace(ctx context.Context) context.Context {
	return namespaces.WithNamespace(ctx, namespace)
}

// load builds the index from the names on disk.
func (s *Store) load(ctx context.Context) error {
	all, err := s.images.List(ctx)
	if err != nil {
		return fmt.Errorf("list images: %w", err)
	}
	for _, im := range all {
		r, err := s.loadImage(ctx, im.Target)
		if damaged(err) && s.unpack(ctx, im.Target, s.children()) == nil {
			klog.FromContext(ctx).Info("Layers of an image were lost, unpacked it again", "image", im.Name)
			r, err = s.loadImage(ctx, im.Target)
		}
		switch {
		case err == nil:
			s.index(r, im.Name)
			s.setPinned(im.Name, im.Labels[labelKept] != "")
		case ctx.Err() != nil:
			return ctx.Err()
		case damaged(err):
			// The name must be removed, or every pod that uses the image would fail although a new
			// pull would help.
			klog.FromContext(ctx).Error(err, "An image is damaged; it is removed from the list of images",
				"image", im.Name)
			if err := s.images.Delete(ctx, im.Name); err != nil && !errdefs.IsNotFound(err) {
				return fmt.Errorf("forget damaged image %s: %w", im.Name, err)
			}
		default: // no descriptors, or a disk that does not respond: the next start may succeed
			klog.FromContext(ctx).Error(err, "An image cannot be read; it is not listed", "image", im.Name)
		}
	}
	return nil
}

func (s *Store) loadImage(ctx context.Context, target imagespec.Descriptor) (*record, error) {
	r, err := s.read(ctx, target)
	if err == nil {
		err = s.hold(ctx, r.chain, "image/"+r.id)
	}
	return r, err
}

// damaged distinguishes a missing or broken blob or layer from an error of the machine.
func damaged(err error) bool {
	var syntax *json.SyntaxError
	var shape *json.UnmarshalTypeError
	return errdefs.IsNotFound(err) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, io.EOF) || errors.As(err, &syntax) || errors.As(err, &shape)
}

// dropLeftovers frees the leases of a killed process, and layers that nothing uses.
func (s *Store) dropLeftovers(ctx context.Context) error {
	dropped, err := s.dropLeases(ctx)
	if err != nil {
		return err
	}
	views, err := s.viewsOnDisk(ctx)
	if err != nil {
		return err
	}
	for _, chain := range views {
		if s.bases[chain] == nil {
			dropped = true
			if err := s.snapshots.Remove(ctx, viewKey(chain)); err != nil && !errdefs.IsNotFound(err) {
				return fmt.Errorf("remove unused layers: %w", err)
			}
		}
	}
	if dropped {
		return s.collect(ctx)
	}
	return nil
}

// dropLeases reports whether there were any. Those that keep compressed layers go when the layers are synced.
func (s *Store) dropLeases(ctx context.Context) (dropped bool, err error) {
	if adopted, err := s.adoptUnsynced(ctx); adopted || err != nil {
		return false, err
	}
	all, err := s.leases.List(ctx)
	if err != nil {
		return false, fmt.Errorf("list leases: %w", err)
	}
	for _, l := range all {
		if err := s.leases.Delete(ctx, l); err != nil && !errdefs.IsNotFound(err) {
			return false, fmt.Errorf("delete lease: %w", err)
		}
	}
	return len(all) > 0, nil
}

// read creates the record of an image that is complete in the content store.
func (s *Store) read(ctx context.Context, target imagespec.Descriptor) (*record, error) {
	m, err := images.Manifest(ctx, s.content, target, s.platform)
	if err != nil {
		return nil, fmt.Errorf("read manifest: %w", err)
	}
	r := &record{id: m.Config.Digest.String(), size: uint64(target.Size), manifest: target.Digest}
	if err := readJSON(ctx, s.content, m.Config, &r.config); err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	r.chain = identity.ChainID(r.config.RootFS.DiffIDs).String()
	for _, d := range append(slices.Clone(m.Layers), m.Config) {
		r.size += uint64(d.Size)
	}
	return r, nil
}

// index makes an image visible under a name; the caller holds mu or is the only user.
func (s *Store) index(r *record, name string) {
	if old := s.byName[name]; old != "" && old != r.id {
		s.unindex(name)
	}
	if have := s.byID[r.id]; have != nil {
		r.names = have.names
	}
	if !slices.Contains(r.names, name) {
		r.names = append(slices.Clone(r.names), name)
		slices.Sort(r.names)
	}
	s.byID[r.id], s.byName[name] = r, r.id
}

// unindex removes a name. The image's record stays available under its ID until its last name is
// removed.
func (s *Store) unindex(name string) {
	r := s.byID[s.byName[name]]
	delete(s.byName, name)
	delete(s.kept, name)
	if r == nil {
		return
	}
	less := *r
	less.names = slices.DeleteFunc(slices.Clone(r.names), func(n string) bool { return n == name })
	if len(less.names) == 0 {
		delete(s.byID, r.id)
	} else {
		s.byID[r.id] = &less
	}
}

// setPinned sets whether the node agent must not remove the image with this name.
func (s *Store) setPinned(name string, kept bool) {
	if kept {
		s.kept[name] = true
	} else {
		delete(s.kept, name)
	}
}

// publish records names for an unpacked image and makes it visible; kept is true for an imported
// one.
func (s *Store) publish(ctx context.Context, target imagespec.Descriptor, kept bool, names ...string) (*record, error) {
	r, err := s.read(ctx, target)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.hold(ctx, r.chain, "image/"+r.id); err != nil {
		return nil, err
	}
	for _, name := range names {
		im := images.Image{Name: name, Target: target, Labels: map[string]string{}}
		if kept {
			im.Labels[labelKept] = "true"
		}
		if _, err := s.images.Update(ctx, im, "target", "labels"); errdefs.IsNotFound(err) {
			_, err = s.images.Create(ctx, im)
			if err != nil {
				return nil, fmt.Errorf("record image %s: %w", name, err)
			}
		} else if err != nil {
			return nil, fmt.Errorf("record image %s: %w", name, err)
		}
		old := s.byID[s.byName[name]]
		s.index(r, name)
		s.setPinned(name, kept)
		r = s.byID[r.id]
		if old != nil && old.id != r.id && s.byID[old.id] == nil {
			if err := s.unhold(ctx, old.chain, "image/"+old.id); err != nil {
				return nil, err
			}
		}
	}
	return r, nil
}

// lookup finds a record by ID (with or without sha256:), unique prefix of an ID, or name; nil if
// there is none.
func (s *Store) lookup(ref string) *record {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if r := s.byID[ref]; r != nil {
		return r
	}
	if r := s.byID["sha256:"+ref]; r != nil {
		return r
	}
	if name, err := normalize(ref); err == nil {
		if r := s.byID[s.byName[name]]; r != nil {
			return r
		}
	}
	if len(ref) < 6 || strings.Trim(ref, "0123456789abcdef") != "" {
		return nil
	}
	var found *record
	for id, r := range s.byID {
		if strings.HasPrefix(id, "sha256:"+ref) {
			if found != nil {
				return nil
			}
			found = r
		}
	}
	return found
}

// normalize completes a short name like docker: busybox → docker.io/library/busybox:latest.
func normalize(name string) (string, error) {
	named, err := reference.ParseDockerRef(name)
	if err != nil {
		return "", err
	}
	return named.String(), nil
}

// hold keeps a chain of layers for a user; the caller holds mu or is the only user.
func (s *Store) hold(ctx context.Context, chain, user string) error {
	b := s.bases[chain]
	if b == nil {
		lower, err := s.view(ctx, chain)
		if err != nil {
			return err
		}
		b = &base{lower: lower, users: map[string]bool{}}
		s.bases[chain] = b
	}
	b.users[user] = true
	return nil
}

// unhold releases a chain; without users, the layers become garbage.
func (s *Store) unhold(ctx context.Context, chain, user string) error {
	b := s.bases[chain]
	if b == nil {
		return nil
	}
	delete(b.users, user)
	if len(b.users) > 0 {
		return nil
	}
	delete(s.bases, chain)
	s.dropSpares(chain)
	s.forgetUnsynced(ctx, chain)
	if err := s.snapshots.Remove(ctx, viewKey(chain)); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("release layers: %w", err)
	}
	return nil
}

func viewKey(chain string) string { return "base/" + chain }

// view pins a committed chain in the database and returns its directories.
func (s *Store) view(ctx context.Context, chain string) ([]string, error) {
	mounts, err := s.snapshots.Mounts(ctx, viewKey(chain))
	if errdefs.IsNotFound(err) {
		mounts, err = s.snapshots.View(ctx, viewKey(chain), chain, snapshots.WithLabels(map[string]string{
			"containerd.io/gc.root": time.Now().UTC().Format(time.RFC3339)}))
	}
	if err != nil {
		return nil, fmt.Errorf("find layers %s: %w", chain, err)
	}
	return lowerDirs(mounts)
}

// lowerDirs returns the layer directories in a view's mounts.
func lowerDirs(mounts []mount.Mount) ([]string, error) {
	if len(mounts) == 1 {
		switch mounts[0].Type {
		case "bind":
			return []string{mounts[0].Source}, nil
		case "overlay":
			for _, o := range mounts[0].Options {
				if dirs, ok := strings.CutPrefix(o, "lowerdir="); ok {
					return strings.Split(dirs, ":"), nil
				}
			}
		}
	}
	return nil, fmt.Errorf("unexpected mounts of a layer view: %v", mounts)
}

func (s *Store) viewsOnDisk(ctx context.Context) ([]string, error) {
	var chains []string
	err := s.snapshots.Walk(ctx, func(_ context.Context, info snapshots.Info) error {
		if chain, ok := strings.CutPrefix(info.Name, "base/"); ok {
			chains = append(chains, chain)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list layers: %w", err)
	}
	return chains, nil
}

// collect removes content and layers that nothing refers to.
func (s *Store) collect(ctx context.Context) error {
	if _, err := s.db.GarbageCollect(ctx); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("collect unused image data: %w", err)
	}
	return nil
}

// lease protects what operations with the context write until the lease is released.
func (s *Store) lease(ctx context.Context) (context.Context, *lease, error) {
	l, err := s.leases.Create(ctx, leases.WithRandomID())
	if err != nil {
		return nil, nil, fmt.Errorf("create lease: %w", err)
	}
	return leases.WithLease(ctx, l.ID), &lease{store: s, id: l}, nil
}

// all returns copies of the records in a stable order.
func (s *Store) all() []*record {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.SortedFunc(maps.Values(s.byID), func(a, b *record) int { return strings.Compare(a.id, b.id) })
}
