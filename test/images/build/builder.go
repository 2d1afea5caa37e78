// Package build makes the container images that carob's tests, benchmarks and demo run, as OCI archives and from local
// material only: Debian packages and small test programs. Test programs and `go run ./test/images` drive it; nothing of
// the product may import it. It never uses a container registry.
package build

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"syscall"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

//go:embed *.go demo files
var sources embed.FS

// Builder makes images into Dir and keeps there what it downloaded.
type Builder struct {
	Dir string

	mu     sync.Mutex
	layers map[string]*layer
}

// layer is a tree that several images share, packed once.
type layer struct {
	tree tree

	once   sync.Once
	packed packed
	err    error
}

// DefaultDir is where `go run ./test/images` puts images by default.
func DefaultDir() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(cache, "carob", "images"), nil
}

// Names lists the images of our own tests, each also the name of its archive.
func Names() []string {
	var names []string
	for _, im := range catalogue {
		names = append(names, im.name)
	}
	return names
}

// Refs lists the references under which an image is found; nil for an unknown name.
func Refs(name string) []string {
	if im := find(name); im != nil {
		return im.refs
	}
	return nil
}

func find(name string) *image {
	for _, list := range [][]image{catalogue, upstream, gateway} {
		if i := slices.IndexFunc(list, func(im image) bool { return im.name == name }); i >= 0 {
			return &list[i]
		}
	}
	return nil
}

// Build makes the named image unless its archive is there already, and answers
// the archive's path.
func (b *Builder) Build(ctx context.Context, name string) (string, error) {
	im := find(name)
	if im == nil {
		return "", fmt.Errorf("there is no image %q; there are %q and %q", name, Names(), UpstreamNames())
	}
	dir, err := filepath.Abs(b.Dir)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.Dir = dir
	unlock, err := lockDir(dir)
	if err != nil {
		return "", err
	}
	defer unlock()
	archive, stamp := filepath.Join(dir, name+".tar"), filepath.Join(dir, "."+name+".made-of")
	want, err := fingerprint()
	if err != nil {
		return "", err
	}
	if have, err := os.ReadFile(stamp); err == nil && string(have) == want {
		if _, err := os.Stat(archive); err == nil {
			return archive, nil
		}
	}
	var config ocispec.ImageConfig
	layers, err := im.make(ctx, b, &config)
	if err != nil {
		return "", fmt.Errorf("make image %s: %w", name, err)
	}
	if len(config.Env) == 0 {
		config.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	}
	a, err := newArchive(layers, config)
	if err != nil {
		return "", fmt.Errorf("pack image %s: %w", name, err)
	}
	if err := a.write(archive, im.refs); err != nil {
		return "", fmt.Errorf("write image %s: %w", name, err)
	}
	return archive, os.WriteFile(stamp, []byte(want), 0o644)
}

// lockDir makes processes that build into one directory follow one another: a
// package that apt is still writing looks like one that is there.
func lockDir(dir string) (unlock func(), _ error) {
	f, err := os.OpenFile(filepath.Join(dir, ".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	return func() { f.Close() }, nil
}

// fingerprint stands for everything an image is made of, except for the versions
// of Debian's packages: those are looked up only when an image is made.
var fingerprint = sync.OnceValues(func() (string, error) {
	h := sha256.New()
	fmt.Fprintln(h, runtime.GOARCH)
	err := fs.WalkDir(sources, ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		f, err := sources.Open(p)
		if err != nil {
			return err
		}
		defer f.Close()
		fmt.Fprintln(h, p)
		_, err = io.Copy(h, f)
		return err
	})
	return hex.EncodeToString(h.Sum(nil)), err
})

// shared answers the layer of that name, made on first use.
func (b *Builder) shared(name string, make func() (tree, error)) (*layer, error) {
	if l := b.layers[name]; l != nil {
		return l, nil
	}
	t, err := make()
	if err != nil {
		return nil, err
	}
	if b.layers == nil {
		b.layers = map[string]*layer{}
	}
	b.layers[name] = &layer{tree: t}
	return b.layers[name], nil
}

func (b *Builder) debian() debian { return debian{dir: filepath.Join(b.Dir, ".debs")} }

// compileC builds one static program.
func (b *Builder) compileC(ctx context.Context, source string) ([]byte, error) {
	tmp, err := os.MkdirTemp(b.Dir, ".build-*")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp)
	body, err := sources.ReadFile("files/src/" + source)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(tmp, source), body, 0o600); err != nil {
		return nil, err
	}
	if _, err := run(ctx, tmp, "gcc", "-Wall", "-Wextra", "-Werror", "-Os", "-static", "-s", "-Wl,--build-id=none",
		"-o", "out", source); err != nil {
		return nil, err
	}
	return os.ReadFile(filepath.Join(tmp, "out"))
}

// compileGo builds a program of this module; the working directory must be in it.
func (b *Builder) compileGo(ctx context.Context, pkg string) ([]byte, error) {
	return b.compile(ctx, "", pkg)
}

// compile builds a program as the go command sees it from dir.
func (b *Builder) compile(ctx context.Context, dir, pkg string) ([]byte, error) {
	tmp, err := os.MkdirTemp(b.Dir, ".build-*")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp)
	out := filepath.Join(tmp, "out")
	// -buildid= makes the same source the same file.
	if _, err := run(ctx, dir, "go", "build", "-buildvcs=false", "-ldflags=-s -w -buildid=", "-o", out,
		pkg); err != nil {
		return nil, err
	}
	return os.ReadFile(out)
}
