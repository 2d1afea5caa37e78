package node

import (
	"context"
	"path/filepath"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"carob/internal/core/podlife"
	"carob/internal/node/execute"
	"carob/internal/node/image"
	"carob/internal/node/logs"
	"carob/internal/node/observe"
	"carob/internal/node/pods"
	"carob/internal/node/refs"
	"carob/internal/node/runtimehandler"
	"carob/internal/node/static"
	nodestatus "carob/internal/node/status"
	"carob/internal/node/userns"
	"carob/internal/node/volume"
)

// ownerAnnotation marks the sandboxes of an agent with its RootDir, so that agents
// that share a runtime leave each other's pods alone.
const ownerAnnotation = "carob.dev/root-dir"

// podLoop are the parts that run pods: their owners, the observer, the executor, and the writer of statuses.
type podLoop struct {
	status   *nodestatus.Writer
	refs     *refs.Store
	volumes  *volume.Manager
	pulls    *image.Manager
	observer *observe.Observer
	statics  *static.Manager
	manifest *static.Source    // nil: none
	web      *static.WebSource // nil: none
	pods     *pods.Manager
	watcher  *observe.Watcher
	images   chan struct{} // capacity 1: images were added or removed
}

// newPodLoop creates the parts, each after those that it uses.
func newPodLoop(ctx context.Context, cfg *Config, m *machine) (*podLoop, error) {
	core := m.client.CoreV1()
	l := &podLoop{status: nodestatus.New(core), refs: refs.New(m.client), images: make(chan struct{}, 1)}
	if cfg.Standalone {
		l.refs = refs.NewStandalone(m.client)
	}
	var drivers volume.Drivers
	if m.csi != nil {
		drivers = m.csi
	}
	l.volumes = volume.New(volume.Config{
		CSI: drivers, SELinux: volume.SELinuxEnabled(),
		Root: cfg.RootDir, Node: m.facts.node, Objects: l.refs, Tokens: l.refs, Certificates: l.refs,
		Persistent: l.refs, Object: m.reporter.Node,
		Logger: klog.FromContext(ctx).WithName("volumes"), Event: m.podEvent, NotLabelled: m.meter.NotLabelled,
	})
	found := runtimehandler.New(m.client.NodeV1().RuntimeClasses())
	var err error
	if l.pulls, err = image.New(image.Config{
		Runtime: cfg.Runtime, Handler: ofImages(cfg.RuntimeHandlers, found),
		Secrets: l.refs, MaxPulls: cfg.MaxPulls, Limit: cfg.Pulls,
		Plugins: m.credentialPlugins(cfg, l.refs), NodeConfig: nodeCredentials(cfg.KubeletDir), Policy: cfg.PullPolicy,
		Records: filepath.Join(cfg.RootDir, "pulled"),
		Pulled:  func() { notify(l.images) }, Event: m.podEvent,
	}); err != nil {
		return nil, err
	}
	l.observer = observe.New(l.observing(cfg, m))
	ids, err := userns.Open(filepath.Join(cfg.RootDir, "pods"), klog.FromContext(ctx))
	if err != nil {
		return nil, err
	}
	var given execute.Devices
	if m.devices != nil {
		given = m.devices
	}
	executor := execute.New(execute.Config{
		Devices: given, Pinning: m.pinning,
		Runtime: cfg.Runtime, Images: l.pulls, Volumes: l.volumes, Cgroups: m.meter.Cgroups(m.cgroups), UserNS: ids,
		Observer: l.observer, Status: l.status, Objects: l.refs, Client: core,
		Handlers: found,
		Node:     m.facts.node, Event: m.events.Pod, OwnerKey: ownerAnnotation, OwnerValue: cfg.RootDir, Links: m.links,
		Changed: func(uid types.UID) { l.pods.Arrived(uid) },
		Reject: func(uid types.UID, stop podlife.Stop) {
			m.meter.Refused(stop.Reason)
			_ = l.pods.Stop(uid, stop) // a pod that is gone need not be ended
		},
	})
	mirrors := static.ManagerConfig{Client: core, Node: m.known.Node, Status: l.status}
	if cfg.Standalone {
		mirrors.Client = nil
	}
	l.statics = static.NewManager(mirrors)
	l.readManifests(cfg)
	admission := &admission{object: m.reporter.Node, down: m.goingDown, appArmor: hostAppArmor, devices: m.devices,
		sysctls: cfg.UnsafeSysctls}
	l.pods = pods.New(pods.Config{
		Machine: pods.Machine{Step: podlife.Step, Recover: podlife.Recover}, Node: m.lifeNode(cfg),
		Observer: l.observer,
		Executor: m.meter.Executor(executor), Status: m.meter.Statuses(l.statics), Event: m.events.Pod,
		Admit: m.countRejections(admission.admit), Pin: m.pin, Infeasible: m.pinning.AllowsResize,
		Routed: routed(cfg.Traffic, cfg.Queues), DrainTimeout: drainTimeout(cfg.Traffic), Journal: cfg.Journal,
	})
	l.watcher = &observe.Watcher{
		Observer: l.observer, OwnerKey: ownerAnnotation, OwnerValue: cfg.RootDir,
		Changed: l.pods.Changed, Known: l.pods.Known, Orphan: l.pods.Orphan, Relisted: m.meter.Relisted,
	}
	return l, nil
}

