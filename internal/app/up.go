package app

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"carob/internal/apiserver"
	"carob/internal/apiserver/audit"
	"carob/internal/apiserver/inprocess"
	"carob/internal/base/addons"
	"carob/internal/base/clockwatch"
	"carob/internal/base/gctuning"
	"carob/internal/base/imageapi"
	"carob/internal/base/instance"
	"carob/internal/base/netwatch"
	"carob/internal/base/pki"
	"carob/internal/base/routeapi"
	"carob/internal/cli"
	"carob/internal/controllers"
	"carob/internal/core/eviction"
	"carob/internal/core/netplan/addresspool"
	"carob/internal/gateway"
	"carob/internal/kinds/apps"
	"carob/internal/kinds/pods"
	"carob/internal/network/dns"
	"carob/internal/network/policy"
	"carob/internal/network/services"
	"carob/internal/network/unserved"
	"carob/internal/node"
	"carob/internal/node/credentials"
	"carob/internal/scheduler"
	schedconfig "carob/internal/scheduler/config"
	"carob/internal/timeline"
)

// The identities with which carob's own parts use the API server.
const (
	schedulerUser  = "system:kube-scheduler"
	controllerUser = "system:kube-controller-manager"
	nodesGroup     = "system:nodes"
	ownUser        = "system:apiserver" // rights that no other part has, as upstream's own client
)

// Up runs one carob until ctx ends.
//
//	preflight ─ lock ─ listeners, keys ─┬─ store, API server ──────────┬─ scheduler, controllers, node agent ─ ready
//	                                    └─ network, images, runtime ───┘
func (a *App) Up(ctx context.Context, in instance.Instance, p cli.Progress) (err error) {
	log, err := logTo(in.LogLevel)
	if err != nil {
		return err
	}
	rules, images, err := evictionRules(in.Pressure)
	if err != nil {
		return err
	}
	if err := preflight(in); err != nil {
		return err
	}
	if err := hostFitsHere(in.Kubelet); err != nil {
		return err
	}
	owner := instance.Owner{PID: os.Getpid(), Started: time.Now(), Version: a.version, URL: url(in),
		Standalone: in.Standalone}
	lock, err := instance.Acquire(in.LockFile, owner)
	if err != nil {
		return err
	}
	defer lock.Release()
	log.Rotate(in.LogFile)
	if err := sameAsBefore(in); err != nil {
		return err
	}
	if err := instance.Register(instance.RegistryDir, in); err != nil { // the cluster also works without it
		klog.FromContext(ctx).Info("Cannot register this cluster; `carob ls` will not list it", "err", err)
	}
	c := &carob{App: a, in: in, progress: p, parts: newStack(), rules: rules, imageGC: images}
	c.vpa.of, _ = addons.Find(addons.VPA)
	c.gatewayAPI.of, _ = addons.Find(addons.Gateway)
	c.gatewayAPI.foreign = true
	if last, err := readFlags(in.DataDir); err == nil {
		c.hadPods = mayHavePods(in.DataDir, last)
	}
	defer func() {
		err = errors.Join(err, c.close())
		if !owner.Ready && in.RuntimeEndpoint == "" && !hasPods(in) {
			err = errors.Join(err, removeTraces(ctx, in)) // nothing that was started is left running
		}
	}()
	if err := c.prepare(); err != nil {
		return err
	}
	if err := c.open(ctx); err != nil {
		if ctx.Err() != nil {
			return nil // a stop was requested meanwhile
		}
		return err
	}
	if err := saveFlags(in.DataDir, lastStart{Flags: in.Flags}); err != nil {
		return err
	}
	start := c.start
	if in.Standalone {
		start = c.startStandalone
	}
	if err := start(ctx); err != nil {
		if ctx.Err() != nil {
			return nil // a stop was requested before it was ready
		}
		return err
	}
	owner.Ready = true
	if err := lock.Write(owner); err != nil {
		return err
	}
	p.Ready(owner.URL)
	c.parts.start(ctx, "memory", func(ctx context.Context) error {
		// The process also works if its memory cannot be reduced.
		if err := gctuning.Follow(ctx, settleAfter...); err != nil {
			klog.FromContext(ctx).V(2).Info("Memory was not released", "err", err)
		}
		<-ctx.Done()
		return nil
	})
	return c.parts.wait(ctx)
}

