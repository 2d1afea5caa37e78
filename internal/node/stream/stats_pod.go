package stream

import (
	"slices"
	"strings"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/node/csi"
)

// networkStats are the figures of a pod's interfaces: of the default one, and of all.
type networkStats struct {
	Time time.Time `json:"time"`
	interfaceStats
	Interfaces []interfaceStats `json:"interfaces,omitempty"`
}

type interfaceStats struct {
	Name     string  `json:"name"`
	RxBytes  *uint64 `json:"rxBytes,omitempty"`
	RxErrors *uint64 `json:"rxErrors,omitempty"`
	TxBytes  *uint64 `json:"txBytes,omitempty"`
	TxErrors *uint64 `json:"txErrors,omitempty"`
}

type processStats struct {
	ProcessCount *uint64 `json:"process_count,omitempty"`
}

// volumeStats are the figures of a claim that the pod uses.
type volumeStats struct {
	fsStats
	Name   string  `json:"name"`
	PVCRef *pvcRef `json:"pvcRef,omitempty"`
}

type pvcRef struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
}

func networkOf(n *cri.NetworkUsage) *networkStats {
	if n == nil {
		return nil
	}
	of := func(i *cri.NetworkInterfaceUsage) interfaceStats {
		return interfaceStats{Name: i.GetName(), RxBytes: number(i.GetRxBytes()), RxErrors: number(i.GetRxErrors()),
			TxBytes: number(i.GetTxBytes()), TxErrors: number(i.GetTxErrors())}
	}
	out := &networkStats{Time: time.Unix(0, n.Timestamp)}
	if n.DefaultInterface != nil {
		out.interfaceStats = of(n.DefaultInterface)
		out.Interfaces = append(out.Interfaces, out.interfaceStats)
	}
	for _, i := range n.Interfaces {
		if i.GetName() != out.Name {
			out.Interfaces = append(out.Interfaces, of(i))
		}
	}
	return out
}

func processesOf(p *cri.ProcessUsage) *processStats {
	if p.GetProcessCount() == nil {
		return nil
	}
	return &processStats{ProcessCount: number(p.ProcessCount)}
}

// claimStats are the figures of the claims that pods use, by the UID of the pod.
func (s *Server) claimStats() map[string][]volumeStats {
	if s.cfg.Claims == nil {
		return nil
	}
	byUID := make(map[string][]volumeStats)
	for _, c := range s.cfg.Claims() {
		byUID[c.Pod.UID] = append(byUID[c.Pod.UID], claimOf(c))
	}
	for _, list := range byUID {
		slices.SortFunc(list, func(a, b volumeStats) int { return strings.Compare(a.Name, b.Name) })
	}
	return byUID
}

// claimOf leaves out what is not known, such as the inodes of a block device.
func claimOf(c csi.Stats) volumeStats {
	v := volumeStats{Name: c.Pod.Volume, PVCRef: &pvcRef{Name: c.Claim, Namespace: c.Namespace}}
	v.Time = c.At
	size := func(n int64) *uint64 { u := uint64(max(n, 0)); return &u }
	v.CapacityBytes = size(c.Capacity)
	if c.Used != 0 || c.Available != 0 {
		v.UsedBytes, v.AvailableBytes = size(c.Used), size(c.Available)
	}
	if c.Inodes != 0 {
		v.Inodes, v.InodesUsed, v.InodesFree = size(c.Inodes), size(c.InodesUsed), size(c.InodesFree)
	}
	return v
}
