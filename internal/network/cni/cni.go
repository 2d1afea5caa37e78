// Package cni is the pod network of external CNI plugins: it calls the plugins of the
// configurations in a directory through libcni. The runtime drives it through network.PodNetwork;
// it must never change a device or a rule itself.
//
// For each sandbox, one file records what was requested from the plugins. It is written before ADD,
// so that after a kill in between DEL is called.
//
// Contract: docs/spec/network.md.
package cni

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	"k8s.io/klog/v2"

	"carob/internal/base/atomicfile"
	"carob/internal/base/errkind"
	"carob/internal/base/keylock"
	"carob/internal/base/netns"
	"carob/internal/network"
)

// Config has the directories of configurations, plugins, and state.
type Config struct {
	ConfDir  string   // *.conflist, *.conf, *.json; the first by name is used, and read at each call
	BinDirs  []string // where plugins are; empty: /opt/cni/bin and /usr/lib/cni
	StateDir string   // results and libcni's cache
	RunDir   string   // pinned namespaces; preferably below /run
}

// Network calls the plugins. All methods are safe for concurrent use.
type Network struct {
	cfg    Config
	nsDir  string
	states string
	cni    *libcni.CNIConfig

	sandboxes keylock.Locks // sandboxes that are being attached or detached
	// collecting excludes all calls to plugins while they collect garbage (N7.23). A goroutine that holds the lock of a
	// sandbox holds it for reading.
	collecting sync.RWMutex
	sweepTime  time.Duration
}

var _ network.PodNetwork = (*Network)(nil)

// device is the name of a pod's device.
const device = "eth0"

// record is what is stored for a sandbox. Done is set when ADD has returned.
type record struct {
	Pod   network.Pod  `json:"pod"`
	NetNS string       `json:"netns"`
	IPs   []netip.Addr `json:"ips,omitempty"`
	List  []byte       `json:"list"` // the configuration used for ADD; DEL must get the same
	Done  bool         `json:"done"`
}

// Open prepares the directories. A missing configuration is not an error here: Ready reports it,
// because an installer may add it later.
func Open(cfg Config) (*Network, error) {
	if len(cfg.BinDirs) == 0 {
		cfg.BinDirs = []string{"/opt/cni/bin", "/usr/lib/cni"}
	}
	n := &Network{cfg: cfg, nsDir: filepath.Join(cfg.RunDir, "netns"), states: filepath.Join(cfg.StateDir, "sandboxes"),
		sweepTime: sweepTime}
	for _, dir := range []string{n.nsDir, n.states} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("create directory of the pod network: %w", err)
		}
	}
	n.cni = newCNI(cfg, &programs{timeout: runTimeout})
	return n, nil
}

func newCNI(cfg Config, run *programs) *libcni.CNIConfig {
	return libcni.NewCNIConfigWithCacheDir(cfg.BinDirs, filepath.Join(cfg.StateDir, "cache"), run)
}

// load reads the configuration in use.
func (n *Network) load() (*libcni.NetworkConfigList, error) {
	files, err := libcni.ConfFiles(n.cfg.ConfDir, []string{".conflist", ".conf", ".json"})
	if err != nil {
		return nil, fmt.Errorf("read CNI configurations: %w", err)
	}
	if len(files) == 0 {
		return nil, errkind.Errorf(errkind.Unavailable, "no CNI configuration in %s", n.cfg.ConfDir)
	}
	slices.Sort(files)
	var list *libcni.NetworkConfigList
	if strings.HasSuffix(files[0], ".conflist") {
		list, err = libcni.NetworkConfFromFile(files[0])
	} else {
		list, err = single(files[0])
	}
	if err != nil {
		return nil, errkind.Errorf(errkind.Invalid, "CNI configuration %s: %w", files[0], err)
	}
	return list, nil
}

