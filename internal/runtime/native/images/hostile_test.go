package images

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	specs "github.com/opencontainers/image-spec/specs-go"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/runtime/native"
)

// TestLayersStayInside: no archive writes, links or removes anything outside of
// its layer.
func TestLayersStayInside(t *testing.T) {
	top := t.TempDir()
	outside := filepath.Join(top, "outside")
	if err := os.MkdirAll(filepath.Join(outside, "dir"), 0o755); err != nil {
		t.Fatal(err)
	}
	canary := filepath.Join(outside, "canary")
	if err := os.WriteFile(canary, []byte("alive"), 0o600); err != nil {
		t.Fatal(err)
	}
	up := strings.Repeat("../", 30)
	for i, c := range []struct {
		name   string
		layers [][]entry
		fails  string // part of the message; empty if the image is fine and wrote only inside
		inside string // a file that must be in the image
	}{
		{"dots in a name", [][]entry{{file(up+canary, "dead")}}, "", canary},
		{"absolute name", [][]entry{{file(canary, "dead")}}, "", canary},
		{"dots in the middle", [][]entry{{file("a/b/"+up+canary, "dead")}}, "", canary},
		{"through an absolute link", [][]entry{{link(tar.TypeSymlink, "d", outside), file("d/canary", "dead")}}, "",
			""},
		{"through a relative link", [][]entry{{link(tar.TypeSymlink, "d", up+outside), file("d/canary", "dead")}}, "",
			""},
		{"through a chain of links",
			[][]entry{{link(tar.TypeSymlink, "a", "b"), link(tar.TypeSymlink, "b", "/c/.."+outside),
				file("a/canary", "dead")}}, "", ""},
		{"the file itself is a link", [][]entry{{link(tar.TypeSymlink, "f", canary), file("f", "dead")}}, "", "f"},
		{"a link loop",
			[][]entry{{link(tar.TypeSymlink, "a", "b"), link(tar.TypeSymlink, "b", "a"), file("a/f", "dead")}},
			"too many links", ""},
		{"link of an earlier layer", [][]entry{{link(tar.TypeSymlink, "d", outside)}, {file("d/canary", "dead")}}, "",
			""},
		{"hard link to an absolute name", [][]entry{{link(tar.TypeLink, "f", canary)}}, "no such file", ""},
		{"hard link with dots", [][]entry{{link(tar.TypeLink, "f", up+canary)}}, "no such file", ""},
		{"hard link through a link",
			[][]entry{{link(tar.TypeSymlink, "d", outside), link(tar.TypeLink, "f", "d/canary")}}, "no such file", ""},
		{"hard link to a link and then written",
			[][]entry{{link(tar.TypeSymlink, "s", canary), link(tar.TypeLink, "f", "s"), file("f", "dead")}}, "", "f"},
		{"removal of what is above", [][]entry{{file("a", "")}, {file(".wh...", "")}}, "invalid whiteout", ""},
		{"removal of itself", [][]entry{{file("a", "")}, {file("a/.wh..", "")}}, "invalid whiteout", ""},
		{"removal with dots", [][]entry{{file("a", "")}, {file(up+outside+"/.wh.canary", "")}}, "", ""},
		{"removal through a link",
			[][]entry{{file("a", "")}, {link(tar.TypeSymlink, "d", outside), file("d/.wh.canary", "")}}, "", ""},
		{"removal in the lowest layer through a link",
			[][]entry{{link(tar.TypeSymlink, "d", outside), file("d/.wh.canary", "")}}, "", ""},
		{"emptying through a link",
			[][]entry{{file("a", "")}, {link(tar.TypeSymlink, "d", outside), file("d/.wh..wh..opq", "")}}, "", ""},
		{"emptying in the lowest layer through a link",
			[][]entry{{link(tar.TypeSymlink, "d", outside), file("d/x", ""), file("d/.wh..wh..opq", "")}}, "", ""},
		{"a directory where a link is",
			[][]entry{{link(tar.TypeSymlink, "d", outside+"/dir"),
				{tar.Header{Name: "d", Typeflag: tar.TypeDir, Mode: 0o700}, ""}}}, "", ""},
		{"a name that is too long", [][]entry{{file(strings.Repeat("n", 300), "")}}, "file name too long", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			reg := newRawRegistry(t)
			var archives [][]byte
			for _, l := range c.layers {
				archives = append(archives, archiveOf(l...))
			}
			s := openStore(t, Config{Root: filepath.Join(top, fmt.Sprint("store", i))})
			id, err := s.Pull(t.Context(), reg.image(archives), nil, nil)
			switch {
			case c.fails != "" && (err == nil || !strings.Contains(err.Error(), c.fails)):
				t.Errorf("got %v, want %q", err, c.fails)
			case c.fails == "" && err != nil:
				t.Error(err)
			case err != nil:
				expectEmpty(t, s)
			default:
				root := mounted(t, s, "c", id, false)
				if c.inside != "" {
					if _, err := os.Lstat(filepath.Join(root, c.inside)); err != nil {
						t.Error(err)
					}
				}
			}
			var names []string
			_ = filepath.WalkDir(outside, func(p string, d os.DirEntry, err error) error {
				names = append(names, fmt.Sprint(strings.TrimPrefix(p, outside), d.Type(), err))
				return nil
			})
			var st unix.Stat_t
			if got, err := os.ReadFile(canary); err != nil || string(got) != "alive" || unix.Stat(canary, &st) != nil ||
				st.Nlink != 1 || st.Mode&0o777 != 0o600 {
				t.Errorf("the file outside is %q with %d links, mode %o: %v", got, st.Nlink, st.Mode, err)
			}
			if want := []string{"d--------- <nil>", "/canary---------- <nil>",
				"/dird--------- <nil>"}; !slices.Equal(names, want) {
				t.Errorf("outside there is %q", names)
			}
		})
	}
}

