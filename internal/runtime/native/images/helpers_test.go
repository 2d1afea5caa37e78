package images

import (
	"bytes"
	"context"
	"testing"

	"github.com/containerd/containerd/v2/core/images/archive"
	"github.com/containerd/containerd/v2/core/mount"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
)

type mountT = mount.Mount

// importContent does the first half of an import.
func importContent(t *testing.T, ctx context.Context, s *Store, body []byte) imagespec.Descriptor {
	t.Helper()
	d, err := archive.ImportIndex(ctx, s.content, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	var idx imagespec.Index
	if err := readJSON(ctx, s.content, d, &idx); err != nil {
		t.Fatal(err)
	}
	return idx.Manifests[0]
}

func mustRead(t *testing.T, ctx context.Context, s *Store, d imagespec.Descriptor) *record {
	t.Helper()
	r, err := s.read(ctx, d)
	if err != nil {
		t.Fatal(err)
	}
	return r
}
