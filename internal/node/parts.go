package node

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	coreeviction "carob/internal/core/eviction"
	"carob/internal/core/podlife"
	"carob/internal/node/cgroup"
	"carob/internal/node/events"
	"carob/internal/node/eviction"
	"carob/internal/node/execute"
	"carob/internal/node/image"
	"carob/internal/node/logs"
	"carob/internal/node/metrics"
	"carob/internal/node/object"
	"carob/internal/node/observe"
	"carob/internal/node/pods"
	"carob/internal/node/refs"
	"carob/internal/node/shutdown"
	"carob/internal/node/spec"
	"carob/internal/node/static"
	nodestatus "carob/internal/node/status"
	"carob/internal/node/stream"
	"carob/internal/node/userns"
	"carob/internal/node/volume"
	"carob/internal/runtime"
)

// ownerAnnotation marks the sandboxes of an agent with its RootDir, so that agents
// that share a runtime leave each other's pods alone.
const ownerAnnotation = "carob.dev/root-dir"

// parts are the parts of a running agent.
type parts struct {
	cfg      *Config
	client   kubernetes.Interface
	events   *events.Recorder
	status   *nodestatus.Writer
	reporter *object.Reporter
	pods     *pods.Manager
	refs     *refs.Store
	volumes  *volume.Manager
	pulls    *image.Manager
	rotator  *logs.Rotator
	links    *logs.Links
	server   *stream.Server
	watcher  *observe.Watcher
	observer *observe.Observer
	cgroups  *cgroup.Manager
	health   *health
	facts    *facts
	meter    *metrics.Meter
	eviction *eviction.Manager
	shutdown *shutdown.Manager // nil: the user gave it no time
	statics  *static.Keeper
	manifest *static.Source // nil: none
	started  time.Time
	listed   chan struct{} // closed when the API server has delivered its pods
}

