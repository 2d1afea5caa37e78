package placement

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// nodeImage is one name of an image that a node has.
type nodeImage struct {
	name string
	size int64
}

func nodeImages(list []corev1.ContainerImage) []nodeImage {
	var images []nodeImage
	for i := range list {
		for _, name := range list[i].Names {
			images = append(images, nodeImage{name, list[i].SizeBytes})
		}
	}
	slices.SortFunc(images, func(a, b nodeImage) int { return cmp.Compare(a.name, b.name) })
	return slices.CompactFunc(images, func(a, b nodeImage) bool { return a.name == b.name })
}

func sameImages(a, b []corev1.ContainerImage) bool {
	return slices.EqualFunc(a, b, func(x, y corev1.ContainerImage) bool {
		return x.SizeBytes == y.SizeBytes && slices.Equal(x.Names, y.Names)
	})
}

// without are the images of which others has no name.
func without(images, others []nodeImage) []nodeImage {
	var rest []nodeImage
	for _, image := range images {
		if _, found := slices.BinarySearchFunc(others, image.name,
			func(o nodeImage, name string) int { return cmp.Compare(o.name, name) }); !found {
			rest = append(rest, image)
		}
	}
	return rest
}

// The bounds between which image sizes count, and the largest for one container.
const (
	smallImages = 23 << 20
	largeImage  = 1000 << 20
)

// imageLocality scores 0–100 by the bytes of the pod's images that the node has already, each
// discounted by how few nodes have it, so that one node does not attract all pods.
func (c *Cluster) imageLocality(p *Pod, n *Node) int64 {
	if len(n.images) == 0 {
		return 0
	}
	var sum int64
	containers := 0
	for _, list := range [][]corev1.Container{p.Object.Spec.InitContainers, p.Object.Spec.Containers} {
		for i := range list {
			containers++
			name := taggedName(list[i].Image)
			at, found := slices.BinarySearchFunc(n.images, name,
				func(image nodeImage, name string) int { return cmp.Compare(image.name, name) })
			if found {
				sum += n.images[at].size * int64(c.images[name]) / int64(len(c.nodes))
			}
		}
	}
	top := largeImage * int64(containers)
	return 100 * (min(max(sum, smallImages), top) - smallImages) / (top - smallImages)
}

// taggedName adds the tag latest to an image name without tag or digest.
func taggedName(image string) string {
	if strings.LastIndex(image, ":") <= strings.LastIndex(image, "/") {
		return image + ":latest"
	}
	return image
}
