package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"carob/internal/base/flagfile"
	"carob/internal/base/instance"
	"carob/internal/base/kubeletconfig"
)

// detachedEnv marks a child process whose standard output is the parent's pipe.
const detachedEnv = "CAROB_DETACHED"

// defaultDrainTimeout bounds the wait of a deleted pod for the data plane, which normally takes milliseconds.
const defaultDrainTimeout = 2 * time.Second

func (r *root) upCommand() *cobra.Command {
	var (
		f      instance.Flags
		detach bool

		seccomp, netRaw bool

		config, kubeletConfig, kubeletDropIns string
	)
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start a cluster on this machine",
		Long: `Start a cluster on this machine, in one process: API server with etcd, scheduler,
controllers, node agent, container runtime, and pod network.

Pods that kept running while carob was stopped are taken over.`,
		Example: `  # Start in the foreground; Ctrl-C stops it
  carob up

  # Start in the background; return when the cluster accepts pods
  carob up --detach

  # Start a second, independent cluster
  carob up --detach --data-dir /srv/carob2

  # Read the flags from a file, such as "max-pods: 500"; flags of the command line win
  carob up --config /etc/carob.yaml

  # Use an installed containerd
  carob up --runtime-endpoint unix:///run/containerd/containerd.sock

  # Run the pods of RuntimeClasses with the handler gvisor in containerd's runtime runsc
  carob up --runtime-handler gvisor=unix:///run/containerd/containerd.sock#runsc`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if config != "" {
				if err := flagfile.Read(config, fileFlags(cmd)); err != nil {
					return err
				}
				if err := r.checkDataDir(cmd, nil); err != nil {
					return err
				}
			}
			f.Hardening.SeccompUnconfined, f.Hardening.NoNetRaw = !seccomp, !netRaw
			if err := r.kubeletConfig(&f, kubeletConfig, kubeletDropIns, cmd.Flags().Changed); err != nil {
				return err
			}
			in, err := r.instanceOf(f)
			if err != nil {
				return err
			}
			in.FlagValues = flagValues(cmd)
			if detach && os.Getenv(detachedEnv) == "" {
				return r.upDetached(cmd.Context(), in)
			}
			p := newProgress(r.out)
			p.hint = r.try("kubectl get nodes")
			if in.Standalone {
				p.hint = r.try("status")
			}
			if os.Getenv(detachedEnv) != "" {
				p.onReady = leaveTerminal
			}
			err = r.engine.Up(cmd.Context(), in, p)
			if err != nil && p.onReady != nil {
				fmt.Fprintln(r.out, "error: "+message(err))
			}
			return err
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&config, "config", "",
		"YAML file with values of flags, the keys are their names without dashes; the command line takes precedence")
	fl.BoolVar(&detach, "detach", false, "run in the background and return when the cluster accepts pods")
	fl.StringVar(&f.Listen, "listen", "",
		"address of the API server as IP:PORT (default 127.0.0.1:6443; another port for another --data-dir)")
	fl.StringSliceVar(&f.EtcdServers, "etcd-servers", nil, "URLs of an external etcd cluster (default: embedded)")
	fl.StringVar(&f.EtcdCA, "etcd-cafile", "", "file with the CA of https etcd servers (default: the host's CAs)")
	fl.StringVar(&f.EtcdCert, "etcd-certfile", "", "file with the client certificate for etcd")
	fl.StringVar(&f.EtcdKey, "etcd-keyfile", "", "file with the key of the client certificate")
	a := &f.Audit
	fl.StringVar(&a.PolicyFile, "audit-policy-file", "",
		"file with the audit policy: which requests are recorded, and how much of them (default: none)")
	fl.StringVar(&a.LogPath, "audit-log-path", "", "file for the audit log, one line per request; - is standard output")
	fl.IntVar(&a.MaxAgeDays, "audit-log-maxage", 0, "number of days to keep rotated audit logs (default: for ever)")
	fl.IntVar(&a.MaxBackups, "audit-log-maxbackup", 0, "number of rotated audit logs to keep (default: all)")
	fl.IntVar(&a.MaxSizeMB, "audit-log-maxsize", 0, "size in megabytes at which the audit log is rotated (default 100)")
	fl.StringVar(&a.WebhookConfig, "audit-webhook-config-file", "", "kubeconfig of a server to send audit events to")
	fl.StringVar(&f.Encryption, "encryption-provider-config", "",
		"file with an EncryptionConfiguration: which objects are encrypted in etcd, and how")
	fl.StringVar(&f.Admission, "admission-control-config-file", "",
		"file with an AdmissionConfiguration: defaults and exemptions for PodSecurity, resources that require a ResourceQuota, credentials for webhooks")
	fl.StringVar(&f.Tracing, "tracing-config-file", "",
		"file with a TracingConfiguration: where the API server and the gateway send traces (OpenTelemetry), and of how many requests (default: none)")
	fl.StringVar(&f.Authentication, "authentication-config", "",
		"file with an AuthenticationConfiguration: JWT issuers to trust, and what anonymous requests may access; changes take effect while carob runs")
	fl.StringVar(&f.Scheduler, "scheduler-config", "",
		"file with a KubeSchedulerConfiguration (kubescheduler.config.k8s.io/v1): profiles, plugins, weights and their arguments")
	fl.BoolVar(&f.Profiling, "profiling", false,
		"serve profiles of carob at /debug/pprof of the API server, for administrators")
	fl.StringVar(&f.RuntimeEndpoint, "runtime-endpoint", "",
		"CRI socket of another container runtime, such as unix:///run/containerd/containerd.sock (default: carob's own runtime)")
	fl.StringArrayVar(&f.RuntimeHandlers, "runtime-handler", nil,
		"container runtime for the pods of a RuntimeClass handler, as NAME=unix:///SOCKET, or NAME=unix:///SOCKET#HANDLER if that runtime calls the handler otherwise; repeatable")
	fl.StringVar(&f.CNIConfDir, "cni-conf-dir", "",
		"directory with a CNI configuration (default: carob's own bridge network)")
	addChoice(cmd, &f.CgroupDriver, "cgroup-driver", "",
		"driver for the cgroups of pods and containers: cgroupfs (carob creates them) or systemd (default cgroupfs)",
		"cgroupfs", "systemd")
	fl.StringVar(&f.RegistryConfig, "registry-config", "",
		"directory with a hosts.toml for each registry, in containerd's layout: mirrors, private CAs")
	fl.StringVar(&f.CredentialProviders, "image-credential-provider-config", "",
		"file or directory with a CredentialProviderConfig (kubelet.config.k8s.io/v1): plugins that provide credentials for registries")
	fl.StringVar(&f.CredentialPrograms, "image-credential-provider-bin-dir", "",
		"directory with the programs of these plugins")
	fl.StringVar(&f.ContainerLogDir, "container-log-dir", "",
		"directory for links to container logs, for collectors (default /var/log/containers, or log/containers in another --data-dir)")
	fl.StringVar(&f.LocalStoragePath, "local-storage-path", "",
		"directories for volumes of the default class local-path, separated by commas (default: storage in the data directory); none: without this class")
	fl.StringVar(&f.KubeletDir, "kubelet-dir", "",
		"directory where plugins and drivers of devices find the kubelet's sockets (default /var/lib/kubelet, or kubelet in another --data-dir)")
	fl.StringVar(&kubeletConfig, "kubelet-config", "",
		"file with a KubeletConfiguration (kubelet.config.k8s.io/v1beta1) for the node agent; other flags take precedence")
	fl.StringVar(&kubeletDropIns, "kubelet-config-dir", "",
		"directory with drop-in files for the KubeletConfiguration, named *.conf and applied in lexical order")
	fl.StringVar(&f.PodManifestDir, "pod-manifest-dir", "",
		"directory with manifests of static pods, or one manifest file (default: manifests in the data directory)")
	fl.BoolVar(&f.Standalone, "standalone", false,
		"run only static pods, from --pod-manifest-dir: without API server, etcd, scheduler and controllers")
	fl.StringVar(&f.ResolvConf, "resolv-conf", "",
		"resolver file with the name servers for pods; changes are followed (default /etc/resolv.conf, or the servers behind systemd-resolved's stub)")
	fl.StringVar(&f.NodeName, "node-name", "", "name of this node (default: the host name)")
	fl.StringVar(&f.PodCIDR, "pod-cidr", "",
		"IP range of pods in CIDR notation, or an IPv4 and an IPv6 range, separated by a comma: the first is that of their primary addresses (default 10.88.0.0/16; another for another --data-dir)")
	fl.IntVar(&f.PodMTU, "pod-mtu", 0,
		"MTU of the pods' devices in bytes, such as less than the uplink's for a tunnel behind it (default: that of the default route's device)")
	fl.StringVar(&f.ServiceCIDR, "service-cidr", "",
		"IP range of services in CIDR notation, or two of different families, separated by a comma: the first is the default family (default 10.96.0.0/16, and fd00:96::/112 if pods have IPv6; others for another --data-dir)")
	addChoice(cmd, &f.ServiceProxy, "service-proxy", "",
		"service proxy: builtin, or none if you run another one, such as kube-proxy or Cilium (default builtin)",
		"builtin", "none")
	fl.StringVar(&f.LoadBalancerPool, "load-balancer-pool", "",
		"addresses for Services of type LoadBalancer, as ranges in CIDR notation or FIRST-LAST, separated by commas; they are announced by ARP and NDP (default: the addresses of the node)")
	fl.StringSliceVar(&f.LoadBalancerLinks, "load-balancer-interface", nil,
		"network devices on which addresses of the pool are announced (default: those with an address of the node)")
	fl.StringVar(&f.ServiceProxyHealthz, "service-proxy-healthz-bind-address", "",
		"IP:PORT where /healthz and /livez of the built-in service proxy are served, as kube-proxy does at 0.0.0.0:10256 (default: nowhere)")
	addChoice(cmd, &f.DNS, "dns", "",
		"DNS server for the names of Services and pods: builtin, or none if you run another one, such as CoreDNS behind the Service kube-system/kube-dns (default builtin)",
		"builtin", "none")
	fl.StringVar(&f.GatewayHTTP, "gateway-http", "",
		"where Ingresses and Gateways are served over HTTP, as IP:PORT or :PORT for all addresses (default: nowhere)")
	fl.StringVar(&f.GatewayHTTPS, "gateway-https", "",
		"where Ingresses and Gateways are served over HTTPS, as IP:PORT or :PORT for all addresses (default: nowhere)")
	fl.StringVar(&f.GatewayAccessLog, "gateway-access-log", "",
		"file with one line of JSON for each request to Ingresses and Gateways, or - for standard output (default: none)")
	fl.StringVar(&f.GatewayProxies, "gateway-proxy-protocol", "",
		"addresses and ranges of load balancers, separated by commas, whose connections to the gateway begin with a PROXY header (version 1 or 2); headers of other clients are not trusted (default: none)")
	fl.StringVar(&f.EndpointPicker, "endpoint-picker-listen", "",
		"address where other gateways (Envoy, Istio, kgateway) call carob's endpoint picker with ext-proc, as IP:PORT or :PORT for all addresses (default: nowhere)")
	fl.BoolVar(&f.EndpointPickerPlain, "endpoint-picker-plaintext", false,
		"serve --endpoint-picker-listen without TLS")
	fl.StringVar(&f.GatewayAddresses, "gateway-addresses", "",
		"addresses of this host and ranges in CIDR notation, separated by commas: each Gateway gets one of them (default: Gateways share those of --gateway-http and --gateway-https)")
	fl.StringVar(&f.ClusterDNS, "cluster-dns", "",
		"IP addresses of the name servers for pods, separated by commas (default: the tenth address of the service range)")
	fl.StringVar(&f.ClusterDomain, "cluster-domain", "",
		"domain of the names of Services and pods (default cluster.local)")
	fl.StringVar(&f.ServiceNodePorts, "service-node-port-range", "",
		"node ports for services, as FIRST-LAST or FIRST+COUNT (default 30000-32767)")
	fl.IntVar(&f.MaxPods, "max-pods", 0, "maximum number of pods on this node (default 250)")
	fl.IntVar(&f.Hardening.PodPids, "pod-max-pids", 0,
		"maximum number of processes and threads of a pod, -1 for no limit (default 4096)")
	fl.DurationVar(&f.DrainTimeout, "deletion-drain-timeout", defaultDrainTimeout,
		"maximum time that a deleted pod waits until Services and DNS no longer lead to it, before its containers get their stop signal; 0: it does not wait, as in Kubernetes")
	fl.BoolVar(&seccomp, "seccomp-default", true,
		"use the runtime's default seccomp profile for pods without a profile; false leaves them unconfined")
	fl.BoolVar(&netRaw, "allow-net-raw", true,
		"grant CAP_NET_RAW to containers by default; false breaks ping in BusyBox and Debian images")
	n := &f.Pressure
	fl.StringVar(&n.Hard, "eviction-hard", "",
		"thresholds at which pods are evicted immediately (default memory.available<100Mi,nodefs.available<5%,nodefs.inodesFree<5%,imagefs.available<5%,imagefs.inodesFree<5%)")
	fl.StringVar(&n.Soft, "eviction-soft", "",
		"thresholds at which pods are evicted after a grace period, such as memory.available<300Mi")
	fl.StringVar(&n.SoftGrace, "eviction-soft-grace-period", "",
		"grace periods of the soft thresholds, such as memory.available=1m30s")
	fl.IntVar(&n.MaxPodGrace, "eviction-max-pod-grace-period", 0,
		"maximum grace period in seconds for pods evicted because of a soft threshold")
	fl.StringVar(&n.MinReclaim, "eviction-minimum-reclaim", "",
		"minimum amount above the threshold before a pressure ends, such as nodefs.available=500Mi")
	fl.DurationVar(&n.Transition, "eviction-pressure-transition-period", 0,
		"minimum duration of a pressure condition (default 5m)")
	fl.IntVar(&n.ImageHigh, "image-gc-high-threshold", 0,
		"disk usage in percent above which unused images are removed (default 92)")
	fl.IntVar(&n.ImageLow, "image-gc-low-threshold", 0,
		"disk usage in percent down to which unused images are removed (default 90, or 2 less than the other flag)")
	fl.DurationVar(&n.ImageMinAge, "minimum-image-ttl-duration", 0,
		"minimum age of an unused image before it is removed (default 2m)")
	fl.DurationVar(&n.ShutdownGrace, "shutdown-grace-period", 0,
		"how long a shutdown of the machine waits for pods (default: it does not wait)")
	fl.DurationVar(&n.ShutdownCritical, "shutdown-grace-period-critical-pods", 0,
		"part of the shutdown grace period that is reserved for critical pods")
	addChoice(cmd, &f.LogLevel, "log-level", "", "minimum level of messages on standard error (default warn)",
		instance.LogLevels()...)
	fl.BoolVar(&f.Force, "force", false,
		"start even if other flags than last time would lose something: another store, runtime, node name, IP range")
	for _, name := range []string{"local-storage-path", "pod-cidr", "service-cidr", "load-balancer-pool",
		"gateway-proxy-protocol", "gateway-addresses", "cluster-dns", "eviction-hard", "eviction-soft",
		"eviction-soft-grace-period", "eviction-minimum-reclaim"} {
		_ = fl.SetAnnotation(name, flagfile.CommaSeparated, []string{"true"})
	}
	_ = cmd.MarkFlagFilename("config", "yaml", "yml")
	_ = cmd.MarkFlagFilename("kubelet-config")
	_ = cmd.MarkFlagDirname("cni-conf-dir")
	_ = cmd.MarkFlagDirname("registry-config")
	_ = cmd.MarkFlagDirname("kubelet-config-dir")
	_ = cmd.MarkFlagDirname("pod-manifest-dir")
	return cmd
}

