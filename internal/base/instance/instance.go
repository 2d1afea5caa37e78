// Package instance derives the names of one carob on a host: every port, bridge, cgroup, table,
// socket, and file comes from the data directory or from a flag, so that several instances run side
// by side. Packages app and cli use it. It opens nothing and keeps no state.
package instance

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	kubelet "k8s.io/kubelet/config/v1beta1"
)

// DefaultDataDir is the default data directory.
const DefaultDataDir = "/var/lib/carob"

// Flags are the flags of `carob up`; the zero value of each means "derive it".
type Flags struct {
	DataDir         string
	Listen          string   // host:port of the API server
	EtcdServers     []string // URLs of an external etcd; empty: built-in etcd
	EtcdCA          string   // file with the CA of https etcd servers; empty: the host's CAs
	EtcdCert        string   // file with the client certificate for etcd
	EtcdKey         string   // file with the key of the client certificate
	RuntimeEndpoint string   // CRI socket of another runtime; empty: native
	// RuntimeHandlers are RuntimeClass handlers that other container runtimes serve, each
	// NAME=unix:///SOCKET[#HANDLER].
	RuntimeHandlers []string `json:",omitempty"`
	CNIConfDir      string   // external CNI configuration; empty: the built-in bridge
	CgroupDriver    string   // of the native runtime: "cgroupfs" or empty, or "systemd"
	RegistryConfig  string   // directory of hosts.toml files
	PodManifestDir  string   // directory with static pods, or one file; empty: manifests in the data directory
	// links to container logs for collectors; empty: /var/log/containers, or log/containers in another data directory
	ContainerLogDir string
	// directories for volumes of the class local-path, separated by commas; empty: storage in the data directory;
	// none: there is no such class
	LocalStoragePath string
	// where plugins of devices find the kubelet; empty: /var/lib/kubelet, or kubelet in another data directory
	KubeletDir string
	ResolvConf string // resolver file for pods; empty: the host's
	Pressure   Pressure
	Hardening  Hardening
	Audit      Audit
	Encryption string // file with an EncryptionConfiguration; empty: objects are not encrypted
	// file with an AuthenticationConfiguration; empty: certificates of the CA and service account tokens only
	Authentication string
	Tracing        string // file with a TracingConfiguration; empty: no traces
	Admission      string // file with an AdmissionConfiguration; empty: the plugins' defaults
	Scheduler      string // file with a KubeSchedulerConfiguration; empty: the defaults
	Profiling      bool   // the API server serves /debug/pprof
	// CredentialProviders is a file or directory with a CredentialProviderConfig, CredentialPrograms the directory of
	// the plugins that it names; both or none.
	CredentialProviders, CredentialPrograms string

	// Standalone runs static pods without an API server.
	Standalone    bool `json:",omitempty"`
	NodeName      string
	PodCIDR       string // a range, or one of each family, separated by a comma: that of the primary addresses first
	PodMTU        int    // of the pods' devices, in bytes; 0: that of the default route's device
	ServiceCIDR   string // one range, or two of different families, separated by a comma
	ClusterDNS    string // addresses of the name servers for pods, separated by commas; empty: the DNS Service
	ClusterDomain string // of the names of Services; empty: cluster.local
	ServiceProxy  string // service proxy: builtin or empty, or none
	// ServiceProxyHealthz is where the data plane of Services answers /healthz and /livez, as IP:PORT; empty: nowhere.
	ServiceProxyHealthz string
	// LoadBalancerPool has the addresses of Services of type LoadBalancer as CIDR or FIRST-LAST, separated by
	// commas; empty: they have the node's.
	LoadBalancerPool string
	// LoadBalancerLinks are the network devices on which the pool's addresses are announced; none: those with
	// an address of the node.
	LoadBalancerLinks []string
	DNS               string // DNS server of the cluster: builtin or empty, or none
	// GatewayHTTP and GatewayHTTPS are where Ingresses are served, as IP:PORT or :PORT; empty: nowhere.
	GatewayHTTP, GatewayHTTPS string
	// GatewayAddresses are addresses and ranges, separated by commas, of which each Gateway gets one.
	GatewayAddresses string
	// GatewayAccessLog is the file with a line for each request, or "-" for standard output; empty: none.
	GatewayAccessLog string
	// GatewayProxies are the ranges of load balancers that send PROXY headers, separated by commas.
	GatewayProxies string
	// EndpointPicker is where other gateways call carob's endpoint picker, as IP:PORT or :PORT;
	// empty: nowhere.
	EndpointPicker string
	// EndpointPickerPlain serves it without TLS.
	EndpointPickerPlain bool
	// ServiceNodePorts are the node ports of services as FIRST-LAST or FIRST+COUNT.
	ServiceNodePorts string
	MaxPods          int
	// Kubelet is the configuration of the node agent from a file, for settings without a flag;
	// nil: there is no file.
	Kubelet      *kubelet.KubeletConfiguration `json:",omitempty"`
	DrainTimeout time.Duration                 // how long deleted pods wait for Services and DNS at most; 0: not at all
	LogLevel     string                        // debug, info, warn or error; empty: warn
	// Force allows a start although other flags than those of the last start lose something (see
	// Change).
	Force bool `json:"-"`
}

