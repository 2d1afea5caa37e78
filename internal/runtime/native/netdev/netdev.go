// Package netdev reads the kernel's counters of the interfaces in a network namespace (/proc/net/dev). The native
// runtime calls it for the statistics of pods. It handles namespaces, not pods.
package netdev

import (
	"bufio"
	"bytes"
	"os"
	"strconv"
	"strings"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/base/netns"
	"carob/internal/runtime"
	"carob/internal/runtime/native/openfiles"
)

// Usage counts the traffic on the interfaces of a namespace, which path names; nil if it is not known.
func Usage(path string) *cri.NetworkUsage {
	var b []byte
	if netns.Do(path, func() (err error) { b, err = os.ReadFile(counters); return err }) != nil {
		return nil
	}
	return parseUsage(b)
}

// counters is a namespace's file with the counters of its interfaces.
const counters = "/proc/thread-self/net/dev"

// Open opens the file with the counters of a namespace. It can be read by any thread, and keeps the namespace alive.
func Open(path string) (fd int, err error) {
	err = netns.Do(path, func() (err error) { fd, err = openfiles.Open(counters); return err })
	return fd, err
}

// Count counts the traffic and the packets on the interfaces in the text of such a file.
func Count(text string) (*cri.NetworkUsage, []runtime.InterfaceCounters) {
	return parseUsage([]byte(text)), parsePackets([]byte(text))
}

func parsePackets(b []byte) []runtime.InterfaceCounters {
	var all []runtime.InterfaceCounters
	for line := range strings.Lines(string(b)) {
		name, counts, ok := strings.Cut(line, ":")
		f := strings.Fields(counts)
		name = strings.TrimSpace(name)
		if !ok || len(f) < 16 || name == "lo" {
			continue
		}
		n := func(i int) uint64 { v, _ := strconv.ParseUint(f[i], 10, 64); return v }
		all = append(all, runtime.InterfaceCounters{Name: name, Received: n(1), ReceivedDropped: n(3),
			Transmitted: n(9), TransmittedDropped: n(11)})
	}
	return all
}

// parseUsage parses /proc/net/dev; eth0 is the pod's default interface.
func parseUsage(b []byte) *cri.NetworkUsage {
	u := &cri.NetworkUsage{Timestamp: time.Now().UnixNano()}
	for sc := bufio.NewScanner(bytes.NewReader(b)); sc.Scan(); {
		name, counts, ok := strings.Cut(sc.Text(), ":")
		f := strings.Fields(counts)
		name = strings.TrimSpace(name)
		if !ok || len(f) < 16 || name == "lo" {
			continue
		}
		n := func(i int) *cri.UInt64Value {
			v, _ := strconv.ParseUint(f[i], 10, 64)
			return &cri.UInt64Value{Value: v}
		}
		i := &cri.NetworkInterfaceUsage{Name: name, RxBytes: n(0), RxErrors: n(2), TxBytes: n(8), TxErrors: n(10)}
		if u.DefaultInterface == nil && name == "eth0" {
			u.DefaultInterface = i
			continue
		}
		u.Interfaces = append(u.Interfaces, i)
	}
	return u
}
