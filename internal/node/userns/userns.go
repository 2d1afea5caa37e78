// Package userns gives pods with spec.hostUsers=false their range of user and
// group ids (L3.163). The executor calls it before it creates a sandbox. The range of a pod is stored in its directory,
// so that it stays the same after restarts; the package must never assign IDs that another pod of this node has, nor
// those that /etc/subuid and /etc/subgid give to users. Nodes with other directories begin elsewhere, so that two on
// one machine hardly ever assign the same. While the stored range of a pod is unreadable, no pod gets a new range.
//
// Contract: docs/spec/pod-lifecycle.md.
package userns

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"carob/internal/base/atomicfile"
)

const (
	length = 65536     // ids of one pod
	slots  = 1<<16 - 2 // ranges that fit into 32 bits
	// The first range of a node is one of these: above those that useradd gives to users (SUB_UID_MAX, 600,100,000),
	// and below 1,000,000,000 ids, which is what a container with a user namespace of its own often has.
	lowest   = 9158
	highest  = 15257
	fileName = "userns" // in the pod's directory
	mode     = fs.FileMode(0o600)
	dirMode  = fs.FileMode(0o750)
)

// Manager assigns ranges. It is safe for concurrent use.
type Manager struct {
	dir      string
	first    uint32 // slot that is tried first
	reserved []ids  // of the users of the machine

	mu      sync.Mutex
	pods    map[types.UID]uint32 // slot; the ids begin at slot*length, slot 0 is the host's
	used    map[uint32]bool
	damaged map[types.UID]error // pods whose slot is unknown: it could be any
}

// record is the content of the file.
type record struct {
	UIDs []mapping `json:"uidMappings"`
	GIDs []mapping `json:"gidMappings"`
}

type mapping struct {
	Host      uint32 `json:"hostId"`
	Container uint32 `json:"containerId"`
	Length    uint32 `json:"length"`
}

// Open reads the ranges of the pods that have a directory below dir. It logs those that it cannot read.
func Open(dir string, log klog.Logger) (*Manager, error) {
	m := &Manager{dir: dir, first: firstSlot(dir), pods: map[types.UID]uint32{}, used: map[uint32]bool{},
		damaged: map[types.UID]error{}}
	for _, file := range subordinate {
		list, err := subordinateIDs(file)
		if err != nil {
			log.Error(err, "Pods with hostUsers: false may get ids that a user of the machine has")
		}
		m.reserved = append(m.reserved, list...)
	}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the user namespaces of pods: %w", err)
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		uid := types.UID(e.Name())
		slot, err := read(m.path(uid))
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			log.Error(err, "The user namespace of a pod cannot be read; until the pod is deleted, "+
				"no other pod with hostUsers: false starts", "podUID", uid)
			m.damaged[uid] = err
		default:
			m.pods[uid], m.used[slot] = slot, true
		}
	}
	return m, nil
}

// read returns the slot in a file.
func read(path string) (uint32, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	var r record
	if err := json.Unmarshal(b, &r); err != nil || len(r.UIDs) != 1 || r.UIDs[0].Host%length != 0 ||
		r.UIDs[0].Host == 0 {
		return 0, fmt.Errorf("%s is damaged", path)
	}
	return r.UIDs[0].Host / length, nil
}

func (m *Manager) path(uid types.UID) string { return filepath.Join(m.dir, string(uid), fileName) }

// Of returns the user namespace of the pod, nil when it uses the host's.
func (m *Manager) Of(pod *corev1.Pod) (*cri.UserNamespace, error) {
	if pod.Spec.HostUsers == nil || *pod.Spec.HostUsers {
		return nil, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	slot, ok := m.pods[pod.UID]
	if !ok {
		for uid, err := range m.damaged {
			return nil, fmt.Errorf("the range of user ids of pod %s is unknown, delete this pod: %w", uid, err)
		}
		if slot, ok = m.free(); !ok {
			return nil, errors.New("no range of user ids is left on this node, beside those of pods and /etc/subuid")
		}
		if err := m.save(pod.UID, slot); err != nil {
			return nil, err
		}
		m.pods[pod.UID], m.used[slot] = slot, true
	}
	ids := []*cri.IDMapping{{HostId: slot * length, ContainerId: 0, Length: length}}
	return &cri.UserNamespace{Mode: cri.NamespaceMode_POD, Uids: ids, Gids: ids}, nil
}

// free returns a slot that neither a pod has nor a user of the machine. m.mu is held.
func (m *Manager) free() (uint32, bool) {
	for i := range uint32(slots) {
		slot := (m.first-1+i)%slots + 1
		if !m.used[slot] && !slices.ContainsFunc(m.reserved, func(r ids) bool { return r.overlaps(slot) }) {
			return slot, true
		}
	}
	return 0, false
}

func (m *Manager) save(uid types.UID, slot uint32) error {
	ids := []mapping{{Host: slot * length, Length: length}}
	b, err := json.Marshal(record{UIDs: ids, GIDs: ids})
	if err != nil {
		return fmt.Errorf("store the user namespace of pod %s: %w", uid, err)
	}
	if err := os.MkdirAll(filepath.Dir(m.path(uid)), dirMode); err != nil {
		return fmt.Errorf("store the user namespace of pod %s: %w", uid, err)
	}
	if err := atomicfile.Write(m.path(uid), b, mode); err != nil {
		return fmt.Errorf("store the user namespace of pod %s: %w", uid, err)
	}
	return nil
}

// Release frees the range of a pod, once nothing of the pod runs and its directory is gone.
func (m *Manager) Release(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.damaged, uid)
	if slot, ok := m.pods[uid]; ok {
		delete(m.pods, uid)
		delete(m.used, slot)
	}
}
