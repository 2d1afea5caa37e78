package node

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/rest"

	"carob/internal/base/journal"
	"carob/internal/base/tasks"
	"carob/internal/core/eviction"
	corepinning "carob/internal/core/pinning"
	"carob/internal/core/pullcredentials"
	"carob/internal/core/resources"
	"carob/internal/node/credentials"
	"carob/internal/node/nodeobject"
	"carob/internal/node/podcgroups"
	"carob/internal/node/stream"
	"carob/internal/runtime"
)

// Config is the configuration of a node agent. Paths are absolute; the agent changes nothing outside of them,
// CgroupRoot, and the runtime.
type Config struct {
	Name   string       // name of the Node object
	Client *rest.Config // to the API server, as system:node:NAME in system:nodes
	// Standalone: there is no API server (S14); Client is not used. Static pods run without mirror pods.
	Standalone bool
	Runtime    runtime.Runtime // where the containers run
	// RuntimeName is the prefix of a containerID ("carob", "containerd"); empty: the runtime's own name.
	RuntimeName string
	// RuntimeHandlers are RuntimeClass handlers with images of their own in Runtime; requests about images
	// name them.
	RuntimeHandlers []string

	RootDir         string // pods/UID/… live here; mode 0750
	PodLogDir       string // default RootDir/logs; L3.155's /var/log/pods
	ContainerLogDir string // legacy links to the container logs (L3.98); empty: none are made
	// ResolvConf is the host's resolver file for pods. Empty: /etc/resolv.conf, or
	// where that names only a stub on the loopback address, systemd-resolved's own.
	ResolvConf string
	// KubeletDir has the sockets by which plugins and drivers of devices are found: device-plugins,
	// plugins_registry, pod-resources. Empty: there are none.
	KubeletDir string

	CgroupRoot   string // parent of kubepods, for instance /carob-3fa1; default /
	CgroupDriver string // "cgroupfs" or "systemd"; empty: as the runtime reports

	ClusterDNS    []netip.Addr
	NoClusterDNS  bool     // the cluster has no DNS on purpose: pods get no warning event
	ClusterDomain string   // default cluster.local
	PodCIDRs      []string // reported in the Node object when the API server has none
	// HostIPs returns the current addresses of the machine, the primary first, at most one of
	// each family. It is called often; HostChanged announces a change.
	HostIPs func() []netip.Addr
	MaxPods int               // default 110 (L0.51)
	Labels  map[string]string // added to the Node's own
	Version string            // nodeInfo.kubeletVersion, for instance v1.37.1

	// Listener and TLS are for the agent's HTTPS server (logs, exec, …); TLS must
	// verify client certificates. No Listener: no server.
	Listener net.Listener
	TLS      *tls.Config
	// AllowedUsers are the common names of the client certificates that are served;
	// default kube-apiserver-kubelet-client.
	AllowedUsers []string
	// ServeOthers also serves other clients, if the API server authenticates and authorizes them: for a Listener that
	// other machines can reach.
	ServeOthers bool
	// Handlers are served in addition to the agent's own paths, behind the same authentication:
	// "/timeline/".
	Handlers map[string]http.Handler

	// Logs are those of the machine that are served; nil: none are.
	Logs *stream.NodeLogs

	// Manifests is a directory of static pods, or one file (L7.110); empty: none.
	Manifests string
	// ManifestURL is read for static pods with ManifestHeader, every ManifestPeriod (default 20 s); empty: none is
	// read.
	ManifestURL    string
	ManifestHeader map[string][]string
	ManifestPeriod time.Duration
	// Complete fills in the defaults of a static pod and returns an error if it is invalid, as
	// the API server does for others. Required with Manifests.
	Complete func(*corev1.Pod) error

	SeccompDefault bool  // RuntimeDefault where a pod names no seccomp profile; upstream: false
	NetRaw         bool  // containers have CAP_NET_RAW by default (decision 12); upstream: true
	PodPids        int64 // processes and threads of a pod at most (L3.117m); 0 and less: no limit

	Eviction *eviction.Config      // nil: upstream's hard thresholds (L7.145)
	ImageGC  *eviction.ImagePolicy // nil: upstream's (L7.133)
	// MemoryNotifications: memory is looked at also when the kernel reports that it may be short (S11.75).
	MemoryNotifications bool

	// ShutdownGrace is how long a shutdown of the machine waits for pods, and
	// ShutdownCritical how much of that is for critical ones (L7.155); 0: it does not wait.
	ShutdownGrace, ShutdownCritical time.Duration
	// ShutdownSteps are used instead of both, if there are any: how long pods have, by priority (S11.78).
	ShutdownSteps []eviction.ShutdownStep

	MaxPulls        int                    // images that are pulled at one time; default 5
	Credentials     *credentials.Plugins   // plugins for credentials of registries; nil: none
	PullPolicy      pullcredentials.Policy // for which present images a pod needs credentials
	Pulls           *rate.Limiter          // of pulls that begin; nil: any rate (S11.26)
	CrashBackoffMax time.Duration          // cap of the crash back-off; default 300 s (L3.78)

	// Traffic are the parts of the data plane that a deleted pod waits for, at most DrainTimeout (N8.13).
	Traffic []Traffic
	// Queues are the connections that were opened before all parts of Traffic had released a pod; nil: not checked.
	Queues Traffic

	DrainTimeout time.Duration // 0: it does not wait, as upstream

	// Reserved is kept from pods, for the system and the node agent: cpu, memory, ephemeral-storage, huge pages, and
	// pid (S11.101). Without EnforceReserved only the scheduler observes it (S11.120).
	Reserved        corev1.ResourceList
	EnforceReserved bool
	// Reservations are existing cgroups that are limited to what is reserved for them (S11.124).
	Reservations  []podcgroups.Reservation
	Pinning       corepinning.Config // which containers get CPUs and NUMA nodes of their own; zero: none
	PinningPeriod time.Duration      // how often cpusets are compared with the decided ones; default 10 s
	UnsafeSysctls []string           // that pods may set beside the safe ones; NAME or PREFIX* (S11.71)
	ProviderID    string             // of the Node object, when it is created
	Taints        []corev1.Taint     // of the Node object, when it is created
	LeaseSeconds  int                // default 40
	ReportPeriod  time.Duration      // between two reports of a node that does not change; default 5 min
	MaxImages     int                // in the status of the node; default 50, -1: all
	LogMaxSize    int64              // bytes of a container log when it is rotated; default 10 Mi
	LogMaxFiles   int                // of a container; default 5
	LimitedSwap   bool               // Burstable containers may swap a share; false: none may
	OneProcessOOM bool               // see spec.Node
	NoCPUQuota    bool               // see spec.Node
	// MemoryQoS is how memory is kept for pods, with cgroup v2.
	MemoryQoS resources.MemoryQoS

	Journal journal.Recorder // gets everything that happens to a pod; nil: not recorded
}

