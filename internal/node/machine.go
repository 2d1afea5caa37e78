package node

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"carob/internal/core/podlife"
	"carob/internal/node/csi"
	"carob/internal/node/devices"
	"carob/internal/node/events"
	"carob/internal/node/eviction"
	"carob/internal/node/logs"
	"carob/internal/node/metrics"
	"carob/internal/node/nodeobject"
	"carob/internal/node/pinning"
	"carob/internal/node/plugins"
	"carob/internal/node/podcgroups"
	"carob/internal/node/refs"
	"carob/internal/node/shutdown"
	"carob/internal/runtime"
)

// machine is the agent's state of the machine, without the pods.
type machine struct {
	started   time.Time
	client    kubernetes.Interface
	attacher  runtime.Attacher       // nil: the runtime has none
	counter   runtime.Counter        // nil: the runtime has none
	handlers  runtime.HandlerWatcher // nil: no handler has a runtime of its own
	hardware  nodeobject.Machine
	unlimited bool // the limits across pods could not be set
	meter     *metrics.Meter
	cgroups   *podcgroups.Manager
	events    *events.Recorder
	health    *health
	facts     *facts
	known     *nodeobject.Known // the Node object
	reporter  *nodeobject.Reporter
	shortage  *eviction.Shortage
	shutdown  *shutdown.Manager // nil: no time is configured for it
	rotator   *logs.Rotator
	links     *logs.Links
	devices   *devices.Manager // nil: none
	csi       *csi.Manager     // nil: there are no CSI drivers
	pinning   *pinning.Manager // nil: no container has CPUs or NUMA nodes of its own
}

// newMachine reads the facts of machine and runtime. It completes cfg with them, and counts the
// runtime's calls.
func newMachine(ctx context.Context, cfg *Config) (*machine, error) {
	m := &machine{started: time.Now(), meter: metrics.New(), known: &nodeobject.Known{}, shortage: &eviction.Shortage{}}
	m.attacher, _ = cfg.Runtime.(runtime.Attacher)
	m.counter, _ = cfg.Runtime.(runtime.Counter)
	m.handlers, _ = cfg.Runtime.(runtime.HandlerWatcher)
	cfg.Runtime = m.meter.Runtime(cfg.Runtime)
	var err error
	if m.hardware, err = nodeobject.ReadMachine(cfg.RootDir); err != nil {
		return nil, err
	}
	if err := m.hardware.Reserve(cfg.Reserved, cfg.Eviction.Thresholds); err != nil {
		return nil, err
	}
	version, err := cfg.Runtime.Version(ctx, &cri.VersionRequest{})
	if err != nil {
		return nil, fmt.Errorf("get the version of the container runtime: %w", err)
	}
	if cfg.RuntimeName == "" {
		cfg.RuntimeName = version.RuntimeName
	}
	if cfg.CgroupDriver == "" {
		if cfg.CgroupDriver, err = cgroupDriver(ctx, cfg); err != nil {
			return nil, err
		}
	}
	server, err := m.connect(cfg)
	if err != nil {
		return nil, err
	}
	m.cgroups = podcgroups.New(podcgroups.Config{Root: cfg.CgroupRoot, Systemd: cfg.CgroupDriver == "systemd",
		PodPids: cfg.PodPids, MemoryQoS: cfg.MemoryQoS,
		NoQuota: func(uid types.UID) bool { return cfg.NoCPUQuota || m.pinning.NoQuota(uid) }})
	if err := m.cgroups.Init(); err != nil {
		return nil, err
	}
	if err := m.cgroups.EnforceReserved(cfg.Reservations); err != nil {
		return nil, err
	}
	m.events = events.New(nil, cfg.Name, m.known.UID)
	if server != nil {
		m.events = events.New(server.CoreV1(), cfg.Name, m.known.UID)
	}
	m.health = newHealth(cfg.Runtime)
	m.health.look(ctx)
	m.facts = newFacts(ctx, cfg, m.hardware, m.cgroups.V2(), func(message string) {
		m.events.Node(corev1.EventTypeWarning, "CheckLimitsForResolvConf", message)
	})
	m.facts.base.SwapController, m.facts.base.PageSizes = m.cgroups.SwapController(), m.cgroups.PageSizes()
	m.health.features(&m.facts.base)
	if err := checkSwap(cfg.LimitedSwap, m.cgroups.V2()); err != nil {
		return nil, err
	}
	if swap := m.hardware.Info.Swap; cfg.LimitedSwap && swap != nil {
		m.facts.base.Swap = *swap.Capacity
	}
	m.facts.base.OneProcessOOM, m.facts.base.MemoryQoS = cfg.OneProcessOOM, cfg.MemoryQoS
	m.facts.base.NoCPUQuota = cfg.NoCPUQuota
	m.rotator = &logs.Rotator{Runtime: cfg.Runtime, MaxSize: cfg.LogMaxSize, MaxFiles: cfg.LogMaxFiles,
		Logger: klog.FromContext(ctx).WithName("logs")}
	m.links = &logs.Links{Dir: cfg.ContainerLogDir, Logs: cfg.PodLogDir}
	var amounts func() (capacity, allocatable corev1.ResourceList)
	var inUse func([]corev1.UniqueVolumeName) []corev1.UniqueVolumeName
	if cfg.KubeletDir != "" {
		handlers := map[string]plugins.Handler{}
		if server != nil { // static pods have no CSI volumes (S14.14)
			if m.csi, err = csi.New(csi.Config{
				Root: cfg.KubeletDir, Node: cfg.Name, Client: server,
				Tokens: refs.New(server), Object: m.known.Node, InUseChanged: func() { m.reporter.Wake() },
				Event: m.podEvent, ClaimEvent: m.events.Claim, Meter: m.meter,
				Logger: klog.FromContext(ctx).WithName("csi")}); err != nil {
				return nil, err
			}
			inUse, handlers["CSIPlugin"] = m.csi.InUse, m.csi
		}
		if m.devices, err = devices.New(devices.Config{Root: cfg.KubeletDir, Node: cfg.Name, Client: server,
			State:    filepath.Join(cfg.RootDir, "devices.json"),
			Handlers: handlers, Meter: m.meter,
			Logger: klog.FromContext(ctx).WithName("devices")}); err != nil {
			return nil, err
		}
		amounts = m.devices.Amounts
	}
	if err := m.openPinning(ctx, cfg); err != nil {
		return nil, err
	}
	m.reporter = nodeobject.New(nodeobject.Config{
		Devices: amounts, InUse: inUse,
		Client: server, Name: cfg.Name, Labels: cfg.Labels, HostIPs: cfg.HostIPs, Machine: m.hardware,
		Version: cfg.Version,
		Runtime: cfg.RuntimeName + "://" + version.RuntimeVersion, PodCIDRs: cfg.PodCIDRs, MaxPods: cfg.MaxPods,
		Port:       cfg.port(),
		ProviderID: cfg.ProviderID, Taints: cfg.Taints, LeaseSeconds: cfg.LeaseSeconds,
		ReportPeriod: cfg.ReportPeriod, MaxImages: cfg.MaxImages,
		Known: m.known, Features: m.health.nodeFeatures, Event: m.events.Node,
	})
	if steps := cfg.shutdownSteps(); len(steps) > 0 {
		m.shutdown = shutdown.New(shutdown.Config{
			Steps: steps, Open: shutdown.OpenLogin, Event: m.events.Node,
			Changed: m.reporter.Wake,
		})
	}
	return m, nil
}

