// Package netdev reads the kernel's counters of the interfaces in a network namespace (/proc/net/dev). The native
// runtime calls it for the statistics of pods. It knows namespaces, not pods.
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
)

// Usage counts the traffic on the interfaces of a namespace, which path names; nil if it is not known.
func Usage(path string) *cri.NetworkUsage {
	usage, _ := Count(path)
	return usage
}

// Count counts the traffic and the packets on the interfaces of a namespace; nil if they are not known.
func Count(path string) (*cri.NetworkUsage, []runtime.InterfaceCounters) {
	var b []byte
	if netns.Do(path, func() (err error) { b, err = os.ReadFile("/proc/thread-self/net/dev"); return err }) != nil {
		return nil, nil
	}
	return parseUsage(b), parsePackets(b)
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
