package spec

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// What a stranger sends to get lines of his own into a pod's resolver or hosts file, a second
// command to the kernel, or a look at the host's /proc: the pod is refused, by the field's name.
func TestHostileStrings(t *testing.T) {
	sandbox := func(in ContainerInput) error {
		_, _, err := SandboxConfig(SandboxInput{Pod: in.Pod, Node: in.Node})
		return err
	}
	hosts := func(in ContainerInput) error {
		_, err := HostsFile(in.Pod, in.Node, []string{"10.1.0.2"})
		return err
	}
	container := func(in ContainerInput) error {
		_, err := build(in)
		return err
	}
	option := func(name string, value *string) func(*ContainerInput) {
		return func(in *ContainerInput) {
			in.Pod.Spec.DNSConfig = &corev1.PodDNSConfig{Options: []corev1.PodDNSConfigOption{{Name: "ndots",
				Value: new("2")}, {Name: name, Value: value}}}
		}
	}
	dns := func(c corev1.PodDNSConfig) func(*ContainerInput) {
		return func(in *ContainerInput) { in.Pod.Spec.DNSConfig = &c }
	}
	alias := func(ip string, names ...string) func(*ContainerInput) {
		return func(in *ContainerInput) { in.Pod.Spec.HostAliases = []corev1.HostAlias{{IP: ip, Hostnames: names}} }
	}
	armor := func(name string) func(*ContainerInput) {
		return func(in *ContainerInput) {
			in.Pod.Spec.SecurityContext = &corev1.PodSecurityContext{
				AppArmorProfile: &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeLocalhost,
					LocalhostProfile: &name}}
		}
	}
	proc := func(m corev1.ProcMountType, hostUsers *bool) func(*ContainerInput) {
		return func(in *ContainerInput) {
			in.Pod.Spec.HostUsers = hostUsers
			in.Container.SecurityContext = &corev1.SecurityContext{ProcMount: &m}
		}
	}
	tests := []struct {
		name   string
		change func(*ContainerInput)
		build  func(ContainerInput) error
		want   string // of the error; empty: it is taken
	}{
		{"an option as upstream takes it", option("ndots", new("2 timeout:1")), sandbox, ""},
		{"an option with a line", option("ndots:2\nnameserver 6.6.6.6", nil), sandbox, "spec.dnsConfig.options[1]"},
		{"a value with a line", option("ndots", new("2\nnameserver 6.6.6.6")), sandbox, "spec.dnsConfig.options[1]"},
		{"a value with a carriage return", option("ndots", new("2\rnameserver 6.6.6.6")), sandbox,
			"spec.dnsConfig.options[1]"},
		{"a value with a NUL", option("ndots", new("2\x00")), sandbox, "spec.dnsConfig.options[1]"},
		{"a search domain", dns(corev1.PodDNSConfig{Searches: []string{"_x.example."}}), sandbox, ""},
		{"a search with a line", dns(corev1.PodDNSConfig{Searches: []string{"a.example", "b\nnameserver 6.6.6.6"}}),
			sandbox, "spec.dnsConfig.searches[1]"},
		{"two searches in one", dns(corev1.PodDNSConfig{Searches: []string{"a b"}}), sandbox,
			"spec.dnsConfig.searches[0]"},
		{"an empty search", dns(corev1.PodDNSConfig{Searches: []string{""}}), sandbox, "spec.dnsConfig.searches[0]"},
		{"servers", dns(corev1.PodDNSConfig{Nameservers: []string{"1.2.3.4", "fd00::1", "010.1.2.3"}}), sandbox, ""},
		{"a server with a line", dns(corev1.PodDNSConfig{Nameservers: []string{"1.2.3.4\noptions use-vc"}}), sandbox,
			"spec.dnsConfig.nameservers[0]"},
		{"a zone with a line", dns(corev1.PodDNSConfig{Nameservers: []string{"fe80::1%a\nb"}}), sandbox,
			"spec.dnsConfig.nameservers[0]"},
		{"a server that is a name", dns(corev1.PodDNSConfig{Nameservers: []string{"dns.example"}}), sandbox,
			"spec.dnsConfig.nameservers[0]"},
		{"a host name with a line", func(in *ContainerInput) { in.Pod.Spec.Hostname = "a\n6.6.6.6 b" }, sandbox,
			"host name"},
		{"a host name with a line, in the file", func(in *ContainerInput) { in.Pod.Spec.Hostname = "a\n6.6.6.6 b" },
			hosts, "host name"},
		{"a subdomain with a line", func(in *ContainerInput) { in.Pod.Spec.Subdomain = "a\n6.6.6.6 b" }, hosts,
			"host name"},
		{"an alias", alias("6.6.6.6", "a.example", "b"), hosts, ""},
		{"an alias with a line", alias("6.6.6.6", "a", "b\n6.6.6.6\tapi.example"), hosts,
			"spec.hostAliases[0].hostnames[1]"},
		{"two aliases in one", alias("6.6.6.6", "a b"), hosts, "spec.hostAliases[0].hostnames[0]"},
		{"an alias that hides what follows", alias("6.6.6.6", "a#"), hosts, "spec.hostAliases[0].hostnames[0]"},
		{"an address with a line", alias("6.6.6.6\ta\n7.7.7.7", "b"), hosts, "spec.hostAliases[0].ip"},
		{"a profile", armor("k8s-nginx"), container, ""},
		{"a profile with a blank within", armor("my profile"), container, ""},
		{"a profile and a second command", armor("x\nchangeprofile unconfined"), container,
			`container "c": AppArmor profile`},
		{"a profile that is cut short", armor("unconfined\x00x"), container, `container "c": AppArmor profile`},
		{"a profile with blanks around", armor(" x"), container, `container "c": AppArmor profile`},
		{"no profile", armor(""), container, "localhostProfile must be set"},
		{"a long profile", armor(strings.Repeat("x", 4096)), container, "more than 4095"},
		{"a profile of an annotation", func(in *ContainerInput) {
			in.Pod.Annotations = map[string]string{
				"container.apparmor.security.beta.kubernetes.io/c": "localhost/x\nexec unconfined"}
		}, container, `container "c": AppArmor profile`},
		{"the host's /proc", proc(corev1.UnmaskedProcMount, nil), container, "needs `hostUsers: false`"},
		{"another's /proc", proc(corev1.UnmaskedProcMount, new(false)), container, ""},
		{"an unknown /proc", proc("unmasked", new(false)), container, "neither Default nor Unmasked"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			pod := testPod()
			in := ContainerInput{Pod: pod, Container: &pod.Spec.Containers[0], Node: testNode(),
				Image: Image{Ref: "sha256:1", UID: new(int64(0))}}
			tc.change(&in)
			err := tc.build(in)
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("%v", err)
			}
		})
	}
}
