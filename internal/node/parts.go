package node

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/cgroups"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	coreeviction "carob/internal/core/eviction"
	"carob/internal/node/devices"
	"carob/internal/node/eviction"
	"carob/internal/node/metrics"
	"carob/internal/node/nodeobject"
	"carob/internal/node/pinning"
	"carob/internal/node/spec"
	"carob/internal/node/stream"
)

// parts are the parts of a running agent. Each is made of those before it; calls in the other direction (for example,
// the reporter reads the pods) are passed to its Run, or go through a channel that Agent.Run receives from.
type parts struct {
	cfg *Config
	*machine
	*podLoop
	eviction *eviction.Manager
	server   *stream.Server // nil: none
	listed   chan struct{}  // closed when the API server has delivered its pods
}

// build reads the facts of machine and runtime and creates the parts.
func build(ctx context.Context, cfg *Config) (*parts, error) {
	m, err := newMachine(ctx, cfg)
	if err != nil {
		return nil, err
	}
	l, err := newPodLoop(ctx, cfg, m)
	if err != nil {
		return nil, err
	}
	p := &parts{cfg: cfg, machine: m, podLoop: l, listed: make(chan struct{})}
	p.meter.Show(p.metricsFacts())
	p.eviction = eviction.New(eviction.Config{
		Rules: *cfg.Eviction, Images: *cfg.ImageGC, Runtime: cfg.Runtime, Pods: p.pods, Root: cfg.RootDir,
		LogDir:    func(pod *corev1.Pod) string { return spec.PodLogDir(cfg.PodLogDir, pod) },
		VolumeDir: p.volumes.EmptyDir,
		PodDir:    p.volumes.PodDir, PodEvent: p.events.PodWith, NodeEvent: p.events.Node, Again: p.reporter.Wake,
		Reclaim: p.pods.NodeChanged, Evicted: p.meter.Evicted, Collected: p.imageRemoved, Shortage: p.shortage,
	})
	p.pods.Found(p.watcher.Found(ctx)) // so that the first report shows a runtime that responds as healthy
	if cfg.Listener != nil {
		if p.server, err = p.newServer(ctx); err != nil {
			return nil, err
		}
	}
	p.recordStart(p.hardware, p.facts.node())
	return p, nil
}

func (p *parts) newServer(ctx context.Context) (*stream.Server, error) {
	cfg := p.cfg
	var others kubernetes.Interface
	if cfg.ServeOthers {
		others = p.client
	}
	server, err := stream.New(stream.Config{
		Listener: cfg.Listener, TLS: cfg.TLS, AllowedUsers: cfg.AllowedUsers, Others: others, NodeName: cfg.Name,
		Root: cfg.RootDir,
		Pods: view{p.pods, p.observer}, Runtime: cfg.Runtime, Attacher: p.attacher,
		Counter: p.counter, Handlers: cfg.Handlers, Summary: p.summarySources(),
		Checks: p.checks(), Logs: cfg.Logs, Version: cfg.Version,
		Meter: p.meter, Logger: klog.FromContext(ctx).WithName("server"),
	})
	if err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	return server, nil
}

// imageRemoved is called when the agent has removed an image to free its space, or for its age. The node's status does
// not show it any more, and pods that need it look again.
func (p *parts) imageRemoved(why string) {
	p.meter.Collected(why)
	notify(p.podLoop.images)
}

// deviceHooks is what the device manager calls.
func (p *parts) deviceHooks() devices.Hooks {
	return devices.Hooks{PodChanged: p.pods.Changed, NodeChanged: p.reporter.Wake, Pods: func() []*corev1.Pod {
		var active []*corev1.Pod
		for _, v := range p.pods.List() {
			if phase := v.Status.Phase; phase != corev1.PodSucceeded && phase != corev1.PodFailed {
				active = append(active, current(v))
			}
		}
		return active
	}}
}