// ofImages finds the handlers that requests about images name.
func ofImages(handlers []string, found *runtimehandler.Finder) func(context.Context, *corev1.Pod) (string, error) {
	if len(handlers) == 0 {
		return nil
	}
	return func(ctx context.Context, pod *corev1.Pod) (string, error) {
		h, err := found.Of(ctx, pod)
		if !slices.Contains(handlers, h) {
			h = "" // the images are those of all pods
		}
		return h, err
	}
}

// readManifests makes the sources of static pods. Their pods are combined once each has delivered its first list.
func (l *podLoop) readManifests(cfg *Config) {
	files, web := l.statics.Wanted, l.statics.Wanted
	if cfg.Manifests != "" && cfg.ManifestURL != "" {
		both := &staticPods{to: l.statics.Wanted}
		files = func(pods []*corev1.Pod) { both.wanted(0, pods) }
		web = func(pods []*corev1.Pod) { both.wanted(1, pods) }
	}
	if cfg.Manifests != "" {
		l.manifest = static.NewSource(static.SourceConfig{Path: cfg.Manifests, Node: cfg.Name, Complete: cfg.Complete,
			Cache: filepath.Join(cfg.RootDir, "static-pods"), Wanted: files})
	}
	if cfg.ManifestURL != "" {
		l.web = static.NewWebSource(static.WebConfig{URL: cfg.ManifestURL, Header: cfg.ManifestHeader,
			Every: cfg.ManifestPeriod, Node: cfg.Name, Cache: filepath.Join(cfg.RootDir, "static-pods-of-url"),
			Complete: cfg.Complete, Wanted: web})
	}
}

// staticPods joins the static pods of two sources.
type staticPods struct {
	to func([]*corev1.Pod)

	mu       sync.Mutex
	received [2]bool
	pods     [2][]*corev1.Pod
}

func (s *staticPods) wanted(source int, pods []*corev1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.received[source], s.pods[source] = true, pods; s.received[0] && s.received[1] {
		s.to(slices.Concat(s.pods[0], s.pods[1]))
	}
}

// observing is the configuration of the observer.
func (l *podLoop) observing(cfg *Config, m *machine) observe.Config {
	var given func(*corev1.Pod) podlife.DeviceState
	if d := m.devices; d != nil {
		given = func(pod *corev1.Pod) podlife.DeviceState {
			return podlife.DeviceState{Held: d.Held(pod.UID) || m.pinning.Held(pod.UID), Status: d.Status(pod)}
		}
	} else if m.pinning != nil {
		given = func(pod *corev1.Pod) podlife.DeviceState {
			return podlife.DeviceState{Held: m.pinning.Held(pod.UID)}
		}
	}
	var own func(types.UID, string) int
	if m.pinning != nil {
		own = func(pod types.UID, container string) int { return len(m.pinning.OwnCPUs(pod, container)) }
	}
	return observe.Config{
		Devices: given, OwnCPUs: own,
		Runtime: cfg.Runtime, Image: l.pulls.State,
		Volumes: func(pod *corev1.Pod) podlife.VolumeState {
			v := l.volumes.State(pod)
			group := m.cgroups.Present(pod)
			v.Mounted = v.Mounted && group
			v.Present = v.Present || group
			return v
		},
		TerminationMessage: l.volumes.TerminationMessage,
		LogTail:            logs.Tail,
		NewestLog: func(pod *corev1.Pod, container string) (int, bool, error) {
			return logs.Newest(cfg.PodLogDir, pod, container)
		},
		LogPath: func(id, path string, running bool) {
			if running {
				m.rotator.Add(id, path)
			} else {
				m.rotator.Remove(id)
			}
		},
	}
}

// staticRunner runs static pods like all others.
type staticRunner struct{ pods *pods.Manager }

// Start implements static.Runner.
func (r staticRunner) Start(pod *corev1.Pod) { r.pods.Update(sourceFile, pod) }

// Stop implements static.Runner.
func (r staticRunner) Stop(uid types.UID) { r.pods.Remove(uid) }
