package images

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/images/archive"
	"github.com/containerd/platforms"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func hostPlatform() string { return platforms.Format(platforms.DefaultSpec()) }

// Import reads an OCI or docker archive and returns the names that exist now; an image without a
// name has its ID. The code is InvalidArgument if the stream is no such archive or has nothing for
// this platform. Archives may be compressed (gzip, zstd).
func (s *Store) Import(ctx context.Context, r io.Reader, progress Progress) ([]string, error) {
	ctx = inNamespace(ctx)
	done, err := s.importArchive(ctx, r, progress)
	if err != nil {
		_ = s.collect(context.WithoutCancel(ctx))
		return nil, importError(ctx, err)
	}
	return done, nil
}

func importError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return rpcError(context.Cause(ctx))
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	var full *noSpace
	if errors.As(err, &full) || errors.Is(err, syscall.ENOSPC) {
		return status.Errorf(codes.ResourceExhausted, "failed to import: %v", err)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = fmt.Errorf("the archive ends too early: %w", err)
	}
	return status.Errorf(codes.InvalidArgument, "failed to import: %v", err)
}

func (s *Store) importArchive(ctx context.Context, r io.Reader, progress Progress) ([]string, error) {
	ctx, lease, err := s.lease(ctx)
	if err != nil {
		return nil, err
	}
	defer lease.release(ctx)
	archived := bufio.NewReader(s.space.reader(r))
	if _, err := archived.Peek(1); err == io.EOF {
		return nil, errors.New("the archive is empty")
	}
	stream, err := decompress(archived)
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	progress.report("reading archive")
	index, err := archive.ImportIndex(ctx, s.content.Store, stream, archive.WithImportCompression())
	if errors.Is(err, tar.ErrHeader) {
		return nil, fmt.Errorf("it is not an OCI or Docker archive: %w", err)
	}
	if err != nil {
		return nil, err
	}
	var idx imagespec.Index
	if err := readJSON(ctx, s.content, index, &idx); err != nil {
		return nil, fmt.Errorf("read index of the archive: %w", err)
	}
	var done []string
	unpacked := map[string]bool{}
	for _, target := range idx.Manifests {
		if target.Platform != nil && !s.platform.Match(*target.Platform) {
			continue
		}
		if !unpacked[target.Digest.String()] {
			progress.report("unpacking %s", short(target.Digest))
			if err := s.unpack(ctx, target, s.children()); err != nil {
				return nil, fmt.Errorf("unpack %s: %w", nameOf(target), err)
			}
			unpacked[target.Digest.String()] = true
		}
		name, err := s.importName(ctx, target)
		if err != nil {
			return nil, err
		}
		target.Annotations, target.Platform = nil, nil
		r, err := s.publish(ctx, target, true, name)
		if err != nil {
			return nil, err
		}
		lease.made = append(lease.made, r.chain)
		done = append(done, name)
	}
	if len(done) == 0 {
		return nil, fmt.Errorf("the archive holds no image for %s", hostPlatform())
	}
	return done, nil
}

func nameOf(d imagespec.Descriptor) string {
	if n := d.Annotations[images.AnnotationImageName]; n != "" {
		return n
	}
	if n := d.Annotations[imagespec.AnnotationRefName]; n != "" {
		return n
	}
	return d.Digest.String()
}

// importName is the full name of an archive's image, or its ID if the archive names none.
func (s *Store) importName(ctx context.Context, target imagespec.Descriptor) (string, error) {
	n := nameOf(target)
	// A bare tag, which docker writes next to the full name, is not a name.
	if n != target.Digest.String() && (target.Annotations[images.AnnotationImageName] != "" || isFullName(n)) {
		full, err := normalize(n)
		if err != nil {
			return "", fmt.Errorf("image name %q in the archive: %w", n, err)
		}
		return full, nil
	}
	config, err := images.Config(ctx, s.content, target, s.platform)
	if err != nil {
		return "", err
	}
	return config.Digest.String(), nil
}
