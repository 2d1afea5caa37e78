package images

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/containerd/containerd/v2/core/mount"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"carob/internal/base/diskusage"
	"carob/internal/runtime/native"
)

// layerRecord is the name of the file that records the image below a writable layer.
type layerRecord struct {
	Chain    string `json:"chain"`
	ReadOnly bool   `json:"readOnly,omitempty"`
}

const recordFile = "layer.json"

// optionPage is what mount(2) accepts, minus what the options besides the directories need.
const optionPage = 4096 - 128

// relativeLimit is how much of it the lower directories may take when all paths are relative to the store's directory:
// those of the writable layer have its key, which is the ID of a container.
const relativeLimit = optionPage - 2*len("rw//work") - 2*64

// Prepare implements native.Images: mounts of a writable layer on top of the image.
func (s *Store) Prepare(ctx context.Context, key, imageID string, ids native.IDMap, points []string) ([]mount.Mount,
	error) {
	return s.stack(ctx, key, imageID, false, ids, points)
}

// View implements native.Images: mounts that show the image and nothing else.
func (s *Store) View(ctx context.Context, key, imageID string) ([]mount.Mount, error) {
	return s.stack(ctx, key, imageID, true, native.IDMap{}, nil)
}

func (s *Store) stack(ctx context.Context, key, imageID string, readOnly bool, ids native.IDMap,
	points []string) ([]mount.Mount, error) {
	if key == "" || strings.ContainsAny(key, "/\x00") || strings.HasPrefix(key, ".") {
		return nil, status.Errorf(codes.InvalidArgument, "layer key %q cannot be a file name", key)
	}
	ctx = inNamespace(ctx)
	dir := s.layerDir(key)
	r := s.lookup(imageID)
	s.mu.Lock()
	defer s.mu.Unlock()
	rec, err := readRecord(dir)
	if errors.Is(err, fs.ErrNotExist) {
		if r == nil || s.bases[r.chain] == nil {
			return nil, status.Errorf(codes.NotFound, "image %q not found", imageID)
		}
		rec = layerRecord{Chain: r.chain, ReadOnly: readOnly}
		plain := !readOnly && ids.Empty()
		want := kind{rec.Chain, points}
		if err = nil; !plain || !s.takeSpare(want, key) {
			err = makeLayer(dir, rec, s.bases[r.chain].lower[0], ids)
		}
		if plain && err == nil {
			s.wantSpare(want)
		}
		if err == nil {
			err = s.hold(ctx, rec.Chain, "layer/"+key)
		}
	}
	if err != nil {
		return nil, status.Errorf(codes.Internal, "prepare layer %s: %v", key, err)
	}
	b := s.bases[rec.Chain]
	if b == nil {
		return nil, status.Errorf(codes.Internal, "layer %s stands on %s, which is gone", key, rec.Chain)
	}
	lower, err := s.lowerOption(b.lower, optionPage-2*len(dir))
	if err != nil {
		return nil, status.Errorf(codes.Internal, "prepare layer %s: %v", key, err)
	}
	return mounts(dir, lower, len(b.lower), rec.ReadOnly, ids), nil
}

func mounts(dir, lower string, layers int, readOnly bool, ids native.IDMap) []mount.Mount {
	if readOnly && layers == 1 {
		return []mount.Mount{{Type: "bind", Source: lower, Options: []string{"ro", "rbind"}}}
	}
	m := mount.Mount{Type: "overlay", Source: "overlay", Options: []string{"lowerdir=" + lower}}
	if indexParameter() {
		// Layers are shared between mounts, which the inode index forbids.
		m.Options = append(m.Options, "index=off")
	}
	if readOnly {
		m.Options = append(m.Options, "ro")
	} else {
		// The layer ends with its container, and at the latest with the machine: it is not used after a power failure.
		// Without "volatile", the end of each container would write all that the host's file system has in memory.
		m.Options = append(m.Options, "volatile", "upperdir="+filepath.Join(dir, "fs"),
			"workdir="+filepath.Join(dir, "work"))
	}
	// containerd's convention: the caller that mounts first maps the lower directories to these
	// IDs.
	if !ids.Empty() {
		m.Options = append(m.Options, "uidmap="+formatIDs(ids.UIDs), "gidmap="+formatIDs(ids.GIDs))
	}
	return []mount.Mount{m}
}