// settleAfter leaves the CPU to the first pods; the second time is for memory of parts that start
// late.
var settleAfter = []time.Duration{2 * time.Second, 8 * time.Second}

// carob is one running instance.
type carob struct {
	*App
	in       instance.Instance
	progress cli.Progress
	parts    *stack

	rules   *eviction.Config
	placing *schedconfig.Config // nil: the defaults
	imageGC *eviction.ImagePolicy
	hadPods bool // pods of the last start may still run

	api           *listeners
	agentListener net.Listener
	keys          *pki.PKI
	machine       *machine

	vpa addonSwitch
	// gatewayAPI is also on if carob did not install the definitions.
	gatewayAPI addonSwitch
	gateway    *gateway.Gateway
	// gatewayStored is closed when the kinds and classes of the gateway are stored.
	gatewayStored chan struct{}
	server        *apiserver.Server
	services      *services.Proxy
	dns           *dns.Server       // nil: another DNS server is used
	pool          *addresspool.Pool // of load balancers' addresses
	engine        *engine
	timeline      *timeline.Store
	credentials   *credentials.Plugins
	nodeHealth    func(ctx context.Context) error // serves it; nil: not configured
	inference     poolDefinitions
	traces        traces
}

// url is where the API server serves this host, or the node agent if there is no API server.
func url(in instance.Instance) string {
	if in.Standalone {
		return agentURL(in.AgentListen)
	}
	host := in.ListenAddr.Addr()
	if host.IsUnspecified() {
		host = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return "https://" + netip.AddrPortFrom(host, in.ListenAddr.Port()).String()
}

// prepare takes the ports and creates the keys, which can fail quickly.
func (c *carob) prepare() (err error) {
	if c.in.Scheduler != "" {
		if c.placing, err = schedconfig.Load(c.in.Scheduler); err != nil {
			return fmt.Errorf("%w --scheduler-config: %w", instance.ErrFlag, err)
		}
	}
	if c.pool, err = balancerPool(c.in); err != nil {
		return err
	}
	if !c.in.Standalone {
		api, err := listen("the API server", "--listen", c.in.ListenAddr.String())
		if err != nil {
			return err
		}
		c.api = newListeners(api)
	}
	if c.agentListener, err = listen("the node agent", "another --data-dir", c.in.AgentListen.String()); err != nil {
		return err
	}
	if c.in.CredentialProviders != "" {
		c.credentials, err = credentials.Load(c.in.CredentialProviders, c.in.CredentialPrograms)
		if err != nil {
			return fmt.Errorf("%w --image-credential-provider-config: %w", instance.ErrFlag, err)
		}
	}
	if c.nodeHealth, err = nodeHealth(c.in.Kubelet); err != nil {
		return err
	}
	if err := os.MkdirAll(c.in.RunDir, 0o700); err != nil {
		return fmt.Errorf("create runtime directory: %w", err)
	}
	c.machine = newMachine(c.in)
	c.keys, err = pki.Open(c.certificates(c.machine.hostIPs()), time.Now())
	if err != nil {
		return err
	}
	if err := c.writeKubeconfig(); err != nil {
		return err
	}
	c.progress.Step("keys", "")
	return nil
}

// certificates returns the names and addresses for which certificates are issued.
func (c *carob) certificates(hostIPs []netip.Addr) pki.Config {
	names := []string{c.in.NodeName}
	for _, ip := range hostIPs {
		names = append(names, ip.String())
	}
	hosts := names
	if !c.in.ListenAddr.Addr().IsUnspecified() {
		hosts = append(slices.Clip(hosts), c.in.ListenAddr.Addr().String())
	}
	if c.in.Gateway.IsValid() {
		hosts = append(slices.Clip(hosts), c.in.Gateway.Addr().String())
	}
	return pki.Config{
		Dir: filepath.Join(c.in.DataDir, "pki"), Hosts: hosts,
		ServiceIP: apiserver.FirstServiceIP(c.in.Services).AsSlice(),
		NodeName:  c.in.NodeName, NodeHosts: names,
	}
}

// followAddresses notifies all parts when the addresses of the machine change, for example of a
// laptop in another network.
func (c *carob) followAddresses(agent *node.Agent) (func(context.Context) error, error) {
	watch, err := netwatch.Open()
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		c.machine.change = func(ips []netip.Addr) {
			klog.FromContext(ctx).Info("The addresses of the machine have changed", "addresses", ips)
			if err := c.keys.Rename(c.certificates(ips), time.Now()); err != nil {
				klog.FromContext(ctx).Error(err, "Cannot issue certificates for the machine's new addresses")
			}
			c.addressesChanged(ctx, agent)
		}
		if c.in.Standalone { // there are no addresses of Services
			return watch.Run(ctx, c.machine.update)
		}
		rest := &unservedRanges{Ranges: unserved.New(servicesTable(c.in), c.in.Services),
			log: klog.FromContext(ctx)}
		if c.engine.onRulesChanged != nil {
			c.engine.onRulesChanged(rest.sync)
		}
		return watch.Run(ctx, func() {
			c.machine.update()
			rest.sync()
		})
	}, nil
}