// single reads the older form of a configuration, a file with one plugin.
func single(file string) (*libcni.NetworkConfigList, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	plugin, err := libcni.NetworkPluginConfFromBytes(text)
	if err != nil {
		return nil, err
	}
	text, err = json.Marshal(map[string]any{
		"cniVersion": plugin.Network.CNIVersion, "name": plugin.Network.Name, "plugins": []json.RawMessage{text},
	})
	if err != nil {
		return nil, err
	}
	return libcni.NetworkConfFromBytes(text)
}

// Ready implements network.PodNetwork: there is a configuration, and its plugins are installed and
// report that they are ready (STATUS).
func (n *Network) Ready(ctx context.Context) error {
	list, err := n.load()
	if err != nil {
		return err
	}
	if _, err := n.cni.ValidateNetworkList(ctx, list); err != nil {
		return errkind.Errorf(errkind.Unavailable, "CNI network %s: %w", list.Name, err)
	}
	if err := n.cni.GetStatusNetworkList(ctx, list); err != nil {
		return errkind.Errorf(errkind.Unavailable, "CNI network %s is not ready: %w", list.Name, err)
	}
	return nil
}

// Attach implements network.PodNetwork.
func (n *Network) Attach(ctx context.Context, pod network.Pod) (network.Attachment, error) {
	unlock, err := n.lock(ctx, pod.SandboxID)
	if err != nil {
		return network.Attachment{}, err
	}
	defer unlock()
	rec, err := n.read(pod.SandboxID)
	switch {
	case err == nil && rec.Done && netns.Pinned(rec.NetNS):
		return network.Attachment{NetNS: rec.NetNS, IPs: rec.IPs}, nil
	case err == nil:
		// Interrupted, or the host was restarted: plugins need a DEL before another ADD.
		if err := n.drop(ctx, rec); err != nil {
			return network.Attachment{}, err
		}
	case !errors.Is(err, fs.ErrNotExist):
		return network.Attachment{}, err
	}
	if rec, err = n.add(ctx, pod); err != nil {
		return network.Attachment{}, err
	}
	return network.Attachment{NetNS: rec.NetNS, IPs: rec.IPs}, nil
}

func (n *Network) add(ctx context.Context, pod network.Pod) (*record, error) {
	list, err := n.load()
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	rec := &record{Pod: pod, NetNS: filepath.Join(n.nsDir, "n"+strings.ToLower(rand.Text()[:14])), List: list.Bytes}
	if err := n.write(rec); err != nil {
		return nil, err
	}
	fail := func(err error) (*record, error) {
		return nil, errors.Join(fmt.Errorf("attach pod %s/%s to CNI network %s: %w", pod.Namespace, pod.Name, list.Name,
			err),
			n.drop(context.WithoutCancel(ctx), rec))
	}
	if err := makeNetNS(rec.NetNS, pod.NetNS); err != nil {
		return fail(err)
	}
	result, err := n.cni.AddNetworkList(ctx, list, runtimeConf(rec))
	if err != nil {
		return fail(err)
	}
	if rec.IPs, err = addresses(result); err != nil {
		return fail(err)
	}
	rec.Done = true
	if err := n.write(rec); err != nil {
		return fail(err)
	}
	return rec, nil
}

// maxBurst is the largest burst, in bits, that plugins accept.
const maxBurst = math.MaxInt32