func formatIDs(maps []*cri.IDMapping) string {
	var parts []string
	for _, m := range maps {
		parts = append(parts, fmt.Sprintf("%d:%d:%d", m.ContainerId, m.HostId, m.Length))
	}
	return strings.Join(parts, ",")
}

// rootID is the host's id of the map's root.
func rootID(maps []*cri.IDMapping) int {
	for _, m := range maps {
		if m.ContainerId == 0 {
			return int(m.HostId)
		}
	}
	return 0
}

// makeLayer creates the directories elsewhere and renames them into place, so that a layer is
// complete or absent. Its root has the mode and owner of the layer below.
func makeLayer(dir string, rec layerRecord, below string, ids native.IDMap) error {
	tmp, err := newLayer(filepath.Dir(dir), rec, below, ids)
	if err != nil {
		return err
	}
	if err := os.Rename(tmp, dir); err != nil {
		_ = os.RemoveAll(tmp)
		return err
	}
	return nil
}

// newLayer makes the directories of a layer, under an unused name below parent.
func newLayer(parent string, rec layerRecord, below string, ids native.IDMap) (string, error) {
	tmp := filepath.Join(parent, ".new-"+rand.Text())
	if err := os.Mkdir(tmp, 0o700); err != nil {
		return "", err
	}
	fail := func(err error) (string, error) {
		_ = os.RemoveAll(tmp)
		return "", err
	}
	if !rec.ReadOnly {
		var st syscall.Stat_t
		if err := syscall.Stat(below, &st); err != nil {
			return fail(err)
		}
		upper, work := filepath.Join(tmp, "fs"), filepath.Join(tmp, "work")
		if err := errors.Join(os.Mkdir(upper, 0o755), os.Mkdir(work, 0o711)); err != nil {
			return fail(err)
		}
		if err := os.Chmod(upper, fs.FileMode(st.Mode&0o777)); err != nil {
			return fail(err)
		}
		uid, gid := int(st.Uid), int(st.Gid)
		if !ids.Empty() {
			uid, gid = rootID(ids.UIDs), rootID(ids.GIDs)
			// The container's root user must reach its own upper directory.
			if err := os.Chmod(tmp, 0o711); err != nil {
				return fail(err)
			}
		}
		if err := os.Chown(upper, uid, gid); err != nil {
			return fail(err)
		}
	}
	body, err := json.Marshal(rec)
	if err != nil {
		return fail(err)
	}
	if err := os.WriteFile(filepath.Join(tmp, recordFile), body, 0o600); err != nil {
		return fail(err)
	}
	return tmp, nil
}

// lowerOption joins the layers; short links replace paths that are too long together for mount(2).
func (s *Store) lowerOption(dirs []string, limit int) (string, error) {
	joined := strings.Join(dirs, ":")
	if len(joined) <= limit {
		return joined, nil
	}
	links := filepath.Join(s.cfg.Root, "l")
	if err := os.MkdirAll(links, 0o700); err != nil {
		return "", err
	}
	short := make([]string, len(dirs))
	for i, d := range dirs {
		// …/snapshots/17/fs: the number is unique in the store and never used twice.
		short[i] = filepath.Join(links, filepath.Base(filepath.Dir(d)))
		if err := os.Symlink(d, short[i]); err != nil && !errors.Is(err, fs.ErrExist) {
			return "", err
		}
	}
	joined = strings.Join(short, ":")
	// Who mounts them makes the paths relative to the store's directory when they do not fit.
	if n := len(joined) - len(dirs)*(len(s.cfg.Root)+1); n > relativeLimit {
		return "", fmt.Errorf("%d layers are too many: their names take %d bytes, and one mount at most %d", len(dirs), n,
			relativeLimit)
	}
	return joined, nil
}

