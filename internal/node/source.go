package node

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"carob/internal/base/zerocopy"
	"carob/internal/node/static"
)

// Sources of pods (L3.1).
const (
	sourceAPI  = "api"
	sourceFile = "file"
)

// manifests feeds the static pods until ctx ends.
func (p *parts) manifests(ctx context.Context) error {
	if p.manifest == nil && p.web == nil {
		p.statics.Wanted(nil)
		return nil
	}
	g, ctx := errgroup.WithContext(ctx)
	if p.manifest != nil {
		g.Go(func() error { return p.manifest.Run(ctx) })
	}
	if p.web != nil {
		g.Go(func() error { return p.web.Run(ctx) })
	}
	return g.Wait()
}

// sources feeds the pods of the API server, and the node's own object, until ctx ends.
func (p *parts) sources(ctx context.Context) {
	if p.cfg.Standalone {
		p.pods.Sync(sourceAPI, nil)
		close(p.listed)
		return
	}
	reflect := func(resource string, lw cache.ListerWatcher, kind any, to cache.ReflectorStore) *cache.Reflector {
		return cache.NewReflectorWithOptions(lw, kind, to, cache.ReflectorOptions{Name: "node agent: " + resource})
	}
	// Where the API server is in this process, the pods are its own: nothing below modifies one.
	pods := zerocopy.New(p.client.CoreV1().Pods(metav1.NamespaceAll), &corev1.Pod{},
		fields.OneTermEqualSelector("spec.nodeName", p.cfg.Name)).Partial(p.pods.Unreadable)
	nodes := cache.NewListWatchFromClient(p.client.CoreV1().RESTClient(), "nodes", metav1.NamespaceAll,
		fields.OneTermEqualSelector("metadata.name", p.cfg.Name))
	var once sync.Once
	podStore := sink[*corev1.Pod]{
		received: ownMeta,
		replace: func(all []*corev1.Pod) {
			var pods, mirrors []*corev1.Pod
			for _, pod := range all {
				if static.IsMirror(pod) {
					mirrors = append(mirrors, pod)
				} else {
					pods = append(pods, pod)
				}
			}
			p.pods.Sync(sourceAPI, pods)
			p.statics.Mirrors(mirrors)
			once.Do(func() { close(p.listed) })
		},
		update: func(pod *corev1.Pod) {
			if static.IsMirror(pod) {
				p.statics.SeenMirror(pod)
				return
			}
			p.checkUpdate(pod)
			p.pods.Update(sourceAPI, pod)
			p.volumes.Update(pod)
		},
		remove: func(pod *corev1.Pod) {
			if static.IsMirror(pod) {
				p.statics.GoneMirror(pod)
				return
			}
			p.pods.Remove(pod.UID)
		},
	}
	seen := func(n *corev1.Node) {
		p.reporter.Seen(n)
		if p.csi != nil {
			p.csi.NodeSeen()
		}
	}
	nodeStore := sink[*corev1.Node]{
		received: func(n *corev1.Node) *corev1.Node {
			n.ManagedFields = nil
			return n
		},
		replace: func(all []*corev1.Node) {
			for _, n := range all {
				seen(n)
			}
		},
		update: seen,
		remove: func(*corev1.Node) {},
	}
	var all sync.WaitGroup
	all.Go(func() { reflect("pods", pods, &corev1.Pod{}, podStore).RunWithContext(ctx) })
	all.Go(func() { reflect("nodes", nodes, &corev1.Node{}, nodeStore).RunWithContext(ctx) })
	all.Wait()
}

// sink is a reflector's store that keeps nothing.
type sink[T metav1.Object] struct {
	received func(T) T // drops managedFields, which nothing reads
	replace  func([]T)
	update   func(T)
	remove   func(T)
}

// ownMeta is the pod without managedFields; everything else is shared with the original.
func ownMeta(pod *corev1.Pod) *corev1.Pod {
	own := *pod
	own.ManagedFields = nil
	return &own
}

// receive handles an object from the reflector.
func (s sink[T]) receive(obj any) (T, error) {
	o, ok := obj.(T)
	if !ok {
		return o, fmt.Errorf("unexpected %T in a watch of the node agent", obj)
	}
	return s.received(o), nil
}

func (s sink[T]) Add(obj any) error { return s.Update(obj) }

func (s sink[T]) Update(obj any) error {
	o, err := s.receive(obj)
	if err == nil {
		s.update(o)
	}
	return err
}

func (s sink[T]) Delete(obj any) error {
	o, err := s.receive(obj)
	if err == nil {
		s.remove(o)
	}
	return err
}

func (s sink[T]) Replace(objs []any, _ string) error {
	all := make([]T, 0, len(objs))
	for _, obj := range objs {
		o, err := s.receive(obj)
		if err != nil {
			return err
		}
		all = append(all, o)
	}
	s.replace(all)
	return nil
}

func (s sink[T]) Resync() error { return nil }

// adopt ends pods that exist only on disk: they were deleted while the agent was down, and the runtime does not have
// them either (L7.75). Some have only logs left (L7.131).
func (p *parts) adopt(ctx context.Context) {
	onDisk, err := p.volumes.OnDisk()
	if err != nil {
		klog.FromContext(ctx).Error(err, "Looking for directories of pods that are gone failed")
	}
	groups, err := p.cgroups.List()
	if err != nil {
		klog.FromContext(ctx).Error(err, "Looking for cgroups of pods that are gone failed")
	}
	inRuntime := p.watcher.Listed(ctx)
	p.pods.Adopt()
	names := logNames(p.cfg.PodLogDir)
	all := append(onDisk, groups...)
	if p.devices != nil {
		all = append(all, p.devices.Pods()...)
	}
	all = append(all, p.pinning.Pods()...)
	if strings.HasPrefix(p.cfg.PodLogDir, filepath.Dir(p.cfg.RootDir)+"/") {
		// logs elsewhere may belong to another agent
		all = slices.AppendSeq(all, maps.Keys(names))
	}
	for _, uid := range all {
		if p.pods.Known(uid) || inRuntime[uid] { // the watcher finds the latter, with their containers
			continue
		}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid},
			Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever}}
		pod.Namespace, pod.Name = names[uid].Namespace, names[uid].Name
		p.pods.Orphan(pod)
	}
	p.links.Sweep()
}

// logNames parses the names of pods from their log directories, NAMESPACE_NAME_UID.
func logNames(dir string) map[types.UID]types.NamespacedName {
	names := map[types.UID]types.NamespacedName{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return names
	}
	for _, e := range entries {
		if f := strings.Split(e.Name(), "_"); len(f) == 3 {
			names[types.UID(f[2])] = types.NamespacedName{Namespace: f[0], Name: f[1]}
		}
	}
	return names
}
