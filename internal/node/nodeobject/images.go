package nodeobject

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// namesReported bounds the names of one image.
const namesReported = 5

// ImageList converts the runtime's images to those of a node status, largest first.
func ImageList(images []*cri.Image) []corev1.ContainerImage {
	list := make([]corev1.ContainerImage, 0, len(images))
	for _, im := range images {
		names := slices.Concat(im.RepoDigests, im.RepoTags)
		if len(names) == 0 {
			continue
		}
		list = append(list, corev1.ContainerImage{Names: names[:min(len(names), namesReported)],
			SizeBytes: int64(im.Size)})
	}
	slices.SortStableFunc(list, func(a, b corev1.ContainerImage) int {
		return cmp.Or(cmp.Compare(b.SizeBytes, a.SizeBytes), cmp.Compare(a.Names[0], b.Names[0]))
	})
	return list
}