func (s *Store) layerDir(key string) string { return filepath.Join(s.cfg.Root, "rw", key) }

func readRecord(dir string) (layerRecord, error) {
	var rec layerRecord
	body, err := os.ReadFile(filepath.Join(dir, recordFile))
	if err != nil {
		return rec, err
	}
	return rec, json.Unmarshal(body, &rec)
}

// Release implements native.Images: it removes the layer's files; nothing may have them mounted.
func (s *Store) Release(ctx context.Context, key string) error {
	if key == "" || strings.ContainsAny(key, "/\x00") || strings.HasPrefix(key, ".") {
		return nil
	}
	ctx = inNamespace(ctx)
	dir := s.layerDir(key)
	gone := filepath.Join(filepath.Dir(dir), ".gone-"+rand.Text())
	s.mu.Lock()
	s.dropMount(key)
	err := os.Rename(dir, gone)
	unused := false
	if err == nil {
		// Checked by its users, not by its record, which is lost after a power failure before it was on the disk.
		for chain, b := range s.bases {
			if b.users["layer/"+key] {
				err = s.unhold(ctx, chain, "layer/"+key)
				unused = s.bases[chain] == nil
				break // a layer stands on one chain
			}
		}
	}
	s.mu.Unlock()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return status.Errorf(codes.Internal, "release layer %s: %v", key, err)
	}
	if err := s.leftovers.tree(ctx, gone); ctx.Err() != nil {
		s.leftovers.remove(gone)
		return rpcError(ctx.Err())
	} else if err != nil {
		return status.Errorf(codes.Internal, "remove files of layer %s: %v", key, err)
	}
	if unused {
		return rpcError(s.collect(ctx))
	}
	return nil
}

// Usage implements native.Images: what the container wrote, in allocated bytes.
func (s *Store) Usage(ctx context.Context, key string) (native.Usage, error) {
	u, err := diskusage.Of(ctx, filepath.Join(s.layerDir(key), "fs"))
	if errors.Is(err, fs.ErrNotExist) {
		return native.Usage{}, status.Errorf(codes.NotFound, "layer %q not found", key)
	}
	if err != nil {
		return native.Usage{}, status.Errorf(codes.Internal, "measure layer %s: %v", key, err)
	}
	return native.Usage{Bytes: u.Bytes, Inodes: u.Inodes}, nil
}

// Layers lists the keys of all writable and viewed layers.
func (s *Store) Layers() ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(s.cfg.Root, "rw"))
	if err != nil {
		return nil, fmt.Errorf("list container layers: %w", err)
	}
	var keys []string
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") {
			keys = append(keys, e.Name())
		}
	}
	return keys, nil
}

// loadRW loads the layers of running containers. It returns the directories of those that an earlier process left
// unfinished or half removed.
func (s *Store) loadRW(ctx context.Context) (left []string, _ error) {
	entries, err := os.ReadDir(filepath.Join(s.cfg.Root, "rw"))
	if err != nil {
		return nil, fmt.Errorf("list container layers: %w", err)
	}
	for _, e := range entries {
		dir := s.layerDir(e.Name())
		if strings.HasPrefix(e.Name(), ".") {
			left = append(left, dir)
			continue
		}
		rec, err := readRecord(dir)
		if err == nil {
			err = s.hold(ctx, rec.Chain, "layer/"+e.Name())
		}
		if err != nil {
			klog.FromContext(ctx).Error(err, "Layer of a container is damaged", "layer", e.Name())
		}
	}
	return left, nil
}

func indexParameter() bool {
	_, err := os.Stat("/sys/module/overlay/parameters/index")
	return err == nil
}
