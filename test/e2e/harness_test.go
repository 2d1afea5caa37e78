// Package e2e runs carob as its users do: the real binary, real kubectl, real
// containers. `make e2e` builds what it needs; every test leaves the host as it was.
package e2e

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
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"carob/internal/base/instance"
	"carob/internal/base/testwait"
	"carob/test/containerd"
	"carob/test/e2e/host"
)

// patience bounds every wait for an event; it is not an expectation of speed.
const patience = 2 * time.Minute

var (
	carobBin   = os.Getenv("CAROB")
	imageDir   = os.Getenv("IMAGES")
	kubectlBin string
	shared     *cluster // one cluster for all tests that don't stop theirs
	mirrors    *registry
	// daemon is what all clusters run on with RUNTIME=containerd, nil for carob's own runtime.
	daemon *containerd.Daemon

	mu        sync.Mutex // of what tests that run in parallel change
	marks     []string   // names that things of our clusters bear
	nextRange = os.Getpid()
)

func TestMain(m *testing.M) {
	code, err := runAll(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		code = 1
	}
	os.Exit(code)
}

func runAll(m *testing.M) (code int, err error) {
	if carobBin == "" || imageDir == "" {
		return 1, errors.New("CAROB and IMAGES are not set: use `make e2e`")
	}
	if os.Getuid() != 0 {
		return 1, errors.New("end-to-end tests run real containers and need root")
	}
	if kubectlBin, err = exec.LookPath("kubectl"); err != nil {
		kubectlBin = filepath.Join(filepath.Dir(carobBin), "kubectl")
	}
	before, err := host.Take()
	if err != nil {
		return 1, err
	}
	if mirrors, err = startRegistry(imageDir); err != nil {
		return 1, err
	}
	defer mirrors.Close()
	dir, err := os.MkdirTemp("", "carob-e2e-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(dir)
	switch os.Getenv("RUNTIME") {
	case "", "native":
	case "containerd":
		if daemon, err = containerd.StartWith(context.Background(),
			containerd.Options{Dir: dir, Bridge: "cb-e2e-all", Subnet: "10.223.0.0/16",
				RegistryConfig: mirrors.dir, Programs: os.Getenv("RUNTIME_PROGRAMS"),
				OCIRuntime: os.Getenv("OCI_RUNTIME")},
			imageDir+"/pause.tar"); err != nil {
			return 1, err
		}
		defer func() { err = errors.Join(err, daemon.Close()) }()
	default:
		return 1, fmt.Errorf("RUNTIME is %q: native or containerd", os.Getenv("RUNTIME"))
	}
	if shared, err = newCluster(dir, "--registry-config", mirrors.dir); err != nil {
		return 1, err
	}
	if err := shared.up(); err != nil {
		return 1, err
	}
	code = m.Run()
	if err := shared.end(); err != nil {
		return 1, err
	}
	after, err := host.Take()
	if err != nil {
		return 1, err
	}
	left := host.Diff(before, after)
	if os.Getenv("CI") == "" {
		left = host.Of(left, marks...)
	}
	if len(left) > 0 {
		return 1, fmt.Errorf("%d things are left on the host, the first:\n  %s", len(left),
			strings.Join(left[:min(len(left), 30)], "\n  "))
	}
	return code, nil
}

// cluster is one carob with a data directory of its own.
type cluster struct {
	instance.Instance
	args []string
}

func newCluster(dir string, args ...string) (*cluster, error) {
	in, err := instance.Derive(instance.Flags{DataDir: dir}, "e2e-node")
	if err != nil {
		return nil, err
	}
	mu.Lock()
	marks = append(marks, in.ID, in.BridgeName, in.DataDir)
	mu.Unlock()
	if daemon != nil && !slices.Contains(args, "--runtime-endpoint") {
		args = append(args, "--runtime-endpoint", daemon.Endpoint)
	}
	pods, err := freeRange() // of its own, whatever the names hash to
	if err != nil {
		return nil, err
	}
	return &cluster{Instance: in,
		args: append([]string{"--data-dir", dir, "--node-name", "e2e-node", "--pod-cidr", pods}, args...)}, nil
}

// freeRange is a range for pods that is unused on this host, such as another run of these tests. It is none of the last
// that were returned, which clusters that start at the same time do not use yet.
func freeRange() (string, error) {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return "", err
	}
	mu.Lock()
	defer mu.Unlock()
	const first, count = 225, 28
	for range count {
		one := fmt.Sprintf("10.%d.", first+nextRange%count)
		nextRange++
		if !slices.ContainsFunc(addresses, func(a net.Addr) bool { return strings.HasPrefix(a.String(), one) }) {
			return one + "0.0/16", nil
		}
	}
	return "", errors.New("no range of addresses is left for pods")
}

