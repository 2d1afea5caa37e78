package eviction

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// ImagePolicy defines when unused images are removed (L7.133).
type ImagePolicy struct {
	High, Low int           // percent of the image file system: removal starts at High and stops at Low
	MinAge    time.Duration // younger images stay
	MaxAge    time.Duration // images that were unused for longer are removed, also without need; 0: they stay
}

// DefaultImagePolicy removes images before the default eviction threshold is reached, as upstream's
// (85, 80) does, and also leaves room for a disk that is often almost full.
func DefaultImagePolicy() ImagePolicy {
	return ImagePolicy{High: 92, Low: 90, MinAge: 2 * time.Minute}
}

// Image is one image on the node.
type Image struct {
	ID       string
	Size     int64     // bytes
	Found    time.Time // first seen on the node
	LastUsed time.Time // zero: never seen in use
	InUse    bool      // used by a container, or pinned
}

// ImageNeed is how many bytes of images must be removed; 0: none (L7.133).
func ImageNeed(p ImagePolicy, available, capacity int64) int64 {
	if p.High >= 100 || capacity <= 0 || 100-available*100/capacity < int64(p.High) {
		return 0
	}
	return capacity*int64(100-p.Low)/100 - available
}

// StillFull returns the message for the case that removing all unused images did not free enough
// disk space.
func StillFull(disk Observation, freed int64) string {
	used := int64(100)
	if disk.Capacity > 0 {
		used -= disk.Available * 100 / disk.Capacity
	}
	return fmt.Sprintf("Insufficient free disk space on the node's image filesystem (%d%% of %s used). "+
		"Failed to free sufficient space by deleting unused images (freed %d bytes). "+
		"Investigate disk usage, as it could be used by active images, logs, volumes, or other data.", used,
		binarySize(disk.Capacity), freed)
}

// binarySize formats bytes in the largest unit with at least one digit before the point.
func binarySize(bytes int64) string {
	if bytes < 1<<10 {
		return fmt.Sprintf("%d B", bytes)
	}
	size, unit := float64(bytes)/(1<<10), 0
	for size >= 1<<10 && unit < 3 {
		size, unit = size/(1<<10), unit+1
	}
	return fmt.Sprintf("%.1f %ciB", size, "KMGT"[unit])
}

// OldImages returns the images that have been unused for longer than maxAge, in the order of UnusedImages; none if
// maxAge is 0. An image that was never seen in use counts from when it was first seen.
func OldImages(all []Image, maxAge time.Duration, now time.Time) []Image {
	if maxAge <= 0 {
		return nil
	}
	return UnusedImages(all, maxAge+1, now)
}

// UnusedImages returns the images that may be removed, in order: least recently used, then oldest.
// Images used or pulled less than minAge ago stay.
func UnusedImages(all []Image, minAge time.Duration, now time.Time) []Image {
	var free []Image
	for _, im := range all {
		if !im.InUse && now.Sub(im.Found) >= minAge && now.Sub(im.LastUsed) >= minAge {
			free = append(free, im)
		}
	}
	slices.SortStableFunc(free, func(a, b Image) int {
		return cmp.Or(a.LastUsed.Compare(b.LastUsed), a.Found.Compare(b.Found), cmp.Compare(a.ID, b.ID))
	})
	return free
}