// runningContainers are the running containers according to the statuses of pods.
func (p *parts) runningContainers() []pinning.Running {
	var all []pinning.Running
	for _, v := range p.pods.List() {
		for _, list := range [][]corev1.ContainerStatus{v.Status.InitContainerStatuses, v.Status.ContainerStatuses,
			v.Status.EphemeralContainerStatuses} {
			for i := range list {
				if _, id, ok := strings.Cut(list[i].ContainerID, "://"); ok && list[i].State.Running != nil {
					all = append(all, pinning.Running{Pod: v.Pod.UID, Container: list[i].Name, ID: id})
				}
			}
		}
	}
	return all
}

// sourcesOfNode are the sources of the node's state for the reporter.
func (p *parts) sourcesOfNode() nodeobject.Sources {
	return nodeobject.Sources{
		Pressures: func(ctx context.Context, now time.Time) []coreeviction.Pressure {
			if p.manifest != nil {
				p.manifest.Wake() // at each renewal of the node's lease, too
			}
			return p.eviction.Look(ctx, now)
		},
		Problems: p.problems, Images: p.imageList,
	}
}

// follow passes changes of one part to others, until ctx ends.
func (p *parts) follow(ctx context.Context, moved <-chan struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-moved: // the machine has other addresses
			p.reporter.Wake()
			p.pods.NodeChanged()
		case <-p.health.changed: // the network became ready, or is no longer ready
			p.pods.NodeChanged()
		case <-p.podLoop.images:
			p.reporter.ImagesChanged()
			p.pods.ImagesChanged()
		}
	}
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

// cgroupDriver gets the cgroup driver from the runtime; a runtime that does not report it (CRI before 1.28) uses
// cgroupfs.
func cgroupDriver(ctx context.Context, cfg *Config) (string, error) {
	resp, err := cfg.Runtime.RuntimeConfig(ctx, &cri.RuntimeConfigRequest{})
	switch {
	case status.Code(err) == codes.Unimplemented:
		return "cgroupfs", nil
	case err != nil:
		return "", fmt.Errorf("get the cgroup driver of the container runtime: %w", err)
	case resp.GetLinux().GetCgroupDriver() == cri.CgroupDriver_SYSTEMD:
		return "systemd", nil
	default:
		return "cgroupfs", nil
	}
}

// problems are why the node is not ready.
func (p *parts) problems(ctx context.Context) []string {
	why := p.health.problems(ctx, p.watcher)
	if err := p.pods.Healthy(time.Now(), syncLoopMax); err != nil {
		why = append(why, fmt.Sprintf("%v: %v", errSyncLoop, err)) // perhaps nothing probes /healthz
	}
	if p.goingDown() {
		why = append(why, "node is shutting down")
	}
	return why
}

// imageList are the images of the machine, largest first.
func (p *parts) imageList(ctx context.Context) []corev1.ContainerImage {
	resp, err := p.cfg.Runtime.ListImages(ctx, &cri.ListImagesRequest{})
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Listing images failed", "err", err)
		return nil
	}
	if err := p.pulls.Listed(resp.Images); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot delete the records of images that are gone")
	}
	own := slices.DeleteFunc(slices.Clone(resp.Images),
		func(im *cri.Image) bool { return im.GetSpec().GetRuntimeHandler() != "" })
	return nodeobject.ImageList(own)
}

// metricsFacts are the values of the metrics that are computed when they are read.
func (p *parts) metricsFacts() metrics.Facts {
	facts := metrics.Facts{
		Node: p.cfg.Name, CgroupV2: cgroups.IsCgroup2UnifiedMode(), Pods: p.pods.List,
		Kept: p.cgroups.Kept, Mirrors: p.statics.MirrorCount, Listed: p.watcher.ListedAt,
		Mounted: func(pod *corev1.Pod) bool { return p.volumes.State(pod).Mounted }, Volumes: p.volumes.Stats,
		Plugin: func(pod *corev1.Pod, volume string) string { return p.volumes.Volumes(pod.UID)[volume].Persistent },
	}
	if p.devices != nil {
		facts.Claims = p.devices.ClaimsInUse
	}
	if p.cfg.Credentials != nil {
		facts.Credentials = p.cfg.Credentials.Hash
	}
	return facts
}
