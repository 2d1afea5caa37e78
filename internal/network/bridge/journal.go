package bridge

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"carob/internal/base/atomicfile"
	"carob/internal/base/linefile"
	"carob/internal/network"
)

// attachment is a pod on this network, as stored on disk.
type attachment struct {
	Sandbox string                `json:"sandbox"`
	UID     string                `json:"uid"`
	Pod     string                `json:"pod"` // namespace/name, for messages
	NetNS   string                `json:"netns"`
	Path    string                `json:"path,omitempty"` // of a namespace that another runtime made
	Port    int                   `json:"port"`           // index of the veth on the bridge
	MAC     string                `json:"mac,omitempty"`  // of eth0; older versions derived it
	IPs     []netip.Addr          `json:"ips"`
	Ports   []network.PortMapping `json:"ports,omitempty"`

	ready   bool // configured by this process
	leaving bool // being detached
}

// mac is the hardware address of the pod's device.
func (at *attachment) mac() net.HardwareAddr {
	if mac, err := net.ParseMAC(at.MAC); err == nil && len(mac) == macLen {
		return mac
	}
	if len(at.IPs) > 0 && at.IPs[0].Is4() {
		return macOf(at.IPs[0])
	}
	return make(net.HardwareAddr, macLen) // a damaged journal: the pod may send nothing
}

// place passes the pod to a gate.
func (at *attachment) place() network.Place {
	namespace, name, _ := strings.Cut(at.Pod, "/")
	return network.Place{UID: at.UID, Namespace: namespace, Name: name, SandboxID: at.Sandbox,
		IPs: slices.Clone(at.IPs)}
}

// pin is what the pod may send.
func (at *attachment) pin() pin { return pin{port: at.Port, mac: at.mac(), ips: at.IPs} }

// entry is one line of the journal; exactly one field is set.
type entry struct {
	Attach *attachment  `json:"attach,omitempty"`
	Detach string       `json:"detach,omitempty"` // a sandbox
	Past   *pastEntry   `json:"past,omitempty"`   // addresses of a detached pod
	Next   []netip.Addr `json:"next,omitempty"`   // where the search for addresses continues
}

type pastEntry struct {
	UID string     `json:"uid"`
	IP  netip.Addr `json:"ip"`
}

// journal is an append-only file of entries: one short write per attach, without waiting for the
// disk. A kill loses nothing; a power failure ends all namespaces anyway, and costs at most the
// memory of some addresses.
type journal struct {
	name  string
	file  io.Closer
	out   linefile.Writer
	lines int
}

func journalName(dir string) string { return filepath.Join(dir, "attachments.jsonl") }

// readJournal calls apply for each complete line in order.
func readJournal(name string, apply func(entry)) error {
	body, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read network state: %w", err)
	}
	for line := range bytes.Lines(body) {
		var e entry
		// The last line of a process can be incomplete, and each one that a full disk did not take. A line that does
		// not parse is ignored: its attachment failed, or Sweep removes it as unknown.
		if json.Unmarshal(line, &e) == nil {
			apply(e)
		}
	}
	return nil
}

// rewriteJournal replaces the file with the entries and opens it for appending.
func rewriteJournal(name string, entries []entry) (*journal, error) {
	var body bytes.Buffer
	enc := json.NewEncoder(&body)
	for _, e := range entries {
		if err := enc.Encode(e); err != nil {
			return nil, err
		}
	}
	if err := atomicfile.WriteUnsynced(name, body.Bytes(), 0o600); err != nil {
		return nil, fmt.Errorf("write network state: %w", err)
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return nil, fmt.Errorf("open network state: %w", err)
	}
	return &journal{name: name, file: f, out: linefile.Writer{To: f}, lines: len(entries)}, nil
}

func (j *journal) append(e entry) error {
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	if _, err := j.out.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("record network state: %w", err)
	}
	j.lines++
	return nil
}

func (j *journal) close() error { return j.file.Close() }