// build asks machine and runtime what they are and puts the parts together.
func build(ctx context.Context, cfg *Config) (*parts, error) {
	p := &parts{cfg: cfg, started: time.Now(), listed: make(chan struct{})}
	p.meter = metrics.New(p.shown())
	attacher, _ := cfg.Runtime.(runtime.Attacher)
	cfg.Runtime = p.meter.Runtime(cfg.Runtime)
	machine, err := object.ReadMachine(cfg.RootDir)
	if err != nil {
		return nil, fmt.Errorf("node agent: %w", err)
	}
	version, err := cfg.Runtime.Version(ctx, &cri.VersionRequest{})
	if err != nil {
		return nil, fmt.Errorf("node agent: ask the container runtime for its version: %w", err)
	}
	if cfg.RuntimeName == "" {
		cfg.RuntimeName = version.RuntimeName
	}
	if cfg.CgroupDriver == "" {
		if cfg.CgroupDriver, err = cgroupDriver(ctx, cfg); err != nil {
			return nil, err
		}
	}
	if p.client, err = kubernetes.NewForConfig(clientConfig(cfg.Client)); err != nil {
		return nil, fmt.Errorf("node agent: client of the API server: %w", err)
	}
	core := p.client.CoreV1()
	p.cgroups = cgroup.New(cgroup.Config{Root: cfg.CgroupRoot, Systemd: cfg.CgroupDriver == "systemd", PodPids: cfg.PodPids})
	if err := p.cgroups.Init(); err != nil {
		return nil, fmt.Errorf("node agent: %w", err)
	}
	p.events = events.New(core, cfg.Name, func() types.UID {
		if p.reporter == nil {
			return ""
		}
		return p.reporter.UID()
	})
	p.status = nodestatus.New(core)
	p.refs = refs.New(p.client)
	p.health = &health{runtime: cfg.Runtime, changed: func() { p.pods.NodeChanged() }}
	p.health.look(ctx)
	p.facts = newFacts(ctx, cfg, machine, p.cgroups.V2())
	p.facts.base.SwapController, p.facts.base.PageSizes = p.cgroups.SwapController(), p.cgroups.PageSizes()
	p.health.features(&p.facts.base)
	node := p.facts.node

	p.volumes = volume.New(volume.Config{
		Root: cfg.RootDir, Node: node, Objects: p.refs, Tokens: p.refs, Certificates: p.refs, Logger: klog.FromContext(ctx).WithName("volumes"),
		Event: func(pod *corev1.Pod, eventType, reason, message string) {
			p.events.Pod(pod, podlife.Event{Type: eventType, Reason: reason, Message: message})
		},
	})
	if p.pulls, err = image.New(image.Config{
		Runtime: cfg.Runtime, Secrets: p.refs, MaxPulls: cfg.MaxPulls, Pulled: p.imagesChanged,
		Records: filepath.Join(cfg.RootDir, "pulled"),
		Event: func(pod *corev1.Pod, eventType, reason, message string) {
			p.events.Pod(pod, podlife.Event{Type: eventType, Reason: reason, Message: message})
		},
	}); err != nil {
		return nil, fmt.Errorf("node agent: %w", err)
	}
	p.rotator = &logs.Rotator{Runtime: cfg.Runtime, Logger: klog.FromContext(ctx).WithName("logs")}
	p.links = &logs.Links{Dir: cfg.ContainerLogDir, Logs: cfg.PodLogDir}
	p.observer = observe.New(observe.Config{
		Runtime: cfg.Runtime, Image: p.pulls.State,
		Volumes: func(pod *corev1.Pod) podlife.VolumeState {
			v := p.volumes.State(pod)
			group := p.cgroups.Present(pod)
			v.Mounted = v.Mounted && group
			v.Present = v.Present || group
			return v
		},
		TerminationMessage: p.volumes.TerminationMessage,
		LogTail:            logs.Tail,
		NewestLog: func(pod *corev1.Pod, container string) (int, bool, error) {
			return logs.Newest(cfg.PodLogDir, pod, container)
		},
		LogPath: func(id, path string, running bool) {
			if running {
				p.rotator.Add(id, path)
			} else {
				p.rotator.Remove(id)
			}
		},
	})
	ids, err := userns.Open(filepath.Join(cfg.RootDir, "pods"))
	if err != nil {
		return nil, fmt.Errorf("node agent: %w", err)
	}
	executor := execute.New(execute.Config{
		Runtime: cfg.Runtime, Images: p.pulls, Volumes: p.volumes, Cgroups: p.meter.Cgroups(p.cgroups), UserNS: ids, Observer: p.observer, Status: p.status,
		Objects: p.refs, Client: core, Classes: p.client.NodeV1().RuntimeClasses(), Node: node, Event: p.events.Pod,
		OwnerKey: ownerAnnotation, OwnerValue: cfg.RootDir, Links: p.links,
	})
	p.statics = static.NewKeeper(static.KeeperConfig{
		Client: core, Node: func() *corev1.Node { return p.reporter.Node() }, Status: p.status,
		Start: func(pod *corev1.Pod) { p.pods.Update(sourceFile, pod) }, Stop: func(uid types.UID) { p.pods.Remove(uid) },
	})
	if cfg.Manifests != "" {
		p.manifest = static.NewSource(static.SourceConfig{Path: cfg.Manifests, Node: cfg.Name, Complete: cfg.Complete, Wanted: p.statics.Wanted})
	}
	p.pods = pods.New(pods.Config{
		Machine: pods.Machine{Step: podlife.Step, Recover: podlife.Recover},
		Node:    p.lifeNode(), Observer: p.observer, Executor: p.meter.Executor(executor), Status: p.meter.Statuses(p.statics),
		Event: p.events.Pod, Admit: p.counted((&gate{object: p.object, down: p.goingDown, appArmor: hostAppArmor}).admit), Journal: cfg.Journal,
	})
	p.eviction = eviction.New(eviction.Config{
		Rules: *cfg.Eviction, Images: *cfg.ImageGC, Runtime: cfg.Runtime, Pods: p.pods, Root: cfg.RootDir,
		LogDir: func(pod *corev1.Pod) string { return spec.PodLogDir(cfg.PodLogDir, pod) }, VolumeDir: p.volumes.EmptyDir,
		PodDir:   p.volumes.PodDir,
		PodEvent: p.events.PodWith, NodeEvent: p.events.Node, Again: func() { p.reporter.Poke() },
		Reclaim: p.pods.NodeChanged, Evicted: p.meter.Evicted,
	})
	if cfg.ShutdownGrace > 0 {
		p.shutdown = shutdown.New(shutdown.Config{
			Total: cfg.ShutdownGrace, Critical: cfg.ShutdownCritical, Open: shutdown.OpenLogin, Pods: p.pods,
			Event: p.events.Node, Changed: func() { p.reporter.Poke() },
		})
	}
	p.watcher = &observe.Watcher{
		Observer: p.observer, OwnerKey: ownerAnnotation, OwnerValue: cfg.RootDir,
		Changed: p.pods.Changed, Known: p.pods.Known, Orphan: p.pods.Orphan, Relisted: p.meter.Relisted,
	}
	p.watcher.Listed(ctx) // so that a runtime that answers is known to be healthy before the first report
	p.health.watcher = p.watcher
	p.reporter = object.New(object.Config{
		Client: p.client, Name: cfg.Name, Labels: cfg.Labels, HostIPs: cfg.HostIPs, Machine: machine, Version: cfg.Version,
		Runtime: cfg.RuntimeName + "://" + version.RuntimeVersion, PodCIDR: cfg.PodCIDR, MaxPods: cfg.MaxPods, Port: cfg.port(),
		Pressures: func(ctx context.Context, now time.Time) []coreeviction.Pressure {
			if p.manifest != nil {
				p.manifest.Poke() // at the pace of the node's lease, too
			}
			return p.eviction.Look(ctx, now)
		},
		Problems: p.problems, Images: p.images, Features: p.health.nodeFeatures, Event: p.events.Node,
	})
	if cfg.Listener != nil {
		var others kubernetes.Interface
		if cfg.ServeOthers {
			others = p.client
		}
		if p.server, err = stream.New(stream.Config{
			Listener: cfg.Listener, TLS: cfg.TLS, AllowedUsers: cfg.AllowedUsers, Others: others, NodeName: cfg.Name, Root: cfg.RootDir,
			Pods: view{p.pods, p.observer}, Runtime: cfg.Runtime, Attacher: attacher, Handlers: cfg.Handlers, Checks: p.checks(), Meter: p.meter, Logger: klog.FromContext(ctx).WithName("server"),
		}); err != nil {
			return nil, fmt.Errorf("node agent: server: %w", err)
		}
	}
	p.tellStart(machine, node())
	p.facts.tell = func(message string) { p.events.Node(corev1.EventTypeWarning, "CheckLimitsForResolvConf", message) }
	return p, nil
}

