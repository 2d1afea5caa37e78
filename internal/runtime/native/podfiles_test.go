package native

import (
	"context"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// What a container writes to the pod's files below /etc counts as the pod's storage, once
// (CVE-2020-8557).
func TestPodFilesCount(t *testing.T) {
	w := newWorld(t)
	sb, sbc := w.sandbox("files")
	stored := func() (total uint64) {
		t.Helper()
		resp, err := w.r.ListContainerStats(context.Background(), &cri.ListContainerStatsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, st := range resp.Stats {
			total += st.GetWritableLayer().GetUsedBytes().GetValue()
		}
		return total
	}
	first := w.run(sb, sbc, "first", shell("sleep 1000"))
	second := w.run(sb, sbc, "second", shell("sleep 1000"))
	before := stored()
	for i, file := range []string{"/etc/hosts", "/etc/hostname", "/etc/resolv.conf"} {
		id := []string{first, second}[i%2]
		if x, err := w.exec(id, "sh", "-c", "head -c 1048576 /dev/zero >> "+file); err != nil || x.ExitCode != 0 {
			t.Fatalf("writing %s: %v, %v", file, x, err)
		}
		if now := stored(); now < before+1<<20 || now > before+1<<20+64<<10 {
			t.Errorf("%s grew by a megabyte, the pod by %d bytes", file, now-before)
		} else {
			before = now
		}
	}
}

// Ping works as in decision 12: with ICMP echo sockets, which need no capability, for root, for a
// user, and in a user namespace; with a raw socket, as in BusyBox, for root with the default
// capabilities. Without CAP_NET_RAW there are no raw and no packet sockets.
func TestPing(t *testing.T) {
	needAttacker(t)
	w := newWorld(t)
	userns := &cri.UserNamespace{Mode: cri.NamespaceMode_POD, Uids: []*cri.IDMapping{{HostId: 100000, Length: 65536}},
		Gids: []*cri.IDMapping{{HostId: 100000, Length: 65536}}}
	for pod, ns := range map[string]*cri.UserNamespace{"plain": nil, "mapped": userns} {
		sb, sbc := w.sandbox(pod,
			func(c *cri.PodSandboxConfig) { c.Linux.SecurityContext.NamespaceOptions.UsernsOptions = ns })
		as := func(user int64, drop ...string) func(*cri.ContainerConfig) {
			return securityContext(func(s *cri.LinuxContainerSecurityContext) {
				s.NamespaceOptions.UsernsOptions = ns
				s.RunAsUser, s.Capabilities = &cri.Int64Value{Value: user}, &cri.Capability{DropCapabilities: drop}
			})
		}
		for name, user := range map[string]int64{"root": 0, "user": 1000} {
			id := w.run(sb, sbc, name, attacker("ping", as(user, "NET_RAW")))
			w.checkAttempts(sbc, id, name)
		}
		if got := w.output(sb, sbc, "busybox", "busybox ping -c 1 -W 5 127.0.0.1", as(0)); !strings.Contains(got,
			"1 packets transmitted, 1 packets received") {
			t.Errorf("ping of BusyBox, root, default capabilities, in %s: %s", pod, got)
		}
	}
}