// checkSwap returns an error if containers cannot get the share of swap that the configuration gives them (S15.4).
func checkSwap(limited, v2 bool) error {
	if limited && !v2 {
		return errors.New("swap feature is enabled and LimitedSwap but it is only supported with cgroupv2")
	}
	return nil
}

// connect makes the client of the API server, and returns it; nil: there is no API server.
func (m *machine) connect(cfg *Config) (server kubernetes.Interface, err error) {
	if cfg.Standalone {
		m.client, err = standaloneClient()
		return nil, err
	}
	if m.client, err = kubernetes.NewForConfig(clientConfig(cfg.Client)); err != nil {
		return nil, fmt.Errorf("client of the API server: %w", err)
	}
	return m.client, nil
}

// openPinning reads which containers have CPUs and NUMA nodes of their own.
func (m *machine) openPinning(ctx context.Context, cfg *Config) (err error) {
	p := cfg.Pinning
	p.Reserved = cfg.Reserved.DeepCopy()
	if q, ok := m.hardware.Threshold[corev1.ResourceMemory]; ok { // pods get neither (S10.21)
		if p.Reserved == nil {
			p.Reserved = corev1.ResourceList{}
		}
		sum := p.Reserved[corev1.ResourceMemory]
		sum.Add(q)
		p.Reserved[corev1.ResourceMemory] = sum
	}
	c := pinning.Config{Dir: cfg.RootDir, Memory: uint64(m.hardware.Capacity.Memory().Value()), Policies: p,
		Reconcile: cfg.PinningPeriod, Runtime: cfg.Runtime, Meter: m.meter,
		Logger: klog.FromContext(ctx).WithName("pinning")}
	if m.devices != nil {
		c.Devices = m.devices.Hints
	}
	if m.pinning, err = pinning.Open(c); err == nil && m.pinning != nil && m.devices != nil {
		m.devices.UsePinning(m.pinning)
	}
	if m.pinning != nil {
		m.meter.ShowPinning(m.pinning.Usage)
	}
	return err
}

// lifeNode is the machine as decisions about pods see it.
func (m *machine) lifeNode(cfg *Config) func() podlife.Node {
	fixed := podlife.Node{
		Name: cfg.Name, RuntimeName: cfg.RuntimeName, AgentStarted: m.started,
		CrashBackoffMax: cfg.CrashBackoffMax, ClusterDomain: cfg.ClusterDomain, CgroupV2: m.cgroups.V2(),
		DrainTimeout: cfg.DrainTimeout, NoCPUQuota: cfg.NoCPUQuota,
	}
	return func() podlife.Node {
		n := fixed
		n.HostIPs = m.facts.addresses()
		n.RecursiveReadOnly = m.health.recursiveReadOnly()
		n.NetworkProblem, n.DiskShort = m.health.networkProblem(), m.shortage.Disk()
		return n
	}
}

func (m *machine) goingDown() bool { return m.shutdown != nil && m.shutdown.Down() }

// podEvent records an event about a pod for parts that do not use podlife's types.
func (m *machine) podEvent(pod *corev1.Pod, eventType, reason, message string) {
	m.events.Pod(pod, podlife.Event{Type: eventType, Reason: reason, Message: message})
}
