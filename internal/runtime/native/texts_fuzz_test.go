package native

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/runtime/native/devices"
)

// FuzzCDI parses device specifications as a vendor's tool may write them, and the annotations that
// request devices.
func FuzzCDI(f *testing.F) {
	for _, text := range []string{
		`{"cdiVersion":"0.6.0","kind":"example.com/device","devices":[{"name":"one","containerEdits":{"env":["A=b","C"],"deviceNodes":[{"path":"/dev/x","hostPath":"/dev/null","type":"c","major":1,"minor":3,"fileMode":438,"permissions":"rw","uid":1,"gid":2}],"mounts":[{"hostPath":"/a","containerPath":"/b","options":["ro","rslave","nosuid"]}]}}],"containerEdits":{"hooks":[{"hookName":"createRuntime","path":"/x","args":["x"],"timeout":1}],"additionalGids":[5]}}`,
		`{"cdiVersion":"0.7.0","kind":"example.com/device","devices":[{"name":"one","containerEdits":{"intelRdt":{"closID":"x"}}}]}`,
		`{"cdiVersion":"9","kind":"x","devices":null}`, `[]`, `{`,
	} {
		f.Add(text, "example.com/device=one")
	}
	f.Fuzz(func(t *testing.T, text, name string) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "spec.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c := &cri.ContainerConfig{CDIDevices: []*cri.CDIDevice{{Name: "example.com/device=one"}},
			Annotations: map[string]string{"cdi.k8s.io/x": name}}
		names, err := devices.CDINames(c)
		if err != nil {
			return
		}
		out, nodes, _, err := devices.InjectCDI(c, names, []string{dir})
		if err != nil {
			return
		}
		for _, d := range nodes {
			if d.Path == "" {
				t.Errorf("%s: device %+v", text, d)
			}
		}
		for _, m := range out.Mounts {
			if m.ContainerPath == "" {
				t.Errorf("%s: mount %v", text, m)
			}
		}
		if len(c.Mounts) != 0 || len(c.Envs) != 0 {
			t.Errorf("%s: the request was changed: %v", text, c)
		}
	})
}

// FuzzTexts parses the small texts of others: signals of images.
func FuzzTexts(f *testing.F) {
	for _, text := range []string{"SIGTERM", "SIGRTMIN+3", "SIGRTMINPLUS3", "RTMAX-70", "64", "-1",
		"99999999999999999999"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if s, err := parseSignal(text); err == nil && (s < 1 || s > 64) {
			t.Errorf("%q: signal %d", text, s)
		}
	})
}

// FuzzSysctls: for any names and values in a pod, the files written are below /proc/sys, belong to
// the pod's own namespaces, and have one interpretation.
func FuzzSysctls(f *testing.F) {
	for _, name := range []string{"net.ipv4.ip_forward", "net/ipv4/conf/eth0.1/forwarding", "kernel.shm_rmid_forced",
		"fs.mqueue.msg_max", "kernel.core_pattern",
		"net/../kernel/core_pattern", "net..ipv4", "net/./x", "/net/x", "net/x/", "net", "", ".",
		"kernel/shmmax/../core_pattern", "net/x\x00/y", "NET/x"} {
		f.Add(name, "1")
	}
	f.Add("kernel.shm_rmid_forced", "1\x00/path\x00text")
	f.Fuzz(func(t *testing.T, name, value string) {
		s := &sandbox{config: &cri.PodSandboxConfig{
			Linux: &cri.LinuxPodSandboxConfig{Sysctls: map[string]string{name: value}}}}
		files, err := sysctlsOf(s)
		if err != nil {
			return
		}
		for path, v := range files {
			if !filepath.IsLocal(path) || filepath.Clean(path) != path || strings.ContainsRune(path, 0) ||
				strings.ContainsRune(v, 0) {
				t.Fatalf("%q, %q: %q is written to %q", name, value, v, path)
			}
			if !strings.HasPrefix(path, "net/") && !strings.HasPrefix(path, "fs/mqueue/") &&
				!strings.HasPrefix(path, "kernel/shm") && !strings.HasPrefix(path, "kernel/msg") &&
				path != "kernel/sem" && path != "kernel/domainname" {
				t.Fatalf("%q is in no namespace of the pod", path)
			}
		}
	})
}
