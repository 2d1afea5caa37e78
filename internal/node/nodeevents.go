package node

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"carob/internal/core/explain"
	"carob/internal/core/placement"
	"carob/internal/core/podlife"
	"carob/internal/node/nodeobject"
	"carob/internal/node/oom"
	"carob/internal/node/podcgroups"
	"carob/internal/node/spec"
	"carob/internal/runtime"
)

// nodeEvent is an event about the node.
type nodeEvent struct{ kind, reason, message string }

// host is the state of the machine on which the events of a start depend.
type host struct {
	cgroupV2     bool
	resolverFile string
	resolver     spec.Resolver
	domain       string                   // of the cluster
	swap         bool                     // the machine has some
	noswap       bool                     // memory can be kept out of it
	enforce      error                    // of the limits across pods
	reserved     []podcgroups.Reservation // that are enforced
}

// startEvents are the events of an agent's start (L10.70, L10.75, L10.77).
func startEvents(h host) []nodeEvent {
	list := []nodeEvent{{corev1.EventTypeNormal, "Starting", "Starting kubelet."}}
	warn := func(reason, message string) {
		list = append(list, nodeEvent{corev1.EventTypeWarning, reason, message})
	}
	if !h.cgroupV2 {
		warn("CgroupV1",
			"cgroup v1 detected. cgroup v1 support is deprecated and will be removed in a future release. "+
				"Please migrate to cgroup v2. More information at https://git.k8s.io/enhancements/keps/sig-node/5573-remove-cgroup-v1")
	}
	if problem := spec.CheckResolver(h.resolverFile, h.resolver, h.domain); problem != "" {
		warn("CheckLimitsForResolvConf", problem)
	}
	if h.swap && !h.noswap {
		warn("PossibleMemoryBackedVolumesOnDisk",
			"The tmpfs noswap option is not supported. Memory-backed volumes (e.g. secrets, emptyDirs, etc.) "+
				"might be swapped to disk and should no longer be considered secure.")
	}
	list = append(list, enforcement(h.enforce))
	for _, r := range h.reserved {
		list = append(list, nodeEvent{corev1.EventTypeNormal, "NodeAllocatableEnforced", r.Message()})
	}
	return list
}

// enforcement is the event about the limits across pods (S11.123).
func enforcement(err error) nodeEvent {
	if err != nil {
		return nodeEvent{corev1.EventTypeWarning, "FailedNodeAllocatableEnforcement", err.Error()}
	}
	return nodeEvent{corev1.EventTypeNormal, "NodeAllocatableEnforced", "Updated Node Allocatable limit across pods"}
}

// enforceAgain sets the limits across pods, which could not be set at the start: the pods may have used more than they
// may. It tries each minute until it succeeds.
func enforceAgain(ctx context.Context, enforce func() error, record func(nodeEvent)) {
	again := time.NewTicker(time.Minute)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-again.C:
		}
		err := enforce()
		record(enforcement(err))
		if err == nil {
			return
		}
	}
}

func (p *parts) enforce() error {
	return p.cgroups.Enforce(p.hardware.Capacity, p.cfg.limitOfPods(p.hardware))
}

func (p *parts) enforceLimits(ctx context.Context) {
	if !p.unlimited {
		return
	}
	enforceAgain(ctx, p.enforce, func(e nodeEvent) { p.events.Node(e.kind, e.reason, e.message) })
}

// recordStart records the events about the node when the agent starts.
func (p *parts) recordStart(machine nodeobject.Machine, facts *spec.Node) {
	h := host{
		cgroupV2: p.cgroups.V2(), resolverFile: p.facts.resolverFile, resolver: facts.Resolver,
		domain: p.cfg.ClusterDomain,
		swap:   machine.Info.Swap != nil, enforce: p.enforce(),
		reserved: p.cfg.Reservations,
	}
	p.unlimited = h.enforce != nil
	if h.swap {
		h.noswap = tmpfsHasNoswap()
	}
	for _, e := range startEvents(h) {
		p.events.Node(e.kind, e.reason, e.message)
	}
}

// tmpfsHasNoswap checks whether the kernel supports noswap (6.4 and later do) without mounting anything.
func tmpfsHasNoswap() bool {
	fd, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(fd) }()
	return unix.FsconfigSetFlag(fd, "noswap") == nil
}

// watchOOM records the processes that the kernel kills because the machine is out of memory (L10.76), and that it drops
// new connections because its table of them is full.
func (p *parts) watchOOM(ctx context.Context) {
	log, err := oom.Open()
	if err != nil {
		klog.FromContext(ctx).V(1).Info("Cannot report the processes that the kernel kills", "err", err)
		return
	}
	var netns unix.Stat_t
	if err := unix.Stat("/proc/self/ns/net", &netns); err != nil {
		klog.FromContext(ctx).V(1).Info("Cannot report a full connection tracking table, because the kernel has several", "err", err)
	}
	oom.Watch(ctx, log, netns.Ino, func(v oom.Victim) {
		p.events.Node(corev1.EventTypeWarning, "SystemOOM",
			fmt.Sprintf("System OOM encountered, victim process: %s, pid: %d", v.Process, v.PID))
	}, func() {
		p.events.Node(corev1.EventTypeWarning, "ConntrackFull", "The kernel tracks as many connections as it may and drops "+
			"the packets of new ones: find who opens them, or raise net.netfilter.nf_conntrack_max")
	})
}

// watchHandlers records when the runtime of RuntimeClass handlers stops to answer, and when it answers again, and has
// the Node object changed, whose status.runtimeHandlers lists the handlers that can be used.
func (p *parts) watchHandlers(ctx context.Context) {
	if p.handlers == nil {
		return
	}
	p.handlers.WatchHandlers(ctx, func(s runtime.HandlerState) {
		p.events.Node(handlerEvent(s))
		p.reporter.Wake()
	})
}

// handlerEvent is the event about the runtime of RuntimeClass handlers.
func handlerEvent(s runtime.HandlerState) (kind, reason, message string) {
	cause := ""
	if s.Err != nil {
		cause = cmp.Or(status.Convert(s.Err).Message(), status.Code(s.Err).String())
	}
	return explain.HandlerEvent(s.Handlers, s.Endpoint, cause)
}

// checkUpdate records an event if a changed pod requires features that the node does not have
// (L10.16).
func (p *parts) checkUpdate(pod *corev1.Pod) {
	v, ok := p.pods.ByUID(pod.UID)
	if !ok {
		return
	}
	if e, ok := updateEvent(v.Pod, pod); ok {
		p.events.Pod(pod, e)
	}
}

func updateEvent(old, pod *corev1.Pod) (podlife.Event, bool) {
	if old.Generation == pod.Generation {
		return podlife.Event{}, false
	}
	missing, err := nodeobject.MissingForUpdate(old, pod)
	if err != nil || len(missing) == 0 {
		return podlife.Event{}, false
	}
	return podlife.Event{Type: corev1.EventTypeWarning, Reason: "FailedNodeDeclaredFeaturesCheck",
		Message: placement.MissingFeatures(missing)}, true
}
