package eviction

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// ImagePolicy is when images nobody uses go (L7.133).
type ImagePolicy struct {
	High, Low int           // percent of the image file system: at High it begins, down to Low
	MinAge    time.Duration // younger ones stay
}

// DefaultImagePolicy goes before the default threshold of eviction, as upstream's
// (85, 80) does, and like that leaves room for a disk that is often nearly full.
func DefaultImagePolicy() ImagePolicy {
	return ImagePolicy{High: 92, Low: 90, MinAge: 2 * time.Minute}
}

// Image is one image on the node.
type Image struct {
	ID       string
	Size     int64     // bytes
	Found    time.Time // first seen on the node
	LastUsed time.Time // zero: never seen in use
	InUse    bool      // some container is of it, or it is pinned
}

// ImageNeed is how many bytes of images have to go; 0: none (L7.133).
func ImageNeed(p ImagePolicy, available, capacity int64) int64 {
	if p.High >= 100 || capacity <= 0 || 100-available*100/capacity < int64(p.High) {
		return 0
	}
	return capacity*int64(100-p.Low)/100 - available
}

// StillFull is what to say when the removal of all unused images freed too little of a
// disk that was as full as that before.
func StillFull(disk Observation, freed int64) string {
	used := int64(100)
	if disk.Capacity > 0 {
		used -= disk.Available * 100 / disk.Capacity
	}
	return fmt.Sprintf("Insufficient free disk space on the node's image filesystem (%d%% of %s used). "+
		"Failed to free sufficient space by deleting unused images (freed %d bytes). "+
		"Investigate disk usage, as it could be used by active images, logs, volumes, or other data.", used, binarySize(disk.Capacity), freed)
}

// binarySize is a number of bytes in the largest unit that leaves one before the point.
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

// UnusedImages are those that may go, the one to go first at the front: least
// recently used, then oldest. Those used or found less than minAge ago stay.
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
