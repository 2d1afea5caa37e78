package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"carob/internal/base/instance"
)

// recorder records the instance that it should start.
type recorder struct {
	noEngine
	got *instance.Instance
}

func (r recorder) Up(_ context.Context, in instance.Instance, _ Progress) error {
	*r.got = in
	return nil
}

// startedWith is the instance that a command line starts.
func startedWith(t *testing.T, args ...string) (instance.Instance, string, error) {
	t.Helper()
	var in instance.Instance
	var out, errOut bytes.Buffer
	cmd := New(recorder{got: &in}, Version{}, strings.NewReader(""), &out, &errOut)
	cmd.SetArgs(append([]string{"up"}, args...))
	err := cmd.ExecuteContext(t.Context())
	return in, errOut.String(), err
}

// upFlags are the flags of `carob up`.
func upFlags() *pflag.FlagSet {
	cmd, _, err := New(noEngine{}, Version{}, nil, io.Discard, io.Discard).Find([]string{"up"})
	if err != nil {
		panic(err)
	}
	cmd.InitDefaultHelpFlag()
	cmd.InheritedFlags() // adds those of the root command
	return cmd.Flags()
}

func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// sampleValues has a value for each flag, as YAML and as the command line takes it, that is not the default.
func sampleValues(t *testing.T) map[string][2]string {
	dir, file := t.TempDir(), writeFile(t, "any", "")
	kubelet := writeFile(t, "kubelet.yaml",
		"apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: 33\n")
	dropIns := filepath.Dir(writeFile(t, "10.conf", `{"podPidsLimit": 77}`))
	same := func(s string) [2]string { return [2]string{s, s} }
	all := map[string][2]string{
		"data-dir": same(t.TempDir()), "listen": same("127.0.0.1:7443"),
		"etcd-servers":  {"[http://a:1, http://b:2]", "http://a:1,http://b:2"},
		"etcd-certfile": {file + "\netcd-keyfile: " + file, file + " --etcd-keyfile=" + file},
		"etcd-keyfile":  {file + "\netcd-certfile: " + file, file + " --etcd-certfile=" + file},
		"audit-log-path": {"/tmp/audit.log\naudit-policy-file: " + file,
			"/tmp/audit.log --audit-policy-file=" + file},
		"audit-policy-file": {file + "\naudit-log-path: '-'", file + " --audit-log-path=-"},
		"audit-webhook-config-file": {file + "\naudit-policy-file: " + file,
			file + " --audit-policy-file=" + file},
		"profiling":        same("true"),
		"runtime-endpoint": same("unix:///run/other.sock"),
		"runtime-handler":  {"[a=unix:///run/a.sock]", "a=unix:///run/a.sock"},
		"cgroup-driver":    same("systemd"),
		"image-credential-provider-config": {file + "\nimage-credential-provider-bin-dir: " + dir,
			file + " --image-credential-provider-bin-dir=" + dir},
		"image-credential-provider-bin-dir": {dir + "\nimage-credential-provider-config: " + file,
			dir + " --image-credential-provider-config=" + file},
		"local-storage-path": {"[/srv/a, /srv/b]", "/srv/a,/srv/b"},
		"kubelet-config":     same(kubelet), "kubelet-config-dir": same(dropIns),
		"node-name": same("007"), "pod-cidr": {"\n- 10.1.0.0/16\n- fd00:1::/64", "10.1.0.0/16,fd00:1::/64"},
		"pod-mtu": same("1400"), "service-cidr": {"[10.2.0.0/16]", "10.2.0.0/16"}, "service-proxy": same("none"),
		"load-balancer-pool": {"[192.0.2.0/28, 192.0.2.32-192.0.2.40]",
			"192.0.2.0/28,192.0.2.32-192.0.2.40"},
		"load-balancer-interface":            {"[eth0, eth1]", "eth0,eth1"},
		"service-proxy-healthz-bind-address": same("127.0.0.1:10256"), "dns": same("none"),
		"gateway-http": same(":8080"), "gateway-https": same("'127.0.0.1:8443'"),
		"gateway-access-log":     {"/tmp/access\ngateway-http: :80", "/tmp/access --gateway-http=:80"},
		"gateway-proxy-protocol": {"[10.0.0.0/8]\ngateway-http: :80", "10.0.0.0/8 --gateway-http=:80"},
		"gateway-addresses":      {"[192.0.2.9]\ngateway-http: :80", "192.0.2.9 --gateway-http=:80"},
		"endpoint-picker-listen": same(":9002"), "endpoint-picker-plaintext": {"true\nendpoint-picker-listen: :9002",
			"true --endpoint-picker-listen=:9002"},
		"cluster-dns": {"[10.0.0.1, 10.0.0.2]", "10.0.0.1,10.0.0.2"}, "cluster-domain": same("example.test"),
		"service-node-port-range": same("31000-31999"), "max-pods": same("500"), "pod-max-pids": same("-1"),
		"deletion-drain-timeout": same("0"), "seccomp-default": same("false"), "allow-net-raw": same("false"),
		"eviction-hard": {"[memory.available<1Gi, nodefs.available<1%]",
			"memory.available<1Gi,nodefs.available<1%"},
		"eviction-soft":              {"['memory.available<2Gi']", "memory.available<2Gi"},
		"eviction-soft-grace-period": same("memory.available=1m"), "eviction-max-pod-grace-period": same("7"),
		"eviction-minimum-reclaim":            same("nodefs.available=1Gi"),
		"eviction-pressure-transition-period": same("1m30s"), "image-gc-high-threshold": same("80"),
		"image-gc-low-threshold": same("70"), "minimum-image-ttl-duration": same("1h"),
		"registry-config":       same(dir),
		"shutdown-grace-period": same("30s"),
		"shutdown-grace-period-critical-pods": {"10s\nshutdown-grace-period: 30s",
			"10s --shutdown-grace-period=30s"},
		"standalone": same("true"), "log-level": same("debug"), "force": same("true"), "detach": same("false"),
	}
	upFlags().VisitAll(func(f *pflag.Flag) {
		if _, ok := all[f.Name]; ok || f.Name == "config" || f.Name == "help" || f.Name == "kubeconfig" {
			return
		}
		switch {
		case strings.HasPrefix(f.Name, "audit-log-max"):
			all[f.Name] = [2]string{"3\naudit-log-path: '-'\naudit-policy-file: " + file,
				"3 --audit-log-path=- --audit-policy-file=" + file}
		case strings.HasSuffix(f.Name, "-dir"):
			all[f.Name] = same(dir)
		case f.Value.Type() == "string":
			all[f.Name] = same(file)
		}
	})
	return all
}