// flagValues are the values of all flags of a command, without passwords in URLs.
func flagValues(cmd *cobra.Command) map[string]string {
	values := map[string]string{}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		list, ok := f.Value.(pflag.SliceValue)
		if !ok {
			values[f.Name] = f.Value.String()
			return
		}
		shown := list.GetSlice()
		for i, s := range shown {
			if u, err := url.Parse(s); (err != nil || u.User != nil) && f.Name != "runtime-handler" {
				shown[i] = "REDACTED"
			}
		}
		values[f.Name] = strings.Join(shown, ",")
	})
	return values
}

// fileFlags are the flags of a command that a file can set.
func fileFlags(cmd *cobra.Command) flagfile.Flags {
	return flagfile.Flags{FlagSet: cmd.Flags(), Except: []string{"config", "help", "kubeconfig"}, KindOf: kindOf}
}

// kubeletConfig reads a KubeletConfiguration into the flags that were not given. It prints a warning for each field
// that is unknown or has no effect.
func (r *root) kubeletConfig(f *instance.Flags, file, dir string, given func(flag string) bool) error {
	if file == "" && dir == "" {
		return nil
	}
	if dir != "" {
		if st, err := os.Stat(dir); err != nil || !st.IsDir() {
			return fmt.Errorf("%w --kubelet-config-dir: %s is not a directory", instance.ErrFlag, dir)
		}
	}
	c, warnings, err := kubeletconfig.Load(file, dir)
	if err != nil {
		return fmt.Errorf("%w --kubelet-config: %w", instance.ErrFlag, err)
	}
	more, err := kubeletconfig.Check(c)
	if err != nil {
		return fmt.Errorf("%w --kubelet-config: %w", instance.ErrFlag, err)
	}
	if os.Getenv(detachedEnv) == "" { // the parent process has already printed it
		for _, w := range append(warnings, more...) {
			fmt.Fprintln(r.errOut, "warning: kubelet configuration: "+w)
		}
	}
	kubeletconfig.Apply(c, f, given)
	return nil
}

