package e2e

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"carob/internal/base/testwait"
)

// monitored is a cluster that can be reached from outside, with a pod that has a limit, probes, a volume and traffic.
func monitored(t *testing.T) *cluster {
	t.Helper()
	nativeOnly(t, "other runtimes have CRI's statistics only")
	c := startCluster(t, "--registry-config", mirrors.dir, "--listen", fmt.Sprintf("0.0.0.0:%d", freePort(t)))
	c.kubectlIn(t, `
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 10Mi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: busy, labels: {app: busy}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: busybox:1.36
    command: [sh, -c, "while :; do nslookup kubernetes.default.svc.cluster.local >/data/answer; usleep 200000; done"]
    resources: {requests: {cpu: 10m, memory: 8Mi}, limits: {cpu: 100m, memory: 64Mi}}
    readinessProbe: {exec: {command: ["true"]}, periodSeconds: 1}
    volumeMounts: [{name: data, mountPath: /data}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
`, "apply", "-f", "-")
	c.wait(t, "pod/busy", "condition=Ready")
	return c
}

const prometheusAccount = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: prometheus}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: prometheus}
rules:
- {apiGroups: [""], resources: [nodes/metrics], verbs: [get]}
- {nonResourceURLs: [/metrics, /metrics/slis], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: prometheus}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: prometheus}
subjects: [{kind: ServiceAccount, name: prometheus, namespace: default}]
`

// prometheusJob scrapes one path of the API server or of the agent. The targets are static, because Debian builds
// Prometheus without the discovery of Kubernetes.
const prometheusJob = `
- job_name: NAME
  metrics_path: PATH
  scheme: https
  tls_config: {ca_file: DIR/ca.crt}
  authorization: {credentials_file: DIR/token}
  static_configs: [{targets: ["TARGET"]}]