// Pressure configures node-pressure eviction, image garbage collection, and node shutdown, with the
// names and the syntax of the kubelet's flags; the zero value means upstream's defaults.
type Pressure struct {
	Hard, Soft, SoftGrace, MinReclaim string // lists such as memory.available<100Mi
	// MergeHard applies the default thresholds to the signals that Hard does not name.
	MergeHard                       bool `json:",omitempty"`
	MaxPodGrace                     int  // seconds
	Transition                      time.Duration
	ImageHigh, ImageLow             int // percent
	ImageMinAge                     time.Duration
	ShutdownGrace, ShutdownCritical time.Duration
}

// Hardening configures restrictions of pods that do not choose their own; the zero value is the
// secure default.
type Hardening struct {
	SeccompUnconfined bool // no seccomp profile for pods without one, as the kubelet's --seccomp-default=false
	NoNetRaw          bool // containers have CAP_NET_RAW only if they add it
	PodPids           int  // maximum number of processes and threads of a pod; 0: 4096, -1: no limit
}

// Audit configures what the API server records of its requests, with the names of kube-apiserver's
// flags; the zero value records nothing.
type Audit struct {
	PolicyFile, LogPath, WebhookConfig string // files; LogPath may be "-"
	MaxAgeDays, MaxBackups, MaxSizeMB  int
}

// Instance is one carob with all its names.
type Instance struct {
	Flags
	// FlagValues are the values of all flags of `carob up` by name, to be shown; nil: unknown.
	FlagValues map[string]string

	ID           string // "carob"; for another data directory "carob-" and six hex digits
	ListenAddr   netip.AddrPort
	Pods         netip.Prefix   // the IPv4 range of pods, if any
	Pods6        netip.Prefix   // the same of IPv6
	PodsPrefer6  bool           // the primary address of a pod is that of IPv6
	Services     []netip.Prefix // one, or one of each family; the default family first
	NodePorts    [2]int         // the first and the last
	BridgeName   string         // at most 15 bytes
	CgroupRoot   string         // in each hierarchy: "/carob"
	NFTable      string
	PodLogDir    string
	RunDir       string           // sockets and other state that a reboot may remove
	SocketCRI    string           // unix socket for CRI
	SocketCNI    string           // unix socket for the CNI plugin, `carob cni`
	Handlers     []RuntimeHandler // RuntimeHandlers, parsed
	LockFile     string
	LogFile      string   // of a detached carob
	Kubeconfig   string   // of the administrator
	LocalStorage []string // of LocalStoragePath; none for "none"
	AgentListen  netip.AddrPort
	// Gateway is where pods reach the API server if it listens on a loopback address only: the
	// host's address on the bridge, with the API server's port. It is unset if pods reach the
	// API server where it listens, or use an external network.
	Gateway     netip.AddrPort
	NameServers []netip.Addr // ClusterDNS as addresses
	DNSService  []netip.Addr // cluster IPs of the Service kube-system/kube-dns
	// DNSListen is where the built-in DNS server listens: on the host's addresses on the bridge,
	// or, if pods use another network, on the address of the device DNSDevice.
	DNSListen []netip.Addr
	DNSDevice string

	Routes GatewayPorts
}

