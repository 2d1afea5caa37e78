package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"carob/test/containerd"
)

const (
	kubeletNode  = "bench-kubelet"
	kubeletGroup = "bench-kubelet" // the cgroup of containerd and of all pods
)

// kubelet is upstream's kubelet with a containerd, as another node of the cluster. Its pods have the network of the
// host, so there is nothing of theirs outside of the processes and directories below.
type kubelet struct {
	b    *bench
	dir  string
	port int // of its API
	cmd  *exec.Cmd
	cri  *containerd.Daemon
}

const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: 127.0.0.1
port: %[1]d
healthzPort: 0
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
cgroupDriver: cgroupfs
cgroupRoot: /%[2]s
enforceNodeAllocatable: [none]
makeIPTablesUtilChains: false
containerRuntimeEndpoint: %[3]s
failCgroupV1: false
failSwapOn: false
maxPods: 300
podLogsDir: %[4]s/logs
volumePluginDir: %[4]s/plugins
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: 1Mi, nodefs.available: 1Mi, imagefs.available: 1Mi}
`

func (b *bench) startKubelet(ctx context.Context) (k *kubelet, err error) {
	k = &kubelet{b: b, dir: filepath.Join(filepath.Dir(b.in.DataDir), "kubelet")}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("start the kubelet: %w", err), k.stop())
		}
	}()
	if err := os.Mkdir(k.dir, 0o700); err != nil {
		return nil, err
	}
	groups, err := makeGroups()
	if err != nil {
		return nil, err
	}
	if k.cri, err = containerd.StartWith(ctx, containerd.Options{Dir: k.dir, Bridge: "benchkubelet0",
		Subnet: "10.251.0.0/24", Join: groups}, filepath.Join(b.images, "pause.tar"),
		filepath.Join(b.images, "bench.tar")); err != nil {
		return nil, err
	}
	if k.port, err = freePort(); err != nil {
		return nil, err
	}
	config := filepath.Join(k.dir, "config.yaml")
	text := fmt.Sprintf(kubeletConfig, k.port, kubeletGroup, k.cri.Endpoint, k.dir)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(k.dir, "log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	k.cmd = exec.Command(b.kubelet, "--config", config, "--kubeconfig", b.in.Kubeconfig, "--root-dir", k.root(),
		"--cert-dir", k.dir, "--hostname-override", kubeletNode)
	k.cmd.Stdout, k.cmd.Stderr = log, log
	if err := k.cmd.Start(); err != nil {
		k.cmd = nil
		return nil, err
	}
	return k, wait(ctx, func() (bool, error) {
		if err := k.cmd.Process.Signal(syscall.Signal(0)); err != nil {
			return false, fmt.Errorf("it ended: %w: %s", err, k.log())
		}
		if _, err := k.get(ctx, "metrics/probes"); err != nil {
			return false, nil //nolint:nilerr // not yet
		}
		_, err := b.c.CoreV1().Nodes().Get(ctx, kubeletNode, metav1.GetOptions{})
		return err == nil, ignoreNotFound(err)
	})
}

func (k *kubelet) root() string { return filepath.Join(k.dir, "root") }

// log is the end of the kubelet's log.
func (k *kubelet) log() string {
	log, err := os.ReadFile(filepath.Join(k.dir, "log"))
	if err != nil {
		return err.Error()
	}
	return string(log[max(0, len(log)-2000):])
}

func (k *kubelet) agent() *agent {
	return &agent{title: "kubelet", node: kubeletNode, dir: k.root(), pid: k.cmd.Process.Pid, hostNetwork: true,
		helpers: groupTime, get: k.get}
}

func (k *kubelet) get(ctx context.Context, path string) ([]byte, error) {
	url := fmt.Sprintf("https://127.0.0.1:%d/%s", k.port, path)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	//nolint:gosec // its certificate is its own, and nothing secret is sent
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		DisableKeepAlives: true}}
	resp, err := c.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s", path, resp.Status)
	}
	return body, err
}

// stop ends the kubelet, containerd, and all their processes, and removes what they made.
func (k *kubelet) stop() error {
	var err error
	if k.cmd != nil {
		_ = k.cmd.Process.Signal(syscall.SIGTERM)
		_ = k.cmd.Wait() // ended by the signal
		err = k.b.c.CoreV1().Nodes().Delete(context.Background(), kubeletNode, metav1.DeleteOptions{})
	}
	err = errors.Join(err, killGroup())
	if k.cri != nil {
		err = errors.Join(err, k.cri.Close())
	}
	containerd.UnmountBelow(k.dir)
	return errors.Join(err, removeGroups(), os.RemoveAll(k.dir))
}

// hierarchies are the directories of all hierarchies of cgroups.
func hierarchies() []string {
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		return []string{"/sys/fs/cgroup"}
	}
	all, _ := filepath.Glob("/sys/fs/cgroup/*/cgroup.procs")
	for i, f := range all {
		all[i] = filepath.Dir(f)
	}
	return all
}

// makeGroups makes the kubelet's cgroup in all hierarchies, and one in it for containerd, whose files it returns.
func makeGroups() (join []string, err error) {
	for _, h := range hierarchies() {
		g := filepath.Join(h, kubeletGroup, "containerd")
		if err := os.MkdirAll(g, 0o755); err != nil {
			return nil, err
		}
		for _, d := range []string{filepath.Dir(g), g} {
			for _, f := range []string{"cpuset.cpus", "cpuset.mems"} {
				if v, err := os.ReadFile(filepath.Join(d, "..", f)); err == nil && filepath.Base(h) == "cpuset" {
					if err := os.WriteFile(filepath.Join(d, f), v, 0o644); err != nil {
						return nil, err
					}
				}
			}
		}
		join = append(join, filepath.Join(g, "cgroup.procs"))
	}
	return join, nil
}

// groups are the kubelet's cgroups, inner ones first.
func groups() []string {
	var dirs []string
	for _, h := range hierarchies() {
		_ = filepath.WalkDir(filepath.Join(h, kubeletGroup), func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			return nil // one that is gone has no processes
		})
	}
	slices.Reverse(dirs)
	return dirs
}

// killGroup kills all processes in the kubelet's cgroups.
func killGroup() error {
	return wait(context.Background(), func() (bool, error) {
		left := false
		for _, g := range groups() {
			pids, err := os.ReadFile(filepath.Join(g, "cgroup.procs"))
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return false, err
			}
			for p := range strings.FieldsSeq(string(pids)) {
				if pid, err := strconv.Atoi(p); err == nil {
					left = true
					_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
				}
			}
		}
		return !left, nil
	})
}

// removeGroups removes the kubelet's cgroups. The kernel may need them for a moment after their last process.
func removeGroups() error {
	return wait(context.Background(), func() (bool, error) {
		left := groups()
		for _, g := range left {
			_ = syscall.Rmdir(g) // tried again
		}
		return len(left) == 0, nil
	})
}

// groupTime is what containerd, its shims, and all processes of pods have run.
func groupTime() time.Duration {
	for _, h := range hierarchies() {
		if b, err := os.ReadFile(filepath.Join(h, kubeletGroup, "cpuacct.usage")); err == nil {
			ns, _ := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
			return time.Duration(ns)
		}
		b, _ := os.ReadFile(filepath.Join(h, kubeletGroup, "cpu.stat"))
		if _, rest, ok := strings.Cut(string(b), "usage_usec "); ok {
			us, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return time.Duration(us) * time.Microsecond
		}
	}
	return 0
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}