// open builds in parallel what takes time: the store with the API server, and the runtime.
func (c *carob) open(ctx context.Context) error {
	var err error
	if c.timeline, err = timeline.Open(filepath.Join(c.in.DataDir, "timeline")); err != nil {
		return fmt.Errorf("open timeline: %w", err)
	}
	if c.in.Standalone {
		return c.openRuntime(ctx)
	}
	etcdTLS, err := etcdClientTLS(c.in)
	if err != nil {
		return err
	}
	if err := c.openTraces(ctx); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		c.server, err = apiserver.New(ctx, apiserver.Config{
			DataDir: c.in.DataDir, Listener: c.api, AdvertiseAddress: c.advertise(), EtcdServers: c.in.EtcdServers,
			EtcdTLS:      etcdTLS,
			ServiceCIDRs: c.in.Services, NodePorts: c.in.NodePorts, PKI: c.keys, NodeDialer: c.dialNode,
			Audit: audit.Config(c.in.Audit), EncryptionConfig: c.in.Encryption,
			Traces:               c.traces.api,
			AuthenticationConfig: c.in.Authentication, AdmissionConfig: c.in.Admission, Profiling: c.in.Profiling,
			StoredOnly: storedOnly(c.in), Measure: controllers.Measure, DefinitionChanged: c.definitionChanged,
		})
		if err != nil {
			return err
		}
		c.progress.Step("store", storeDetail(c.in))
		return nil
	})
	g.Go(func() error { return c.openRuntime(ctx) })
	if err := g.Wait(); err != nil {
		return err
	}
	return c.listenForPods(ctx)
}

func (c *carob) openRuntime(ctx context.Context) (err error) {
	if c.engine, err = openEngine(ctx, c.in, c.version); err != nil {
		return err
	}
	c.progress.Step("runtime", c.engine.detail)
	return nil
}

func storeDetail(in instance.Instance) string {
	if len(in.EtcdServers) > 0 {
		return "etcd at " + in.EtcdServers[0]
	}
	return "embedded etcd"
}

// advertise is the address where pods find the API server.
func (c *carob) advertise() netip.Addr {
	if c.in.Gateway.IsValid() {
		return c.in.Gateway.Addr()
	}
	if a := c.in.ListenAddr.Addr(); !a.IsUnspecified() {
		return a
	}
	return c.machine.hostIPs()[0]
}

// reachable is the address where this host itself reaches a listener.
func reachable(at netip.AddrPort) netip.AddrPort {
	switch a := at.Addr(); {
	case a.IsUnspecified() && a.Is4():
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), at.Port())
	case a.IsUnspecified():
		return netip.AddrPortFrom(netip.IPv6Loopback(), at.Port())
	}
	return at
}