// The default instance uses the well-known numbers of Kubernetes; others use numbers derived from
// the hash of the data directory.
const (
	defaultPort      = 6443
	defaultAgentPort = 10250
	defaultPods      = "10.88.0.0/16"
	defaultServices  = "10.96.0.0/16"
	defaultNodePorts = "30000-32767"
	defaultMaxPods   = 250
	defaultPodPids   = 4096
)

var nodeNamePattern = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$`)

var linkPattern = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,15}$`)

// ErrFlag is the kind of errors about invalid flags.
var ErrFlag = errors.New("invalid flag")

// Derive completes the flags and checks that the files they name exist. Errors are of kind ErrFlag and name the flag.
func Derive(f Flags, hostname string) (Instance, error) {
	in, err := Recorded(f, hostname)
	if err != nil {
		return Instance{}, err
	}
	if err := in.checkFiles(); err != nil {
		return Instance{}, err
	}
	return in, in.checkStandalone()
}

// Recorded is the instance of an earlier start with the flags f, whose files may be gone. Errors are as those of
// Derive.
func Recorded(f Flags, hostname string) (Instance, error) {
	if f.DataDir == "" {
		f.DataDir = DefaultDataDir
	}
	dir, err := filepath.Abs(f.DataDir)
	if err != nil {
		return Instance{}, fmt.Errorf("%w --data-dir: %w", ErrFlag, err)
	}
	f.DataDir = dir
	in := Instance{Flags: f, ID: "carob"}
	n := uint32(0)
	if dir != DefaultDataDir {
		h := fnv.New32a()
		_, _ = h.Write([]byte(dir))
		n = h.Sum32()
		in.ID = fmt.Sprintf("carob-%06x", n&0xffffff)
	}
	in.BridgeName = bridgeName(in.ID)
	in.CgroupRoot = "/" + in.ID
	in.NFTable = in.ID
	in.RunDir = filepath.Join("/run", in.ID)
	in.SocketCRI = filepath.Join(in.RunDir, "cri.sock")
	in.SocketCNI = filepath.Join(in.RunDir, "cni.sock")
	in.LockFile = filepath.Join(dir, "carob.lock")
	in.LogFile = filepath.Join(dir, "carob.log")
	in.Kubeconfig = filepath.Join(dir, "admin.kubeconfig")
	in.PodLogDir = "/var/log/pods"
	if n != 0 {
		in.PodLogDir = filepath.Join(dir, "log", "pods")
	}
	if f.Kubelet != nil && f.Kubelet.PodLogsDir != "" {
		in.PodLogDir = filepath.Clean(f.Kubelet.PodLogsDir)
	}
	switch {
	case in.KubeletDir != "":
		if in.KubeletDir, err = filepath.Abs(in.KubeletDir); err != nil {
			return Instance{}, fmt.Errorf("%w --kubelet-dir: %w", ErrFlag, err)
		}
	case n != 0:
		in.KubeletDir = filepath.Join(dir, "kubelet")
	default:
		in.KubeletDir = "/var/lib/kubelet"
	}
	switch {
	case in.ContainerLogDir != "":
		if in.ContainerLogDir, err = filepath.Abs(in.ContainerLogDir); err != nil {
			return Instance{}, fmt.Errorf("%w --container-log-dir: %w", ErrFlag, err)
		}
	case n != 0:
		in.ContainerLogDir = filepath.Join(dir, "log", "containers")
	default:
		in.ContainerLogDir = "/var/log/containers"
	}
	if in.LogLevel == "" {
		in.LogLevel = "warn"
	}
	if in.MaxPods == 0 {
		in.MaxPods = defaultMaxPods
	}
	if in.Hardening.PodPids == 0 {
		in.Hardening.PodPids = defaultPodPids
	}
	if in.Hardening.PodPids < -1 {
		return Instance{}, fmt.Errorf("%w --pod-max-pids: %d is neither a number of processes nor -1", ErrFlag,
			in.Hardening.PodPids)
	}
	if err := in.checkNumbers(); err != nil {
		return Instance{}, err
	}
	if err := in.deriveNetwork(n); err != nil {
		return Instance{}, err
	}
	if in.ServiceProxy == "" {
		in.ServiceProxy = "builtin"
	}
	if in.ServiceProxy != "builtin" && in.ServiceProxy != "none" {
		return Instance{}, fmt.Errorf("%w --service-proxy: %q is neither builtin nor none", ErrFlag, in.ServiceProxy)
	}
	for _, name := range in.LoadBalancerLinks {
		if !linkPattern.MatchString(name) {
			return Instance{}, fmt.Errorf("%w --load-balancer-interface: %q is not the name of a network device", ErrFlag,
				name)
		}
	}
	if h := in.ServiceProxyHealthz; h != "" {
		if at, err := netip.ParseAddrPort(h); err != nil || at.Port() == 0 {
			return Instance{}, fmt.Errorf(
				"%w --service-proxy-healthz-bind-address: %q is not an IP address and a port, such as 127.0.0.1:10256",
				ErrFlag, h)
		}
	}
	at := in.BridgeAddress(in.Services[0].Addr().Is6()) // the Service kubernetes leads there
	if in.ListenAddr.Addr().IsLoopback() && in.RuntimeEndpoint == "" && in.CNIConfDir == "" && at.IsValid() {
		in.Gateway = netip.AddrPortFrom(at, in.ListenAddr.Port())
	}
	if err := in.deriveDNS(n); err != nil {
		return Instance{}, err
	}
	if in.Routes, err = gatewayPorts(f); err != nil {
		return Instance{}, err
	}
	if in.NodeName == "" {
		in.NodeName = strings.ToLower(hostname)
	}
	if !nodeNamePattern.MatchString(in.NodeName) {
		return Instance{}, fmt.Errorf("%w --node-name: %q is not a DNS name (lower case letters, digits, '-', and '.')",
			ErrFlag, in.NodeName)
	}
	for _, e := range f.EtcdServers {
		if !strings.HasPrefix(e, "http://") && !strings.HasPrefix(e, "https://") && !strings.HasPrefix(e, "unix://") {
			return Instance{}, fmt.Errorf("%w --etcd-servers: %q must start with http://, https://, or unix://",
				ErrFlag, e)
		}
	}
	if (f.EtcdCert == "") != (f.EtcdKey == "") {
		return Instance{}, fmt.Errorf("%w --etcd-certfile: requires --etcd-keyfile, and vice versa", ErrFlag)
	}
	if f.CgroupDriver != "" && f.CgroupDriver != "cgroupfs" && f.CgroupDriver != "systemd" {
		return Instance{}, fmt.Errorf("%w --cgroup-driver: %q is neither cgroupfs nor systemd", ErrFlag, f.CgroupDriver)
	}
	if e := f.RuntimeEndpoint; e != "" && !(strings.HasPrefix(e, "unix:///") || strings.HasPrefix(e, "/")) {
		return Instance{},
			fmt.Errorf("%w --runtime-endpoint: %q is not a socket, such as unix:///run/containerd/containerd.sock",
				ErrFlag, e)
	}
	if err := in.deriveHandlers(); err != nil {
		return Instance{}, err
	}
	if in.PodManifestDir == "" {
		in.PodManifestDir = filepath.Join(dir, "manifests")
	}
	return in, nil
}