// runtimeConf is the information about the pod for the plugins.
func runtimeConf(rec *record) *libcni.RuntimeConf {
	rt := &libcni.RuntimeConf{
		ContainerID: rec.Pod.SandboxID, NetNS: rec.NetNS, IfName: device,
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", rec.Pod.Namespace},
			{"K8S_POD_NAME", rec.Pod.Name},
			{"K8S_POD_INFRA_CONTAINER_ID", rec.Pod.SandboxID}, {"K8S_POD_UID", rec.Pod.UID}},
		CapabilityArgs: map[string]any{},
	}
	type mapping struct {
		HostPort      uint16 `json:"hostPort"`
		ContainerPort uint16 `json:"containerPort"`
		Protocol      string `json:"protocol"`
		HostIP        string `json:"hostIP,omitempty"`
	}
	var ports []mapping
	for _, p := range rec.Pod.Ports {
		if p.HostPort == 0 {
			continue
		}
		m := mapping{HostPort: p.HostPort, ContainerPort: p.ContainerPort, Protocol: strings.ToLower(p.Protocol)}
		if p.HostIP.IsValid() {
			m.HostIP = p.HostIP.String()
		}
		ports = append(ports, m)
	}
	if len(ports) > 0 {
		rt.CapabilityArgs["portMappings"] = ports
	}
	if b := rec.Pod.Bandwidth; b != (network.Bandwidth{}) {
		rates := map[string]uint64{}
		for name, rate := range map[string]uint64{"ingress": b.Ingress, "egress": b.Egress} {
			if rate > 0 { // a rate needs a burst, and vice versa (N7.34)
				rates[name+"Rate"], rates[name+"Burst"] = rate, min(rate, maxBurst)
			}
		}
		rt.CapabilityArgs["bandwidth"] = rates
	}
	return rt
}

// addresses returns the pod's addresses in a result, without those of other devices (the host's).
func addresses(result types.Result) ([]netip.Addr, error) {
	res, err := current.NewResultFromResult(result)
	if err != nil {
		return nil, err
	}
	var ips []netip.Addr
	for _, ip := range res.IPs {
		if ip.Interface != nil && *ip.Interface >= 0 && *ip.Interface < len(res.Interfaces) &&
			res.Interfaces[*ip.Interface].Sandbox == "" {
			continue
		}
		if addr, ok := netip.AddrFromSlice(ip.Address.IP); ok {
			ips = append(ips, addr.Unmap())
		}
	}
	if len(ips) == 0 {
		return nil, errors.New("the plugins returned no address for the pod")
	}
	return ips, nil
}

// Detach implements network.PodNetwork.
func (n *Network) Detach(ctx context.Context, sandboxID string) error {
	unlock, err := n.lock(ctx, sandboxID)
	if err != nil {
		return err
	}
	defer unlock()
	rec, err := n.read(sandboxID)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return n.drop(ctx, rec)
}

// drop calls DEL with the configuration of ADD and removes namespace and record.
func (n *Network) drop(ctx context.Context, rec *record) error {
	list, err := libcni.ConfListFromBytes(rec.List)
	if err != nil {
		return errkind.Errorf(errkind.Corrupt, "stored CNI configuration of sandbox %s: %w", rec.Pod.SandboxID, err)
	}
	rt := runtimeConf(rec)
	if !netns.Pinned(rec.NetNS) {
		rt.NetNS = "" // plugins then free only what they store elsewhere
	}
	if err := n.cni.DelNetworkList(ctx, list, rt); err != nil {
		if rec.Done || ctx.Err() != nil {
			return fmt.Errorf("detach sandbox %s from CNI network %s: %w", rec.Pod.SandboxID, list.Name, err)
		}
		// ADD never returned: plugins undo a failed ADD themselves, and a wrong configuration must
		// not prevent later attempts for the pod.
		klog.FromContext(ctx).Info("CNI plugins cannot undo a failed ADD", "sandbox", rec.Pod.SandboxID, "network",
			list.Name, "err", err)
	}
	if err := netns.Unpin(rec.NetNS); err != nil {
		return err
	}
	if err := os.Remove(n.file(rec.Pod.SandboxID)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the record of sandbox %s: %w", rec.Pod.SandboxID, err)
	}
	return nil
}

// sweepTime limits what plugins may take in a Sweep, before which no pod starts: each call may take two minutes. What
// is left, Detach frees, or the next Sweep.
const sweepTime = 30 * time.Second

