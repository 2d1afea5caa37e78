package images

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/archive"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
)

// maxTrailer limits the bytes after the end of a layer's archive: tar pads to blocks, and nothing
// else belongs there.
const maxTrailer = 1 << 20

// applier unpacks a layer into the directory of its snapshot. Unlike the library's, it checks
// before each file whether there is room for it. A layer of a few kilobytes can unpack to
// terabytes, as deflated zeros or as a sparse file.
type applier struct {
	content content.Provider
	space   *diskSpace
}

var _ diff.Applier = (*applier)(nil)

// Apply implements diff.Applier.
func (a *applier) Apply(ctx context.Context, d imagespec.Descriptor, mounts []mount.Mount,
	_ ...diff.ApplyOpt) (imagespec.Descriptor, error) {
	dir, opts, err := layerTarget(mounts)
	if err != nil {
		return imagespec.Descriptor{}, err
	}
	packed, err := a.content.ReaderAt(ctx, d)
	if err != nil {
		return imagespec.Descriptor{}, fmt.Errorf("read layer: %w", err)
	}
	defer packed.Close()
	stream, err := decompress(content.NewReader(packed))
	if err != nil {
		return imagespec.Descriptor{}, fmt.Errorf("unpack layer: %w", err)
	}
	defer stream.Close()
	sum := &summed{r: stream, digest: digest.Canonical.Digester()}
	_, err = archive.Apply(ctx, dir, sum, append(opts, archive.WithFilter(func(h *tar.Header) (bool, error) {
		return true, a.space.file(h)
	}))...)
	if err != nil {
		return imagespec.Descriptor{}, err
	}
	// The digest is that of the whole stream.
	n, err := io.Copy(io.Discard, io.LimitReader(sum, maxTrailer+1))
	if err != nil {
		return imagespec.Descriptor{}, err
	}
	if n > maxTrailer {
		return imagespec.Descriptor{},
			fmt.Errorf("layer %s goes on for more than %d bytes after the end of its archive", d.Digest, maxTrailer)
	}
	return imagespec.Descriptor{MediaType: imagespec.MediaTypeImageLayer, Size: sum.n, Digest: sum.digest.Digest()}, nil
}

// layerTarget returns the directory that a snapshot's mounts write to. Removed files are whiteouts
// in a layer above others, and nothing in the lowest one.
func layerTarget(mounts []mount.Mount) (string, []archive.ApplyOpt, error) {
	if len(mounts) != 1 {
		return "", nil, fmt.Errorf("unexpected mounts of a new layer: %v", mounts)
	}
	switch m := mounts[0]; m.Type {
	case "bind":
		return m.Source, nil, nil
	case "overlay":
		var dir string
		opts := []archive.ApplyOpt{archive.WithConvertWhiteout(archive.OverlayConvertWhiteout)}
		for _, o := range m.Options {
			if upper, ok := strings.CutPrefix(o, "upperdir="); ok {
				dir = upper
			}
			if lower, ok := strings.CutPrefix(o, "lowerdir="); ok {
				opts = append(opts, archive.WithParents(strings.Split(lower, ":")))
			}
		}
		if dir != "" {
			return dir, opts, nil
		}
	}
	return "", nil, fmt.Errorf("unexpected mounts of a new layer: %v", mounts)
}

// summed counts and hashes what is read through it.
type summed struct {
	r      io.Reader
	digest digest.Digester
	n      int64
}

func (s *summed) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	s.n += int64(n)
	if _, herr := s.digest.Hash().Write(p[:n]); herr != nil {
		err = errors.Join(err, herr)
	}
	return n, err
}