// Each flag has the same effect in a file as on the command line, and the command line wins.
func TestConfigFileRoundTrip(t *testing.T) {
	samples := sampleValues(t)
	plain := t.TempDir()
	upFlags().VisitAll(func(f *pflag.Flag) {
		if f.Name == "config" || f.Name == "help" || f.Name == "kubeconfig" {
			return
		}
		sample, ok := samples[f.Name]
		if !ok {
			t.Errorf("--%s: the test has no value for it", f.Name)
			return
		}
		t.Setenv(dataDirEnv, plain)
		words := strings.Fields("--" + f.Name + "=" + strings.ReplaceAll(sample[1], "'", ""))
		want, _, err := startedWith(t, words...)
		if err != nil {
			t.Errorf("carob up %s: %v", words, err)
			return
		}
		if _, ok := want.FlagValues[f.Name]; !ok {
			t.Errorf("--%s is not shown", f.Name)
		}
		file := writeFile(t, "carob.yaml", f.Name+": "+sample[0]+"\n")
		got, _, err := startedWith(t, "--config", file)
		delete(got.FlagValues, "config")
		delete(want.FlagValues, "config")
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: in the file: %v\n%+v\non the command line:\n%+v", f.Name, err, got, want)
		}
		none, _, err := startedWith(t)
		none.FlagValues = want.FlagValues
		if err != nil || reflect.DeepEqual(none, want) && f.Name != "detach" {
			t.Errorf("--%s has no effect: %v", f.Name, err)
		}
	})
	file := writeFile(t, "carob.yaml", "max-pods: 500\netcd-servers: [http://a:1]\nnode-name: one\n")
	in, _, err := startedWith(t, "--config", file, "--max-pods=7", "--etcd-servers=http://b:1")
	if err != nil || in.MaxPods != 7 || fmt.Sprint(in.EtcdServers) != "[http://b:1]" || in.NodeName != "one" {
		t.Errorf("the command line does not win: %v, %+v", err, in.Flags)
	}
}

// Flags with passwords are not shown.
func TestFlagValues(t *testing.T) {
	t.Setenv(dataDirEnv, t.TempDir())
	in, _, err := startedWith(t, "--etcd-servers=http://user:secret@a:1,http://b:2", "--max-pods=7")
	if err != nil || in.FlagValues["etcd-servers"] != "REDACTED,http://b:2" || in.FlagValues["max-pods"] != "7" {
		t.Errorf("%v, %v", in.FlagValues, err)
	}
}

// Flags in the file win over a KubeletConfiguration beside it, as flags of the command line do.
func TestConfigFileBesideKubeletConfiguration(t *testing.T) {
	t.Setenv(dataDirEnv, t.TempDir())
	kubelet := writeFile(t, "kubelet.yaml", "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"+
		"maxPods: 33\npodPidsLimit: 44\nunheardOf: 1\n")
	file := writeFile(t, "carob.yaml", "kubelet-config: "+kubelet+"\nmax-pods: 55\n")
	in, warnings, err := startedWith(t, "--config", file)
	if err != nil || in.MaxPods != 55 || in.Hardening.PodPids != 44 || !strings.Contains(warnings, "unheardOf") {
		t.Errorf("max-pods %d, pod-max-pids %d, warnings %q, %v", in.MaxPods, in.Hardening.PodPids, warnings, err)
	}
}
