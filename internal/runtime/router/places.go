package router

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"carob/internal/base/atomicfile"
)

// place is the record of a pod in another runtime, a file named after the pod's UID. It is written
// before the first sandbox is created, and removed when that runtime has nothing of the pod.
type place struct {
	UID         string            `json:"uid"`
	Endpoint    string            `json:"endpoint"`
	Name        string            `json:"name"`
	Namespace   string            `json:"namespace"`
	Labels      map[string]string `json:"labels,omitempty"` // of the sandbox
	Annotations map[string]string `json:"annotations,omitempty"`
	IDs         []string          `json:"ids,omitempty"` // of sandboxes and containers

	runtime *other
	running int    // sandboxes that are being created
	version uint64 // changes when the creation of a sandbox begins
}

// places are the pods that other runtimes have.
type places struct {
	dir string

	mu    sync.Mutex
	pods  map[string]*place // by UID
	ids   map[string]*place // by sandbox and container
	count uint64
}

// safeUID is what a UID must look like to be the name of a file.
var safeUID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,127}$`)

const recordSuffix = ".json"

// openPlaces reads the records below dir.
func openPlaces(dir string, byEndpoint map[string]*other) (*places, error) {
	p := &places{dir: dir, pods: map[string]*place{}, ids: map[string]*place{}}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create the directory for records of runtime handlers: %w", err)
	}
	all, err := recorded(dir)
	if err != nil {
		return nil, err
	}
	for _, pl := range all {
		if pl.runtime = byEndpoint[pl.Endpoint]; pl.runtime == nil {
			klog.Background().Info("A pod is in a runtime that no handler names any more; it is left there",
				"pod", pl.Namespace+"/"+pl.Name, "uid", pl.UID, "endpoint", pl.Endpoint)
			if err := os.Remove(p.file(pl.UID)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, fmt.Errorf("remove the record of pod %s/%s: %w", pl.Namespace, pl.Name, err)
			}
			continue
		}
		p.pods[pl.UID] = pl
		for _, id := range pl.IDs {
			p.ids[id] = pl
		}
	}
	return p, nil
}

// recorded reads the records below a directory, which need not exist.
func recorded(dir string) ([]*place, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list records of runtime handlers: %w", err)
	}
	var all []*place
	for _, e := range entries {
		uid, ok := strings.CutSuffix(e.Name(), recordSuffix)
		if !ok || !safeUID.MatchString(uid) {
			continue // a file that was being written
		}
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		pl := &place{}
		if err == nil {
			err = json.Unmarshal(b, pl)
		}
		if err == nil && pl.UID != uid {
			err = fmt.Errorf("it is about pod %q", pl.UID)
		}
		if err != nil {
			return nil, fmt.Errorf("read the record of a pod in another runtime, %s: %w",
				filepath.Join(dir, e.Name()), err)
		}
		all = append(all, pl)
	}
	return all, nil
}

// Endpoints counts the recorded pods of each endpoint. dir need not exist.
func Endpoints(dir string) (map[string]int, error) {
	all, err := recorded(dir)
	count := map[string]int{}
	for _, pl := range all {
		count[pl.Endpoint]++
	}
	return count, err
}

func (p *places) file(uid string) string { return filepath.Join(p.dir, uid+recordSuffix) }

// claim records that a pod is in o, before its sandbox is created. done is called when the creation
// has ended.
func (p *places) claim(uid string, o *other, cfg *cri.PodSandboxConfig) (done func(), _ error) {
	if !safeUID.MatchString(uid) {
		return nil, status.Errorf(codes.InvalidArgument, "the UID %q of a pod cannot be the name of a file", uid)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	pl := p.pods[uid]
	if pl == nil {
		pl = &place{UID: uid, Endpoint: o.endpoint, Name: cfg.GetMetadata().GetName(),
			Namespace: cfg.GetMetadata().GetNamespace(), Labels: cfg.GetLabels(), Annotations: cfg.GetAnnotations(),
			runtime: o}
		if err := p.write(pl, atomicfile.Write); err != nil {
			return nil, err
		}
		p.pods[uid] = pl
	}
	p.count++
	pl.version = p.count
	pl.running++
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		pl.running--
	}, nil
}

// write stores a record. The first one must survive a power failure; the IDs that follow are listed by
// the runtime again.
func (p *places) write(pl *place, write func(string, []byte, fs.FileMode) error) error {
	b, err := json.Marshal(pl)
	if err == nil {
		err = write(p.file(pl.UID), b, 0o600)
	}
	if err != nil {
		return fmt.Errorf("record that pod %s/%s is in %s: %w", pl.Namespace, pl.Name, pl.runtime, err)
	}
	return nil
}

// add records a sandbox or container of a pod.
func (p *places) add(uid, id string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	pl := p.pods[uid]
	if pl == nil || id == "" {
		return status.Errorf(codes.Internal, "pod %q, whose object %q was created, is not recorded", uid, id)
	}
	return p.addTo(pl, id)
}

// addTo records an ID. p.mu is held.
func (p *places) addTo(pl *place, id string) error {
	if p.ids[id] == pl {
		return nil
	}
	pl.IDs = append(pl.IDs, id)
	p.ids[id] = pl
	return p.write(pl, atomicfile.WriteUnsynced)
}

// drop deletes the record of a sandbox or container that was removed.
func (p *places) drop(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	pl := p.ids[id]
	if pl == nil {
		return
	}
	delete(p.ids, id)
	pl.IDs = slices.DeleteFunc(pl.IDs, func(have string) bool { return have == id })
	if err := p.write(pl, atomicfile.WriteUnsynced); err != nil {
		klog.Background().Error(err, "The record names an object that is gone")
	}
}

// of is the other runtime that has a pod; nil: none.
func (p *places) of(uid string) *other {
	p.mu.Lock()
	defer p.mu.Unlock()
	if pl := p.pods[uid]; pl != nil {
		return pl.runtime
	}
	return nil
}

// runtimeOf is the other runtime that has a sandbox or container; nil: none.
func (p *places) runtimeOf(id string) *other {
	p.mu.Lock()
	defer p.mu.Unlock()
	if pl := p.ids[id]; pl != nil {
		return pl.runtime
	}
	return nil
}

// uidOf is the pod of a sandbox or container in another runtime, or empty.
func (p *places) uidOf(id string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if pl := p.ids[id]; pl != nil {
		return pl.UID
	}
	return ""
}

func (p *places) labels(uid string) map[string]string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if pl := p.pods[uid]; pl != nil {
		return maps.Clone(pl.Labels)
	}
	return nil
}

// uids are the pods of a runtime.
func (p *places) uids(o *other) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []string
	for uid, pl := range p.pods {
		if pl.runtime == o {
			all = append(all, uid)
		}
	}
	slices.Sort(all)
	return all
}

// standIns are the sandboxes of a runtime as far as the records know them, for lists that begin
// while it does not answer.
func (p *places) standIns(o *other) []*cri.PodSandbox {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []*cri.PodSandbox
	for _, pl := range p.pods {
		if pl.runtime != o || len(pl.IDs) == 0 {
			continue
		}
		all = append(all, &cri.PodSandbox{Id: pl.IDs[0], State: cri.PodSandboxState_SANDBOX_NOTREADY,
			Metadata: &cri.PodSandboxMetadata{Name: pl.Name, Namespace: pl.Namespace, Uid: pl.UID},
			Labels:   maps.Clone(pl.Labels), Annotations: maps.Clone(pl.Annotations)})
	}
	return all
}

// versions are taken before a list, for settle.
func (p *places) versions(o *other) map[string]uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	v := map[string]uint64{}
	for uid, pl := range p.pods {
		if pl.runtime == o && pl.running == 0 {
			v[uid] = pl.version
		}
	}
	return v
}

// own returns those of the listed sandboxes that belong to recorded pods, and records their IDs.
func (p *places) own(o *other, items []*cri.PodSandbox) []*cri.PodSandbox {
	p.mu.Lock()
	defer p.mu.Unlock()
	var own []*cri.PodSandbox
	for _, item := range items {
		pl := p.pods[item.GetMetadata().GetUid()]
		if pl == nil || pl.runtime != o {
			continue // of others that use this runtime
		}
		if err := p.addTo(pl, item.GetId()); err != nil {
			klog.Background().Error(err, "Cannot record a sandbox of another runtime; trying again when it is listed")
		}
		own = append(own, item)
	}
	return own
}

// ownContainers does so for containers.
func (p *places) ownContainers(o *other, items []*cri.Container) []*cri.Container {
	p.mu.Lock()
	defer p.mu.Unlock()
	var own []*cri.Container
	for _, item := range items {
		pl := p.ids[item.GetPodSandboxId()]
		if pl == nil || pl.runtime != o {
			continue
		}
		if err := p.addTo(pl, item.GetId()); err != nil {
			klog.Background().Error(err, "Cannot record a container of another runtime; trying again when it is listed")
		}
		own = append(own, item)
	}
	return own
}

// settle removes the records of pods of which the runtime has no sandbox, if no sandbox was
// requested since versions were taken.
func (p *places) settle(ctx context.Context, o *other, before map[string]uint64, listed []*cri.PodSandbox) {
	here := map[string]bool{}
	for _, item := range listed {
		here[item.GetMetadata().GetUid()] = true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for uid, version := range before {
		pl := p.pods[uid]
		if here[uid] || pl == nil || pl.runtime != o || pl.version != version || pl.running > 0 {
			continue
		}
		if err := os.Remove(p.file(uid)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			klog.FromContext(ctx).Error(err, "Cannot remove the record of a pod of another runtime; trying again later")
			continue
		}
		delete(p.pods, uid)
		for _, id := range pl.IDs {
			delete(p.ids, id)
		}
	}
}
