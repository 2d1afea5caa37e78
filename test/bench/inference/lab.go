package main

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"carob/internal/base/instance"
)

// gatewayAt is where the gateway listens; the address is used by nothing else on a machine.
const gatewayAt = "127.93.16.1:8080"

//go:embed objects.yaml
var objects string

//go:embed simulator.yaml
var simulator string

// lab is a carob with a gateway. Its pools are made by the first measurement that needs them.
type lab struct {
	options
	dir    string
	in     instance.Instance
	client *kubernetes.Clientset
	ready  bool
}

const patience = 3 * time.Minute

// simulated begins the last part of the objects: the servers that a simulator replaces.
const simulated = "# A tenth of the times"

// begin starts a carob. What it returns is to be ended also after an error.
func begin(ctx context.Context, o options) (*lab, error) {
	dir, err := os.MkdirTemp("", "carob-bench-")
	if err != nil {
		return nil, err
	}
	l := &lab{options: o, dir: dir}
	if l.in, err = instance.Derive(instance.Flags{DataDir: filepath.Join(dir, "d")}, "bench-node"); err != nil {
		return l, err
	}
	up := []string{"up", "--detach", "--node-name", "bench-node", "--gateway-http", gatewayAt}
	if o.profile != "" {
		up = append(up, "--profiling")
	}
	for _, args := range [][]string{up,
		{"image", "import", filepath.Join(o.images, "modelserver.tar")}} {
		if err := l.carob(ctx, args...); err != nil {
			return l, err
		}
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", l.in.Kubeconfig)
	if err != nil {
		return l, err
	}
	cfg.QPS, cfg.WarningHandler = -1, rest.NoWarnings{}
	l.client, err = kubernetes.NewForConfig(cfg)
	return l, err
}

// carob runs a command.
func (l *lab) carob(ctx context.Context, args ...string) error {
	all := append([]string{args[0], "--data-dir", l.in.DataDir}, args[1:]...)
	if args[0] == "image" || args[0] == "addon" {
		all = append(args[:2:2], append([]string{"--data-dir", l.in.DataDir}, args[2:]...)...)
	}
	cmd := exec.CommandContext(ctx, l.options.carob, all...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("carob %s: %w: %s", strings.Join(args, " "), err, out.String())
	}
	return nil
}

// end removes everything.
func (l *lab) end() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err := l.carob(ctx, "down", "--pods")
	return errors.Join(err, os.RemoveAll(l.dir))
}

func (l *lab) pid() (int, error) {
	o, ok, err := instance.Running(l.in.LockFile)
	if err != nil || !ok {
		return 0, fmt.Errorf("carob does not run: %w", err)
	}
	return o.PID, nil
}

// kubectl runs the kubectl in the path.
func (l *lab) kubectl(ctx context.Context, input string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "kubectl", append([]string{"--kubeconfig", l.in.Kubeconfig}, args...)...)
	cmd.Stdin = strings.NewReader(input)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, out.String())
	}
	return out.String(), nil
}

// serves waits for the gateway's class.
func (l *lab) serves(ctx context.Context) error {
	for _, w := range []string{"--for=create", "--for=condition=Accepted"} {
		if _, err := l.kubectl(ctx, "", "wait", w, "--timeout=60s", "gatewayclass/carob"); err != nil {
			return err
		}
	}
	return nil
}

// pools makes the pools and their servers, once.
func (l *lab) pools(ctx context.Context) error {
	if l.ready {
		return nil
	}
	l.ready = true
	if err := l.serves(ctx); err != nil {
		return err
	}
	if err := l.carob(ctx, "addon", "enable", "inference"); err != nil {
		return err
	}
	all := objects
	if l.simulator != "" {
		at, err := filepath.Abs(l.simulator)
		if err != nil {
			return err
		}
		first, _, _ := strings.Cut(objects, simulated)
		all = first + strings.ReplaceAll(simulator, "DIRECTORY", at)
	}
	if _, err := l.kubectl(ctx, all, "apply", "-f", "-"); err != nil {
		return err
	}
	for _, d := range []string{"fast", "slow"} {
		if _, err := l.kubectl(ctx, "", "rollout", "status", "deployment/"+d, "--timeout=120s"); err != nil {
			return err
		}
	}
	return errors.Join(l.warm(ctx, "/fast"), l.warm(ctx, "/slow"))
}

// warm waits until the gateway serves a path.
func (l *lab) warm(ctx context.Context, path string) error {
	c := &conn{at: gatewayAt}
	defer c.close()
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		res, err := c.roundTrip(request(path, body("warm", 100)))
		if err == nil && res.status == 200 {
			return nil
		}
		if time.Now().After(end) || ctx.Err() != nil {
			return fmt.Errorf("the gateway does not serve %s: %d %w", path, res.status, err)
		}
	}
}

// servers are the addresses of a deployment's pods.
func (l *lab) servers(ctx context.Context, app string) (out []netip.AddrPort, err error) {
	list, err := l.client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "app=" + app})
	if err != nil {
		return nil, err
	}
	for i := range list.Items {
		p := &list.Items[i]
		if p.Status.Phase != corev1.PodRunning || p.DeletionTimestamp != nil {
			continue
		}
		ip, err := netip.ParseAddr(p.Status.PodIP)
		if err != nil {
			return nil, err
		}
		out = append(out, netip.AddrPortFrom(ip, 8000))
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s has no pod", app)
	}
	return out, nil
}
