package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"carob/internal/base/instance"
)

const (
	namespace = "bench"
	nodeName  = "bench"

	podRange, serviceRange = "10.88.0.0/16", "10.96.0.0/16"
)

// node is one cluster with what is measured.
type node struct {
	options
	dir    string
	in     instance.Instance
	c      kubernetes.Interface
	self   string // this program, for pods
	dns    string // where DNS answers
	dnsPID int
	pids   []int // whose memory counts
	ends   []func()
}

// start starts a cluster: carob with its own Services and DNS, or with kube-proxy and CoreDNS.
func start(ctx context.Context, o options, name string) (n *node, err error) {
	n = &node{options: o}
	if n.self, err = os.Executable(); err != nil {
		return nil, err
	}
	if n.dir, err = os.MkdirTemp("", "carob-bench-network-"); err != nil {
		return nil, err
	}
	if n.in, err = instance.Derive(instance.Flags{DataDir: filepath.Join(n.dir, "data"), PodCIDR: podRange,
		ServiceCIDR: serviceRange}, nodeName); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			n.stop()
			n = nil
		}
	}()
	args := []string{"up", "--detach", "--node-name", nodeName, "--pod-cidr", podRange, "--service-cidr", serviceRange}
	if name != "carob" {
		if o.kubeProxy == "" || o.coreDNS == "" {
			return n, errors.New("-kube-proxy and -coredns are needed: hack/bench-network builds them")
		}
		args = append(args, "--service-proxy", "none", "--dns", "none")
	}
	n.ends = append(n.ends, func() { // its context has ended when the user interrupted
		_ = n.carobCommand(context.Background(), "down", "--pods").Run()
	})
	for _, args := range [][]string{args, {"image", "import", o.image}} {
		if out, err := n.carobCommand(ctx, args...).CombinedOutput(); err != nil {
			return n, fmt.Errorf("carob %s: %w: %s", args[0], err, out)
		}
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", n.in.Kubeconfig)
	if err != nil {
		return n, err
	}
	cfg.QPS = -1
	if n.c, err = kubernetes.NewForConfig(cfg); err != nil {
		return n, err
	}
	owner, running, err := instance.Running(n.in.LockFile)
	if err != nil || !running {
		return n, fmt.Errorf("carob does not run: %w", err)
	}
	n.pids = []int{owner.PID}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if _, err := n.c.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
		return n, err
	}
	if name == "carob" {
		n.dnsPID = owner.PID
		return n, n.findDNS(ctx)
	}
	period := "1s"
	if name == "upstream-1ms" {
		period = "1ms"
	}
	return n, n.upstream(period)
}

func (n *node) carobCommand(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, n.carob, append([]string{"--data-dir", n.in.DataDir}, args...)...)
}

// stop ends all that was started, the last first.
func (n *node) stop() {
	for _, end := range slices.Backward(n.ends) {
		end()
	}
	_ = os.RemoveAll(n.dir)
}

// findDNS reads where carob's DNS answers from its EndpointSlice.
func (n *node) findDNS(ctx context.Context) error {
	return until(ctx, "the slice of carob's DNS", func() (bool, error) {
		list, err := n.c.DiscoveryV1().EndpointSlices("kube-system").List(ctx, metav1.ListOptions{
			LabelSelector: discoveryv1.LabelServiceName + "=kube-dns"})
		if err != nil || len(list.Items) == 0 || len(list.Items[0].Endpoints) == 0 {
			return false, err
		}
		s := list.Items[0]
		for _, p := range s.Ports {
			if *p.Protocol == corev1.ProtocolUDP {
				n.dns = net.JoinHostPort(s.Endpoints[0].Addresses[0], strconv.Itoa(int(*p.Port)))
			}
		}
		return n.dns != "", nil
	})
}

// corefile is kubeadm's, without what concerns other names.
const corefile = `
cluster.local:1053 in-addr.arpa:1053 ip6.arpa:1053 {
    bind 127.0.0.1
    errors
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        kubeconfig %s
        pods insecure
        ttl 30
    }
    cache 30 {
        disable success cluster.local
        disable denial cluster.local
    }
    loadbalance
}
`

const proxyConfig = `
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clientConnection: {kubeconfig: %q}
clusterCIDR: %q
hostnameOverride: %q
nftables: {minSyncPeriod: %s, syncPeriod: 30s}
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
`

// upstream starts kube-proxy and CoreDNS.
func (n *node) upstream(period string) error {
	n.dns = "127.0.0.1:1053"
	config := fmt.Sprintf(proxyConfig, n.in.Kubeconfig, n.in.PodCIDR, nodeName, period)
	for name, text := range map[string]string{"proxy.yaml": config,
		"Corefile": fmt.Sprintf(corefile, n.in.Kubeconfig)} {
		if err := os.WriteFile(filepath.Join(n.dir, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	proxy, err := n.background(n.kubeProxy, "--config", filepath.Join(n.dir, "proxy.yaml"))
	if err != nil {
		return err
	}
	n.dnsPID, err = n.background(n.coreDNS, "-conf", filepath.Join(n.dir, "Corefile"))
	n.pids = append(n.pids, proxy, n.dnsPID)
	return err
}

// background starts a program that ends with the cluster; its output is shown when it ends before.
func (n *node) background(program string, args ...string) (pid int, err error) {
	cmd := exec.Command(program, args...)
	out := &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	ended, stopping := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		err := cmd.Wait()
		select {
		case <-stopping:
		default:
			fmt.Fprintf(os.Stderr, "%s ended: %v: %s\n", filepath.Base(program), err, out)
		}
	}()
	n.ends = append(n.ends, func() {
		close(stopping)
		_ = cmd.Process.Signal(syscall.SIGKILL)
		<-ended
	})
	return cmd.Process.Pid, nil
}

// quiet is how long carob takes after a burst to give back memory, and some more.
const quiet = 15 * time.Second

// memory is what the parts have allocated once nothing happens, in MB.
func (n *node) memory(ctx context.Context) (sum float64, err error) {
	select {
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-time.After(quiet):
	}
	for _, pid := range n.pids {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		for l := range strings.Lines(string(b)) {
			if v, ok := strings.CutPrefix(l, "RssAnon:"); ok {
				kb, _ := strconv.ParseFloat(strings.Fields(v)[0], 64)
				sum += kb / 1024
			}
		}
	}
	return sum, nil
}

// inPod runs this program in a pod and reads the numbers that it prints.
func (n *node) inPod(ctx context.Context, pod string, args ...string) (out []float64, err error) {
	text, err := n.carobCommand(ctx, append([]string{"kubectl", "-n", namespace, "exec", pod, "--", inPodPath},
		args...)...).Output()
	if err != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		return nil, fmt.Errorf("%s in pod %s: %w", args[0], pod, err)
	}
	return out, json.Unmarshal(text, &out)
}

// patience bounds each wait for the cluster; nothing measured is as long.
const patience = 60 * time.Second

func until(ctx context.Context, what string, ok func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		if done, err := ok(); err != nil || done {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", what, ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}
