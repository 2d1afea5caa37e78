package native

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/runtime/native/cgroups"
	"carob/internal/runtime/native/state"
)

// walkedImages count the walks of layers; each finds more than the one before.
type walkedImages struct {
	dirImages
	walks int64
	err   error
}

func (w *walkedImages) Usage(context.Context, string) (Usage, error) {
	w.walks++
	return Usage{Bytes: w.walks * 4096, Inodes: w.walks}, w.err
}

// Scrapes within ten seconds walk a layer once. Statistics, by which pods are evicted, are of now each time.
func TestScrapesShareAWalk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		images := &walkedImages{}
		c := &container{config: &cri.ContainerConfig{}, rec: state.Container{ID: "c1", SandboxID: "s1", StartedAt: 1}}
		r := &Runtime{cfg: Config{Images: images, RootDir: t.TempDir()}, groups: &cgroups.Hierarchies{},
			containers: map[string]*container{"c1": c}}
		scrape := func(walks int64, bytes uint64) {
			t.Helper()
			stats := r.Counters(t.Context()).Stats
			if len(stats) != 1 || images.walks != walks ||
				stats[0].GetWritableLayer().GetUsedBytes().GetValue() != bytes {
				t.Errorf("%v after %d walks, want %d bytes after %d", stats, images.walks, bytes, walks)
			}
		}
		images.err = errors.New("no such layer")
		scrape(1, 0)
		images.err = nil
		scrape(2, 2*4096) // what failed is tried again
		time.Sleep(layerAge - 1)
		scrape(2, 2*4096)
		for _, walks := range []int64{3, 4} {
			res, err := r.ListContainerStats(t.Context(), &cri.ListContainerStatsRequest{})
			if err != nil || images.walks != walks ||
				res.Stats[0].GetWritableLayer().GetInodesUsed().GetValue() != uint64(walks) {
				t.Errorf("%v, %v after %d walks, want %d", res, err, images.walks, walks)
			}
		}
		scrape(4, 2*4096)
		time.Sleep(time.Nanosecond)
		scrape(5, 5*4096)
	})
}
