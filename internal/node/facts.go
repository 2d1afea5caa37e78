package node

import (
	"bytes"
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"carob/internal/node/nodeobject"
	"carob/internal/node/spec"
)

// Files of the host from which the files of pods are made.
const (
	resolvConf = "/etc/resolv.conf"
	// resolvedConf has the servers behind systemd-resolved's stub.
	resolvedConf = "/run/systemd/resolve/resolv.conf"
	hostsFile    = "/etc/hosts"
)

// facts are the properties of the machine that configurations of containers need. Those that may change while the agent
// runs (addresses, resolver, hosts file) are read when they are requested: the next pod gets the content of a replaced
// file.
type facts struct {
	base    spec.Node // what does not change
	hostIPs func() []netip.Addr
	report  func(message string) // reports a changed resolver file that exceeds the limits
	log     klog.Logger

	mu             sync.Mutex
	resolv, behind followed // the resolver file, and systemd-resolved's; the latter has no name with ResolvConf
	hosts          followed
	ips            []netip.Addr
	ipTexts        []string
	now            *spec.Node // made from the last values that were read; never modified
	resolverFile   string     // the file that resolver was read from
	reported       string
}

func newFacts(ctx context.Context, cfg *Config, m nodeobject.Machine, v2 bool, report func(message string)) *facts {
	f := &facts{
		base: spec.Node{
			Name: cfg.Name, Hostname: m.Hostname, ClusterDomain: cfg.ClusterDomain, NoClusterDNS: cfg.NoClusterDNS,
			LogRoot: cfg.PodLogDir, SeccompRoot: filepath.Join(cfg.RootDir, "seccomp"), Capacity: m.Capacity,
			Allocatable: m.Allocatable(), CgroupV2: v2,
			SeccompDefault: cfg.SeccompDefault, NetRaw: cfg.NetRaw, ThermalEvents: thermalEvents(cpuDir),
		},
		hostIPs: cfg.HostIPs, report: report, log: klog.FromContext(ctx),
		resolv: followed{name: resolvConf}, behind: followed{name: resolvedConf}, hosts: followed{name: hostsFile},
	}
	if cfg.ResolvConf != "" {
		f.resolv.name, f.behind.name = cfg.ResolvConf, ""
	}
	for _, ip := range cfg.ClusterDNS {
		f.base.ClusterDNS = append(f.base.ClusterDNS, ip.String())
	}
	return f
}

// cpuDir has a directory for each CPU.
const cpuDir = "/sys/devices/system/cpu"

// thermalEvents are the directories below dir that count how often the CPUs were too hot. From them, a container could
// guess what others compute.
func thermalEvents(dir string) []string {
	found, _ := filepath.Glob(filepath.Join(dir, "cpu[0-9]*", "thermal_throttle")) // the pattern is well-formed
	return found
}

// addresses are the addresses of the machine, the primary first.
func (f *facts) addresses() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lookAtAddresses()
	return f.ipTexts
}

func (f *facts) lookAtAddresses() (changed bool) {
	ips := f.hostIPs()
	if f.ipTexts != nil && slices.Equal(ips, f.ips) {
		return false
	}
	f.ips, f.ipTexts = slices.Clone(ips), make([]string, 0, len(ips))
	for _, ip := range ips {
		f.ipTexts = append(f.ipTexts, ip.String())
	}
	return true
}

// node returns the current properties.
func (f *facts) node() *spec.Node {
	f.mu.Lock()
	defer f.mu.Unlock()
	changed := f.lookAtAddresses()
	for _, file := range []*followed{&f.resolv, &f.behind, &f.hosts} {
		changed = file.look(f.log) || changed
	}
	if f.now != nil && !changed {
		return f.now
	}
	n := f.base
	n.HostIPs, n.HostsFile = f.ipTexts, f.hosts.text
	name := f.resolv.name
	n.Resolver = spec.ParseResolver(f.resolv.text)
	// In a pod's network, nothing listens on the host's loopback addresses.
	if behind := spec.ParseResolver(f.behind.text); n.Resolver.OnLoopback() && len(behind.Nameservers) > 0 &&
		!behind.OnLoopback() {
		n.Resolver, name = behind, f.behind.name
	}
	if problem := spec.CheckResolver(name, n.Resolver, n.ClusterDomain); problem != f.reported {
		if f.reported = problem; problem != "" && f.now != nil {
			f.report(problem)
		}
	}
	f.now, f.resolverFile = &n, name
	return f.now
}

// followed is a file that is read again when it was changed or replaced.
type followed struct {
	name string // empty: there is none
	text []byte

	seen    identity
	settled bool // when it was read, the file was older than the precision of its time stamps
	failed  string
}

// identity distinguishes two states of a file.
type identity struct {
	device, inode   uint64
	size            int64
	changed, edited syscall.Timespec
}

// coarse is the precision of time stamps that every file system has: two changes of the same length within that time
// can't be distinguished.
const coarse = 2 * time.Second

// look reads the file if it may have changed, and reports whether its text has. If the file can't be read, for example
// because it is being replaced, the old text stays.
func (f *followed) look(log klog.Logger) (changed bool) {
	if f.name == "" {
		return false
	}
	info, err := os.Stat(f.name)
	if err == nil {
		id := identify(info)
		if f.settled && id == f.seen {
			return false
		}
		var text []byte
		if text, err = os.ReadFile(f.name); err == nil {
			changed = !bytes.Equal(text, f.text)
			f.text, f.seen, f.failed = text, id, ""
			f.settled = time.Since(time.Unix(id.changed.Unix())) > coarse
			return changed
		}
	}
	f.settled = false
	if f.failed != err.Error() && !os.IsNotExist(err) {
		log.Error(err, "Cannot read a file of the host; pods get its previous content", "file", f.name)
	}
	f.failed = err.Error()
	return false
}

func identify(info os.FileInfo) identity {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return identity{size: info.Size()}
	}
	return identity{device: st.Dev, inode: st.Ino, size: st.Size, changed: st.Ctim, edited: st.Mtim}
}