// nativeOnly skips a test of what only carob's own runtime has.
func nativeOnly(t *testing.T, what string) {
	t.Helper()
	if daemon != nil {
		t.Skip("only with carob's own runtime: " + what)
	}
}

// startCluster is a cluster that ends with the test.
func startCluster(t *testing.T, args ...string) *cluster {
	t.Helper()
	c, err := newCluster(tempDir(t), args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			c.dumpLog(t)
		}
		if err := c.end(); err != nil {
			t.Error(err)
		}
	})
	if err := c.up(); err != nil {
		t.Fatal(err)
	}
	return c
}

// tempDir is short: unix sockets have little room for a path.
func tempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "carob-e2e-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("data directory is still in use: %v", err)
		}
	})
	return dir
}

func (c *cluster) up() error {
	_, err := run(append([]string{carobBin, "up", "--detach"}, c.args...)...)
	return err
}

// end stops the cluster and all its pods.
func (c *cluster) end() error {
	_, err := run(carobBin, "down", "--pods", "--data-dir", c.DataDir)
	return err
}

func (c *cluster) dumpLog(t *testing.T) {
	b, err := os.ReadFile(c.LogFile)
	if err == nil {
		t.Logf("carob's log:\n%s", tail(b, 8000))
	}
}

func tail(b []byte, n int) []byte { return b[max(0, len(b)-n):] }

// owner is the running carob process.
func (c *cluster) owner(t *testing.T) instance.Owner {
	t.Helper()
	o, ok, err := instance.Running(c.LockFile)
	if err != nil || !ok {
		t.Fatalf("carob does not run: %v", err)
	}
	return o
}

