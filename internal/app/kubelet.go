package app

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"os"
	goruntime "runtime"
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/cgroups"
	"golang.org/x/time/rate"
	"k8s.io/apiserver/pkg/server/flagz"
	cliflag "k8s.io/component-base/cli/flag"

	"carob/internal/base/instance"
	"carob/internal/base/kubeletconfig"
	"carob/internal/core/eviction"
	"carob/internal/core/pinning"
	"carob/internal/core/pullcredentials"
	"carob/internal/node"
	"carob/internal/node/podcgroups"
	nodestream "carob/internal/node/stream"
)

// kubeletSettings applies the settings of a KubeletConfiguration that have no flag.
func kubeletSettings(in *instance.Instance, cfg *node.Config) error {
	k := in.Kubelet
	cfg.MaxPods = kubeletconfig.MaxPods(k, cfg.MaxPods, goruntime.NumCPU())
	cfg.Reserved, cfg.EnforceReserved = kubeletconfig.Reserved(k), kubeletconfig.EnforcesPods(k)
	cfg.Handlers["/configz"] = configz(in)
	cfg.Logs = &nodestream.NodeLogs{Dir: "/var/log"}
	if in.Profiling {
		profiling(cfg.Handlers)
	}
	flagz.Install(gets(cfg.Handlers), "kubelet", flagReader(in.FlagValues))
	if k == nil {
		return nil
	}
	if on := k.EnableSystemLogHandler; on != nil && !*on {
		cfg.Logs = nil
	} else {
		cfg.Logs.Query = k.EnableSystemLogQuery != nil && *k.EnableSystemLogQuery
	}
	if age := k.ImageMaximumGCAge.Duration; age > 0 && cfg.ImageGC != nil {
		policy := *cfg.ImageGC
		policy.MaxAge = age
		cfg.ImageGC = &policy
	}
	cfg.ManifestURL, cfg.ManifestHeader = k.StaticPodURL, k.StaticPodURLHeader
	cfg.ManifestPeriod = k.HTTPCheckFrequency.Duration
	cfg.MaxPulls = kubeletconfig.MaxPulls(k)
	var err error
	if cfg.PullPolicy, err = pullcredentials.NewPolicy(string(k.ImagePullCredentialsVerificationPolicy),
		k.PreloadedImagesVerificationAllowlist); err != nil {
		return fmt.Errorf("%w --kubelet-config: invalid configuration: %w", instance.ErrFlag, err)
	}
	if q := k.RegistryPullQPS; q != nil && *q > 0 {
		burst := int(k.RegistryBurst)
		if burst == 0 {
			burst = defaultPullBurst
		}
		cfg.Pulls = rate.NewLimiter(rate.Limit(*q), burst)
	}
	if p := k.CrashLoopBackOff.MaxContainerRestartPeriod; p != nil {
		cfg.CrashBackoffMax = p.Duration
	}
	for _, s := range k.ShutdownGracePeriodByPodPriority {
		cfg.ShutdownSteps = append(cfg.ShutdownSteps, eviction.ShutdownStep{Priority: s.Priority,
			Grace: time.Duration(s.ShutdownGracePeriodSeconds) * time.Second})
	}
	cfg.UnsafeSysctls, cfg.ProviderID, cfg.Taints = k.AllowedUnsafeSysctls, k.ProviderID, k.RegisterWithTaints
	cfg.LeaseSeconds, cfg.ReportPeriod = int(k.NodeLeaseDurationSeconds), k.NodeStatusReportFrequency.Duration
	if n := k.NodeStatusMaxImages; n != nil {
		cfg.MaxImages = int(*n)
	}
	if err := pinningSettings(k, cfg); err != nil {
		return err
	}
	cfg.MemoryNotifications = k.KernelMemcgNotification
	cfg.LogMaxSize = kubeletconfig.LogSize(k)
	if n := k.ContainerLogMaxFiles; n != nil {
		cfg.LogMaxFiles = int(*n)
	}
	cfg.LimitedSwap = k.MemorySwap.SwapBehavior == kubeletconfig.LimitedSwap
	cfg.NoCPUQuota, cfg.Reservations = k.CPUCFSQuota != nil && !*k.CPUCFSQuota, reservations(k)
	cfg.OneProcessOOM = k.SingleProcessOOMKill != nil && *k.SingleProcessOOMKill
	cfg.MemoryQoS.Tiered = k.MemoryReservationPolicy == kubeletconfig.TieredReservation
	if f := k.MemoryThrottlingFactor; f != nil {
		cfg.MemoryQoS.Throttling = *f
	}
	return serverTLS(k, cfg.TLS)
}

// reservations are the existing cgroups that are limited to what is reserved for them (S11.E).
func reservations(k *kubeletconfig.Configuration) (list []podcgroups.Reservation) {
	for _, r := range kubeletconfig.EnforcedReservations(k) {
		list = append(list, podcgroups.Reservation(r))
	}
	return list
}