// Sweep implements network.PodNetwork.
func (n *Network) Sweep(ctx context.Context, live map[string]bool) error {
	ctx, cancel := context.WithTimeout(ctx, n.sweepTime)
	defer cancel()
	entries, err := os.ReadDir(n.states)
	if err != nil {
		return fmt.Errorf("list sandboxes: %w", err)
	}
	used := map[string]bool{}
	var errs []error
	for _, e := range entries {
		id, ok := strings.CutSuffix(e.Name(), ".json")
		if !ok {
			continue
		}
		if !live[id] {
			errs = append(errs, n.Detach(ctx, id))
			continue
		}
		if rec, err := n.read(id); err == nil {
			used[rec.NetNS] = true
		}
	}
	pins, err := os.ReadDir(n.nsDir)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	for _, p := range pins {
		if path := filepath.Join(n.nsDir, p.Name()); !used[path] {
			errs = append(errs, netns.Unpin(path))
		}
	}
	return errors.Join(append(errs, n.collect(ctx))...)
}

// collect makes the plugins free what belongs to no recorded sandbox, such as an address that a
// killed process took before it recorded the sandbox (GC, N7.23, N7.27). Without a configuration
// there are no plugins.
func (n *Network) collect(ctx context.Context) error {
	list, err := n.load()
	if errkind.Is(err, errkind.Unavailable) {
		return nil
	}
	if err != nil {
		return err
	}
	n.collecting.Lock()
	defer n.collecting.Unlock()
	entries, err := os.ReadDir(n.states)
	if err != nil {
		return fmt.Errorf("list sandboxes: %w", err)
	}
	valid := &libcni.GCArgs{ValidAttachments: []types.GCAttachment{}}
	for _, e := range entries {
		if id, ok := strings.CutSuffix(e.Name(), ".json"); ok {
			valid.ValidAttachments = append(valid.ValidAttachments,
				types.GCAttachment{ContainerID: id, IfName: device})
		}
	}
	if err := n.cni.GCNetworkList(ctx, list, valid); err != nil {
		return fmt.Errorf("collect garbage of CNI network %s: %w", list.Name, err)
	}
	return nil
}

func (n *Network) file(sandbox string) string { return filepath.Join(n.states, sandbox+".json") }

func (n *Network) read(sandbox string) (*record, error) {
	body, err := os.ReadFile(n.file(sandbox))
	if err != nil {
		return nil, err
	}
	var rec record
	if err := json.Unmarshal(body, &rec); err != nil {
		return nil, errkind.Errorf(errkind.Corrupt, "network state of sandbox %s: %w", sandbox, err)
	}
	return &rec, nil
}

func (n *Network) write(rec *record) error {
	body, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	// Synced: the addresses that a plugin has allocated survive a power failure, and only this file records which
	// plugin must free them.
	if err := atomicfile.Write(n.file(rec.Pod.SandboxID), body, 0o600); err != nil {
		return fmt.Errorf("record network state: %w", err)
	}
	return nil
}

// lock serializes calls for one sandbox.
func (n *Network) lock(ctx context.Context, sandbox string) (unlock func(), _ error) {
	if sandbox == "" || strings.ContainsAny(sandbox, "/\x00") {
		return nil, errkind.Errorf(errkind.Invalid, "sandbox ID %q cannot be a file name", sandbox)
	}
	release, err := n.sandboxes.Acquire(ctx, sandbox)
	if err != nil {
		return nil, err
	}
	n.collecting.RLock()
	return func() { n.collecting.RUnlock(); release() }, nil
}

// makeNetNS creates a namespace, or uses the one at a given path, brings its loopback up, and pins
// it at path.
func makeNetNS(path, given string) error {
	settle := func() error {
		lo, err := netlink.LinkByName("lo")
		if err == nil {
			err = netlink.LinkSetUp(lo)
		}
		if err != nil {
			return fmt.Errorf("bring up the loopback device: %w", err)
		}
		return netns.Pin(netns.Current, path)
	}
	if given == "" {
		return netns.DoNew(settle)
	}
	return netns.Do(given, settle)
}