// TestSpecialFiles: special files of images are kept where only root can reach them.
func TestSpecialFiles(t *testing.T) {
	reg := newRawRegistry(t)
	// cap_net_bind_service+ep
	capability := "\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	ref := reg.image([][]byte{archiveOf(
		entry{tar.Header{Name: "su", Typeflag: tar.TypeReg, Mode: 0o4755, Uid: 0, Size: 2}, "su"},
		entry{tar.Header{Name: "ping", Typeflag: tar.TypeReg, Mode: 0o755, Format: tar.FormatPAX,
			PAXRecords: map[string]string{"SCHILY.xattr.security.capability": capability}}, ""},
		entry{tar.Header{Name: "mem", Typeflag: tar.TypeChar, Mode: 0o666, Devmajor: 1, Devminor: 1}, ""},
		entry{tar.Header{Name: "disk", Typeflag: tar.TypeBlock, Mode: 0o666, Devmajor: 8, Devminor: 0}, ""},
		entry{tar.Header{Name: "fifo", Typeflag: tar.TypeFifo, Mode: 0o666}, ""},
	), archiveOf(
		// Markers of the overlay itself can only point into the image's own layers.
		entry{tar.Header{Name: "moved", Typeflag: tar.TypeDir, Mode: 0o755, Format: tar.FormatPAX,
			PAXRecords: map[string]string{"SCHILY.xattr.trusted.overlay.redirect": "/../../../../etc"}}, ""},
	)})
	s := openStore(t, Config{Root: filepath.Join(t.TempDir(), "store")})
	id, err := s.Pull(t.Context(), ref, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	root := mounted(t, s, "c", id, false)
	for name, want := range map[string]uint32{"su": unix.S_IFREG | 0o4755, "mem": unix.S_IFCHR | 0o666,
		"disk": unix.S_IFBLK | 0o666, "fifo": unix.S_IFIFO | 0o666} {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(root, name), &st); err != nil || st.Mode != want {
			t.Errorf("%s: mode %o, want %o: %v", name, st.Mode, want, err)
		}
	}
	got := make([]byte, 64)
	if n, err := unix.Lgetxattr(filepath.Join(root, "ping"), "security.capability", got); err != nil || n == 0 {
		t.Errorf("capabilities of a file: %v", err)
	}
	if _, err := os.Lstat(filepath.Join(root, "moved/passwd")); err == nil {
		t.Error("a mark of the overlay leads to the host's files")
	}
	for _, dir := range []string{"rw", "overlay/snapshots", "content"} {
		// Users of the host cannot reach a set-user-ID program or device of an image.
		closed := false
		for p := filepath.Join(s.cfg.Root, dir); len(p) >= len(s.cfg.Root); p = filepath.Dir(p) {
			st, err := os.Stat(p)
			if err != nil {
				t.Fatal(err)
			}
			closed = closed || st.Mode().Perm()&0o007 == 0
		}
		if !closed {
			t.Errorf("%s is open to all users", dir)
		}
	}
}

