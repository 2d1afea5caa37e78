package images

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/base/errkind"
	"carob/internal/runtime/native"
)

func openStore(t testing.TB, cfg Config) *Store {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("unpacking layers needs root")
	}
	if cfg.Root == "" {
		cfg.Root = t.TempDir()
	}
	s, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// layerOf is a layer with the given files.
func layerOf(t testing.TB, files map[string]string) v1.Layer {
	t.Helper()
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for _, p := range slices.Sorted(func(yield func(string) bool) {
		for p := range files {
			if !yield(p) {
				return
			}
		}
	}) {
		h := &tar.Header{Name: p, Mode: 0o644, Size: int64(len(files[p])), Typeflag: tar.TypeReg}
		if strings.HasSuffix(p, "/") {
			h.Typeflag, h.Mode, h.Size = tar.TypeDir, 0o755, 0
		}
		if err := tw.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := io.WriteString(tw, files[p]); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(buf.Bytes())), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// imageOf is an image for this machine with one layer for each set of files.
func imageOf(t testing.TB, user string, layers ...map[string]string) v1.Image {
	t.Helper()
	im := empty.Image
	for _, files := range layers {
		var err error
		if im, err = mutate.AppendLayers(im, layerOf(t, files)); err != nil {
			t.Fatal(err)
		}
	}
	c, err := im.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	c = c.DeepCopy()
	c.OS, c.Architecture, _ = strings.Cut(hostPlatform(), "/")
	c.Config.User, c.Config.Cmd = user, []string{"/bin/true"}
	if im, err = mutate.ConfigFile(im, c); err != nil {
		t.Fatal(err)
	}
	return im
}

func dockerArchive(t testing.TB, im v1.Image, refs ...string) []byte {
	t.Helper()
	images := map[name.Tag]v1.Image{}
	for _, ref := range refs {
		tag, err := name.NewTag(ref)
		if err != nil {
			t.Fatal(err)
		}
		images[tag] = im
	}
	var buf bytes.Buffer
	if err := tarball.MultiWrite(images, &buf); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func ociArchive(t testing.TB, im v1.Image, ref string) []byte {
	t.Helper()
	dir := t.TempDir()
	p, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	annotations := map[string]string{}
	if ref != "" {
		annotations["io.containerd.image.name"] = ref
	}
	if err := p.AppendImage(im, layout.WithAnnotations(annotations)); err != nil {
		t.Fatal(err)
	}
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	if err := tw.AddFS(os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func mustImport(t testing.TB, s *Store, archive []byte) []string {
	t.Helper()
	names, err := s.Import(t.Context(), bytes.NewReader(archive), nil)
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func imageStatus(t *testing.T, s *Store, ref string) *cri.Image {
	t.Helper()
	resp, err := s.ImageStatus(t.Context(), &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: ref}})
	if err != nil {
		t.Fatal(err)
	}
	return resp.Image
}

func remove(t *testing.T, s *Store, ref string) {
	t.Helper()
	if _, err := s.RemoveImage(t.Context(), &cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: ref}}); err != nil {
		t.Fatal(err)
	}
}

// mounted shows the mounts below a temporary directory.
func mounted(t *testing.T, s *Store, key, id string, readOnly bool) string {
	t.Helper()
	f := s.View
	if !readOnly {
		f = func(ctx context.Context, key, id string) (_ []mountT, err error) {
			return s.Prepare(ctx, key, id, native.IDMap{}, nil)
		}
	}
	ms, err := f(t.Context(), key, id)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Unmounted(key); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, m := range ms {
		if err := m.Mount(dir); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

func TestNamesOfImports(t *testing.T) {
	im := imageOf(t, "1000:1000", map[string]string{"etc/": "", "etc/greeting": "hello"})
	for _, c := range []struct {
		name    string
		archive []byte
		want    []string // empty: the id
	}{
		{"docker archive with a short name", dockerArchive(t, im, "busybox"),
			[]string{"docker.io/library/busybox:latest"}},
		{"docker archive with a registry", dockerArchive(t, im, "harbor.example/public/app:v1"),
			[]string{"harbor.example/public/app:v1"}},
		{"OCI archive", ociArchive(t, im, "docker.io/library/nginx:1.27"), []string{"docker.io/library/nginx:1.27"}},
		{"OCI archive without a name", ociArchive(t, im, ""), nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := openStore(t, Config{})
			got := mustImport(t, s, c.archive)
			all, err := s.ListImages(t.Context(), &cri.ListImagesRequest{})
			if err != nil || len(all.Images) != 1 {
				t.Fatalf("images: %v, %v", all, err)
			}
			want := c.want
			if want == nil {
				want = []string{all.Images[0].Id}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("names (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.want, all.Images[0].RepoTags); diff != "" {
				t.Errorf("tags (-want +got):\n%s", diff)
			}
			if uid := all.Images[0].GetUid().GetValue(); uid != 1000 {
				t.Errorf("uid %d", uid)
			}
		})
	}
}

func TestLookup(t *testing.T) {
	s := openStore(t, Config{})
	im := imageOf(t, "", map[string]string{"a": "a"})
	mustImport(t, s, dockerArchive(t, im, "busybox:1.36", "busybox:latest"))
	id := imageStatus(t, s, "busybox").Id
	for _, ref := range []string{"busybox", "busybox:1.36", "library/busybox", "docker.io/library/busybox:latest", id,
		strings.TrimPrefix(id, "sha256:"), id[7:19]} {
		got := imageStatus(t, s, ref)
		if got == nil || got.Id != id {
			t.Errorf("%s: found %v", ref, got)
		}
		if !got.GetPinned() {
			t.Errorf("%s: not pinned", ref)
		}
	}
	for _, ref := range []string{"busybox:1.37", "nginx", "sha256:" + strings.Repeat("0", 64), "BAD NAME"} {
		if got := imageStatus(t, s, ref); got != nil {
			t.Errorf("%s: found %v", ref, got)
		}
	}
	if _, err := s.Resolve(t.Context(), "nginx"); status.Code(err) != codes.NotFound {
		t.Errorf("resolve: %v", err)
	}
}

// An imported image stays when the disk is full, because no registry has it: across a restart, and
// until a pull replaces its name.
func TestImportedImagesArePinned(t *testing.T) {
	root := t.TempDir()
	s := openStore(t, Config{Root: root})
	im := imageOf(t, "", map[string]string{"a": "a"})
	reg := startRegistry(t, "anna", "secret", nil)
	reg.push(t, "team/app:v1", im, "anna", "secret")
	name := reg.host + "/team/app:v1"
	mustImport(t, s, dockerArchive(t, im, name))
	if !imageStatus(t, s, name).Pinned {
		t.Error("imported and not pinned")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, Config{Root: root})
	if !imageStatus(t, s, name).Pinned {
		t.Error("not pinned after a restart")
	}
	auth := &cri.AuthConfig{Username: "anna", Password: "secret"}
	if _, err := s.PullImage(t.Context(),
		&cri.PullImageRequest{Image: &cri.ImageSpec{Image: name}, Auth: auth}); err != nil {
		t.Fatal(err)
	}
	if imageStatus(t, s, name).Pinned {
		t.Error("pinned though a registry has it")
	}
}

func TestTagMovesToNewImage(t *testing.T) {
	s := openStore(t, Config{})
	mustImport(t, s, dockerArchive(t, imageOf(t, "", map[string]string{"v": "1"}), "app:v1"))
	old := imageStatus(t, s, "app:v1").Id
	mustImport(t, s, dockerArchive(t, imageOf(t, "", map[string]string{"v": "2"}), "app:v1"))
	if now := imageStatus(t, s, "app:v1").Id; now == old {
		t.Error("the tag still names the old image")
	}
	if got := imageStatus(t, s, old); got != nil {
		t.Errorf("the old image has no name any more and is still there: %v", got)
	}
}

// A name is taken from an image that has another one; only RemoveImage takes the last one, after a restart, too.
func TestUntag(t *testing.T) {
	root := t.TempDir()
	s := openStore(t, Config{Root: root})
	mustImport(t, s, dockerArchive(t, imageOf(t, "", map[string]string{"one": "1"}), "app:v1"))
	id := imageStatus(t, s, "app:v1").Id
	for _, name := range []string{"app:v2", "localhost:5000/other"} {
		if _, err := s.Tag(t.Context(), "app:v1", name); err != nil {
			t.Fatal(err)
		}
	}
	untag := func(ref string, want bool) {
		t.Helper()
		if done, err := s.Untag(t.Context(), ref); err != nil || done != want {
			t.Errorf("untag %s: %v, %v", ref, done, err)
		}
	}
	untag(id, false)
	untag("nosuch", false)
	untag("app@"+imageStatus(t, s, id).Id, false)
	untag("app:v1", true)
	untag("app:v1", false)
	untag("docker.io/library/app:v2", true)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, Config{Root: root})
	if im := imageStatus(t, s, id); im == nil || !slices.Equal(im.RepoTags, []string{"localhost:5000/other:latest"}) ||
		!im.Pinned {
		t.Errorf("the image has lost more than two names: %v", im)
	}
	dir := mounted(t, s, "c1", id, true)
	if got, err := os.ReadFile(filepath.Join(dir, "one")); err != nil || string(got) != "1" {
		t.Errorf("a file of the image: %q, %v", got, err)
	}
	untag("localhost:5000/other", false)
	if imageStatus(t, s, id) == nil {
		t.Error("the last name was removed")
	}
}

func TestLayersOfContainers(t *testing.T) {
	s := openStore(t, Config{})
	mustImport(t, s,
		dockerArchive(t, imageOf(t, "", map[string]string{"etc/": "", "etc/one": "1"},
			map[string]string{"etc/two": "2"}), "app"))
	id := imageStatus(t, s, "app").Id

	first := mounted(t, s, "c1", id, false)
	if err := os.WriteFile(filepath.Join(first, "etc/one"), bytes.Repeat([]byte("x"), 100_000), 0o644); err != nil {
		t.Fatal(err)
	}
	second := mounted(t, s, "c2", id, false)
	for p, want := range map[string]string{"etc/one": "1", "etc/two": "2"} {
		if got, err := os.ReadFile(filepath.Join(second, p)); err != nil || string(got) != want {
			t.Errorf("%s in another container: %q, %v", p, got, err)
		}
	}
	if u, err := s.Usage(t.Context(), "c1"); err != nil || u.Bytes < 100_000 || u.Inodes < 3 {
		t.Errorf("usage %+v, %v", u, err)
	}
	if u, err := s.Usage(t.Context(), "c2"); err != nil || u.Bytes > 20_000 {
		t.Errorf("usage of an untouched layer %+v, %v", u, err)
	}
	view := mounted(t, s, "v1", id, true)
	if err := os.WriteFile(filepath.Join(view, "etc/new"), nil, 0o644); !errors.Is(err, unix.EROFS) {
		t.Errorf("write to a view: %v", err)
	}
	// The same key is the same layer.
	again := mounted(t, s, "c1", id, false)
	if got, err := os.ReadFile(filepath.Join(again, "etc/one")); err != nil || len(got) != 100_000 {
		t.Errorf("prepared again: %d bytes, %v", len(got), err)
	}
	for _, key := range []string{"", "../x", ".hidden"} {
		if _, err := s.Prepare(t.Context(), key, id, native.IDMap{}, nil); status.Code(err) != codes.InvalidArgument {
			t.Errorf("key %q: %v", key, err)
		}
	}
	if _, err := s.Prepare(t.Context(), "c3", "nothing", native.IDMap{}, nil); status.Code(err) != codes.NotFound {
		t.Errorf("unknown image: %v", err)
	}
}

// The power can go before a layer's record is on the disk: the layer can still be removed, and its image too.
func TestLayerWithoutRecord(t *testing.T) {
	for name, damage := range map[string]func(record string) error{
		"empty": func(record string) error { return os.Truncate(record, 0) },
		"lost":  os.Remove,
	} {
		root := t.TempDir()
		s := openStore(t, Config{Root: root})
		mustImport(t, s, dockerArchive(t, imageOf(t, "", map[string]string{"one": "1"}), "app"))
		id := imageStatus(t, s, "app").Id
		if _, err := s.Prepare(t.Context(), "c1", id, native.IDMap{}, nil); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if err := damage(filepath.Join(root, "rw/c1", recordFile)); err != nil {
			t.Fatal(err)
		}
		s = openStore(t, Config{Root: root})
		if err := s.Release(t.Context(), "c1"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if keys, err := s.Layers(); err != nil || len(keys) > 0 {
			t.Errorf("%s: layers %q are left, %v", name, keys, err)
		}
		if err := s.Release(t.Context(), "c1"); err != nil {
			t.Errorf("%s, again: %v", name, err)
		}
		mounted(t, s, "c2", id, false)
	}
}

// An image may be removed while containers run from it; its files stay until the last one is
// removed.
func TestRemoveWhileInUse(t *testing.T) {
	root := t.TempDir()
	s := openStore(t, Config{Root: root})
	mustImport(t, s, dockerArchive(t, imageOf(t, "", map[string]string{"one": "1"}), "app"))
	id := imageStatus(t, s, "app").Id
	dir := mounted(t, s, "c1", id, false)
	remove(t, s, "app")
	remove(t, s, "app")
	if imageStatus(t, s, id) != nil {
		t.Error("a removed image is still listed")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, Config{Root: root})
	if got, err := os.ReadFile(filepath.Join(dir, "one")); err != nil || string(got) != "1" {
		t.Errorf("file of a running container: %q, %v", got, err)
	}
	if _, err := s.Prepare(t.Context(), "c1", id, native.IDMap{}, nil); err != nil {
		t.Errorf("layer after a restart: %v", err)
	}
	if err := unix.Unmount(dir, 0); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.Release(t.Context(), "c1"); err != nil {
			t.Fatal(err)
		}
	}
	expectEmpty(t, s)
}

// expectEmpty fails if content, layers, or directories are left.
func expectEmpty(t *testing.T, s *Store) {
	t.Helper()
	s.leftovers.done.Wait()
	for _, pattern := range []string{"content/blobs/sha256/*", "content/ingest/*", "overlay/snapshots/*", "rw/*",
		"rw/.*"} {
		left, err := filepath.Glob(filepath.Join(s.cfg.Root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		if len(left) > 0 {
			t.Errorf("left: %s", strings.Join(left, " "))
		}
	}
	info, err := s.ImageFsInfo(t.Context(), &cri.ImageFsInfoRequest{})
	if err != nil || info.ImageFilesystems[0].UsedBytes.Value != 0 {
		t.Errorf("used: %v, %v", info, err)
	}
}

func TestImportsThatFailLeaveNothing(t *testing.T) {
	good := dockerArchive(t, imageOf(t, "", map[string]string{"one": strings.Repeat("1", 10_000)}), "app")
	foreign := imageOf(t, "", map[string]string{"one": "1"})
	c, err := foreign.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	c = c.DeepCopy()
	c.Architecture = "s390x"
	if foreign, err = mutate.ConfigFile(foreign, c); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name    string
		archive []byte
		message string
	}{
		{"empty", nil, "empty"},
		{"no archive", bytes.Repeat([]byte("hello, this is not a tar file at all"), 50), "not an OCI or Docker archive"},
		{"a short text", []byte("hello, this is not a tar file at all"), "failed to import"},
		{"cut off", good[:len(good)/2+100], "failed to import"},
		{"other architecture", dockerArchive(t, foreign, "app"), "no image for linux"},
		{"huge manifest", paddedArchive(2*maxDocument, 0), "more than the 4.0 MiB"},
		{"huge configuration", paddedArchive(0, 2*maxDocument), "more than the 4.0 MiB"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := openStore(t, Config{})
			_, err := s.Import(t.Context(), bytes.NewReader(tc.archive), nil)
			if status.Code(err) != codes.InvalidArgument || !strings.Contains(fmt.Sprint(err), tc.message) {
				t.Errorf("got %v, want a message with %q", err, tc.message)
			}
			expectEmpty(t, s)
		})
	}
}

// paddedArchive is a small image whose manifest or configuration contains so much text, in a manifest that does not
// admit it.
func paddedArchive(manifest, config int) []byte {
	layer := archiveOf(file("one", "1"))
	c := imagespec.Image{Author: strings.Repeat("c", config),
		RootFS: imagespec.RootFS{Type: "layers", DiffIDs: []digest.Digest{digest.FromBytes(layer)}}}
	c.OS, c.Architecture, _ = strings.Cut(hostPlatform(), "/")
	entries := []entry{file("oci-layout", `{"imageLayoutVersion":"1.0.0"}`)}
	blob := func(mediaType string, body []byte) imagespec.Descriptor {
		d := digest.FromBytes(body)
		entries = append(entries, file("blobs/sha256/"+d.Encoded(), string(body)))
		return imagespec.Descriptor{MediaType: mediaType, Digest: d, Size: min(int64(len(body)), 1000)}
	}
	m := imagespec.Manifest{MediaType: imagespec.MediaTypeImageManifest,
		Annotations: map[string]string{"pad": strings.Repeat("m", manifest)}}
	m.SchemaVersion = 2
	m.Config = blob(imagespec.MediaTypeImageConfig, marshal(c))
	m.Layers = []imagespec.Descriptor{blob(imagespec.MediaTypeImageLayer, layer)}
	index := imagespec.Index{Manifests: []imagespec.Descriptor{blob(imagespec.MediaTypeImageManifest, marshal(m))}}
	index.SchemaVersion = 2
	return archiveOf(append(entries, file("index.json", string(marshal(index))))...)
}

// A process killed during an import or pull leaves a lease; the next one removes it.
func TestLeftoversOfKilledProcess(t *testing.T) {
	root := t.TempDir()
	s := openStore(t, Config{Root: root})
	ctx, _, err := s.lease(inNamespace(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	im := imageOf(t, "", map[string]string{"one": "1"})
	target := importContent(t, ctx, s, dockerArchive(t, im, "app"))
	if err := s.unpack(ctx, target, s.children()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.view(ctx, mustRead(t, ctx, s, target).chain); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(root, "rw", ".new-1", "fs"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	expectEmpty(t, openStore(t, Config{Root: root}))
}

func TestDamagedImageIsForgotten(t *testing.T) {
	root := t.TempDir()
	s := openStore(t, Config{Root: root})
	mustImport(t, s, dockerArchive(t, imageOf(t, "", map[string]string{"one": "1"}), "app"))
	id := imageStatus(t, s, "app").Id
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(root, "content/blobs/sha256", strings.TrimPrefix(id, "sha256:"))); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, Config{Root: root})
	if got := imageStatus(t, s, "app"); got != nil {
		t.Errorf("an image without its configuration is listed: %v", got)
	}
	mustImport(t, s, dockerArchive(t, imageOf(t, "", map[string]string{"one": "1"}), "app"))
	mounted(t, s, "c1", id, false)
}

// TestUnreadableImageIsKept: an image that cannot be read this time is not forgotten.
func TestUnreadableImageIsKept(t *testing.T) {
	root := t.TempDir()
	s := openStore(t, Config{Root: root})
	mustImport(t, s, dockerArchive(t, imageOf(t, "", map[string]string{"one": "1"}), "app"))
	blob := filepath.Join(root, "content/blobs/sha256", strings.TrimPrefix(imageStatus(t, s, "app").Id, "sha256:"))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Rename(blob, blob+".away"), os.Mkdir(blob, 0o700)); err != nil {
		// EISDIR instead of a dead disk's EIO
		t.Fatal(err)
	}
	s = openStore(t, Config{Root: root})
	if got := imageStatus(t, s, "app"); got != nil {
		t.Errorf("an image that can't be read is listed: %v", got)
	}
	if err := errors.Join(s.Close(), os.Remove(blob), os.Rename(blob+".away", blob)); err != nil {
		t.Fatal(err)
	}
	mounted(t, openStore(t, Config{Root: root}), "c1", "app", false)
}

func TestSecondProcessIsRefused(t *testing.T) {
	root := t.TempDir()
	openStore(t, Config{Root: root})
	if _, err := Open(t.Context(), Config{Root: root}); !errkind.Is(err, errkind.InUse) {
		t.Errorf("got %v", err)
	}
}

func TestConcurrentUse(t *testing.T) {
	reg := startRegistry(t, "", "", nil)
	for i := range 4 {
		reg.push(t, fmt.Sprintf("app:%d", i),
			imageOf(t, "", map[string]string{"shared": strings.Repeat("s", 1000)},
				map[string]string{"own": fmt.Sprint(i)}), "", "")
	}
	s := openStore(t, Config{})
	g, ctx := errgroup.WithContext(t.Context())
	for i := range 16 {
		g.Go(func() error {
			id, err := s.Pull(ctx, fmt.Sprintf("%s/app:%d", reg.host, i%4), nil, nil)
			if err != nil {
				return err
			}
			key := fmt.Sprint("c", i)
			if _, err := s.Prepare(ctx, key, id, native.IDMap{}, nil); err != nil {
				return err
			}
			if i%2 == 0 {
				return nil
			}
			return s.Release(ctx, key)
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		remove(t, s, fmt.Sprintf("%s/app:%d", reg.host, i))
	}
	for i := 0; i < 16; i += 2 {
		if err := s.Release(t.Context(), fmt.Sprint("c", i)); err != nil {
			t.Fatal(err)
		}
	}
	expectEmpty(t, s)
}

// What is left of a container and cannot be removed, such as immutable files, keeps neither the store from opening nor
// other containers from starting and ending.
func TestLeftOverThatStays(t *testing.T) {
	root := t.TempDir()
	s := openStore(t, Config{Root: root})
	id := mustImport(t, s, dockerArchive(t, imageOf(t, "", map[string]string{"one": "1"}), "app"))[0]
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	var files []*os.File
	for _, name := range []string{".gone-1", ".new-1"} {
		dir := filepath.Join(root, "rw", name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		f, err := os.Create(filepath.Join(dir, "immutable"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, unix.STATX_ATTR_IMMUTABLE); err != nil {
			t.Skip("the file system has no immutable files:", err)
		}
		files = append(files, f)
		defer func() { _ = unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, 0) }()
	}
	s = openStore(t, Config{Root: root})
	if _, err := s.Prepare(t.Context(), "c", id, native.IDMap{}, nil); err != nil {
		t.Error(err)
	}
	if err := s.Release(t.Context(), "c"); err != nil {
		t.Error(err)
	}
	if keys, err := s.Layers(); err != nil || len(keys) > 0 {
		t.Errorf("layers %v, %v", keys, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, 0); err != nil {
			t.Fatal(err)
		}
	}
	openStore(t, Config{Root: root}).leftovers.done.Wait()
	if left, err := filepath.Glob(filepath.Join(root, "rw", ".*-1")); err != nil || len(left) > 0 {
		t.Errorf("left after they could be removed: %v, %v", left, err)
	}
}

// Names that are given while the index of images changes do not wait for ever.
func TestTagDuringChanges(t *testing.T) {
	s := openStore(t, Config{})
	name := mustImport(t, s, dockerArchive(t, imageOf(t, "", map[string]string{"one": "1"}), "app"))[0]
	stop, done := make(chan bool), make(chan bool)
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				s.mu.Lock()
				s.mu.Unlock() //nolint:staticcheck // a short change
			}
		}
	}()
	for range 200 {
		if _, err := s.Tag(t.Context(), name, "again:1"); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	<-done
}

// Chains that do not fit into the option page of mount(2) can still be mounted.
func TestManyLayers(t *testing.T) {
	var layers []map[string]string
	for i := range 40 {
		layers = append(layers, map[string]string{fmt.Sprint("f", i): "x"})
	}
	s := openStore(t, Config{Root: filepath.Join(t.TempDir(), strings.Repeat("d", 100))})
	mustImport(t, s, dockerArchive(t, imageOf(t, "", layers...), "deep"))
	dir := mounted(t, s, "c1", "deep", false)
	for _, f := range []string{"f0", "f39"} {
		if _, err := os.Stat(filepath.Join(dir, f)); err != nil {
			t.Error(err)
		}
	}
}
