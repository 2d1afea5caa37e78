package build

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// archive is an OCI image layout in one tar file, with one manifest under
// several names.
type archive struct {
	blobs    map[digest.Digest][]byte
	manifest ocispec.Descriptor
}

func (a *archive) put(mediaType string, body []byte) ocispec.Descriptor {
	d := digest.FromBytes(body)
	a.blobs[d] = body
	return ocispec.Descriptor{MediaType: mediaType, Digest: d, Size: int64(len(body))}
}

// packed is a compressed layer and the digest of what it holds.
type packed struct {
	blob   []byte
	diffID digest.Digest
}

func (l *layer) pack() (packed, error) {
	l.once.Do(func() {
		var blob bytes.Buffer
		zw := gzip.NewWriter(&blob)
		diff := digest.SHA256.Digester()
		if l.err = l.tree.pack(io.MultiWriter(zw, diff.Hash())); l.err == nil {
			l.err = zw.Close()
		}
		l.packed = packed{blob: blob.Bytes(), diffID: diff.Digest()}
	})
	return l.packed, l.err
}

func newArchive(layers []*layer, config ocispec.ImageConfig) (*archive, error) {
	a := &archive{blobs: map[digest.Digest][]byte{}}
	img := ocispec.Image{
		Platform: ocispec.Platform{OS: "linux", Architecture: runtime.GOARCH},
		Config:   config,
		RootFS:   ocispec.RootFS{Type: "layers"},
	}
	m := ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest}
	for _, l := range layers {
		p, err := l.pack()
		if err != nil {
			return nil, err
		}
		img.RootFS.DiffIDs = append(img.RootFS.DiffIDs, p.diffID)
		m.Layers = append(m.Layers, a.put(ocispec.MediaTypeImageLayerGzip, p.blob))
	}
	body, err := json.Marshal(img)
	if err != nil {
		return nil, err
	}
	m.Config = a.put(ocispec.MediaTypeImageConfig, body)
	if body, err = json.Marshal(m); err != nil {
		return nil, err
	}
	a.manifest = a.put(ocispec.MediaTypeImageManifest, body)
	a.manifest.Platform = &img.Platform
	return a, nil
}

// write makes the file appear whole or not at all.
func (a *archive) write(file string, names []string) error {
	index := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex}
	for _, name := range names {
		d := a.manifest
		d.Annotations = map[string]string{
			"io.containerd.image.name": name,
			ocispec.AnnotationRefName:  name[strings.LastIndex(name, ":")+1:],
		}
		index.Manifests = append(index.Manifests, d)
	}
	body, err := json.Marshal(index)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(file), ".image-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	tw := tar.NewWriter(f)
	entry := func(name string, body []byte) {
		if err == nil {
			err = tw.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(body)), ModTime: time.Unix(0, 0)})
		}
		if err == nil {
			_, err = tw.Write(body)
		}
	}
	entry(ocispec.ImageLayoutFile, []byte(`{"imageLayoutVersion":"`+ocispec.ImageLayoutVersion+`"}`))
	entry(ocispec.ImageIndexFile, body)
	for _, d := range slices.Sorted(maps.Keys(a.blobs)) {
		entry(fmt.Sprintf("%s/%s/%s", ocispec.ImageBlobsDir, d.Algorithm(), d.Encoded()), a.blobs[d])
	}
	if err != nil {
		return err
	}
	if err := tw.Close(); err != nil {
		return err
	}
	if err := f.Chmod(0o644); err != nil {
		return err
	}
	return os.Rename(f.Name(), file)
}
