package eviction

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"carob/internal/core/eviction"
	"carob/internal/node/image"
)

// imageUse is when images were found and used.
type imageUse struct {
	known      map[string]eviction.Image // by id
	reportedAt time.Time                 // when an event last reported that too little could be freed
	fails      int                       // consecutive
}

// collectImages records the images and removes those that were unused for too long, and then unused ones until their
// disk has enough space; nil: the disk is not known (L7.133). If that fails, an event reports it at once, and then at
// the interval of upstream's collection.
func (m *Manager) collectImages(ctx context.Context, disk *eviction.Observation) {
	need := int64(0)
	if disk != nil {
		need = eviction.ImageNeed(m.cfg.Images, disk.Available, disk.Capacity)
	}
	all, err := m.detectImages(ctx)
	if old := eviction.OldImages(all, m.cfg.Images.MaxAge, time.Now()); err == nil && len(old) > 0 {
		need -= m.remove(ctx, old, -1, byAge)
		all = slices.DeleteFunc(all, func(im eviction.Image) bool { _, kept := m.images.known[im.ID]; return !kept })
	}
	switch {
	case err != nil:
	case disk != nil && disk.Capacity <= 0:
		err = errors.New("invalid capacity 0 on image filesystem")
		m.cfg.NodeEvent(corev1.EventTypeWarning, "InvalidDiskCapacity", err.Error())
	case need > 0:
		freed := m.remove(ctx, eviction.UnusedImages(all, m.cfg.Images.MinAge, time.Now()), need, bySpace)
		if freed >= need || !m.images.reportedAt.IsZero() && time.Since(m.images.reportedAt) < imagePeriod {
			return
		}
		m.images.reportedAt = time.Now()
		err = errors.New(eviction.StillFull(*disk, freed))
		m.cfg.NodeEvent(corev1.EventTypeWarning, "FreeDiskSpaceFailed", err.Error())
	}
	if err == nil {
		m.images.fails, m.images.reportedAt = 0, time.Time{}
		return
	}
	if m.images.fails++; m.images.fails > 1 { // the first failure is not reported
		m.cfg.NodeEvent(corev1.EventTypeWarning, "ImageGCFailed", err.Error())
	}
	klog.FromContext(ctx).Error(err, "Removing unused images failed")
}

// removeUnused removes all unused images: the disk is short of space.
func (m *Manager) removeUnused(ctx context.Context) {
	all, err := m.detectImages(ctx)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Looking for unused images failed")
		return
	}
	m.remove(ctx, eviction.UnusedImages(all, 0, time.Now()), -1, bySpace)
}

// Why images are removed, for the metrics.
const (
	bySpace = "space"
	byAge   = "age"
)

// remove removes images in their order until so many bytes are free; negative: all. That takes time, in which an image
// may be used, or imported: it stays.
func (m *Manager) remove(ctx context.Context, images []eviction.Image, need int64, why string) (freed int64) {
	for i, im := range images {
		if need >= 0 && freed >= need {
			break
		}
		if i > 0 {
			if _, err := m.detectImages(ctx); err != nil {
				klog.FromContext(ctx).Error(err, "Unused images stay: whether they are used now is not known")
				break
			}
			if now, ok := m.images.known[im.ID]; !ok || now.InUse {
				continue
			}
		}
		if _, err := m.cfg.Runtime.RemoveImage(ctx,
			&cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: im.ID}}); err != nil {
			klog.FromContext(ctx).Error(err, "Removing an unused image failed", "image", im.ID)
			continue
		}
		klog.FromContext(ctx).Info("An unused image was removed", "image", im.ID, "bytes", im.Size, "reason", why)
		if m.cfg.Collected != nil {
			m.cfg.Collected(why)
		}
		delete(m.images.known, im.ID)
		freed += im.Size
	}
	return freed
}

// detectImages lists the existing images, and which of them are in use.
func (m *Manager) detectImages(ctx context.Context) ([]eviction.Image, error) {
	images, err := m.cfg.Runtime.ListImages(ctx, &cri.ListImagesRequest{})
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	containers, err := m.cfg.Runtime.ListContainers(ctx, &cri.ListContainersRequest{})
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	used := map[string]bool{}
	for _, c := range containers.Containers {
		used[c.ImageRef], used[c.ImageId], used[c.GetImage().GetImage()] = true, true, true
	}
	use := func(reference string) {
		if name, err := image.Normalize(reference); err == nil {
			used[name] = true
		}
	}
	for _, v := range m.cfg.Pods.List() { // the status of a container does not show which images it mounts
		for i := range v.Pod.Spec.Volumes {
			if im := v.Pod.Spec.Volumes[i].Image; im != nil {
				use(im.Reference)
			}
		}
		if !runs(v) {
			continue
		}
		made := map[string]bool{}
		for _, s := range slices.Concat(v.Status.InitContainerStatuses, v.Status.ContainerStatuses) {
			made[s.Name] = s.ContainerID != ""
		}
		for _, c := range slices.Concat(v.Pod.Spec.InitContainers, v.Pod.Spec.Containers) {
			if !made[c.Name] {
				use(c.Image) // it was pulled or imported for a container that does not exist yet
			}
		}
	}
	delete(used, "")
	now := time.Now()
	known := make(map[string]eviction.Image, len(images.Images))
	var list []eviction.Image
	for _, im := range images.Images {
		if im.GetSpec().GetRuntimeHandler() != "" {
			continue // of another runtime, which others may use
		}
		known[im.Id] = m.seen(im, used, now)
		list = append(list, known[im.Id])
	}
	m.images.known = known
	return list, m.findImageDir(ctx)
}

func (m *Manager) seen(im *cri.Image, used map[string]bool, now time.Time) eviction.Image {
	it, ok := m.images.known[im.Id]
	if !ok {
		it = eviction.Image{ID: im.Id, Found: now}
	}
	it.Size = int64(im.Size)
	it.InUse = im.Pinned || used[im.Id] ||
		slices.ContainsFunc(slices.Concat(im.RepoTags, im.RepoDigests), func(name string) bool { return used[name] })
	if it.InUse {
		it.LastUsed = now
	}
	return it
}

// findImageDir gets the directory of the images from the runtime, once.
func (m *Manager) findImageDir(ctx context.Context) error {
	if m.imageDirectory() != "" {
		return nil
	}
	info, err := m.cfg.Runtime.ImageFsInfo(ctx, &cri.ImageFsInfoRequest{})
	if err != nil {
		return fmt.Errorf("get the directory of the images from the runtime: %w", err)
	}
	for _, f := range info.ImageFilesystems {
		dir := f.GetFsId().GetMountpoint()
		if dir == "" {
			continue
		}
		m.mu.Lock()
		m.imageDir, m.split = dir, device(dir) != device(m.cfg.Root)
		m.mu.Unlock()
		return nil
	}
	return nil
}

func device(path string) uint64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Dev
	}
	return 0
}
