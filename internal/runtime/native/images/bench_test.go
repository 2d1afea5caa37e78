package images

import (
	"fmt"
	"testing"

	"carob/internal/runtime/native"
)

func BenchmarkOpen(b *testing.B) {
	for name, fresh := range map[string]bool{"empty": true, "again": false} {
		b.Run(name, func(b *testing.B) {
			root := b.TempDir()
			for b.Loop() {
				dir := root
				if fresh {
					dir = b.TempDir()
				}
				s, err := Open(b.Context(), Config{Root: dir})
				if err != nil {
					b.Fatal(err)
				}
				if err := s.Close(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// The cost of one container: creating and removing a writable layer.
func BenchmarkLayer(b *testing.B) {
	s := openStore(b, Config{})
	mustImport(b, s, dockerArchive(b, imageOf(b, "", map[string]string{"one": "1"}), "app"))
	for i := 0; b.Loop(); i++ {
		key := fmt.Sprint("c", i)
		if _, err := s.Prepare(b.Context(), key, "app", native.IDMap{}, nil); err != nil {
			b.Fatal(err)
		}
		if err := s.Release(b.Context(), key); err != nil {
			b.Fatal(err)
		}
	}
}