// Defaults of Config.
const (
	DefaultMaxPods  = 110
	DefaultMaxPulls = 5
)

func (c *Config) setDefaults() {
	if c.PodLogDir == "" {
		c.PodLogDir = filepath.Join(c.RootDir, "logs")
	}
	if c.CgroupRoot == "" {
		c.CgroupRoot = "/"
	}
	if c.ClusterDomain == "" {
		c.ClusterDomain = "cluster.local"
	}
	if c.MaxPods == 0 {
		c.MaxPods = DefaultMaxPods
	}
	if c.MaxPulls == 0 {
		c.MaxPulls = DefaultMaxPulls
	}
	if c.Eviction == nil {
		c.Eviction = defaultEviction()
	}
	if c.ImageGC == nil {
		policy := eviction.DefaultImagePolicy()
		c.ImageGC = &policy
	}
	if len(c.AllowedUsers) == 0 {
		c.AllowedUsers = []string{"kube-apiserver-kubelet-client"}
	}
	if c.Journal == nil {
		c.Journal = journal.Discard{}
	}
}

// limitOfPods is what all pods together may use of the machine; nil: unlimited.
func (c *Config) limitOfPods(m nodeobject.Machine) corev1.ResourceList {
	if !c.EnforceReserved {
		return nil
	}
	limit := m.ForPods()
	if reserved, ok := c.Reserved["pid"]; ok {
		if c, err := tasks.Read(); err == nil {
			limit["pid"] = *resource.NewQuantity(max(c.Limit-reserved.Value(), 1), resource.DecimalSI)
		}
	}
	return limit
}

// shutdownSteps are how long pods have at a shutdown of the machine; none: it does not wait.
func (c *Config) shutdownSteps() []eviction.ShutdownStep {
	if len(c.ShutdownSteps) > 0 || c.ShutdownGrace <= 0 {
		return c.ShutdownSteps
	}
	return eviction.ShutdownSteps(c.ShutdownGrace, c.ShutdownCritical)
}

func defaultEviction() *eviction.Config {
	hard, err := eviction.Parse(eviction.Settings{})
	if err != nil {
		panic(err) // our own constants
	}
	return &eviction.Config{Thresholds: hard, Transition: eviction.DefaultTransition}
}

func (c *Config) validate() error {
	var errs []error
	missing := func(name string, is bool) {
		if is {
			errs = append(errs, fmt.Errorf("%s is not set", name))
		}
	}
	missing("Name", c.Name == "")
	missing("Client", c.Client == nil && !c.Standalone)
	missing("Runtime", c.Runtime == nil)
	missing("HostIPs", c.HostIPs == nil)
	missing("Version", c.Version == "")
	missing("Complete", (c.Manifests != "" || c.ManifestURL != "") && c.Complete == nil)
	missing("TLS", c.Listener != nil && c.TLS == nil)
	for _, p := range []struct{ name, path string }{
		{"RootDir", c.RootDir}, {"PodLogDir", c.PodLogDir}, {"CgroupRoot", c.CgroupRoot},
	} {
		if !filepath.IsAbs(p.path) {
			errs = append(errs, fmt.Errorf("%s %q is not an absolute path", p.name, p.path))
		}
	}
	if c.KubeletDir != "" && !filepath.IsAbs(c.KubeletDir) {
		errs = append(errs, fmt.Errorf("KubeletDir %q is not an absolute path", c.KubeletDir))
	}
	if c.ResolvConf != "" && !filepath.IsAbs(c.ResolvConf) {
		errs = append(errs, fmt.Errorf("ResolvConf %q is not an absolute path", c.ResolvConf))
	}
	switch c.CgroupDriver {
	case "", "cgroupfs", "systemd":
	default:
		errs = append(errs, fmt.Errorf("CgroupDriver %q is neither cgroupfs nor systemd", c.CgroupDriver))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("node agent configuration: %w", err)
	}
	return nil
}
