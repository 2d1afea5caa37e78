package eviction

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/core/eviction"
)

// L7.133, L7.147: images go before pods.
func TestImagesAreRemovedBeforePods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 50,
			eviction.Settings{Hard: map[string]string{"imagefs.available": "15%", "nodefs.available": "10%"}})
		w.add("p", 1)
		w.images = []*cri.Image{{Id: "used", Size: 9}, {Id: "a", Size: 4}, {Id: "b", Size: 4},
			{Id: "pinned", Size: 9, Pinned: true}}
		w.usedBy = []*cri.Container{{ImageRef: "used"}}
		w.look(t, "")
		time.Sleep(imageDelay)
		w.look(t, "")
		if w.requested["images"] != 1 {
			t.Errorf("images were listed %d times", w.requested["images"])
		}
		time.Sleep(3 * time.Minute)
		w.mu.Lock()
		w.disk = 15 // at 85 %: down to 80
		w.mu.Unlock()
		w.look(t, "", "remove image a", "remove image b")
		w.mu.Lock()
		w.disk = 14
		w.images = append(w.images, &cri.Image{Id: "new", Size: 20})
		w.mu.Unlock()
		w.look(t, "DiskPressure",
			"node Warning FreeDiskSpaceFailed: Insufficient free disk space on the node's image filesystem "+
				"(86% of 100 B used). Failed to free sufficient space by deleting unused images (freed 0 bytes). "+
				// too new for that …
				"Investigate disk usage, as it could be used by active images, logs, volumes, or other data.",
			"node Warning EvictionThresholdMet: Attempting to reclaim ephemeral-storage", "reclaim")
		if !w.cfg.Shortage.Disk() {
			t.Error("dead containers stay")
		}
		w.mu.Lock()
		w.usedBy = nil // the image was that of a dead container
		w.mu.Unlock()
		time.Sleep(reclaimWait + time.Second)
		w.look(t, "DiskPressure", "remove image new", "remove image used", "again") // … but not for this
		if w.cfg.Shortage.Disk() {
			t.Error("dead containers go although there is room")
		}
		w.mu.Lock()
		w.disk = 5 // and no image is left: the pod has to go, after a moment for what is dead
		w.mu.Unlock()
		w.look(t, "DiskPressure", "node Warning EvictionThresholdMet: Attempting to reclaim ephemeral-storage",
			"reclaim")
		time.Sleep(reclaimWait)
		message := "The node was low on resource: ephemeral-storage. Threshold quantity: 15, available: 5. " +
			"Container c was using 1k, request is 0, has larger consumption of ephemeral-storage. "
		w.look(t, "DiskPressure", "stop p Evicted grace 1s TerminationByKubelet",
			"event p Warning Evicted: "+message+"[ephemeral-storage]")
	})
}

// imageMaximumGCAge: images go that were unused for longer than that, although the disk has room. Those that were there
// before the agent have begun to be unused when it first saw them.
func TestOldImages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 50, eviction.Settings{Hard: map[string]string{}})
		w.cfg.Images.MaxAge = time.Hour
		why := map[string]int{}
		w.cfg.Collected = func(reason string) { why[reason]++ }
		w.images = []*cri.Image{{Id: "used", Size: 9}, {Id: "a", Size: 4}, {Id: "pinned", Size: 9, Pinned: true}}
		w.usedBy = []*cri.Container{{ImageRef: "used"}}
		w.look(t, "")
		for range 13 { // the first time after ten seconds, then every five minutes: an hour, and no more
			time.Sleep(imagePeriod)
			w.look(t, "")
		}
		w.mu.Lock()
		w.usedBy = nil
		w.mu.Unlock()
		time.Sleep(imagePeriod)
		w.look(t, "", "remove image a")
		for range 11 {
			time.Sleep(imagePeriod)
			w.look(t, "")
		}
		time.Sleep(imagePeriod)
		w.look(t, "", "remove image used")
		if len(why) != 1 || why["age"] != 2 {
			t.Error(why)
		}
	})
}

// Images that containers begin to use, or that are imported, while others are removed stay.
func TestImagesUsedDuringRemoval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 5, eviction.Settings{Hard: map[string]string{}})
		for _, id := range []string{"a", "b", "c", "d"} {
			w.images = append(w.images, &cri.Image{Id: id, Size: 1})
		}
		w.cfg.Images.MinAge = 0
		w.removing = func() {
			w.usedBy = []*cri.Container{{ImageRef: "b"}}
			for _, im := range w.images {
				im.Pinned = im.Id == "c"
			}
		}
		w.look(t, "", "remove image a", "remove image d", "node Warning FreeDiskSpaceFailed: Insufficient free disk "+
			"space on the node's image filesystem (95% of 100 B used). Failed to free sufficient space by deleting "+
			"unused images (freed 2 bytes). Investigate disk usage, as it could be used by active images, logs, "+
			"volumes, or other data.")
	})
}

// When it is not known any more which images are used, because the runtime fails while images are removed, the others
// stay until it is known again.
func TestListThatFailsDuringRemoval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 5, eviction.Settings{Hard: map[string]string{}})
		for _, id := range []string{"a", "b", "c"} {
			w.images = append(w.images, &cri.Image{Id: id, Size: 1})
		}
		w.cfg.Images.MinAge = 0
		w.removing = func() { w.unlisted = errors.New("the runtime fails") }
		w.look(t, "", "remove image a", "node Warning FreeDiskSpaceFailed: Insufficient free disk "+
			"space on the node's image filesystem (95% of 100 B used). Failed to free sufficient space by deleting "+
			"unused images (freed 1 bytes). Investigate disk usage, as it could be used by active images, logs, "+
			"volumes, or other data.")
		w.look(t, "", "node Warning ImageGCFailed: list containers: the runtime fails")
		w.mu.Lock()
		w.unlisted, w.removing = nil, nil
		w.usedBy = []*cri.Container{{ImageRef: "b"}}
		w.mu.Unlock()
		w.look(t, "", "remove image c")
	})
}

// A node that is short of memory, where no pod can be evicted, frees the space of unused images when its disk is short,
// too.
func TestDiskIsFreedWhileNoPodCanBeEvictedForMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 5, eviction.Settings{
			Hard:      map[string]string{"memory.available": "100Mi", "imagefs.available": "10%"},
			Soft:      map[string]string{"memory.available": "200Mi"},
			SoftGrace: map[string]string{"memory.available": "1s"}})
		w.cfg.Images.High = 100 // nothing is removed for it
		w.add("critical", 300, func(p *corev1.Pod) { p.Spec.Priority = new(int32(2_000_000_000)) })
		w.images = []*cri.Image{{Id: "a", Size: 10}}
		w.mu.Lock()
		w.memory = 50
		w.mu.Unlock()
		w.look(t, "MemoryPressure DiskPressure", "node Warning EvictionThresholdMet: Attempting to reclaim memory",
			"node Warning EvictionThresholdMet: Attempting to reclaim ephemeral-storage", "reclaim")
		time.Sleep(reclaimWait + time.Second)
		w.look(t, "MemoryPressure DiskPressure", "remove image a", "again",
			"node Warning EvictionThresholdMet: Attempting to reclaim memory")
	})
}