// dialNode connects to the agent of this process at its own listener, and to others by their
// address.
func (c *carob) dialNode(ctx context.Context, name, addr string) (net.Conn, error) {
	if name == c.in.NodeName {
		addr = reachable(c.in.AgentListen).String()
	}
	var d net.Dialer
	return d.DialContext(ctx, "tcp", addr)
}

// start runs the parts and returns when the cluster accepts pods.
func (c *carob) start(ctx context.Context) error {
	c.parts.start(ctx, "runtime", c.engine.run)
	c.parts.start(ctx, "API server", c.server.Run)
	if err := c.parts.await(ctx, c.server.Ready()); err != nil {
		return err
	}
	c.progress.Step("API server", url(c.in))
	if err := c.checkCluster(ctx); err != nil {
		return err
	}

	if err := c.startServices(ctx); err != nil {
		return err
	}
	if err := c.startDNS(ctx); err != nil {
		return err
	}
	if err := c.startGateway(ctx); err != nil {
		return err
	}
	own, err := kubernetes.NewForConfig(c.server.ClientConfig(ownUser, user.SystemPrivilegedGroup))
	if err != nil {
		return err
	}
	if err := followPodCIDR(ctx, own, c.in.NodeName, texts(c.in.PodRanges()),
		filepath.Join(c.in.DataDir, replacedNode)); err != nil {
		return err
	}
	scheduler.RegisterMetrics()
	sched, err := scheduler.New(c.component("kube-scheduler")(schedulerUser),
		scheduler.Options{Journal: c.timeline, Config: c.placing})
	if err != nil {
		return err
	}
	c.parts.start(ctx, "scheduler", sched.Run)
	disk, err := c.localDisk(ctx, own)
	if err != nil {
		return err
	}
	as := c.component("kube-controller-manager")
	ctrl, err := controllers.New(as(controllerUser), controllers.Options{
		RootCA: c.keys.CAPEM, Signer: c.keys, SecretToken: c.server.SecretToken, As: as,
		DefaultStatefulSet: apps.DefaultStatefulSet, Node: c.in.NodeName, LocalDisk: disk, Clock: clockwatch.Run,
		PodAutoscaler: func(p controllers.PodAutoscaler) {
			if p == nil {
				c.server.SetPodAutoscaler(nil) // a nil pointer in an interface would not be nil
				return
			}
			c.server.SetPodAutoscaler(p)
		}})
	if err != nil {
		return err
	}
	c.vpa.follow(ctrl.SetVPA)
	c.parts.start(ctx, "controllers", ctrl.Run)
	if p := c.engine.policies; p != nil {
		api, err := policy.Client(c.server.ClientConfig(controllerUser))
		if err != nil {
			return err
		}
		c.parts.start(ctx, "network policies", func(ctx context.Context) error { return p.Run(ctx, api) })
	}
	if err := c.startAgent(ctx); err != nil {
		return err
	}
	return c.awaitGateway(ctx)
}

// component returns a function that makes client configurations for a part that does the work of a
// component of Kubernetes. Field managers and audit entries show the component's name, as upstream's (W11.7).
func (c *carob) component(name string) func(user string, groups ...string) *rest.Config {
	return func(user string, groups ...string) *rest.Config {
		cfg := c.server.ClientConfig(user, groups...)
		cfg.UserAgent = inprocess.UserAgent(name)
		return cfg
	}
}

// startAgent runs the node agent and its parts, and returns when it takes pods.
func (c *carob) startAgent(ctx context.Context) error {
	agent, err := c.agent()
	if err != nil {
		return err
	}
	addresses, err := c.followAddresses(agent)
	if err != nil {
		return err
	}
	c.parts.start(ctx, "node agent", agent.Run)
	if c.nodeHealth != nil {
		c.parts.start(ctx, "health of the node agent", c.nodeHealth)
	}
	c.parts.start(ctx, "addresses", addresses)
	if err := c.parts.await(ctx, agent.Ready()); err != nil {
		return err
	}
	c.progress.Step("node", c.in.NodeName)
	c.parts.start(ctx, "certificates", c.renewKeys)
	return nil
}

