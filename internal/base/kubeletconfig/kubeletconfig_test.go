package kubeletconfig

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"carob/internal/base/instance"
)

// Each field of the type is decided about, once, and no decision is about a field that is gone.
func TestFieldsAreComplete(t *testing.T) {
	var names []string
	for f := range reflect.TypeFor[Configuration]().Fields() {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
			names = append(names, name)
		}
	}
	all := fields()
	for _, name := range names {
		if _, ok := all[name]; !ok {
			t.Errorf("nothing is decided about %s", name)
		}
	}
	for name, how := range all {
		if !slices.Contains(names, name) {
			t.Errorf("there is no field %s", name)
		}
		if !how.honoured && how.why == "" {
			t.Errorf("%s: no reason", name)
		}
		for _, v := range how.accepted {
			var c Configuration
			if err := json.Unmarshal([]byte(`{"`+name+`":`+v+`}`), &c); err != nil {
				t.Errorf("%s: the accepted value %s: %v", name, v, err)
			}
			if warnings, err := Check(&c); err != nil || len(warnings) > 0 {
				t.Errorf("%s: %s is refused: %v, %v", name, v, err, warnings)
			}
		}
	}
}

func write(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"

// Drop-in files are merge patches in lexical order: maps merge, lists are replaced, others win by value (S11.1).
func TestLoad(t *testing.T) {
	dir := t.TempDir()
	file := write(t, dir, "kubelet.yaml", head+`
staticPodPath: manifests
maxPods: 10
clusterDNS: [10.0.0.1, 10.0.0.2]
evictionHard: {memory.available: 1Gi, nodefs.available: 1%}
`)
	drop := filepath.Join(dir, "drop")
	write(t, drop, "20.conf", head+"maxPods: 30\nclusterDNS: [10.0.0.3]\n")
	write(t, drop, "10.conf", `{"maxPods": 20, "evictionHard": {"memory.available": "2Gi"}}`)
	write(t, drop, "30.yaml", "maxPods: 40\n")
	c, warnings, err := Load(file, drop)
	if err != nil || len(warnings) > 0 {
		t.Fatal(err, warnings)
	}
	if c.MaxPods != 30 || !slices.Equal(c.ClusterDNS, []string{"10.0.0.3"}) ||
		c.EvictionHard["memory.available"] != "2Gi" || c.EvictionHard["nodefs.available"] != "1%" {
		t.Errorf("merged: %+v", c)
	}
	if want := filepath.Join(dir, "manifests"); c.StaticPodPath != want {
		t.Errorf("a relative path became %s, want %s", c.StaticPodPath, want)
	}
}

// Unknown and duplicate fields are warnings; everything else that is wrong is an error that names the file.
func TestLoadWrong(t *testing.T) {
	dir := t.TempDir()
	for _, text := range []string{"maxPods: 3\nunheardOf: 1\n", "maxPods: 2\nmaxPods: 3\n"} {
		c, warnings, err := Load(write(t, dir, "a.yaml", head+text), "")
		if err != nil || len(warnings) != 1 || c.MaxPods != 3 {
			t.Errorf("%q: %v, %v", text, warnings, err)
		}
	}
	for _, text := range []string{"maxPods: many", "[]", "a: [", "apiVersion: v1\nkind: Pod\n",
		strings.Replace(head, "v1beta1", "v1", 1), "maxPods: 99999999999\n", strings.Repeat("#", maxFile+1), "\x00"} {
		name := write(t, dir, "a.yaml", text)
		if _, _, err := Load(name, ""); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%.40q: %v", text, err)
		}
	}
	if _, _, err := Load(filepath.Join(dir, "missing"), ""); err == nil {
		t.Error("a missing file is not an error")
	}
	if _, _, err := Load("", filepath.Join(dir, "missing")); err == nil {
		t.Error("a missing directory is not an error")
	}
}