// checkStandalone refuses flags of parts that do not run in standalone mode.
func (in *Instance) checkStandalone() error {
	if !in.Standalone {
		return nil
	}
	for _, f := range []struct {
		flag string
		set  bool
	}{
		{"--etcd-servers", len(in.EtcdServers) > 0}, {"--audit-policy-file", in.Audit.PolicyFile != ""},
		{"--encryption-provider-config", in.Encryption != ""},
		{"--admission-control-config-file", in.Admission != ""}, {"--tracing-config-file", in.Tracing != ""},
		{"--authentication-config", in.Authentication != ""}, {"--scheduler-config", in.Scheduler != ""},
		{"--gateway-http", in.GatewayHTTP != ""}, {"--gateway-https", in.GatewayHTTPS != ""},
		{"--gateway-addresses", in.GatewayAddresses != ""}, {"--endpoint-picker-listen", in.EndpointPicker != ""},
		{"--load-balancer-pool", in.LoadBalancerPool != ""}, {"--runtime-handler", len(in.RuntimeHandlers) > 0},
		{"--service-proxy-healthz-bind-address", in.ServiceProxyHealthz != ""},
	} {
		if f.set {
			return fmt.Errorf("%w %s: it has no effect with --standalone, which runs no API server: omit one of them",
				ErrFlag, f.flag)
		}
	}
	return nil
}

