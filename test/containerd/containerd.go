// Package containerd runs an installed containerd beside others for tests and
// benchmarks: own root, state, socket, network and cgroup names, nothing of the
// host's containerd is touched. Close ends it and removes all that it made.
package containerd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/runtime/remote"
)

// ErrNotInstalled is the error of a missing program.
var ErrNotInstalled = errors.New("not installed")

// Daemon is one containerd.
type Daemon struct {
	Endpoint string // unix://…
	dir      string
	bridge   string
	programs string
	join     []string
	cmd      *exec.Cmd
}

const configTOML = `version = 2
root = "%[1]s/root"
state = "%[1]s/state"
[grpc]
  address = "%[1]s/c.sock"
[ttrpc]
  address = "%[1]s/t.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "registry.k8s.io/pause:3.10"
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "%[3]s"
    conf_dir = "%[5]s"
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "%[2]s"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      BinaryName = "%[4]s"
      Root = "%[1]s/runc"
[plugins."io.containerd.internal.v1.opt"]
  path = "%[1]s/opt"
`

const conflist = `{"cniVersion":"1.0.0","name":"%[1]s","plugins":[
 {"type":"bridge","bridge":"%[1]s","isGateway":true,"ipMasq":false,"hairpinMode":true,
  "ipam":{"type":"host-local","dataDir":"%[2]s/ipam","ranges":[[{"subnet":"%[3]s"}]],"routes":[{"dst":"0.0.0.0/0"}]}},
 {"type":"portmap","capabilities":{"portMappings":true},"backend":"iptables"}]}
`

// Options select a containerd and its settings.
type Options struct {
	Dir            string // a new directory is made below it (short: it holds sockets)
	Bridge, Subnet string // its pod network; Bridge has at most 15 bytes
	RegistryConfig string // hosts.toml layout, may be empty
	// Programs is a directory with containerd, containerd-shim-runc-v2, ctr and
	// cni/; empty for Debian's. OCIRuntime is the path or name of runc or crun.
	Programs, OCIRuntime string
	// CNIConf and CNIBin are directories with a CNI configuration and its plugins, the loopback plugin among them;
	// empty: the bridge.
	CNIConf, CNIBin string
	// Join are cgroup.procs files that the daemon's process joins.
	Join []string
}

// Start runs Debian's containerd and runc in a new directory below dir with a pod
// network of its own, and imports the archives.
func Start(ctx context.Context, dir, bridge, subnet, registryConfig string, archives ...string) (*Daemon, error) {
	return StartWith(ctx, Options{Dir: dir, Bridge: bridge, Subnet: subnet, RegistryConfig: registryConfig},
		archives...)
}

// StartWith is Start with a choice.
func StartWith(ctx context.Context, o Options, archives ...string) (*Daemon, error) {
	if o.OCIRuntime == "" {
		o.OCIRuntime = "runc"
	}
	d := &Daemon{bridge: o.Bridge, programs: o.Programs, join: o.Join}
	cni := "/usr/lib/cni"
	if o.Programs != "" {
		cni = filepath.Join(o.Programs, "cni")
	}
	for _, p := range []string{d.program("containerd"), o.OCIRuntime, d.program("ctr"), cni + "/bridge"} {
		if _, err := exec.LookPath(p); err != nil {
			return nil, fmt.Errorf("%s: %w", p, ErrNotInstalled)
		}
	}
	oci, err := exec.LookPath(o.OCIRuntime)
	if err != nil {
		return nil, err
	}
	if d.dir, err = os.MkdirTemp(o.Dir, "ctrd-"); err != nil {
		return nil, err
	}
	d.Endpoint = "unix://" + d.dir + "/c.sock"
	network := fmt.Sprintf(conflist, o.Bridge, d.dir, o.Subnet)
	if _, err := exec.LookPath("iptables"); err != nil {
		// Without iptables the portmap plugin can't work: leave it out.
		head, _, _ := strings.Cut(network, ",\n {\"type\":\"portmap\"")
		network = head + "]}\n"
	}
	conf := o.CNIConf
	if conf == "" {
		conf = d.dir + "/cni"
	} else {
		cni = o.CNIBin
	}
	for name, text := range map[string]string{
		"config.toml":         fmt.Sprintf(configTOML, d.dir, o.RegistryConfig, cni, oci, conf),
		"cni/10-net.conflist": network} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(d.dir, name)), 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(d.dir, name), []byte(text), 0o644); err != nil {
			return nil, err
		}
	}
	if err := d.Run(ctx); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	for _, a := range archives {
		if out, err := d.ctr(ctx, "images", "import", "--all-platforms", a); err != nil {
			return nil, errors.Join(fmt.Errorf("import %s: %w: %s", a, err, out), d.Close())
		}
	}
	return d, nil
}

