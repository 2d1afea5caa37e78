// images builds the images of upstream's CSI tests as OCI archives: sidecars that hack/csi-sidecars built, and
// stand-ins for those whose modules the Go module proxy does not have (test/csidriver/plugin).
//
//	go run ./test/csidriver/images SIDECARS OUT
//
// The image of the driver has a shell if OUT has the archive of upstream's busybox (go run ./test/images), which tests
// of device drivers need: they run commands in it.
//
// Their tags are those in upstream's manifests of v1.37; the sidecars may be a minor version newer.
package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const registry = "registry.k8s.io/sig-storage/"

// image is a program with its name in the image.
type image struct {
	tag     string // after the registry
	program string // in the directory of sidecars; "": the stand-in
	args    []string
	shell   bool // with busybox, and the program under upstream's name
}

var images = []image{
	{tag: "csi-attacher:v4.12.0", program: "csi-attacher"},
	{tag: "csi-provisioner:v6.3.0", program: "csi-provisioner"},
	{tag: "csi-resizer:v2.2.0", program: "csi-resizer"},
	{tag: "csi-snapshotter:v8.6.0", program: "csi-snapshotter"},
	{tag: "snapshot-controller:v8.6.0", program: "snapshot-controller"},
	{tag: "csi-node-driver-registrar:v2.17.0", args: []string{"registrar"}},
	{tag: "livenessprobe:v2.19.0", args: []string{"liveness"}},
	{tag: "hostpathplugin:v1.17.1", args: []string{"hostpath"}, shell: true},
	{tag: "hello-populator:v1.0.1", args: []string{"populator"}},
	{tag: "volume-data-source-validator:v1.0.0", args: []string{"validator"}},
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1) //nolint:gocritic // the signal's handler ends with the process
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("usage: images SIDECARS OUT")
	}
	sidecars, out := args[0], args[1]
	work, err := os.MkdirTemp(out, "work-")
	if err != nil {
		return fmt.Errorf("make a directory: %w", err)
	}
	defer func() { _ = os.RemoveAll(work) }()
	standIn := filepath.Join(work, "plugin")
	cmd := exec.CommandContext(ctx, "go", "build", "-ldflags=-s", "-o", standIn, "carob/test/csidriver/plugin")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the stand-in: %w: %s", err, text)
	}
	shell, err := busybox(filepath.Join(out, "upstream-busybox.tar"), filepath.Join(work, "busybox"))
	if err != nil {
		return err
	}
	for i, im := range images {
		program := standIn
		if im.program != "" {
			program = filepath.Join(sidecars, im.program)
		}
		if _, err := os.Stat(program); errors.Is(err, fs.ErrNotExist) {
			fmt.Println(registry+im.tag, "is not made:", program, "is missing")
			continue
		}
		made, err := im.make(program, shell)
		if err != nil {
			return err
		}
		name := fmt.Sprintf("csi-%d.tar", i)
		if err := archive(made, registry+im.tag, filepath.Join(work, name), filepath.Join(out, name)); err != nil {
			return fmt.Errorf("write %s: %w", im.tag, err)
		}
		fmt.Println(registry+im.tag, filepath.Join(out, name))
	}
	return nil
}

// busybox returns the layers of the archive, which it unpacks into dir; none if the archive is missing.
func busybox(archive, dir string) ([]v1.Layer, error) {
	f, err := os.Open(archive)
	if errors.Is(err, fs.ErrNotExist) {
		fmt.Println("images have no shell:", archive, "is missing")
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open the archive of busybox: %w", err)
	}
	defer func() { _ = f.Close() }()
	if err := unpack(f, dir); err != nil {
		return nil, fmt.Errorf("unpack %s: %w", archive, err)
	}
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", archive, err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", archive, err)
	}
	if len(manifest.Manifests) == 0 {
		return nil, fmt.Errorf("%s has no image", archive)
	}
	im, err := index.Image(manifest.Manifests[0].Digest)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", archive, err)
	}
	return im.Layers()
}

// unpack writes the regular files of an archive below dir.
func unpack(from io.Reader, dir string) error {
	for r := tar.NewReader(from); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if h.Typeflag != tar.TypeReg || !filepath.IsLocal(h.Name) {
			continue
		}
		name := filepath.Join(dir, h.Name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		body, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		if err := os.WriteFile(name, body, 0o644); err != nil {
			return err
		}
	}
}

// make returns the image: the program and a directory for temporary files, over the layers of a shell if it needs one.
func (im image) make(program string, shell []v1.Layer) (v1.Image, error) {
	body, err := os.ReadFile(program)
	if err != nil {
		return nil, fmt.Errorf("read the program: %w", err)
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	headers := []tar.Header{{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777},
		{Name: "program", Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(body))}}
	if im.shell {
		link := tar.Header{Name: "hostpathplugin", Typeflag: tar.TypeSymlink, Linkname: "program", Mode: 0o777}
		headers = append([]tar.Header{link}, headers...)
	} else {
		shell = nil
	}
	for _, h := range headers {
		if err := w.WriteHeader(&h); err != nil {
			return nil, fmt.Errorf("pack %s: %w", im.tag, err)
		}
	}
	if _, err := w.Write(body); err != nil {
		return nil, fmt.Errorf("pack %s: %w", im.tag, err)
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("pack %s: %w", im.tag, err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(b.Bytes())), nil
	}, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, fmt.Errorf("make the layer of %s: %w", im.tag, err)
	}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	made, err := mutate.AppendLayers(base, append(slices.Clone(shell), layer)...)
	if err != nil {
		return nil, fmt.Errorf("make %s: %w", im.tag, err)
	}
	return mutate.ConfigFile(made, &v1.ConfigFile{OS: "linux", Architecture: "amd64", RootFS: rootFS(made),
		Config: v1.Config{Entrypoint: append([]string{"/program"}, im.args...),
			Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}}})
}

func rootFS(im v1.Image) v1.RootFS {
	c, err := im.ConfigFile()
	if err != nil {
		return v1.RootFS{}
	}
	return c.RootFS
}

// archive writes an image as an OCI archive with its reference in the annotation that containerd reads.
func archive(im v1.Image, ref, work, out string) error {
	p, err := layout.Write(work, empty.Index)
	if err != nil {
		return err
	}
	named := layout.WithAnnotations(map[string]string{"io.containerd.image.name": ref})
	if err := p.AppendImage(im, named); err != nil {
		return err
	}
	f, err := os.Create(out)
	if err != nil {
		return err
	}
	w := tar.NewWriter(f)
	if err := w.AddFS(os.DirFS(work)); err != nil {
		_ = f.Close()
		return err
	}
	if err := w.Close(); err != nil {
		_ = f.Close()
		return err
	}
	return f.Close()
}