// checkFiles checks that the files and directories that flags name exist, and makes their paths absolute.
func (in *Instance) checkFiles() (err error) {
	for flag, d := range map[string]string{"--cni-conf-dir": in.CNIConfDir, "--registry-config": in.RegistryConfig} {
		if d == "" {
			continue
		}
		if st, err := os.Stat(d); err != nil || !st.IsDir() {
			return fmt.Errorf("%w %s: %s is not a directory", ErrFlag, flag, d)
		}
	}
	for flag, file := range map[string]*string{
		"--audit-policy-file": &in.Audit.PolicyFile, "--audit-webhook-config-file": &in.Audit.WebhookConfig,
		"--encryption-provider-config": &in.Encryption, "--authentication-config": &in.Authentication,
		"--admission-control-config-file": &in.Admission, "--resolv-conf": &in.ResolvConf,
		"--tracing-config-file": &in.Tracing,
		"--scheduler-config":    &in.Scheduler, "--image-credential-provider-config": &in.CredentialProviders,
		"--image-credential-provider-bin-dir": &in.CredentialPrograms,
		"--etcd-cafile":                       &in.EtcdCA, "--etcd-certfile": &in.EtcdCert, "--etcd-keyfile": &in.EtcdKey,
	} {
		if *file == "" {
			continue
		}
		if _, err := os.Stat(*file); err != nil {
			return fmt.Errorf("%w %s: %s: %w", ErrFlag, flag, *file, reason(err))
		}
		if *file, err = filepath.Abs(*file); err != nil {
			return fmt.Errorf("%w %s: %w", ErrFlag, flag, err)
		}
	}
	if (in.CredentialProviders == "") != (in.CredentialPrograms == "") {
		return fmt.Errorf("%w --image-credential-provider-config: requires --image-credential-provider-bin-dir, and "+
			"vice versa", ErrFlag)
	}
	switch a := in.Audit; {
	case a.PolicyFile == "" && a.LogPath != "":
		return fmt.Errorf("%w --audit-log-path: requires --audit-policy-file", ErrFlag)
	case a.PolicyFile == "" && a.WebhookConfig != "":
		return fmt.Errorf("%w --audit-webhook-config-file: requires --audit-policy-file", ErrFlag)
	case a.PolicyFile != "" && a.LogPath == "" && a.WebhookConfig == "":
		return fmt.Errorf("%w --audit-policy-file: requires --audit-log-path or --audit-webhook-config-file", ErrFlag)
	}
	if p := in.Audit.LogPath; p != "" && p != "-" {
		if in.Audit.LogPath, err = filepath.Abs(p); err != nil {
			return fmt.Errorf("%w --audit-log-path: %w", ErrFlag, err)
		}
	}
	if err := in.checkStorage(); err != nil {
		return err
	}
	if in.PodManifestDir == filepath.Join(in.DataDir, "manifests") {
		return nil // the default is created at the start
	}
	if _, err := os.Stat(in.PodManifestDir); err != nil {
		return fmt.Errorf("%w --pod-manifest-dir: %s: %w", ErrFlag, in.PodManifestDir, reason(err))
	}
	if in.PodManifestDir, err = filepath.Abs(in.PodManifestDir); err != nil {
		return fmt.Errorf("%w --pod-manifest-dir: %w", ErrFlag, err)
	}
	return nil
}