// small is a file system for a store with little space.
func small(t *testing.T, size string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounts need root")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size+",nr_inodes=2000"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// sparse returns an archive with one file of the given size without data, in the old GNU form.
func sparse(size int64) []byte {
	var h [512]byte
	copy(h[:], "sparse")
	copy(h[100:], "0000644\x000000000\x000000000\x0000000000000\x0000000000000\x00")
	copy(h[257:], "ustar  \x00")
	h[156] = 'S'
	base256 := func(b []byte, n int64) {
		b[0] = 0x80
		for i := range 8 {
			b[len(b)-1-i] = byte(n >> (8 * i))
		}
	}
	base256(h[386:398], size) // one empty piece at the end
	base256(h[483:495], size)
	copy(h[148:], "        ")
	sum := 0
	for _, b := range h {
		sum += int(b)
	}
	copy(h[148:], fmt.Sprintf("%06o\x00 ", sum))
	return append(h[:], make([]byte, 1024)...)
}

// TestBombs: what would fill the disk is rejected before it does, with the reason, and leaves
// nothing.
func TestBombs(t *testing.T) {
	const tera = 1 << 40
	for name, archive := range map[string][]byte{
		"a large file": func() []byte {
			var b bytes.Buffer
			w := tar.NewWriter(&b)
			if err := w.WriteHeader(&tar.Header{Name: "zeros", Typeflag: tar.TypeReg, Size: tera}); err != nil {
				t.Fatal(err)
			}
			if _, err := w.Write(make([]byte, 1<<20)); err != nil {
				t.Fatal(err)
			}
			return b.Bytes()
		}(),
		"a sparse file": sparse(tera),
		"many files": func() []byte {
			var list []entry
			for i := range 40 {
				list = append(list, file(fmt.Sprint("f", i), strings.Repeat("x", 1<<20)))
			}
			return archiveOf(list...)
		}(),
		"many inodes": func() []byte {
			var list []entry
			for i := range 4000 {
				list = append(list, file(fmt.Sprint("f", i), ""))
			}
			return archiveOf(list...)
		}(),
		"a trailer": append(archiveOf(file("f", "")), make([]byte, 8<<20)...),
	} {
		t.Run(name, func(t *testing.T) {
			dir := small(t, "32m")
			s := openStore(t, Config{Root: filepath.Join(dir, "store")})
			reg := newRawRegistry(t)
			_, err := s.Pull(t.Context(), reg.image([][]byte{archive}), nil, nil)
			want, code := "no space in "+s.cfg.Root, codes.ResourceExhausted
			if name == "a trailer" {
				want, code = "after the end of its archive", codes.Unknown
			}
			if status.Code(err) != code || !strings.Contains(fmt.Sprint(err), want) {
				t.Errorf("got %v, want %v with %q", err, code, want)
			}
			expectEmpty(t, s)
			if _, err := s.Pull(t.Context(), reg.image([][]byte{archiveOf(file("f", "small"))}), nil, nil); err != nil {
				t.Errorf("an image that fits, afterwards: %v", err)
			}
		})
	}
	t.Run("a large download", func(t *testing.T) {
		s := openStore(t, Config{Root: filepath.Join(small(t, "32m"), "store")})
		reg := newRawRegistry(t)
		ref := reg.image([][]byte{archiveOf(file("f", ""))},
			func(_ *imagespec.Image, m *imagespec.Manifest) { m.Layers[0].Size = tera })
		if _, err := s.Pull(t.Context(), ref, nil, nil); status.Code(err) != codes.ResourceExhausted ||
			!strings.Contains(err.Error(), "1024.0 GiB more are needed") {
			t.Errorf("got %v", err)
		}
		expectEmpty(t, s)
	})
	t.Run("an archive to import", func(t *testing.T) {
		s := openStore(t, Config{Root: filepath.Join(small(t, "32m"), "store")})
		_, err := s.Import(t.Context(),
			io.MultiReader(bytes.NewReader(archiveOf(file("blobs/sha256/aa", ""))[:1024]), zeros{}), nil)
		if err == nil {
			t.Error("an endless archive was imported")
		}
		expectEmpty(t, s)
	})
}

// zstdFrame packs a small archive with zstd, with a window of 2^(10+exponent) bytes.
func zstdFrame(exponent byte, archive []byte) []byte {
	block := len(archive)<<3 | 1 // the last one, raw
	return append([]byte{0x28, 0xb5, 0x2f, 0xfd, 0, exponent << 3, byte(block), byte(block >> 8), byte(block >> 16)},
		archive...)
}

// TestLargeWindows: an archive does not choose how much memory it takes to unpack it.
func TestLargeWindows(t *testing.T) {
	const allowed, refused = 17, 18 // 128 MiB, 256 MiB
	for exponent, want := range map[byte]string{allowed: "", refused: "larger than the 128.0 MiB that are allowed"} {
		s, reg := openStore(t, Config{}), newRawRegistry(t)
		layer := archiveOf(file("f", "text"))
		ref := reg.image([][]byte{layer}, func(_ *imagespec.Image, m *imagespec.Manifest) {
			m.Layers[0] = reg.add(imagespec.MediaTypeImageLayerZstd, zstdFrame(exponent, layer))
		})
		if _, err := s.Pull(t.Context(), ref, nil, nil); (err == nil) != (want == "") ||
			!strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("pull, 2^%d: %v, want %q", 10+exponent, err, want)
		}
		s = openStore(t, Config{})
		if _, err := s.Import(t.Context(), bytes.NewReader(zstdFrame(exponent, paddedArchive(0, 0))), nil); (err ==
			nil) != (want == "") || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("import, 2^%d: %v, want %q", 10+exponent, err, want)
		}
	}
}