func (c *carob) agent() (*node.Agent, error) {
	if err := os.MkdirAll(c.in.PodManifestDir, 0o700); err != nil && !errors.Is(err, syscall.ENOTDIR) {
		// a single manifest is allowed
		return nil, fmt.Errorf("create the directory for static pods: %w", err)
	}
	callers := x509.NewCertPool()
	callers.AddCert(c.keys.CA)
	var agent *node.Agent
	var traffic []node.Traffic
	if c.services != nil {
		traffic = append(traffic, c.services)
	}
	if c.gateway != nil {
		traffic = append(traffic, c.gateway)
	}
	if c.dns != nil {
		traffic = append(traffic, c.dns)
	}
	images := notifyChanges(c.engine.images, func() { agent.ImagesChanged() })
	cfg := node.Config{
		Name: c.in.NodeName, Runtime: c.engine.Runtime, RuntimeName: c.engine.name,
		RootDir: filepath.Join(c.in.DataDir, "node"), PodLogDir: c.in.PodLogDir, ContainerLogDir: c.in.ContainerLogDir,
		KubeletDir: c.in.KubeletDir,
		CgroupRoot: c.in.CgroupRoot, ResolvConf: c.in.ResolvConf,
		ClusterDNS: c.nameServers(), ClusterDomain: c.in.ClusterDomain,
		PodCIDRs: texts(c.in.PodRanges()), HostIPs: c.machine.hostIPs, MaxPods: c.in.MaxPods,
		Version:  KubernetesVersion(),
		Listener: c.agentListener, ServeOthers: !c.in.AgentListen.Addr().IsLoopback(),
		TLS: &tls.Config{
			GetCertificate: c.keys.NodeServing.Serve, ClientCAs: callers,
			ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS12,
		},
		Handlers: map[string]http.Handler{
			"/timeline/":              c.timeline.Handler(),
			"/" + imageapi.Path:       images,
			"/" + imageapi.Path + "/": images,
		},
		SeccompDefault: !c.in.Hardening.SeccompUnconfined, NetRaw: !c.in.Hardening.NoNetRaw,
		PodPids:   int64(c.in.Hardening.PodPids),
		Manifests: c.in.PodManifestDir, Complete: completePod,
		Traffic: traffic, Queues: c.engine.queues,
		Eviction: c.rules, ImageGC: c.imageGC, ShutdownGrace: c.in.Pressure.ShutdownGrace,
		ShutdownCritical: c.in.Pressure.ShutdownCritical,
		DrainTimeout:     c.in.DrainTimeout,
		Journal:          c.timeline,
		Credentials:      c.credentials,
		RuntimeHandlers:  c.engine.handlers,
	}
	if c.gateway != nil {
		cfg.Handlers["GET /"+routeapi.Path] = http.HandlerFunc(c.gateway.ServeRoutes)
		cfg.Handlers["GET /"+routeapi.PoolsPath] = http.HandlerFunc(c.gateway.ServePools)
	}
	err := kubeletSettings(&c.in, &cfg)
	if err != nil {
		return nil, err
	}
	if c.in.Standalone {
		c.standalone(&cfg)
	} else {
		cfg.Client = c.component("kubelet")("system:node:"+c.in.NodeName, nodesGroup)
	}
	agent, err = node.New(cfg)
	return agent, err
}

// completePod applies the API server's defaults to a static pod.
func completePod(pod *corev1.Pod) error {
	pods.DefaultPod(pod)
	return pods.ValidatePodCreate(pod).ToAggregate()
}

// close closes everything that was opened, in reverse order. Containers keep running.
func (c *carob) close() error {
	errs := []error{c.parts.stop()}
	if c.engine != nil {
		errs = append(errs, c.engine.close())
	}
	if c.timeline != nil {
		errs = append(errs, c.timeline.Close())
	}
	// Already closed by their servers, if those were running.
	if c.api != nil {
		_ = c.api.Close()
	}
	if c.agentListener != nil {
		_ = c.agentListener.Close()
	}
	return errors.Join(errs...)
}