`

// mixinQueries are the queries of the dashboards, rules and alerts of kubernetes-mixin, reduced to the series and
// labels.
var mixinQueries = []string{
	// pods and namespaces
	`sum by (namespace, pod, container) (irate(container_cpu_usage_seconds_total{job="cadvisor", image!=""}[1m]))`,
	`increase(container_cpu_cfs_throttled_periods_total{job="cadvisor", container!=""}[1m])`,
	`increase(container_cpu_cfs_periods_total{job="cadvisor", container!=""}[1m])`,
	`container_memory_working_set_bytes{job="cadvisor", image!="", container!=""}`,
	`container_memory_rss{job="cadvisor", image!="", container!=""}`,
	`container_memory_cache{job="cadvisor", image!="", container!=""}`,
	`container_memory_swap{job="cadvisor", image!="", container!=""}`,
	`container_memory_usage_bytes{job="cadvisor", image!=""}`,
	`container_start_time_seconds{job="cadvisor", image!=""}`,
	`container_spec_memory_limit_bytes{job="cadvisor", image!=""} > 0`,
	`container_spec_cpu_quota{job="cadvisor", image!=""} / container_spec_cpu_period`,
	`sum by (namespace, pod) (rate(container_network_receive_bytes_total{job="cadvisor", namespace=~".+"}[1m])) > 0`,
	`sum by (namespace, pod) (rate(container_network_transmit_bytes_total{job="cadvisor", namespace=~".+"}[1m])) > 0`,
	`sum by (namespace, pod) (rate(container_network_receive_packets_total{job="cadvisor", namespace=~".+"}[1m])) > 0`,
	`sum by (namespace, pod) (rate(container_network_transmit_packets_total{job="cadvisor"}[1m])) > 0`,
	`sum by (namespace, pod) (rate(container_network_receive_packets_dropped_total{job="cadvisor"}[1m]))`,
	`sum by (namespace, pod) (rate(container_network_transmit_packets_dropped_total{job="cadvisor"}[1m]))`,
	`machine_memory_bytes{job="cadvisor"}`, `machine_cpu_cores{job="cadvisor"}`,
	`rate(node_cpu_usage_seconds_total{job="resource"}[1m])`, `node_memory_working_set_bytes{job="resource"}`,
	`pod_memory_working_set_bytes{job="resource", pod="busy"}`,
	`prober_probe_total{job="probes", pod="busy", result="successful"}`,
	// kubelet
	`kubelet_node_name{job="kubelet"}`, `kubelet_running_pods{job="kubelet"}`,
	`sum(kubelet_running_containers{job="kubelet"})`, `volume_manager_total_volumes{job="kubelet"}`,
	`sum by (operation_type) (rate(kubelet_runtime_operations_total{job="kubelet"}[1m]))`,
	`histogram_quantile(0.99, sum by (le) (kubelet_runtime_operations_duration_seconds_bucket{job="kubelet"}))`,
	`histogram_quantile(0.99, sum by (le) (kubelet_pod_start_duration_seconds_bucket{job="kubelet"}))`,
	`histogram_quantile(0.99, sum by (le) (kubelet_cgroup_manager_duration_seconds_bucket{job="kubelet"}))`,
	`histogram_quantile(0.99, sum by (le) (kubelet_pleg_relist_duration_seconds_bucket{job="kubelet"}))`,
	`kubelet_volume_stats_capacity_bytes{job="kubelet", persistentvolumeclaim="data"} > 0`,
	`kubelet_volume_stats_available_bytes{job="kubelet", persistentvolumeclaim="data"} > 0`,
	`kubelet_volume_stats_used_bytes{job="kubelet", persistentvolumeclaim="data"} > 0`,
	`kubelet_volume_stats_inodes{job="kubelet", persistentvolumeclaim="data"} > 0`,
	`kubelet_volume_stats_inodes_used{job="kubelet", persistentvolumeclaim="data"}`,
	`process_resident_memory_bytes{job="kubelet"}`, `rate(process_cpu_seconds_total{job="kubelet"}[1m])`,
	`go_goroutines{job="kubelet"}`, `kubernetes_build_info{job="kubelet"}`,
	// control plane: all of it is at the API server
	`sum by (verb, code) (rate(apiserver_request_total{job="apiserver"}[1m]))`,
	`histogram_quantile(0.99, sum by (le) (rate(apiserver_request_duration_seconds_bucket{job="apiserver"}[1m])))`,
	`sum by (le) (rate(apiserver_request_sli_duration_seconds_bucket{job="apiserver", verb="LIST"}[1m]))`,
	`kubernetes_build_info{job="apiserver"}`, `apiserver_current_inflight_requests{job="apiserver"}`,
	`workqueue_adds_total{job="apiserver"}`, `workqueue_depth{job="apiserver"}`,
	`rate(coredns_dns_requests_total{job="apiserver"}[1m]) > 0`,
}

// TestPrometheus has Prometheus (PROMETHEUS, or one on the path) scrape everything, authorized as in any cluster: all
// targets are up, and the queries of kubernetes-mixin's dashboards have results.
func TestPrometheus(t *testing.T) {
	program := os.Getenv("PROMETHEUS")
	if program == "" {
		var err error
		if program, err = exec.LookPath("prometheus"); err != nil {
			t.Skip("there is no prometheus: apt-get install prometheus, or set PROMETHEUS")
		}
	}
	c := monitored(t)
	dir := t.TempDir()
	c.kubectlIn(t, prometheusAccount, "apply", "-f", "-")
	view := func(path string) string {
		return c.kubectl(t, "config", "view", "--raw", "-o", "jsonpath={"+path+"}")
	}
	ca, err := base64.StdEncoding.DecodeString(view(".clusters[0].cluster.certificate-authority-data"))
	if err != nil {
		t.Fatal(err)
	}
	server := strings.TrimPrefix(view(".clusters[0].cluster.server"), "https://")
	agent := net.JoinHostPort(c.pod(t, "busy").Status.HostIP, c.kubectl(t, "get", "nodes", "-o",
		"jsonpath={.items[0].status.daemonEndpoints.kubeletEndpoint.Port}"))
	config := "global: {scrape_interval: 5s, scrape_timeout: 5s}\nscrape_configs:\n"
	for _, job := range [][3]string{{"apiserver", server, "/metrics"}, {"slis", server, "/metrics/slis"},
		{"kubelet", agent, "/metrics"}, {"cadvisor", agent, "/metrics/cadvisor"},
		{"resource", agent, "/metrics/resource"}, {"probes", agent, "/metrics/probes"}} {
		config += strings.NewReplacer(
			"NAME", job[0], "TARGET", job[1], "PATH", job[2], "DIR", dir,
		).Replace(prometheusJob)
	}
	for name, text := range map[string]string{"ca.crt": string(ca), "config.yaml": config,
		"token": c.kubectl(t, "create", "token", "prometheus")} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	address := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	ctx, cancel := context.WithCancel(t.Context())
	cmd := exec.CommandContext(ctx, program, "--config.file="+filepath.Join(dir, "config.yaml"),
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address)
	var log strings.Builder
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s", tail([]byte(log.String()), 4000))
		}
	})
	targets := func() error {
		var answer struct {
			ActiveTargets []struct{ ScrapeURL, Health, LastError string }
		}
		if err := prometheusGet(ctx, address, "/api/v1/targets?state=active", &answer); err != nil {
			return err
		}
		if len(answer.ActiveTargets) != 6 {
			return fmt.Errorf("%d targets, want 6: %v", len(answer.ActiveTargets), answer)
		}
		for _, a := range answer.ActiveTargets {
			if a.Health != "up" || a.LastError != "" {
				return fmt.Errorf("%s is %s: %s", a.ScrapeURL, a.Health, a.LastError)
			}
		}
		return nil
	}
	testwait.Until(t, "all targets are up", targets)
	unanswered := mixinQueries
	testwait.Until(t, "all queries have an answer", func() error {
		var still []string
		for _, q := range unanswered {
			var answer struct{ Result []json.RawMessage }
			if err := prometheusGet(ctx, address, "/api/v1/query?query="+url.QueryEscape(q), &answer); err != nil {
				return fmt.Errorf("%s: %w", q, err)
			}
			if len(answer.Result) == 0 {
				still = append(still, q)
			}
		}
		if unanswered = still; len(still) > 0 {
			return fmt.Errorf("nothing answers %s", strings.Join(still, "\n"))
		}
		return nil
	})
	testwait.Until(t, "all targets are still up", targets)
}

// prometheusGet reads the data of an answer.
func prometheusGet(ctx context.Context, address, path string, data any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer := struct {
		Status, Error string
		Data          any
	}{Data: data}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return fmt.Errorf("%s: %w", resp.Status, err)
	}
	if answer.Status != "success" {
		return errors.New(answer.Error)
	}
	return nil
}

// TestMetricsServer runs metrics-server (METRICS_SERVER names the program) as its own manifests do: it takes over
// metrics.k8s.io, kubectl top shows its figures, and carob's own come back when it is removed.
func TestMetricsServer(t *testing.T) {
	program := os.Getenv("METRICS_SERVER")
	if program == "" {
		t.Skip("METRICS_SERVER names no program: make nightly builds it")
	}
	c := monitored(t)
	manifest, err := os.ReadFile(filepath.Join("testdata", "metrics-server.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	top := func(what string) func() error {
		return func() error {
			out, err := c.tryKubectl("", "top", what, "--no-headers")
			if err == nil && !strings.Contains(out, "Mi") {
				err = fmt.Errorf("%q", out)
			}
			return err
		}
	}
	testwait.Until(t, "the built-in figures", top("pods"))
	c.kubectlIn(t, strings.ReplaceAll(string(manifest), "DIRECTORY", filepath.Dir(program)), "apply", "-f", "-")
	c.wait(t, "apiservice/v1beta1.metrics.k8s.io", "condition=Available")
	testwait.Until(t, "the figures of pods", top("pods"))
	testwait.Until(t, "the figures of the node", top("nodes"))

	// carob itself does not respond: without the pods there is no response.
	in := []string{"--namespace=kube-system"}
	c.kubectl(t, append(in, "scale", "deployment/metrics-server", "--replicas=0")...)
	testwait.Until(t, "nobody answers", func() error {
		if out, err := c.tryKubectl("", "top", "nodes"); err == nil {
			return errors.New(out)
		}
		return nil
	})
	c.kubectl(t, append(in, "scale", "deployment/metrics-server", "--replicas=1")...)
	testwait.Until(t, "it answers again", top("nodes"))

	c.kubectlIn(t, strings.ReplaceAll(string(manifest), "DIRECTORY", filepath.Dir(program)), "delete", "-f", "-")
	testwait.Until(t, "the built-in figures of pods again", top("pods"))
	testwait.Until(t, "the built-in figures of the node again", top("nodes"))
}
