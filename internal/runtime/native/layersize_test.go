package native

import (
	"context"
	"errors"
	"sync/atomic"
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
	walks atomic.Int64
	err   error
	lasts time.Duration // how long a walk lasts
}

func (w *walkedImages) Usage(context.Context, string) (Usage, error) {
	time.Sleep(w.lasts)
	n := w.walks.Add(1)
	return Usage{Bytes: n * 4096, Inodes: n}, w.err
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
			if len(stats) != 1 || images.walks.Load() != walks ||
				stats[0].GetWritableLayer().GetUsedBytes().GetValue() != bytes {
				t.Errorf("%v after %d walks, want %d bytes after %d", stats, images.walks.Load(), bytes, walks)
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
			if err != nil || images.walks.Load() != walks ||
				res.Stats[0].GetWritableLayer().GetInodesUsed().GetValue() != uint64(walks) {
				t.Errorf("%v, %v after %d walks, want %d", res, err, images.walks.Load(), walks)
			}
		}
		scrape(4, 4*4096)
		time.Sleep(layerAge - 1)
		scrape(4, 4*4096)
		time.Sleep(time.Nanosecond)
		scrape(5, 5*4096)
	})
}

// slowLayers is a runtime with containers whose layers are walked for so long.
func slowLayers(t *testing.T, images *walkedImages, ids ...string) *Runtime {
	r := &Runtime{cfg: Config{Images: images, RootDir: t.TempDir()}, groups: &cgroups.Hierarchies{},
		containers: map[string]*container{}}
	for _, id := range ids {
		r.containers[id] = &container{config: &cri.ContainerConfig{},
			rec: state.Container{ID: id, SandboxID: "s1", StartedAt: 1}}
	}
	return r
}

// A layer whose walk lasts long keeps no statistics waiting, and is walked for a tenth of the time only.
func TestLongWalks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		images := &walkedImages{lasts: 20 * time.Second}
		r := slowLayers(t, images, "c1")
		request := func(waits time.Duration, walks int64, known bool) {
			t.Helper()
			began := time.Now()
			res, err := r.ListContainerStats(t.Context(), &cri.ListContainerStatsRequest{})
			if err != nil || len(res.Stats) != 1 || res.Stats[0].Cpu == nil ||
				(res.Stats[0].WritableLayer != nil) != known {
				t.Fatalf("%v, %v", res, err)
			}
			if d := time.Since(began); d != waits || images.walks.Load() != walks {
				t.Fatalf("after %v and %d walks, want %v and %d", d, images.walks.Load(), waits, walks)
			}
		}
		after := func(d time.Duration) {
			time.Sleep(d)
			synctest.Wait()
		}
		request(layerPatience, 0, false)
		request(0, 0, false)
		after(20*time.Second - layerPatience)
		request(0, 1, true)
		after(200*time.Second - 1)
		request(0, 1, true)
		after(20 * time.Second)
		request(0, 1, true)
		after(20 * time.Second)
		request(0, 2, true)
		images.lasts = time.Hour
		after(200 * time.Second)
		request(0, 2, true)
		after(time.Hour)
		request(0, 3, true)
		images.lasts = time.Millisecond
		after(layerOldest)
		request(0, 3, true)
		after(time.Millisecond)
		request(time.Millisecond, 5, true) // it is quick again, so each request walks
	})
}

// All layers of a list together keep it waiting no longer than one.
func TestManyLongWalks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := slowLayers(t, &walkedImages{lasts: time.Hour}, "c1", "c2", "c3")
		began := time.Now()
		if res, err := r.ListContainerStats(t.Context(), &cri.ListContainerStatsRequest{}); err != nil ||
			len(res.Stats) != 3 || time.Since(began) != layerPatience {
			t.Errorf("%v, %v after %v", res, err, time.Since(began))
		}
		time.Sleep(time.Hour + layerPatience)
	})
}