// carob runs a carob command on this cluster.
func (c *cluster) carob(t *testing.T, args ...string) string {
	t.Helper()
	out, err := run(append([]string{carobBin, "--data-dir", c.DataDir}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// kubectl runs the real kubectl and fails the test when it fails.
func (c *cluster) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := c.tryKubectl("", args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// kubectlIn is kubectl with standard input.
func (c *cluster) kubectlIn(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	out, err := c.tryKubectl(stdin, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// kubectlFails runs kubectl, requires it to fail, and returns its output.
func (c *cluster) kubectlFails(t *testing.T, args ...string) string {
	t.Helper()
	out, err := c.tryKubectl("", args...)
	if err == nil {
		t.Fatalf("kubectl %s succeeded: %s", strings.Join(args, " "), out)
	}
	return err.Error()
}

func (c *cluster) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, kubectlBin, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig)
	return cmd
}

func (c *cluster) tryKubectl(stdin string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	cmd := c.command(ctx, args...)
	cmd.Stdin = strings.NewReader(stdin)
	return output(cmd)
}

func run(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	return output(exec.CommandContext(ctx, args[0], args[1:]...))
}

func output(cmd *exec.Cmd) (string, error) {
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s: %w\n%s%s", strings.Join(cmd.Args, " "), err, out.String(), errOut.String())
	}
	return out.String(), nil
}

// wait is `kubectl wait`.
func (c *cluster) wait(t *testing.T, what, condition string, more ...string) {
	t.Helper()
	out, err := c.tryKubectl("",
		append([]string{"wait", what, "--for=" + condition, "--timeout=" + patience.String()}, more...)...)
	if err == nil {
		return
	}
	describe, _ := c.tryKubectl("", append([]string{"describe", what}, more...)...)
	t.Fatalf("%v\n%s\n%s", err, out, describe)
}

// acceptGateways waits until carob accepts Gateways. The start of carob does not wait longer than ten seconds for their
// kinds (internal/app, awaitGateway).
func (c *cluster) acceptGateways(t *testing.T) {
	t.Helper()
	for _, of := range [][2]string{{"crd/gatewayclasses.gateway.networking.k8s.io", "condition=Established"},
		{"gatewayclass/carob", "condition=Accepted"}} {
		c.kubectl(t, "wait", "--for=create", "--timeout="+patience.String(), of[0])
		c.wait(t, of[0], of[1])
	}
}

func (c *cluster) pod(t *testing.T, name string) corev1.Pod {
	t.Helper()
	var p corev1.Pod
	if err := json.Unmarshal([]byte(c.kubectl(t, "get", "pod", name, "-o", "json")), &p); err != nil {
		t.Fatal(err)
	}
	return p
}

// events are those about an object, oldest first, as "Type Reason Message".
func (c *cluster) events(t *testing.T, name string) []string {
	t.Helper()
	out := c.kubectl(t, "get", "events", "--field-selector", "involvedObject.name="+name,
		"--sort-by=.metadata.creationTimestamp",
		"-o", `jsonpath={range .items[*]}{.type} {.reason} {.message}{"\n"}{end}`)
	return strings.Split(strings.TrimSpace(out), "\n")
}

// shows runs kubectl until it prints all that is wanted: what a process writes, and events, come a moment after the
// status that a test has waited for.
func (c *cluster) shows(t *testing.T, all []string, args ...string) {
	t.Helper()
	testwait.Until(t, "kubectl "+strings.Join(args, " "), func() error {
		out, err := c.tryKubectl("", args...)
		if err != nil {
			return err
		}
		for _, w := range all {
			if !strings.Contains(out, w) {
				return fmt.Errorf("it lacks %q:\n%s", w, out)
			}
		}
		return nil
	})
}

// hasEvents waits until there are events about an object that contain the wanted texts, as "Type Reason Message".
func (c *cluster) hasEvents(t *testing.T, name string, all ...string) {
	t.Helper()
	c.shows(t, all, "get", "events", "--field-selector", "involvedObject.name="+name,
		"-o", `jsonpath={range .items[*]}{.type} {.reason} {.message}{"\n"}{end}`)
}

// gone waits until kubectl get finds nothing.
func (c *cluster) gone(t *testing.T, args ...string) {
	t.Helper()
	args = append([]string{"get", "--ignore-not-found", "-o", "name"}, args...)
	testwait.Until(t, "nothing is left", func() error {
		left, err := c.tryKubectl("", args...)
		if err == nil && left != "" {
			err = fmt.Errorf("kubectl %s: %s", strings.Join(args, " "), left)
		}
		return err
	})
}

// waitEvent waits until an event with the reason is there.
func (c *cluster) waitEvent(t *testing.T, name, reason string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := c.command(ctx, "get", "events", "--field-selector", "involvedObject.name="+name+",reason="+reason, "--watch",
		"-o", "name")
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	n, _ := pipe.Read(make([]byte, 1))
	cancel()
	_ = cmd.Wait()
	if n == 0 {
		t.Fatalf("no event %s about %s; there are:\n%s", reason, name, strings.Join(c.events(t, name), "\n"))
	}
}

func manifest(name string) string { return filepath.Join("testdata", name+".yaml") }

// remove deletes pods at once when the test ends.
func (c *cluster) remove(t *testing.T, pods ...string) {
	t.Cleanup(func() {
		args := append([]string{"delete", "pod", "--ignore-not-found", "--grace-period=1"}, pods...)
		if _, err := c.tryKubectl("", args...); err != nil {
			t.Error(err)
		}
	})
}

func contains(t *testing.T, what, text string, all ...string) {
	t.Helper()
	for _, w := range all {
		if !strings.Contains(text, w) {
			t.Errorf("%s lacks %q:\n%s", what, w, text)
		}
	}
}
