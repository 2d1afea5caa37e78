package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"carob/internal/core/resources"
	"carob/internal/node/spec"
)

// emptyDir makes the directory of an emptyDir volume; what an earlier run made is kept (L7.37).
func (m *Manager) emptyDir(pod *corev1.Pod, name string, src *corev1.EmptyDirVolumeSource) (spec.Volume, error) {
	dir := m.volumeDir(pod.UID, name)
	v := spec.Volume{HostPath: dir, Relabel: true}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return v, err
	}
	switch medium := src.Medium; {
	case medium == corev1.StorageMediumDefault:
	case medium == corev1.StorageMediumMemory:
		if isMounted(dir) {
			return v, nil
		}
		options := fmt.Sprintf("mode=0777,size=%d", memorySize(pod, src, m.cfg.Node().Allocatable))
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
			return v, &os.PathError{Op: "mount tmpfs", Path: dir, Err: err}
		}
	case strings.HasPrefix(string(medium), string(corev1.StorageMediumHugePages)):
		if isMounted(dir) {
			return v, nil
		}
		options, err := hugePageOptions(pod, medium)
		if err != nil {
			return v, err
		}
		if err := unix.Mount("nodev", dir, "hugetlbfs", 0, options); err != nil {
			return v, &os.PathError{Op: "mount hugetlbfs", Path: dir, Err: err}
		}
	default:
		return v, fmt.Errorf("unknown storage medium %q", medium)
	}
	return v, shareDir(dir, fsGroup(pod))
}

// memorySize is the smallest of the volume's limit, the pod's memory limit and the node's memory.
func memorySize(pod *corev1.Pod, src *corev1.EmptyDirVolumeSource, allocatable corev1.ResourceList) int64 {
	size := allocatable.Memory().Value()
	for _, limit := range []int64{resources.PodCgroup(pod).Memory, limitOf(src)} {
		if limit > 0 && (size == 0 || limit < size) {
			size = limit
		}
	}
	return size
}

func limitOf(src *corev1.EmptyDirVolumeSource) int64 {
	if src.SizeLimit == nil {
		return 0
	}
	return src.SizeLimit.Value()
}

// hugePageOptions limits a hugetlbfs to the pages of one size that the pod requests.
func hugePageOptions(pod *corev1.Pod, medium corev1.StorageMedium) (string, error) {
	requests := resources.SpecRequests(pod)
	wanted := strings.TrimPrefix(string(medium), string(corev1.StorageMediumHugePagesPrefix))
	if medium == corev1.StorageMediumHugePages {
		wanted = ""
	}
	var found []string
	for _, name := range slices.Sorted(maps.Keys(requests)) {
		size, ok := strings.CutPrefix(string(name), corev1.ResourceHugePagesPrefix)
		if ok && (wanted == "" || size == wanted) {
			found = append(found, size)
		}
	}
	switch {
	case len(found) == 0:
		return "", fmt.Errorf("medium %q needs a hugepages request of the pod", medium)
	case len(found) > 1:
		return "", fmt.Errorf("medium %q is ambiguous: the pod requests pages of %s", medium,
			strings.Join(found, " and "))
	}
	page, err := resource.ParseQuantity(found[0])
	if err != nil {
		return "", fmt.Errorf("page size %q: %w", found[0], err)
	}
	size := requests[corev1.ResourceName(corev1.ResourceHugePagesPrefix+found[0])]
	return fmt.Sprintf("pagesize=%d,size=%d", page.Value(), size.Value()), nil
}

// shareDir makes a directory writable for everybody. With fsGroup it and what is made in it belong to that group.
func shareDir(dir string, group *int64) error {
	mode := fs.FileMode(0o777)
	if group != nil {
		if err := os.Lchown(dir, -1, int(*group)); err != nil {
			return err
		}
		mode |= fs.ModeSetgid
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return errors.New(dir + " is not a directory")
	}
	if info.Mode()&(fs.ModePerm|fs.ModeSetgid) == mode {
		return nil
	}
	return os.Chmod(dir, mode)
}