// checkStorage splits and checks the directories for local volumes.
func (in *Instance) checkStorage() error {
	switch in.LocalStoragePath {
	case "none":
	case "":
		in.LocalStorage = []string{filepath.Join(in.DataDir, "storage")}
	default:
		for path := range strings.SplitSeq(in.LocalStoragePath, ",") {
			if !filepath.IsAbs(path) || filepath.Clean(path) == "/" {
				return fmt.Errorf("%w --local-storage-path: %q is not an absolute path other than /", ErrFlag, path)
			}
			in.LocalStorage = append(in.LocalStorage, filepath.Clean(path))
		}
	}
	return nil
}

// LogLevels are the valid values of LogLevel.
func LogLevels() []string { return []string{"debug", "info", "warn", "error"} }

// checkNumbers validates numbers and words.
func (in *Instance) checkNumbers() error {
	if !slices.Contains(LogLevels(), in.LogLevel) {
		return fmt.Errorf("%w --log-level: %q is not one of %s", ErrFlag, in.LogLevel, strings.Join(LogLevels(), ", "))
	}
	p, a := in.Pressure, in.Audit
	for _, n := range []struct {
		flag  string
		value int
	}{
		{"max-pods", in.MaxPods}, {"eviction-max-pod-grace-period", p.MaxPodGrace},
		{"image-gc-high-threshold", p.ImageHigh}, {"image-gc-low-threshold", p.ImageLow},
		{"audit-log-maxage", a.MaxAgeDays}, {"audit-log-maxbackup", a.MaxBackups}, {"audit-log-maxsize", a.MaxSizeMB},
	} {
		if n.value < 0 {
			return fmt.Errorf("%w --%s: %d is less than 0", ErrFlag, n.flag, n.value)
		}
	}
	for _, d := range []struct {
		flag  string
		value time.Duration
	}{
		{"eviction-pressure-transition-period", p.Transition}, {"minimum-image-ttl-duration", p.ImageMinAge},
		{"deletion-drain-timeout", in.DrainTimeout}, {"shutdown-grace-period", p.ShutdownGrace},
		{"shutdown-grace-period-critical-pods", p.ShutdownCritical},
	} {
		if d.value < 0 {
			return fmt.Errorf("%w --%s: %s is less than 0", ErrFlag, d.flag, d.value)
		}
	}
	return nil
}

// reason is the error of a file operation without the file name.
func reason(err error) error {
	if path, ok := errors.AsType[*fs.PathError](err); ok {
		return path.Err
	}
	return err
}

