package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

//go:embed llmd.yaml
var llmdObjects string

// pickerConfig is the configuration of both pickers: what llm-d recommends for the approximate prefix index, which is
// also carob's default, and the affinity to LoRA adapters.
const pickerConfig = `apiVersion: inference.networking.x-k8s.io/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
- type: lora-affinity-scorer
- type: max-score-picker
- type: single-profile-handler
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: kv-cache-utilization-scorer, weight: 2}
  - {pluginRef: prefix-cache-scorer, weight: 3}
  - {pluginRef: lora-affinity-scorer, weight: 3}
  - {pluginRef: max-score-picker}
`

// simulatorPart is how many times slower llm-d's simulator is in simulator.yaml, and how many times fewer requests it
// gets: it takes more processor time for each.
const simulatorPart = 4

// pickers compares round robin, carob's picker without and with the configuration of llm-d's, and llm-d's picker behind
// carob's gateway, on the same servers.
func pickers(ctx context.Context, l *lab) (out []line, err error) {
	if err := l.pools(ctx); err != nil {
		return nil, err
	}
	if err := errors.Join(l.configure(ctx), l.warm(ctx, "/tuned")); err != nil {
		return nil, err
	}
	if l.llmd != "" {
		stop, err := l.startPicker(ctx)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, stop()) }()
		if err := l.warm(ctx, "/llmd"); err != nil {
			return nil, err
		}
	}
	servers, err := l.servers(ctx, "slow")
	if err != nil {
		return nil, err
	}
	var all []string
	for _, s := range servers {
		all = append(all, s.String())
	}
	for i := range workloads {
		w := workloads[i]
		if l.simulator != "" {
			w.rate /= simulatorPart
		}
		for _, way := range []struct {
			name, prefix string
			at           []string
		}{{"round robin, direct", "", all}, {"carob", "/slow", []string{gatewayAt}},
			{"carob, configured as llm-d's", "/tuned", []string{gatewayAt}},
			{"llm-d's picker behind carob's gateway", "/llmd", []string{gatewayAt}}} {
			if way.prefix == "/llmd" && l.llmd == "" {
				continue
			}
			before, err := l.loads(ctx, all)
			if err != nil {
				return nil, err
			}
			got, err := l.send(ctx, &w, way.prefix, way.at)
			if err != nil {
				return nil, fmt.Errorf("%s, %s: %w", w.name, way.name, err)
			}
			text := fmt.Sprintf("%s, %s; %.0f/s", ms(quantile(got.first, 0.5)), ms(quantile(got.first, 0.9)), got.rate)
			if w.adapters > 0 && l.simulator == "" {
				after, err := l.loads(ctx, all)
				if err != nil {
					return nil, err
				}
				text += fmt.Sprintf(", %d adapters loaded for %d requests", after-before, got.sent)
			}
			out = append(out, line{fmt.Sprintf("%s, %s: first token p50, p90; answers", w.name, way.name),
				text, ""})
		}
	}
	return out, nil
}

// loads is how many adapters servers have loaded; llm-d's simulator does not count them.
func (l *lab) loads(ctx context.Context, servers []string) (sum int, err error) {
	if l.simulator != "" {
		return 0, nil
	}
	for _, at := range servers {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at+"/metrics", http.NoBody)
		if err != nil {
			return 0, err
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return 0, err
		}
		page, err := io.ReadAll(res.Body)
		if err = errors.Join(err, res.Body.Close()); err != nil {
			return 0, err
		}
		_, text, _ := strings.Cut(string(page), "modelserver:adapters_loaded_total ")
		text, _, _ = strings.Cut(text, "\n")
		n, err := strconv.Atoi(text)
		if err != nil {
			return 0, fmt.Errorf("adapters that %s has loaded: %w", at, err)
		}
		sum += n
	}
	return sum, nil
}

// configure gives carob's picker of the pool tuned the configuration of both.
func (l *lab) configure(ctx context.Context) error {
	_, err := l.client.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "tuned"},
		Data:       map[string]string{"endpoint-picker-config.yaml": pickerConfig}}, metav1.CreateOptions{})
	return err
}

// startPicker starts llm-d's picker beside the cluster, and makes a pool that names it.
func (l *lab) startPicker(ctx context.Context) (stop func() error, err error) {
	nodes, err := l.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	host := ""
	for _, a := range nodes.Items[0].Status.Addresses {
		if ip, err := netip.ParseAddr(a.Address); err == nil && ip.Is4() && host == "" {
			host = a.Address
		}
	}
	if host == "" {
		return nil, errors.New("the node has no IPv4 address for llm-d's picker")
	}
	var ports []string
	var held []net.Listener
	for range 3 {
		ln, err := net.Listen("tcp", host+":0")
		if err != nil {
			return nil, err
		}
		held = append(held, ln) // until the picker starts
		_, port, _ := net.SplitHostPort(ln.Addr().String())
		ports = append(ports, port)
	}
	objects := strings.NewReplacer("HOST", host, "PORT", ports[0]).Replace(llmdObjects)
	if _, err := l.kubectl(ctx, objects, "apply", "-f", "-"); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(l.dir, "llmd.log"))
	if err != nil {
		return nil, err
	}
	//nolint:gosec // the program that the user names
	cmd := exec.Command(filepath.Join(l.llmd, "epp"), "--pool-name", "llmd", "--pool-namespace", "default",
		"--grpc-port", ports[0], "--grpc-health-port", ports[1], "--metrics-port", ports[2], "--secure-serving=false",
		"--metrics-endpoint-auth=false", "--config-text", pickerConfig, "--v", "0")
	cmd.Env = append(os.Environ(), "KUBECONFIG="+l.in.Kubeconfig)
	cmd.Stdout, cmd.Stderr = log, log
	for _, free := range held {
		_ = free.Close()
	}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, log.Close())
	}
	return func() error {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
		return log.Close()
	}, nil
}