// Each wrong value gets an error that names its field; none is accepted silently.
func TestCheckRefusesInvalidValues(t *testing.T) {
	for text, want := range map[string]string{
		"maxPods: -1":                      "maxPods (--max-pods) -1 must not be a negative number",
		"port: 70000":                      "port (--port) 70000 must be between 1 and 65535, inclusive",
		"address: nowhere":                 "address",
		"readOnlyPort: 10255":              "readOnlyPort",
		"imageGCHighThresholdPercent: 101": "imageGCHighThresholdPercent",
		"{imageGCHighThresholdPercent: 50, imageGCLowThresholdPercent: 60}": "must be less than",
		"imageMaximumGCAge: -1s":                                      "-1s must not be negative",
		"{imageMaximumGCAge: 1m, imageMinimumGCAge: 1m}":              "must be greater than imageMinimumGCAge",
		"imageMaximumGCAge: 2m":                                       "greater than imageMinimumGCAge 2m0s",
		"nodeStatusMaxImages: -2":                                     "nodeStatusMaxImages",
		"{serializeImagePulls: true, maxParallelImagePulls: 2}":       "maxParallelImagePulls cannot be larger than 1",
		"maxParallelImagePulls: 0":                                    "maxParallelImagePulls 0 must be a positive number",
		"containerLogMaxSize: much":                                   "containerLogMaxSize",
		"containerLogMaxFiles: 1":                                     "containerLogMaxFiles must be greater than 1",
		"crashLoopBackOff: {maxContainerRestartPeriod: 10m}":          "CrashLoopBackOff.MaxContainerRestartPeriod",
		"authentication: {anonymous: {enabled: true}}":                "authentication.anonymous",
		"authentication: {webhook: {enabled: false}}":                 "authentication.webhook",
		"authentication: {x509: {clientCAFile: /ca}}":                 "clientCAFile",
		"authorization: {mode: AlwaysAllow}":                          "authorization.mode",
		"tlsMinVersion: VersionTLS09":                                 "tlsMinVersion",
		"tlsCipherSuites: [NONE]":                                     "tlsCipherSuites",
		"systemReserved: {cpu: lots}":                                 "systemReserved",
		"kubeReserved: {gpu: 1}":                                      "cannot reserve",
		"kubeReserved: {cpu: -1}":                                     "cannot be negative",
		"reservedSystemCPUs: 0-2147483647":                            "no machine has such a CPU",
		"reservedMemory: [{numaNode: 0, limits: {cpu: 1}}]":           "is not allowed",
		"reservedMemory: [{numaNode: 0, limits: {memory: 0}}]":        "may not be zero",
		"cpuManagerReconcilePeriod: -1s":                              "cpuManagerReconcilePeriod",
		"{enableSystemLogQuery: true, enableSystemLogHandler: false}": "enableSystemLogHandler is required",
		"reservedSystemCPUs: a-b":                                     "reservedSystemCPUs",
		"enforceNodeAllocatable: [pods, pods]":                        "duplicated enforcements",
		"enforceNodeAllocatable: [none, pods]":                        "may not contain additional enforcements",
		"enforceNodeAllocatable: [kubepods]":                          "Valid options are",
		"enforceNodeAllocatable: [kube-reserved]":                     "kubeReservedCgroup (--kube",
		"enforceNodeAllocatable: [system-reserved-compressible]":      "systemReservedCgroup (--system",
		"{enforceNodeAllocatable: [kube-reserved, kube-reserved-compressible], kubeReservedCgroup: a}": "together",
		"systemReservedCgroup: /":                                          "other than the root",
		"kubeReservedCgroup: /a/../..":                                     "other than the root",
		"kubeReservedCgroup: //a":                                          "other than the root",
		"{kubeReservedCgroup: /a, reservedSystemCPUs: \"0\"}":              "can't use reservedSystemCPUs",
		"allowedUnsafeSysctls: [kernel.core_pattern]":                      "not known to be namespaced",
		"allowedUnsafeSysctls: [\"net.core/../x\"]":                        "not a valid sysctl name",
		"allowedUnsafeSysctls: [\"*\"]":                                    "not a valid sysctl name",
		"registerWithTaints: [{key: a b, effect: NoSchedule}]":             "not a valid taint",
		"registerWithTaints: [{key: a, effect: Never}]":                    "not a valid taint",
		"memoryThrottlingFactor: 0":                                        "must be greater than 0",
		"memoryThrottlingFactor: 1.1":                                      "less than or equal to 1.0",
		"memoryReservationPolicy: All":                                     "Valid options are",
		"memorySwap: {swapBehavior: Always}":                               "memorySwap.swapBehavior",
		"podLogsDir: /var/lög":                                             "ASCII",
		"shutdownGracePeriod: 10ms":                                        "shutdownGracePeriod",
		"{shutdownGracePeriod: 10s, shutdownGracePeriodCriticalPods: 20s}": "must be <= shutdownGracePeriod",
		"{shutdownGracePeriod: 10s, shutdownGracePeriodByPodPriority: [{priority: 1, shutdownGracePeriodSeconds: 1}]}": "Cannot specify both",
		"staticPodURL: ftp://a/b":                 "staticPodURL",
		"staticPodURL: /etc/passwd":               "staticPodURL",
		"staticPodURLHeader: {\"A\\r\\nB\": [c]}": "staticPodURLHeader",
		"staticPodURLHeader: {A: [\"b\\nc\"]}":    "staticPodURLHeader",
		"httpCheckFrequency: 1ms":                 "httpCheckFrequency",
		"runOnce: true":                           "runOnce",
		"enableServer: false":                     "enableServer",
		"{containerRuntimeEndpoint: \"unix:///a\", imageServiceEndpoint: \"unix:///b\"}": "imageServiceEndpoint",
	} {
		var c Configuration
		if err := yaml.UnmarshalStrict([]byte(text), &c); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if _, err := Check(&c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// The command line wins over the file, field by field.
func TestApply(t *testing.T) {
	var c Configuration
	text := `
maxPods: 20
podPidsLimit: 100
clusterDNS: [10.0.0.1, 10.0.0.2]
seccompDefault: false
evictionHard: {nodefs.available: 1%, memory.available: 1Gi}
shutdownGracePeriod: 30s
shutdownGracePeriodCriticalPods: 10s
systemReserved: {cpu: 500m, memory: 1Gi}
kubeReserved: {memory: 1Gi, pid: "1000"}
reservedSystemCPUs: 0-1
podsPerCore: 5
`
	if err := yaml.UnmarshalStrict([]byte(text), &c); err != nil {
		t.Fatal(err)
	}
	if warnings, err := Check(&c); err != nil || len(warnings) > 0 {
		t.Fatal(warnings, err)
	}
	f := instance.Flags{MaxPods: 7}
	Apply(&c, &f, func(flag string) bool { return flag == "max-pods" })
	if f.MaxPods != 7 || f.Hardening.PodPids != 100 || f.ClusterDNS != "10.0.0.1,10.0.0.2" ||
		!f.Hardening.SeccompUnconfined || f.Pressure.Hard != "memory.available<1Gi,nodefs.available<1%" ||
		f.Pressure.ShutdownGrace != 30*time.Second || f.Pressure.ShutdownCritical != 10*time.Second {
		t.Errorf("flags: %+v", f)
	}
	r := Reserved(&c)
	if r.Cpu().Value() != 2 || r.Memory().Value() != 2<<30 {
		t.Errorf("reserved: %v", r)
	}
	if q := r[corev1.ResourceName("pid")]; q.Value() != 1000 {
		t.Errorf("reserved process IDs: %v", q)
	}
	if got := MaxPods(&c, 110, 2); got != 10 {
		t.Errorf("pods of 2 CPUs: %d", got)
	}
}

// /configz is a configuration that a kubelet could read: it decodes strictly, passes the checks, and has the effective
// values.
func TestEffective(t *testing.T) {
	in, err := instance.Derive(instance.Flags{DataDir: t.TempDir(), MaxPods: 33}, "host")
	if err != nil {
		t.Fatal(err)
	}
	hard := map[string]string{"memory.available": "100Mi"}
	text, err := json.Marshal(Effective(&in, hard))
	if err != nil {
		t.Fatal(err)
	}
	var c Configuration
	if err := yaml.UnmarshalStrict(text, &c); err != nil {
		t.Fatal(err)
	}
	if _, err := Check(&c); err != nil {
		t.Errorf("it is refused: %v", err)
	}
	if c.Kind != "KubeletConfiguration" || c.MaxPods != 33 || c.EvictionHard["memory.available"] != "100Mi" ||
		!*c.SeccompDefault || c.Port == 0 {
		t.Errorf("%s", text)
	}
}

func FuzzLoad(f *testing.F) {
	f.Add([]byte(head + "maxPods: 3\n"))
	f.Add([]byte(`{"evictionHard":{"a":"b"},"kubeReserved":{"cpu":"1"}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var c Configuration
		if _, err := decode(text, &c); err != nil {
			return
		}
		if _, err := Check(&c); err != nil {
			return
		}
		var flags instance.Flags
		Apply(&c, &flags, func(string) bool { return false })
		_ = Reserved(&c)
	})
}

// Each field with a value of the wrong type: one line that names the file and the field.
func TestEachFieldOfTheWrongType(t *testing.T) {
	dir := t.TempDir()
	for field := range fields() {
		name := write(t, dir, "a.yaml", head+field+": [[{a: {b: [1]}}]]\n")
		_, _, err := Load(name, "")
		if err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), field) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", field, err)
		}
	}
}