// zeros never ends.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// TestHostileRegistries: wrong answers end the pull with the reason and leave nothing.
func TestHostileRegistries(t *testing.T) {
	layer := archiveOf(file("f", "content"))
	random := make([]byte, 1<<20)
	for i := range random {
		random[i] = byte(rand.Int())
	}
	long := archiveOf(file("random", string(random)))
	endless := func(w http.ResponseWriter, req *http.Request, what string, head []byte) {
		w.Header().Set("Content-Type", imagespec.MediaTypeImageManifest)
		w.WriteHeader(http.StatusOK)
		for b := append(slices.Clone(head), make([]byte, 1<<20)...); req.Context().Err() == nil; {
			if _, err := w.Write(b); err != nil {
				return
			}
		}
	}
	manifest := func(f func(*imagespec.Image, *imagespec.Manifest)) func(*rawRegistry) string {
		return func(r *rawRegistry) string { return r.image([][]byte{layer}, f) }
	}
	for _, c := range []struct {
		name  string
		image func(*rawRegistry) string
		want  string
	}{
		{"another layer than was asked for", func(r *rawRegistry) string {
			ref := r.image([][]byte{layer})
			for d, b := range r.contents {
				if bytes.HasPrefix(b, []byte{0x1f, 0x8b}) {
					r.contents[d] = append(b[:len(b)-1:len(b)-1], b[len(b)-1]^1)
				}
			}
			return ref
		}, "unexpected commit digest"},
		{"a layer that always breaks off", func(r *rawRegistry) string {
			r.answer = func(w http.ResponseWriter, req *http.Request, _ string, body []byte) bool {
				if req.Method != http.MethodGet || len(body) < 1<<19 {
					return false
				}
				w.Header().Set("Content-Length", fmt.Sprint(len(body)))
				_, _ = w.Write(body[:len(body)/2])
				panic(http.ErrAbortHandler)
			}
			return r.image([][]byte{long})
		}, ""},
		{"a layer that is shorter than said",
			manifest(func(_ *imagespec.Image, m *imagespec.Manifest) { m.Layers[0].Size += 10 }), ""},
		{"a layer that is longer than said",
			manifest(func(_ *imagespec.Image, m *imagespec.Manifest) { m.Layers[0].Size -= 10 }), ""},
		{"a layer of negative size",
			manifest(func(_ *imagespec.Image, m *imagespec.Manifest) { m.Layers[0].Size = -1 }), "-1 bytes"},
		{"a layer without an end", func(r *rawRegistry) string {
			r.answer = func(w http.ResponseWriter, req *http.Request, what string, body []byte) bool {
				if !bytes.HasPrefix(body, []byte{0x1f, 0x8b}) {
					return false
				}
				endless(w, req, what, body)
				return true
			}
			return r.image([][]byte{layer})
		}, "past expected size"},
		{"a manifest without an end", func(r *rawRegistry) string {
			ref := r.image([][]byte{layer})
			m := r.contents["v1"]
			r.answer = func(w http.ResponseWriter, req *http.Request, what string, _ []byte) bool {
				if !strings.Contains(req.URL.Path, "/manifests/") || req.Method == http.MethodHead {
					return false
				}
				endless(w, req, what, m)
				return true
			}
			return ref
		}, "past expected size"},
		{"a manifest without an end and without a size", func(r *rawRegistry) string {
			ref := r.image([][]byte{layer})
			r.answer = func(w http.ResponseWriter, req *http.Request, what string, _ []byte) bool {
				if !strings.Contains(req.URL.Path, "/manifests/") {
					return false
				}
				if req.Method == http.MethodHead {
					w.Header().Set("Content-Type", imagespec.MediaTypeImageManifest)
					return true
				}
				endless(w, req, what, nil)
				return true
			}
			return ref
		}, "has 4.0 MiB, more than"},
		{"a huge manifest", manifest(func(_ *imagespec.Image, m *imagespec.Manifest) {
			m.Annotations = map[string]string{"a": strings.Repeat("x", 5<<20)}
		}), "rejecting 5243"},
		{"a huge configuration",
			manifest(func(c *imagespec.Image, _ *imagespec.Manifest) { c.Author = strings.Repeat("x", 5<<20) }),
			"more than the 4.0 MiB that are allowed"},
		{"a deep configuration", func(r *rawRegistry) string {
			return r.image([][]byte{layer}, func(_ *imagespec.Image, m *imagespec.Manifest) {
				m.Config = r.add(imagespec.MediaTypeImageConfig, bytes.Repeat([]byte("["), 2<<20))
			})
		}, "exceeded max depth"},
		{"a configuration that is none", func(r *rawRegistry) string {
			return r.image([][]byte{layer}, func(_ *imagespec.Image, m *imagespec.Manifest) {
				m.Config = r.add(imagespec.MediaTypeImageConfig, []byte("\x00\x01"))
			})
		}, "invalid character"},
		{"a manifest that is none", func(r *rawRegistry) string { return r.tag([]byte("<html>log in</html>")) },
			"invalid character"},
		{"too many layers", func(r *rawRegistry) string {
			return r.image([][]byte{layer}, func(c *imagespec.Image, m *imagespec.Manifest) {
				for range 500 {
					m.Layers, c.RootFS.DiffIDs = append(m.Layers, m.Layers[0]),
						append(c.RootFS.DiffIDs, c.RootFS.DiffIDs[0])
				}
			})
		}, "501 layers, more than the 500"},
		{"fewer sums than layers", manifest(func(c *imagespec.Image, _ *imagespec.Manifest) { c.RootFS.DiffIDs = nil }),
			"number of layers and diffIDs don't match"},
		{"the sum of another layer",
			manifest(func(c *imagespec.Image, _ *imagespec.Manifest) { c.RootFS.DiffIDs[0] = digest.FromString("x") }),
			"wrong diff id"},
		{"a layer that is not an archive",
			func(r *rawRegistry) string { return r.image([][]byte{bytes.Repeat([]byte("no tar "), 200)}) },
			"invalid tar header"},
		{"a layer whose archive is cut off",
			func(r *rawRegistry) string { return r.image([][]byte{long[:len(long)/2]}) }, "unexpected EOF"},
		{"a chain of indexes", func(r *rawRegistry) string {
			r.image([][]byte{layer})
			d := imagespec.Descriptor{MediaType: imagespec.MediaTypeImageManifest,
				Digest: digest.FromBytes(r.contents["v1"]), Size: int64(len(r.contents["v1"]))}
			for range 150 {
				b := marshal(imagespec.Index{Versioned: specs.Versioned{SchemaVersion: 2},
					MediaType: imagespec.MediaTypeImageIndex, Manifests: []imagespec.Descriptor{d}})
				d = r.add(imagespec.MediaTypeImageIndex, b)
				r.types[d.Digest.String()] = imagespec.MediaTypeImageIndex
				r.contents["v1"], r.types["v1"] = b, imagespec.MediaTypeImageIndex
			}
			return r.host + "/app:v1"
		}, "more than 100 manifests"},
		{"a token without an end", func(r *rawRegistry) string {
			ref := r.image([][]byte{layer})
			r.answer = func(w http.ResponseWriter, req *http.Request, what string, _ []byte) bool {
				if req.URL.Path == "/token" {
					endless(w, req, what, []byte(`{"token":"`))
					return true
				}
				w.Header().Set("WWW-Authenticate", `Bearer realm="http://`+r.host+`/token",service="x"`)
				w.WriteHeader(http.StatusUnauthorized)
				return true
			}
			return ref
		}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			reg := newRawRegistry(t)
			ref := c.image(reg)
			s := openStore(t, Config{})
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, err := s.Pull(ctx, ref, nil, nil)
			if err == nil || ctx.Err() != nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			t.Log(err)
			expectEmpty(t, s)
		})
	}
}

