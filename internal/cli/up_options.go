package cli

import (
	"time"

	"github.com/spf13/cobra"

	"carob/internal/base/flagfile"
	"carob/internal/base/instance"
)

// defaultDrainTimeout bounds the wait of a deleted pod for the data plane, which normally takes milliseconds.
const defaultDrainTimeout = 2 * time.Second

// upOptions are the values of the flags of `carob up`.
type upOptions struct {
	instance.Flags
	detach          bool
	seccomp, netRaw bool

	config                        string // a file with values of flags
	kubeletConfig, kubeletDropIns string
}

// add declares the flags, by theme.
func (f *upOptions) add(cmd *cobra.Command) {
	f.addServer(cmd)
	f.addRuntime(cmd)
	f.addNode(cmd)
	f.addNetwork(cmd)
	f.addGateway(cmd)
	f.addPods(cmd)
	f.addPressure(cmd)
	fl := cmd.Flags()
	fl.StringVar(&f.config, "config", "",
		"YAML file with values of flags, the keys are their names without dashes; the command line takes precedence")
	fl.BoolVar(&f.detach, "detach", false, "run in the background and return when the cluster accepts pods")
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
}

// addServer declares the flags of the API server, its store, and the scheduler.
func (f *upOptions) addServer(cmd *cobra.Command) {
	fl := cmd.Flags()
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
	fl.IntVar(&a.MaxAgeDays, "audit-log-maxage", 0, "number of days to keep rotated audit logs (default: no limit)")
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
}

// addRuntime declares the flags of the container runtime, images, and volumes.
func (f *upOptions) addRuntime(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVar(&f.RuntimeEndpoint, "runtime-endpoint", "",
		"CRI socket of another container runtime, such as unix:///run/containerd/containerd.sock (default: carob's own runtime)")
	fl.StringArrayVar(&f.RuntimeHandlers, "runtime-handler", nil,
		"container runtime for the pods of a RuntimeClass handler, as NAME=unix:///SOCKET, or "+
			"NAME=unix:///SOCKET#HANDLER if the handler has another name in that runtime; repeatable")
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
}

// addNode declares the flags of the node agent.
func (f *upOptions) addNode(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVar(&f.KubeletDir, "kubelet-dir", "",
		"directory where plugins and drivers of devices find the kubelet's sockets (default /var/lib/kubelet, or kubelet in another --data-dir)")
	fl.StringVar(&f.kubeletConfig, "kubelet-config", "",
		"file with a KubeletConfiguration (kubelet.config.k8s.io/v1beta1) for the node agent; other flags take precedence")
	fl.StringVar(&f.kubeletDropIns, "kubelet-config-dir", "",
		"directory with drop-in files for the KubeletConfiguration, named *.conf and applied in lexical order")
	fl.StringVar(&f.PodManifestDir, "pod-manifest-dir", "",
		"directory with manifests of static pods, or one manifest file (default: manifests in the data directory)")
	fl.BoolVar(&f.Standalone, "standalone", false,
		"run only static pods, from --pod-manifest-dir: without API server, etcd, scheduler and controllers")
	fl.StringVar(&f.ResolvConf, "resolv-conf", "",
		"resolver file with the name servers for pods; changes are followed (default /etc/resolv.conf, or the servers behind systemd-resolved's stub)")
	fl.StringVar(&f.NodeName, "node-name", "", "name of this node (default: the host name)")
}

// addNetwork declares the flags of the pod network, Services, and DNS.
func (f *upOptions) addNetwork(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVar(&f.PodCIDR, "pod-cidr", "",
		"IP range of pods in CIDR notation, or an IPv4 and an IPv6 range, separated by a comma: the first is that of their primary addresses (default 10.88.0.0/16; another for another --data-dir)")
	fl.IntVar(&f.PodMTU, "pod-mtu", 0,
		"MTU of the pods' network devices in bytes; smaller than the uplink's if packets pass through a tunnel "+
			"(default: that of the default route's device)")
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
		"IP:PORT where /healthz and /livez of the built-in service proxy are served, as kube-proxy does at 0.0.0.0:10256 "+
			"(default: not served)")
	addChoice(cmd, &f.DNS, "dns", "",
		"DNS server for the names of Services and pods: builtin, or none if you run another one, such as CoreDNS behind the Service kube-system/kube-dns (default builtin)",
		"builtin", "none")
	fl.StringVar(&f.ClusterDNS, "cluster-dns", "",
		"IP addresses of the name servers for pods, separated by commas (default: the tenth address of the service range)")
	fl.StringVar(&f.ClusterDomain, "cluster-domain", "",
		"domain of the names of Services and pods (default cluster.local)")
	fl.StringVar(&f.ServiceNodePorts, "service-node-port-range", "",
		"node ports for services, as FIRST-LAST or FIRST+COUNT (default 30000-32767)")
}

// addGateway declares the flags of the gateway.
func (f *upOptions) addGateway(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVar(&f.GatewayHTTP, "gateway-http", "",
		"where Ingresses and Gateways are served over HTTP, as IP:PORT or :PORT for all addresses (default: not served)")
	fl.StringVar(&f.GatewayHTTPS, "gateway-https", "",
		"where Ingresses and Gateways are served over HTTPS, as IP:PORT or :PORT for all addresses (default: not served)")
	fl.StringVar(&f.GatewayAccessLog, "gateway-access-log", "",
		"file with one line of JSON for each request to Ingresses and Gateways, or - for standard output (default: none)")
	fl.StringVar(&f.GatewayProxies, "gateway-proxy-protocol", "",
		"addresses and ranges of load balancers, separated by commas, whose connections to the gateway begin with a PROXY header (version 1 or 2); headers of other clients are not trusted (default: none)")
	fl.StringVar(&f.EndpointPicker, "endpoint-picker-listen", "",
		"address where other gateways (Envoy, Istio, kgateway) call carob's endpoint picker with ext-proc, as IP:PORT "+
			"or :PORT for all addresses (default: not served)")
	fl.BoolVar(&f.EndpointPickerPlain, "endpoint-picker-plaintext", false,
		"serve --endpoint-picker-listen without TLS")
	fl.StringVar(&f.GatewayAddresses, "gateway-addresses", "",
		"addresses of this host and ranges in CIDR notation, separated by commas: each Gateway gets one of them (default: Gateways share those of --gateway-http and --gateway-https)")
}

// addPods declares the limits and defaults of pods.
func (f *upOptions) addPods(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.IntVar(&f.MaxPods, "max-pods", 0, "maximum number of pods on this node (default 250)")
	fl.IntVar(&f.Hardening.PodPids, "pod-max-pids", 0,
		"maximum number of processes and threads of a pod, -1 for no limit (default 4096)")
	fl.DurationVar(&f.DrainTimeout, "deletion-drain-timeout", defaultDrainTimeout,
		"maximum time that a deleted pod waits until Services and DNS no longer lead to it, before its containers get their stop signal; 0: it does not wait, as in Kubernetes")
	fl.BoolVar(&f.seccomp, "seccomp-default", true,
		"use the runtime's default seccomp profile for pods without a profile; false leaves them unconfined")
	fl.BoolVar(&f.netRaw, "allow-net-raw", true,
		"grant CAP_NET_RAW to containers by default; false breaks ping in BusyBox and Debian images")
}

// addPressure declares the flags of eviction, image garbage collection, and node shutdown.
func (f *upOptions) addPressure(cmd *cobra.Command) {
	fl := cmd.Flags()
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
}
