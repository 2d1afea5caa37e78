package logs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
)

// Links are the links that log collectors follow, one for each container that started (L3.98):
// Dir/POD_NAMESPACE_CONTAINER-ID.log points to its log below Logs. carob itself does not follow them. Only links that
// lead below Logs are ever touched, so that agents may share a directory. It is safe for concurrent use; the zero
// value, without Dir, does nothing.
type Links struct {
	Dir  string // absolute; empty: no links
	Logs string // absolute: the log directories of pods

	once sync.Once
	mu   sync.Mutex
	made map[string][]string // names of the links in Dir, by POD_NAMESPACE_
}

const (
	linkSuffix  = ".log"
	maxLinkName = 255 // the longest name of a file
)

// linkName is the file name of a link; invalid names are refused. (The name of a pod may come from labels in the
// runtime, which any client of the runtime can set.)
func linkName(pod *corev1.Pod, container, id string) (string, error) {
	for _, part := range [...]string{pod.Name, pod.Namespace, container, id} {
		if part == "" || strings.ContainsAny(part, "/\x00\n") || strings.HasPrefix(part, ".") {
			return "", fmt.Errorf("link a container's log: %q cannot be part of a file name", part)
		}
	}
	if strings.Contains(pod.Name+pod.Namespace, "_") {
		return "", fmt.Errorf("link a container's log: %s/%s is not a name of a pod", pod.Namespace, pod.Name)
	}
	name := fmt.Sprintf("%s_%s_%s-%s", pod.Name, pod.Namespace, container, id)
	if len(name) > maxLinkName-len(linkSuffix) {
		name = name[:maxLinkName-len(linkSuffix)]
	}
	return name + linkSuffix, nil
}

func podPrefix(name, namespace string) string { return name + "_" + namespace + "_" }

// Make links the log of a container. A log that does not exist gets no link, and an older link of the same name (long
// names lack the container's ID) is replaced.
func (l *Links) Make(pod *corev1.Pod, container, id, log string) error {
	if l.Dir == "" {
		return nil
	}
	name, err := linkName(pod, container, id)
	if err != nil {
		return err
	}
	if _, err := os.Lstat(log); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	l.once.Do(l.read)
	l.mu.Lock()
	defer l.mu.Unlock()
	path := filepath.Join(l.Dir, name)
	switch to, err := os.Readlink(path); {
	case err == nil && to == log:
		return nil
	case err == nil && l.ours(to):
		err = os.Remove(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("replace the link to a container's log: %w", err)
		}
	}
	if err := os.Symlink(log, path); err != nil {
		return fmt.Errorf("link the log of container %s: %w", container, err)
	}
	l.note(podPrefix(pod.Name, pod.Namespace), name)
	return nil
}

// Remove removes the link of a container. log is its target; empty: unknown.
func (l *Links) Remove(pod *corev1.Pod, container, id, log string) error {
	if l.Dir == "" {
		return nil
	}
	name, err := linkName(pod, container, id)
	if err != nil {
		return nil // there is none
	}
	l.once.Do(l.read)
	l.mu.Lock()
	defer l.mu.Unlock()
	to, err := os.Readlink(filepath.Join(l.Dir, name))
	if err != nil || !l.ours(to) || log != "" && to != log {
		return nil // gone, or another container's
	}
	if err := os.Remove(filepath.Join(l.Dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the link to the log of container %s: %w", container, err)
	}
	l.drop(podPrefix(pod.Name, pod.Namespace), name)
	return nil
}

// Forget removes the links of a pod whose log directory is gone.
func (l *Links) Forget(pod *corev1.Pod) {
	if l.Dir == "" {
		return
	}
	l.once.Do(l.read)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sweep(podPrefix(pod.Name, pod.Namespace))
}

// Sweep removes all links whose log is gone (L7.131).
func (l *Links) Sweep() {
	if l.Dir == "" {
		return
	}
	l.once.Do(l.read)
	l.mu.Lock()
	defer l.mu.Unlock()
	for prefix := range l.made {
		l.sweep(prefix)
	}
}

// sweep removes the links of one pod whose log is gone. During a rotation a log has no file for a moment, only its
// rotated files.
func (l *Links) sweep(prefix string) {
	var keep []string
	for _, name := range l.made[prefix] {
		path := filepath.Join(l.Dir, name)
		to, err := os.Readlink(path)
		if err != nil || !l.ours(to) {
			continue // another agent replaced it
		}
		if logLeft(to) {
			keep = append(keep, name)
			continue
		}
		_ = os.Remove(path) // tried again at the next start
	}
	if l.made[prefix] = keep; len(keep) == 0 {
		delete(l.made, prefix)
	}
}

// logLeft reports whether a log or one of its rotated files exists.
func logLeft(log string) bool {
	if _, err := os.Lstat(log); !errors.Is(err, fs.ErrNotExist) {
		return true
	}
	old, err := rotated(log)
	return len(old) > 0 || err != nil && !errors.Is(err, fs.ErrNotExist)
}

// ours reports whether a link leads to a log of this agent.
func (l *Links) ours(to string) bool {
	return filepath.Clean(to) == to && strings.HasPrefix(to, l.Logs+"/")
}

// read finds the links that an earlier agent made.
func (l *Links) read() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.made = map[string][]string{}
	entries, err := os.ReadDir(l.Dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		parts := strings.SplitN(e.Name(), "_", 3)
		if e.Type() != fs.ModeSymlink || len(parts) != 3 || !strings.HasSuffix(e.Name(), linkSuffix) {
			continue
		}
		if to, err := os.Readlink(filepath.Join(l.Dir, e.Name())); err == nil && l.ours(to) {
			l.note(podPrefix(parts[0], parts[1]), e.Name())
		}
	}
}

func (l *Links) note(prefix, name string) { l.made[prefix] = append(l.made[prefix], name) }

func (l *Links) drop(prefix, name string) {
	var keep []string
	for _, n := range l.made[prefix] {
		if n != name {
			keep = append(keep, n)
		}
	}
	if l.made[prefix] = keep; len(keep) == 0 {
		delete(l.made, prefix)
	}
}