// pinningSettings sets which containers get CPUs and NUMA nodes of their own (S10).
func pinningSettings(k *kubeletconfig.Configuration, cfg *node.Config) (err error) {
	p := pinning.Config{CPUPolicy: k.CPUManagerPolicy, CPUOptions: k.CPUManagerPolicyOptions,
		MemoryPolicy: k.MemoryManagerPolicy, Policy: pinning.TopologyPolicy(k.TopologyManagerPolicy),
		Scope: k.TopologyManagerScope, PolicyOptions: k.TopologyManagerPolicyOptions}
	if p.ReservedCPUs, err = pinning.ParseCPUs(k.ReservedSystemCPUs); err != nil {
		return fmt.Errorf("%w --kubelet-config: reservedSystemCPUs: %w", instance.ErrFlag, err)
	}
	for _, r := range k.ReservedMemory {
		p.ReservedMemory = append(p.ReservedMemory, pinning.Reservation{Node: int(r.NumaNode), Limits: r.Limits})
	}
	if err := p.Check(); err != nil {
		return fmt.Errorf("%w --kubelet-config: %w", instance.ErrFlag, err)
	}
	cfg.Pinning, cfg.PinningPeriod = p, k.CPUManagerReconcilePeriod.Duration
	return nil
}

// gets takes handlers of GET requests.
type gets map[string]http.Handler

// Handle adds the handler of a path.
func (g gets) Handle(path string, h http.Handler) { g["GET "+path] = h }

// flagReader has the flags that /flagz shows (gate ComponentFlagz, on by default since 1.36).
type flagReader map[string]string

// GetFlagz implements flagz.Reader.
func (f flagReader) GetFlagz() map[string]string { return f }

// profiling adds the paths of Go's profiler.
func profiling(to map[string]http.Handler) {
	to["GET /debug/pprof/"] = http.HandlerFunc(pprof.Index)
	for name, h := range map[string]http.HandlerFunc{"cmdline": pprof.Cmdline, "profile": pprof.Profile,
		"symbol": pprof.Symbol, "trace": pprof.Trace} {
		to["GET /debug/pprof/"+name] = h
	}
}

// defaultPullBurst is upstream's registryBurst (S11.26).
const defaultPullBurst = 10

func serverTLS(k *kubeletconfig.Configuration, t *tls.Config) error {
	suites, err := cliflag.TLSCipherSuites(k.TLSCipherSuites)
	if err != nil {
		return fmt.Errorf("%w --kubelet-config: tlsCipherSuites: %w", instance.ErrFlag, err)
	}
	t.CipherSuites = suites
	if k.TLSMinVersion != "" {
		if t.MinVersion, err = cliflag.TLSVersion(k.TLSMinVersion); err != nil {
			return fmt.Errorf("%w --kubelet-config: tlsMinVersion: %w", instance.ErrFlag, err)
		}
	}
	return nil
}

// hostFits returns an error if the configuration forbids the node agent to run on this host (S11.65, S11.85, S11.86).
func hostFits(k *kubeletconfig.Configuration, v2 bool, swaps string) error {
	if k == nil {
		return nil
	}
	refuse := func(text string) error {
		return fmt.Errorf("%w --kubelet-config: %s", instance.ErrFlag, text)
	}
	if !v2 && k.FailCgroupV1 != nil && *k.FailCgroupV1 {
		return refuse("kubelet is configured to not run on a host using cgroup v1. cgroup v1 support is unsupported and " +
			"will be removed in a future release")
	}
	if !v2 && k.SingleProcessOOMKill != nil && !*k.SingleProcessOOMKill {
		return refuse("singleProcessOOMKill must not be explicitly set to false when using cgroup v1")
	}
	if lines := strings.Split(strings.TrimSpace(swaps), "\n"); len(lines) > 1 && k.FailSwapOn != nil && *k.FailSwapOn {
		return refuse("running with swap on is not supported, please disable swap or set failSwapOn to false. " +
			"/proc/swaps contained: " + strings.Join(lines, "; "))
	}
	return nil
}

// hostFitsHere calls hostFits for this host.
func hostFitsHere(k *kubeletconfig.Configuration) error {
	swaps, err := os.ReadFile("/proc/swaps")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read which swap is on: %w", err)
	}
	return hostFits(k, cgroups.IsCgroup2UnifiedMode(), string(swaps))
}

// configz serves the configuration of the node agent (S11.3).
func configz(in *instance.Instance) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		text, err := json.Marshal(map[string]any{
			"kubeletconfig": kubeletconfig.Effective(in, eviction.DefaultHard())})
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(text)
	})
}

// nodeHealth serves /healthz of the node agent without encryption, if a KubeletConfiguration enables it (S11.36), and
// is nil otherwise.
func nodeHealth(k *kubeletconfig.Configuration) (run func(ctx context.Context) error, err error) {
	if k == nil || k.HealthzPort == nil || *k.HealthzPort == 0 {
		return nil, nil
	}
	host := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if k.HealthzBindAddress != "" {
		if host, err = netip.ParseAddr(k.HealthzBindAddress); err != nil {
			return nil, fmt.Errorf("%w --kubelet-config: healthzBindAddress: %w", instance.ErrFlag, err)
		}
	}
	l, err := listen("the health of the node agent", "another healthzPort in the KubeletConfiguration",
		net.JoinHostPort(host.String(), strconv.Itoa(int(*k.HealthzPort))))
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok")) })
	server := &http.Server{Handler: mux, ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second,
		IdleTimeout: time.Minute, MaxHeaderBytes: 1 << 14}
	return func(ctx context.Context) error {
		stop := context.AfterFunc(ctx, func() { _ = server.Close() })
		defer stop()
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve the health of the node agent: %w", err)
		}
		return nil
	}, nil
}