func (d *Daemon) program(name string) string {
	if d.programs == "" {
		return name
	}
	return filepath.Join(d.programs, name)
}

// Run starts the daemon's process and waits until it answers.
func (d *Daemon) Run(ctx context.Context) error {
	if err := d.Launch(); err != nil {
		return err
	}
	return d.ready(ctx)
}

// Launch starts the daemon's process.
func (d *Daemon) Launch() error {
	log, err := os.OpenFile(filepath.Join(d.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	script := "for f; do echo 0 >$f || exit 1; done; exec " + d.program("containerd") + " --config " +
		filepath.Join(d.dir, "config.toml")
	d.cmd = exec.Command("sh", append([]string{"-c", script, "sh"}, d.join...)...)
	d.cmd.Stdout, d.cmd.Stderr = log, log
	d.cmd.Env = os.Environ()
	if d.programs != "" {
		d.cmd.Env = append(d.cmd.Env, "PATH="+d.programs+":"+os.Getenv("PATH"))
	}
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return d.cmd.Start()
}

// Kill ends the daemon as a crash would; containers go on.
func (d *Daemon) Kill() error {
	if err := d.cmd.Process.Kill(); err != nil {
		return err
	}
	_ = d.cmd.Wait() // killed
	return nil
}

// Restart ends the daemon and starts it again; containers go on.
func (d *Daemon) Restart(ctx context.Context) error {
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	_ = d.cmd.Wait() // ended by our signal
	return d.Run(ctx)
}

func (d *Daemon) ctr(ctx context.Context, args ...string) ([]byte, error) {
	args = append([]string{"--address", strings.TrimPrefix(d.Endpoint, "unix://"), "--namespace", "k8s.io"}, args...)
	return exec.CommandContext(ctx, d.program("ctr"), args...).CombinedOutput()
}

// ready calls CRI until it responds; the daemon has no other sign of readiness.
func (d *Daemon) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		rt, err := remote.Dial(ctx, d.Endpoint)
		if err == nil {
			_, err = rt.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
			_ = rt.Close()
		}
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			b, _ := os.ReadFile(filepath.Join(d.dir, "log"))
			return fmt.Errorf("containerd does not answer: %w\n%s", err, b)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Socket is the path of the daemon's socket.
func (d *Daemon) Socket() string { return strings.TrimPrefix(d.Endpoint, "unix://") }

// PID is the daemon's process.
func (d *Daemon) PID() int { return d.cmd.Process.Pid }

// Close ends all containers and the daemon and removes what they left.
func (d *Daemon) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if out, err := d.ctr(ctx, "tasks", "ls", "-q"); err == nil {
		for id := range strings.FieldsSeq(string(out)) {
			_, _ = d.ctr(ctx, "tasks", "kill", "-s", "SIGKILL", id)
			_, _ = d.ctr(ctx, "tasks", "rm", "-f", id)
			_, _ = d.ctr(ctx, "containers", "rm", id)
		}
	}
	_ = d.cmd.Process.Signal(syscall.SIGTERM)
	_ = d.cmd.Wait()
	UnmountBelow(d.dir)
	// Where the pods' own cgroups stood; rmdir fails while another containerd uses it.
	groups, _ := filepath.Glob("/sys/fs/cgroup/*/k8s.io")
	for _, g := range append(groups, "/sys/fs/cgroup/k8s.io") {
		_ = syscall.Rmdir(g)
	}
	_ = exec.Command("ip", "link", "delete", d.bridge).Run()
	return os.RemoveAll(d.dir)
}

// UnmountBelow unmounts what killed processes left below a directory.
func UnmountBelow(dir string) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return
	}
	var below []string
	for l := range strings.Lines(string(b)) {
		if f := strings.Fields(l); len(f) > 4 && strings.HasPrefix(f[4], dir+"/") {
			below = append(below, f[4])
		}
	}
	for _, b := range slices.Backward(below) {
		_ = syscall.Unmount(b, syscall.MNT_DETACH)
	}
}
