package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"carob/internal/base/removetree"
	"carob/internal/base/securepath"
	"carob/internal/core/resources"
	"carob/internal/node/spec"
)

// preparing ends the name of a directory that is not an emptyDir volume yet. It is no valid name of a volume.
const preparing = ".preparing"

// emptyDir makes the directory of an emptyDir volume; what an earlier run made is kept (L7.37), also the mode and the
// group that containers have given it since.
func (m *Manager) emptyDir(pod *corev1.Pod, name string, src *corev1.EmptyDirVolumeSource) (spec.Volume, error) {
	final := m.volumeDir(pod.UID, name)
	v := spec.Volume{HostPath: final, Relabel: true}
	switch medium := src.Medium; {
	case medium == corev1.StorageMediumDefault:
		return v, makeShared(final, fsGroup(pod))
	case medium == corev1.StorageMediumMemory:
		options := fmt.Sprintf("%s,size=%d", sharedOptions(fsGroup(pod)),
			memorySize(pod, src, m.cfg.Node().Allocatable))
		return v, mountInMemory("tmpfs", final, options)
	case strings.HasPrefix(string(medium), string(corev1.StorageMediumHugePages)):
		options, err := hugePageOptions(pod, medium)
		if err != nil {
			return v, err
		}
		if securepath.IsMounted(final) {
			return v, nil
		}
		if err := mountInMemory("hugetlbfs", final, options); err != nil {
			return v, err
		}
		return v, shareDir(final, fsGroup(pod))
	default:
		return v, fmt.Errorf("unknown storage medium %q", medium)
	}
}

// makeShared makes a directory that everybody may write to, unless it exists. It gets its name when it is complete, so
// that a later start changes only what it has made itself.
func makeShared(final string, group *int64) error {
	if info, err := os.Lstat(final); err == nil && info.IsDir() {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(final), 0o750); err != nil {
		return err
	}
	unready := final + preparing
	if err := removetree.All(unready); err != nil { // of an interrupted start
		return err
	}
	if err := os.Mkdir(unready, 0o750); err != nil {
		return err
	}
	if err := shareDir(unready, group); err != nil {
		return err
	}
	return os.Rename(unready, final)
}

// mountInMemory makes a directory and mounts a file system on it, unless one is mounted there.
func mountInMemory(kind, dir, options string) error {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	if securepath.IsMounted(dir) {
		return nil
	}
	if err := unix.Mount(kind, dir, kind, 0, options); err != nil {
		return &os.PathError{Op: "mount " + kind, Path: dir, Err: err}
	}
	return nil
}

// sharedOptions are the options of a tmpfs that everybody may write to, as shareDir does it for a directory.
func sharedOptions(group *int64) string {
	if group == nil {
		return "mode=0777"
	}
	return fmt.Sprintf("mode=02777,gid=%d", *group)
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