// A download that breaks off is resumed where it was.
func TestBrokenOffDownload(t *testing.T) {
	random := make([]byte, 1<<20)
	for i := range random {
		random[i] = byte(rand.Int())
	}
	reg := newRawRegistry(t)
	var broken atomic.Bool
	var resumed atomic.Value
	reg.answer = func(w http.ResponseWriter, req *http.Request, _ string, body []byte) bool {
		if req.Method != http.MethodGet || len(body) < 1<<19 {
			return false
		}
		if broken.CompareAndSwap(false, true) {
			w.Header().Set("Content-Length", fmt.Sprint(len(body)))
			_, _ = w.Write(body[:len(body)/2])
			panic(http.ErrAbortHandler)
		}
		resumed.Store(req.Header.Get("Range"))
		return false
	}
	s := openStore(t, Config{})
	id, err := s.Pull(t.Context(), reg.image([][]byte{archiveOf(file("random", string(random)))}), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if r, _ := resumed.Load().(string); !strings.HasPrefix(r, "bytes=") || r == "bytes=0-" {
		t.Errorf("the second request asks for %q", r)
	}
	if got, err := os.ReadFile(filepath.Join(mounted(t, s, "c", id, false), "random")); err != nil ||
		!bytes.Equal(got, random) {
		t.Errorf("content differs: %v", err)
	}
}

// TestStallsAnywhere: wherever a registry stops answering, the pull ends after the stall timeout
// with the error of an unavailable registry, or at once when it is cancelled.
func TestStallsAnywhere(t *testing.T) {
	for _, where := range []string{"manifests/v1", "manifests/sha256", "blobs/ first", "blobs/ middle", "token"} {
		for _, how := range []string{"stall", "cancel"} {
			t.Run(how+" at "+strings.ReplaceAll(where, "/", " "), func(t *testing.T) {
				reg := newRawRegistry(t)
				reached := make(chan struct{}, 100)
				end := make(chan struct{})
				path, at, _ := strings.Cut(where, " ")
				reg.answer = func(w http.ResponseWriter, req *http.Request, _ string, body []byte) bool {
					if where == "token" && req.URL.Path != "/token" {
						w.Header().Set("WWW-Authenticate", `Bearer realm="http://`+reg.host+`/token",service="x"`)
						w.WriteHeader(http.StatusUnauthorized)
						return true
					}
					if !strings.Contains(req.URL.Path, path) {
						return false
					}
					if at == "middle" {
						w.Header().Set("Content-Length", fmt.Sprint(len(body)))
						_, _ = w.Write(body[:len(body)/2])
						_ = http.NewResponseController(w).Flush()
					}
					reached <- struct{}{}
					select {
					case <-end:
					case <-req.Context().Done():
					}
					return true
				}
				ref := reg.image([][]byte{archiveOf(file("f", "content"))})
				defer close(end)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				cfg, want := Config{StallTimeout: 50 * time.Millisecond}, codes.Unavailable
				if how == "cancel" {
					cfg, want = Config{}, codes.Canceled
					go func() {
						<-reached
						cancel()
					}()
				}
				s := openStore(t, cfg)
				if _, err := s.Pull(ctx, ref, nil, nil); status.Code(err) != want {
					t.Errorf("got %v, want %v", err, want)
				}
				expectEmpty(t, s)
			})
		}
	}
}

// A manifest cannot make the node contact addresses of its choice.
func TestForeignAddresses(t *testing.T) {
	var requested atomic.Bool
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { requested.Store(true) }))
	defer other.Close()
	reg := newRawRegistry(t)
	ref := reg.image([][]byte{archiveOf(file("f", ""))}, func(_ *imagespec.Image, m *imagespec.Manifest) {
		m.Layers[0].URLs = []string{other.URL + "/latest/meta-data"}
		m.Layers[0].MediaType = "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"
	})
	s := openStore(t, Config{})
	_, err := s.Pull(t.Context(), ref, nil, nil)
	if requested.Load() {
		t.Errorf("the address of the manifest was asked (pull: %v)", err)
	}
}