// clientConfig speaks protobuf and leaves rate limits to the API server.
func clientConfig(c *rest.Config) *rest.Config {
	c = rest.CopyConfig(c)
	c.ContentType = "application/vnd.kubernetes.protobuf"
	c.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	c.QPS = -1
	return c
}

func (c *Config) port() int {
	if c.Listener == nil {
		return 0
	}
	if tcp, ok := c.Listener.Addr().(*net.TCPAddr); ok {
		return tcp.Port
	}
	return 0
}

// cgroupDriver asks the runtime; one that can't say (before CRI of 1.28) uses cgroupfs.
func cgroupDriver(ctx context.Context, cfg *Config) (string, error) {
	resp, err := cfg.Runtime.RuntimeConfig(ctx, &cri.RuntimeConfigRequest{})
	switch {
	case status.Code(err) == codes.Unimplemented:
		return "cgroupfs", nil
	case err != nil:
		return "", fmt.Errorf("node agent: ask the container runtime for its cgroup driver: %w", err)
	case resp.GetLinux().GetCgroupDriver() == cri.CgroupDriver_SYSTEMD:
		return "systemd", nil
	default:
		return "cgroupfs", nil
	}
}

// lifeNode is what decisions about pods may know of the machine.
func (p *parts) lifeNode() func() podlife.Node {
	fixed := podlife.Node{
		Name: p.cfg.Name, RuntimeName: p.cfg.RuntimeName, AgentStarted: p.started,
		CrashBackoffMax: p.cfg.CrashBackoffMax, ClusterDomain: p.cfg.ClusterDomain, CgroupV2: p.cgroups.V2(),
	}
	return func() podlife.Node {
		n := fixed
		n.HostIPs = p.facts.addresses()
		n.RecursiveReadOnly = p.health.recursiveReadOnly()
		n.NetworkProblem, n.DiskShort = p.health.networkProblem(), p.eviction.DiskShort()
		return n
	}
}

// imagesChanged tells those that look at the images of the machine.
func (p *parts) imagesChanged() {
	p.reporter.ImagesChanged()
	p.pods.ImagesChanged()
}

// object is the node as registered, or as it will be: static pods don't wait for that.
func (p *parts) object() *corev1.Node {
	if n := p.reporter.Node(); n != nil {
		return n
	}
	return p.reporter.Draft()
}

// problems are why the node is not ready.
func (p *parts) problems(ctx context.Context) []string {
	why := p.health.problems(ctx)
	if err := p.pods.Stuck(time.Now(), syncLoopMax); err != nil {
		why = append(why, fmt.Sprintf("%v: %v", errSyncLoop, err)) // who watches /healthz? The node says it itself
	}
	if p.goingDown() {
		why = append(why, "node is shutting down")
	}
	return why
}

func (p *parts) goingDown() bool { return p.shutdown != nil && p.shutdown.Down() }

// images are the images of the machine, largest first.
func (p *parts) images(ctx context.Context) []corev1.ContainerImage {
	resp, err := p.cfg.Runtime.ListImages(ctx, &cri.ListImagesRequest{})
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Listing images failed", "err", err)
		return nil
	}
	if err := p.pulls.Listed(resp.Images); err != nil {
		klog.FromContext(ctx).Error(err, "Records of images that are gone stay")
	}
	return object.ImageList(resp.Images)
}
