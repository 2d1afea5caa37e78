package bridge

import (
	"encoding/binary"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"carob/internal/base/netns"
)

// host is a separate network namespace with a firewall that the test's iptables fills.
type host struct {
	t    *testing.T
	path string
	fd   *os.File
}

func newHost(t *testing.T) *host {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	if _, err := exec.LookPath("iptables-nft"); err != nil {
		t.Skip("iptables-nft is not installed")
	}
	h := &host{t: t, path: t.TempDir() + "/ns"}
	if err := netns.DoNew(func() error { return netns.Pin(netns.Current, h.path) }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = netns.Unpin(h.path) })
	var err error
	if h.fd, err = os.Open(h.path); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.fd.Close() })
	return h
}

func (h *host) firewall(name string) *hostFirewall {
	return &hostFirewall{bridge: "carob0", name: name,
		options: []nftables.ConnOption{nftables.WithNetNSFd(int(h.fd.Fd()))}}
}

// iptables runs an iptables command and returns its output.
func (h *host) iptables(args ...string) string {
	h.t.Helper()
	var out []byte
	err := netns.Do(h.path, func() (err error) {
		out, err = exec.Command("iptables-nft", args...).CombinedOutput()
		return err
	})
	if err != nil {
		h.t.Fatalf("iptables %v: %v: %s", args, err, out)
	}
	return string(out)
}

func (h *host) expect(want string) {
	h.t.Helper()
	if got := strings.TrimSpace(h.iptables("-S", "FORWARD")); got != want {
		h.t.Errorf("the chain is\n%s\nwant\n%s", got, want)
	}
}

func mustAllow(t *testing.T, p *hostFirewall, want int) {
	t.Helper()
	if added, err := p.allow(); err != nil || added != want {
		t.Errorf("added %d rules, %v, want %d", added, err, want)
	}
}

// accepts returns the rules of an instance as iptables shows them.
func accepts(name string) string {
	rest := " carob0 -m comment --comment " + name + " -j ACCEPT"
	return "\n-A FORWARD -i" + rest + "\n-A FORWARD -o" + rest
}

func TestFirewall(t *testing.T) {
	h := newHost(t)
	p, other := h.firewall("carob-1"), h.firewall("carob-2")
	mustAllow(t, p, 0) // no iptables

	h.iptables("-A", "FORWARD", "-s", "192.0.2.1", "-j", "DROP")
	mustAllow(t, p, 0) // unknown traffic passes anyway

	h.iptables("-P", "FORWARD", "DROP")
	mustAllow(t, p, 2)
	mustAllow(t, p, 0)
	theirs := "-P FORWARD DROP\n-A FORWARD -s 192.0.2.1/32 -j DROP"
	h.expect(theirs + accepts("carob-1")) // the administrator's rules come first

	h.iptables("-D", "FORWARD", "-i", "carob0", "-m", "comment", "--comment", "carob-1", "-j", "ACCEPT")
	mustAllow(t, p, 2)
	h.expect(theirs + accepts("carob-1"))

	mustAllow(t, other, 2)
	if err := p.remove(); err != nil {
		t.Fatal(err)
	}
	h.expect(theirs + accepts("carob-2")) // of another instance
	if err := other.remove(); err != nil {
		t.Fatal(err)
	}
	h.expect(theirs)
}

// Rules are also added to a firewall that is loaded while carob runs.
func TestFirewallThatIsLoadedLater(t *testing.T) {
	h := newHost(t)
	p := h.firewall("carob-1")
	opened := make(chan int, 100)
	var w *rulesWatch
	err := netns.Do(h.path, func() (err error) {
		w, err = watchRules(func() {
			added, err := p.allow()
			if err != nil {
				t.Error(err)
			}
			if added > 0 {
				opened <- added
			}
		})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	h.iptables("-P", "FORWARD", "DROP")
	<-opened
	h.iptables("-F", "FORWARD")
	<-opened
	h.expect("-P FORWARD DROP" + accepts("carob-1"))
}

// Set elements, which each host port adds, must not wake the watcher.
func TestChangesRules(t *testing.T) {
	message := func(kind uint16) []byte {
		b := make([]byte, unix.SizeofNlMsghdr)
		binary.NativeEndian.PutUint32(b, unix.SizeofNlMsghdr)
		binary.NativeEndian.PutUint16(b[4:], kind)
		return b
	}
	const nft = unix.NFNL_SUBSYS_NFTABLES << 8
	for kind, want := range map[uint16]bool{
		nft | unix.NFT_MSG_NEWRULE: true, nft | unix.NFT_MSG_DELRULE: true, nft | unix.NFT_MSG_NEWCHAIN: true,
		nft | unix.NFT_MSG_DELCHAIN:   true,
		nft | unix.NFT_MSG_NEWSETELEM: false, nft | unix.NFT_MSG_DELSETELEM: false, nft | unix.NFT_MSG_NEWGEN: false,
		unix.NFNL_SUBSYS_CTNETLINK<<8 | unix.NFT_MSG_NEWRULE: false,
	} {
		if got := changesRules(append(message(nft|unix.NFT_MSG_NEWSETELEM), message(kind)...)); got != want {
			t.Errorf("message %#x: %v", kind, got)
		}
	}
}