func (in *Instance) deriveNetwork(n uint32) error {
	listen, agentPort := "127.0.0.1:"+strconv.Itoa(defaultPort), defaultAgentPort
	pods, services := defaultPods, defaultServices
	if n != 0 {
		port := 20000 + int(n%5000)*2
		listen, agentPort = fmt.Sprintf("127.0.0.1:%d", port), port+1
		// One of a thousand /20 ranges: 4094 addresses, and conflicts are rare.
		pods = block20(128, n%1024)
		services = block20(192, (n>>10)%1008) // the last sixteen belong to 10.255.0.0/16
	}
	if in.Listen == "" {
		in.Listen = listen
	}
	if err := in.deriveListen(agentPort); err != nil {
		return err
	}
	return in.deriveRanges(n, pods, services)
}

// deriveListen derives the addresses of the API server and the node agent from --listen.
func (in *Instance) deriveListen(agentPort int) error {
	host, port, err := net.SplitHostPort(in.Listen)
	if err != nil {
		return fmt.Errorf("%w --listen: %q is not IP:PORT, such as 0.0.0.0:6443", ErrFlag, in.Listen)
	}
	if host == "localhost" {
		host = "127.0.0.1"
	}
	if host == "" {
		host = "0.0.0.0"
	}
	if in.ListenAddr, err = netip.ParseAddrPort(net.JoinHostPort(host, port)); err != nil || in.ListenAddr.Port() == 0 {
		return fmt.Errorf("%w --listen: %q is not an IP address and a port from 1 to 65535, such as 0.0.0.0:6443",
			ErrFlag, in.Listen)
	}
	// The agent is reachable from where the API server is.
	in.AgentListen = netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(agentPort))
	if a := in.ListenAddr.Addr(); !a.IsLoopback() {
		in.AgentListen = netip.AddrPortFrom(a, uint16(agentPort))
	}
	if k := in.Kubelet; k != nil {
		if a, err := netip.ParseAddr(k.Address); err == nil {
			in.AgentListen = netip.AddrPortFrom(a, in.AgentListen.Port())
		}
		if k.Port > 0 {
			in.AgentListen = netip.AddrPortFrom(in.AgentListen.Addr(), uint16(k.Port))
		}
	}
	return nil
}

// deriveRanges derives the ranges of pods, Services, and node ports; pods and services are the defaults of the instance
// with number n. A derived range is changed if it overlaps one that is set.
func (in *Instance) deriveRanges(n uint32, pods, services string) (err error) {
	podsGiven, servicesGiven := in.PodCIDR != "", in.ServiceCIDR != ""
	if !podsGiven {
		in.PodCIDR = pods
	}
	if !servicesGiven {
		in.ServiceCIDR = in.servicesLike(in.PodCIDR, n, services)
	}
	for i := range uint32(1008) {
		if !overlap(in.PodCIDR, in.ServiceCIDR) {
			break
		}
		if !servicesGiven {
			in.ServiceCIDR = in.servicesLike(in.PodCIDR, n, block20(192, (n>>10+i)%1008))
		} else if !podsGiven {
			in.PodCIDR = block20(128, (n+i)%1024)
		}
	}
	if err := in.podRanges(); err != nil {
		return fmt.Errorf("%w --pod-cidr: %w", ErrFlag, err)
	}
	if err := in.checkMTU(); err != nil {
		return err
	}
	if in.Services, err = serviceRanges(in.ServiceCIDR); err != nil {
		return fmt.Errorf("%w --service-cidr: %w", ErrFlag, err)
	}
	for _, p := range in.Services {
		for _, pods := range in.PodRanges() {
			if pods.Overlaps(p) {
				return fmt.Errorf("%w --pod-cidr: %s and --service-cidr %s overlap", ErrFlag, pods, p)
			}
		}
	}
	if in.ServiceNodePorts == "" {
		in.ServiceNodePorts = defaultNodePorts
	}
	if in.NodePorts, err = portRange(in.ServiceNodePorts); err != nil {
		return fmt.Errorf("%w --service-node-port-range: %w", ErrFlag, err)
	}
	return nil
}