// The same layer several times in one image, as builders do with empty ones.
func TestRepeatedLayers(t *testing.T) {
	a, b := archiveOf(file("a", "1")), archiveOf(file("b", "2"))
	reg := newRawRegistry(t)
	s := openStore(t, Config{})
	id, err := s.Pull(t.Context(), reg.image([][]byte{a, b, a, a, b}), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	root := mounted(t, s, "c", id, false)
	for name, want := range map[string]string{"a": "1", "b": "2"} {
		if got, err := os.ReadFile(filepath.Join(root, name)); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

// TestPullsAgainstCollection: images that share layers are pulled and removed, some pulls are
// cancelled, and containers keep layers of removed images. Every visible image is complete at any
// time, and at the end nothing is left.
func TestPullsAgainstCollection(t *testing.T) {
	const images, rounds = 4, 12
	shared := archiveOf(file("shared", strings.Repeat("s", 10000)))
	refs := make([]string, images)
	for i := range refs {
		refs[i] = newRawRegistry(t).image([][]byte{shared, archiveOf(file("own", fmt.Sprint(i)))})
	}
	s := openStore(t, Config{})
	g, ctx := errgroup.WithContext(t.Context())
	for worker := range 4 {
		rnd := rand.New(rand.NewPCG(7, uint64(worker)))
		g.Go(func() error {
			for round := range rounds {
				i := rnd.IntN(images)
				pull, cancel := ctx, context.CancelFunc(func() {})
				if rnd.IntN(4) == 0 {
					pull, cancel = context.WithTimeout(ctx, time.Duration(rnd.IntN(20))*time.Millisecond)
				}
				id, err := s.Pull(pull, refs[i], nil, nil)
				cancel()
				if err != nil {
					if pull.Err() != nil && ctx.Err() == nil {
						continue
					}
					return err
				}
				key := fmt.Sprintf("w%d-%d", worker, round)
				mounts, err := s.Prepare(ctx, key, id, native.IDMap{}, nil)
				if status.Code(err) == codes.NotFound {
					continue // another one removed it meanwhile
				}
				if err != nil {
					return err
				}
				if _, err := s.RemoveImage(ctx, &cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: id}}); err != nil {
					return err
				}
				var found int
				for _, o := range mounts[0].Options {
					dirs, ok := strings.CutPrefix(o, "lowerdir=")
					for d := range strings.SplitSeq(dirs, ":") {
						for name, want := range map[string]string{"own": fmt.Sprint(i),
							"shared": strings.Repeat("s", 10000)} {
							if got, err := os.ReadFile(filepath.Join(d, name)); ok && err == nil &&
								string(got) == want {
								found++
							} else if ok && !errors.Is(err, os.ErrNotExist) {
								return fmt.Errorf("%s of a container's image: %.10q, %w", name, got, err)
							}
						}
					}
				}
				if found != 2 {
					return fmt.Errorf("a container's image has %d of its 2 files", found)
				}
				if err := s.Release(ctx, key); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	for _, ref := range refs {
		remove(t, s, ref)
	}
	expectEmpty(t, s)
}
