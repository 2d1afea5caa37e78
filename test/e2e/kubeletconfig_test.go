package e2e

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/cgroups"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"carob/internal/base/testwait"
)

// configWorld is a cluster whose KubeletConfiguration changes.
type configWorld struct {
	*cluster
	t    *testing.T
	file string
	port int // of /healthz, in the changed configuration
}

// write writes the configuration; values are YAML.
func (w *configWorld) write(values map[string]string) {
	w.t.Helper()
	text := "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
	for _, field := range slices.Sorted(maps.Keys(values)) {
		text += field + ": " + values[field] + "\n"
	}
	if err := os.WriteFile(w.file, []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// changedValues are values other than the defaults, of the fields that carob honours and that may change at any start.
// Not here: what is refused while pods run (cgroupDriver, containerRuntimeEndpoint, clusterDomain), what depends on the
// state of the machine (failCgroupV1, failSwapOn), the policies of the CPU, memory and topology managers
// (TestPinnedCPUs), the shutdown of the machine (TestShutdownOfTheMachine), and staticPodURL (node/static).
func (w *configWorld) changedValues() map[string]string {
	manifests := tempDir(w.t)
	if err := os.WriteFile(filepath.Join(manifests, "web.yaml"), []byte(staticManifest("1")), 0o600); err != nil {
		w.t.Fatal(err)
	}
	resolv := filepath.Join(w.t.TempDir(), "resolv.conf")
	if err := os.WriteFile(resolv, []byte("nameserver 192.0.2.53\n"), 0o600); err != nil {
		w.t.Fatal(err)
	}
	w.port = freePort(w.t)
	return map[string]string{
		"tlsMinVersion": "VersionTLS13", "healthzPort": fmt.Sprint(w.port), "healthzBindAddress": "127.0.0.1",
		"port": fmt.Sprint(freePort(w.t)), "staticPodPath": manifests, "httpCheckFrequency": "7s",
		"containerLogMaxSize": "1Mi", "containerLogMaxFiles": "3",
		"registryPullQPS": "2", "registryBurst": "4", "serializeImagePulls": "true", "maxParallelImagePulls": "1",
		"clusterDNS": "[192.0.2.10]", "resolvConf": resolv,
		"nodeStatusReportFrequency": "1m0s", "nodeStatusMaxImages": "1", "nodeLeaseDurationSeconds": "20",
		"registerWithTaints": "[{key: late, effect: NoExecute}]", // when the node registers, not later
		"imageMinimumGCAge":  "3m0s", "imageGCHighThresholdPercent": "99", "imageGCLowThresholdPercent": "98",
		"maxPods": "33", "podsPerCore": "30", "podPidsLimit": "99",
		"evictionHard": "{memory.available: 60Mi}", "evictionSoft": "{memory.available: 70Mi}",
		"evictionSoftGracePeriod": "{memory.available: 1m30s}", "evictionPressureTransitionPeriod": "1m0s",
		"evictionMaxPodGracePeriod": "9", "evictionMinimumReclaim": "{memory.available: 1Mi}",
		"mergeDefaultEvictionSettings": "true", "kernelMemcgNotification": "true",
		"systemReserved": "{memory: 64Mi}", "kubeReserved": "{memory: 64Mi}", "reservedSystemCPUs": `"0"`,
		"enforceNodeAllocatable": "[none]", "allowedUnsafeSysctls": "[net.core.somaxconn]",
		"memorySwap": "{swapBehavior: NoSwap}", "singleProcessOOMKill": "true",
		"crashLoopBackOff": "{maxContainerRestartPeriod: 7s}", "seccompDefault": "false",
		"enableSystemLogHandler": "true", "enableSystemLogQuery": "true", "cpuManagerReconcilePeriod": "20s",
	}
}

// same requires that the pods have the containers that they had.
func (w *configWorld) same(when string, before map[string]corev1.ContainerStatus) {
	w.t.Helper()
	for name, was := range before {
		w.wait(w.t, "pod/"+name, "condition=Ready")
		if now := w.pod(w.t, name).Status.ContainerStatuses[0]; now.ContainerID != was.ContainerID ||
			now.RestartCount != 0 || !reflect.DeepEqual(now.State, was.State) {
			w.t.Errorf("%s: %s: %+v, was %+v", when, name, now, was)
		}
	}
}

// shown requires that /configz shows the values.
func (w *configWorld) shown(values map[string]string) {
	w.t.Helper()
	var got struct {
		Config map[string]any `json:"kubeletconfig"`
	}
	text := w.kubectl(w.t, "get", "--raw", "/api/v1/nodes/e2e-node/proxy/configz")
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		w.t.Fatal(err)
	}
	for field, value := range values {
		var want any
		if err := yaml.Unmarshal([]byte(value), &want); err != nil {
			w.t.Fatal(err)
		}
		if all, ok := got.Config[field].(map[string]any); ok && field == "evictionHard" { // merged with the defaults
			maps.DeleteFunc(all, func(signal string, _ any) bool { return signal != "memory.available" })
		}
		if !reflect.DeepEqual(normal(got.Config[field]), normal(want)) {
			w.t.Errorf("/configz has %s %v, want %v", field, got.Config[field], want)
		}
	}
}

// normal leaves out what a decoder adds to a list of objects.
func normal(v any) any {
	list, _ := v.([]any)
	for _, item := range list {
		if o, ok := item.(map[string]any); ok {
			maps.DeleteFunc(o, func(_ string, v any) bool { return v == nil })
		}
	}
	return v
}

const sleeper = `
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 0
  %s
  containers:
  - {name: c, image: 'busybox:1.32.0', command: [sh, -c, 'echo hello; exec sleep 3600'], resources: {%s}}
`

// TestKubeletConfigChanges: values that change at a restart are in force, and the pods that run keep their containers
// and what they were started with. A configuration with an error is refused with one line, and nothing is lost.
func TestKubeletConfigChanges(t *testing.T) {
	t.Parallel()
	nativeOnly(t, "the seccomp profile and the file of name servers of a container")
	w := &configWorld{t: t, file: filepath.Join(t.TempDir(), "kubelet.yaml")}
	w.write(nil)
	w.cluster = startCluster(t, "--registry-config", mirrors.dir, "--kubelet-config", w.file)
	before := map[string]corev1.ContainerStatus{}
	for name, resources := range map[string]string{"best": "", "burst": "requests: {memory: 8Mi}",
		"sure": "limits: {cpu: 50m, memory: 16Mi}"} {
		w.kubectlIn(t, fmt.Sprintf(sleeper, name, "", resources), "apply", "-f", "-")
		w.wait(t, "pod/"+name, "condition=Ready")
		before[name] = w.pod(t, name).Status.ContainerStatuses[0]
	}
	const settings = `grep -h -e ^Seccomp: -e nameserver /proc/1/status /etc/resolv.conf`
	old := w.kubectl(t, "exec", "sure", "--", "sh", "-c", settings)

	values := w.changedValues()
	w.carob(t, "down")
	w.write(values)
	if err := w.up(); err != nil {
		t.Fatal(err)
	}
	w.same("with other values", before)
	w.shown(values)
	if now := w.kubectl(t, "exec", "sure", "--", "sh", "-c", settings); now != old {
		t.Errorf("a pod of the first start has %s, had %s", now, old)
	}
	w.shows(t, []string{"hello"}, "logs", "sure")
	w.inForce(settings)
	w.refused(values)
	w.same("after refused configurations", before)
}

// inForce requires what the changed values cause.
func (w *configWorld) inForce(settings string) {
	t := w.t
	t.Helper()
	w.kubectlIn(t, fmt.Sprintf(sleeper, "later",
		`securityContext: {sysctls: [{name: net.core.somaxconn, value: "77"}]}`, ""), "apply", "-f", "-")
	w.wait(t, "pod/later", "condition=Ready")
	got := w.kubectl(t, "exec", "later", "--", "sh", "-c", settings+"; cat /proc/sys/net/core/somaxconn")
	if !strings.Contains(got, "Seccomp:\t0\n") || !strings.Contains(got, "nameserver 192.0.2.10\n") ||
		!strings.HasSuffix(got, "\n77\n") {
		t.Errorf("a new pod has %s", got)
	}
	w.become(t, "web-e2e-node", "condition=Ready") // of the new directory
	w.shows(t, []string{"20"}, "get", "lease", "-n", "kube-node-lease", "e2e-node", "-o",
		"jsonpath={.spec.leaseDurationSeconds}")
	var node corev1.Node
	testwait.Until(t, "the node has the new values", func() error {
		text, err := w.tryKubectl("", "get", "node", "e2e-node", "-o", "json")
		if err != nil {
			return err
		}
		if err := json.Unmarshal([]byte(text), &node); err != nil {
			return err
		}
		if n := len(node.Status.Images); n != 1 {
			return fmt.Errorf("it lists %d images", n)
		}
		return nil
	})
	s := &node.Status
	reserved := s.Capacity.Memory().Value() - s.Allocatable.Memory().Value()
	if s.Capacity.Pods().Value() != int64(min(33, 30*runtime.NumCPU())) || reserved != (64+64+60)<<20 ||
		s.Capacity.Cpu().Value()-s.Allocatable.Cpu().Value() != 1 || len(node.Spec.Taints) > 0 {
		t.Errorf("taints %v, capacity %v, allocatable %v", node.Spec.Taints, s.Capacity, s.Allocatable)
	}
	contains(t, "healthz", get(t, fmt.Sprintf("http://127.0.0.1:%d/healthz", w.port)), "ok")
	agent := fmt.Sprintf("127.0.0.1:%d", s.DaemonEndpoints.KubeletEndpoint.Port)
	for version, ok := range map[uint16]bool{tls.VersionTLS12: false, tls.VersionTLS13: true} {
		//nolint:gosec // only the version matters
		dialer := tls.Dialer{Config: &tls.Config{MaxVersion: version, InsecureSkipVerify: true}}
		conn, err := dialer.DialContext(t.Context(), "tcp", agent)
		if (err == nil) != ok {
			t.Errorf("%s with %s: %v", agent, tls.VersionName(version), err)
		}
		if err == nil {
			_ = conn.Close()
		}
	}
}

// refused starts carob with configurations that have an error, and then with the one that has none.
func (w *configWorld) refused(values map[string]string) {
	w.t.Helper()
	w.carob(w.t, "down")
	for _, wrong := range [][3]string{
		{"maxPods", "-1", "maxPods (--max-pods) -1 must not be a negative number"},
		{"maxPods", "{a: 1}", "maxPods"},
		{"evictionHard", "{nothing.available: 1%}", `"nothing.available" is not a signal`},
		{"readOnlyPort", "10255", "readOnlyPort 10255 is not supported"},
		{"reservedSystemCPUs", `"1-a"`, "reservedSystemCPUs"},
		{"reservedSystemCPUs", `"4096"`, "reserved-cpus: 4096 is not a subset of online-cpus"},
		{"systemReserved", "{memory: 4Pi}", `Resource "memory" has a reservation of`},
		{"cgroupDriver", "systemd", "--cgroup-driver: it was"},
		{"clusterDomain", "another.domain", "--cluster-domain: it was"},
		{"tlsCipherSuites", "[NONE]", "tlsCipherSuites"},
		{"cpuManagerPolicy", "odd", `unknown policy: "odd"`},
		{"memorySwap", "{swapBehavior: LimitedSwap}", "swap feature is enabled and LimitedSwap but"},
		{"port", "443000", "port (--port) 443000 must be between 1 and 65535"},
	} {
		if wrong[0] == "memorySwap" && cgroups.IsCgroup2UnifiedMode() {
			continue // it is right there
		}
		changed := maps.Clone(values)
		changed[wrong[0]] = wrong[1]
		w.write(changed)
		line := carobFails(w.t, append([]string{"up", "--detach"}, w.args...)...)
		contains(w.t, wrong[0]+": "+wrong[1], line, wrong[2])
	}
	w.write(values)
	if err := w.up(); err != nil {
		w.t.Fatal(err)
	}
}
