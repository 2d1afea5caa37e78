package images

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"carob/internal/base/removetree"
	"carob/internal/runtime/native"
)

// A container may have written millions of files. Neither the start of carob waits until all that it left is removed,
// nor its end: the next start goes on.
func TestManyFilesAreLeft(t *testing.T) {
	root := t.TempDir()
	began := make(chan string, 10)
	slow := func(ctx context.Context, path string) error {
		began <- path
		<-ctx.Done() // files are removed until then
		return ctx.Err()
	}
	s, err := Open(t.Context(), Config{Root: root, removeTree: slow})
	if err != nil {
		t.Fatal(err)
	}
	id := mustImport(t, s, dockerArchive(t, imageOf(t, "", map[string]string{"one": "1"}), "app"))[0]
	if _, err := s.Prepare(t.Context(), "c", id, native.IDMap{}, nil); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	released := make(chan error)
	go func() { released <- s.Release(ctx, "c") }()
	layer := <-began
	cancel() // carob ends, or the call has taken too long
	if err := <-released; status.Code(err) != codes.Canceled {
		t.Errorf("the release of a layer ends with %v", err)
	}
	if again := <-began; again != layer {
		t.Errorf("%s is removed in the background, not %s", again, layer)
	}
	if keys, err := s.Layers(); err != nil || len(keys) > 0 {
		t.Errorf("layers %v, %v", keys, err)
	}
	if err := s.Release(t.Context(), "c"); err != nil {
		t.Errorf("the layer is released again: %v", err)
	}
	for range 2 { // this store, and one that is opened while the files are there
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(layer); err != nil {
			t.Fatal(err)
		}
		if s, err = Open(t.Context(), Config{Root: root, removeTree: slow}); err != nil {
			t.Fatal(err)
		}
		if at := <-began; at != layer {
			t.Errorf("%s is removed, not %s", at, layer)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	openStore(t, Config{Root: root, removeTree: removetree.While}).leftovers.done.Wait()
	if left, err := filepath.Glob(filepath.Join(root, "rw", ".gone-*")); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