// upDetached starts carob as a separate process and shows its progress until it is ready or fails.
func (r *root) upDetached(ctx context.Context, in instance.Instance) error {
	if err := instance.CheckRoot(); err != nil {
		return err
	}
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find own program: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(in.LogFile), 0o700); err != nil {
		return fmt.Errorf("create data directory: %w; choose another with --data-dir", err)
	}
	log, err := os.OpenFile(in.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open log file: %w", err)
	}
	defer log.Close()
	pr, pw, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("create pipe: %w", err)
	}
	defer pr.Close()
	args := []string{}
	for _, a := range os.Args[1:] {
		if a != "--detach" && a != "--detach=true" {
			args = append(args, a)
		}
	}
	child := exec.Command(exe, args...)
	child.Env = append(os.Environ(), detachedEnv+"=1")
	child.Stdout, child.Stderr = pw, log
	child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := child.Start(); err != nil {
		pw.Close()
		return fmt.Errorf("start carob: %w", err)
	}
	pw.Close()
	stop := context.AfterFunc(ctx, func() { _ = child.Process.Signal(syscall.SIGTERM) })
	defer stop()
	failed := ""
	for lines := bufio.NewScanner(pr); lines.Scan(); {
		if msg, ok := strings.CutPrefix(lines.Text(), "error: "); ok {
			failed = msg
			continue
		}
		fmt.Fprintln(r.out, lines.Text())
	}
	if o, ok, err := instance.Running(in.LockFile); err == nil && ok && o.Ready && o.PID == child.Process.Pid {
		return child.Process.Release()
	}
	werr := child.Wait()
	if failed != "" {
		return errors.New(failed)
	}
	if werr != nil {
		return fmt.Errorf("carob ended before it was ready, see %s: %w", in.LogFile, werr)
	}
	return fmt.Errorf("carob ended before it was ready, see %s", in.LogFile)
}

// leaveTerminal closes the pipe to the parent; standard output is discarded from now on.
func leaveTerminal() {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return
	}
	_ = syscall.Dup3(int(null.Fd()), 1, 0)
	_ = syscall.Dup3(int(null.Fd()), 0, 0)
	_ = null.Close()
}

// progress prints a line for each step with the time since the start.
type progress struct {
	mu      sync.Mutex
	out     io.Writer
	start   time.Time
	hint    string // what to try next
	onReady func()
}

func newProgress(out io.Writer) *progress { return &progress{out: out, start: time.Now()} }

func (p *progress) Step(name, detail string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	line := fmt.Sprintf("%6d ms  %-12s %s", time.Since(p.start).Milliseconds(), name, detail)
	fmt.Fprintln(p.out, strings.TrimRight(line, " "))
}

func (p *progress) Ready(url string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.out, "carob is up at %s in %d ms. Try: %s\n", url, time.Since(p.start).Milliseconds(), p.hint)
	if p.onReady != nil {
		p.onReady()
		p.onReady = nil
	}
}
