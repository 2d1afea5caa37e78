package native

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

// networkUsage counts the traffic on a pod's interfaces; nil if it is not known.
func networkUsage(path string) *cri.NetworkUsage {
	var b []byte
	if netns.Do(path, func() (err error) { b, err = os.ReadFile("/proc/thread-self/net/dev"); return err }) != nil {
		return nil
	}
	return parseNetDev(b)
}

// countInterfaces counts the traffic and the packets on a pod's interfaces; nil if they are not known.
func countInterfaces(path string) (*cri.NetworkUsage, []runtime.InterfaceCounters) {
	var b []byte
	if netns.Do(path, func() (err error) { b, err = os.ReadFile("/proc/thread-self/net/dev"); return err }) != nil {
		return nil, nil
	}
	return parseNetDev(b), parsePackets(b)
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

// parseNetDev parses /proc/net/dev; eth0 is the pod's default interface.
func parseNetDev(b []byte) *cri.NetworkUsage {
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
			return value(v)
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
