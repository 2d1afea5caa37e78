// Package summary computes what /stats/summary shows: the figures of the machine, of its pods and of their containers.
//
// The agent's server gives it the runtime's statistics and serves the result. What is on disks is measured in the
// background, one directory after the other, on request: a request waits briefly for it and then gets what is
// known. A value that is not known is left out, never zero. The package must never change anything.
//
// Contract: docs/spec/storage-and-node.md.
package summary

import "time"

// Summary has the form of the kubelet's stats.k8s.io/v1alpha1.Summary. Times have fractions of seconds, which rates
// need.
type Summary struct {
	Node Node  `json:"node"`
	Pods []Pod `json:"pods"`
}

// Node are the figures of the machine.
type Node struct {
	NodeName  string      `json:"nodeName"`
	System    []Container `json:"systemContainers,omitempty"`
	StartTime *time.Time  `json:"startTime,omitempty"` // of the machine
	CPU       *CPU        `json:"cpu,omitempty"`
	Memory    *Memory     `json:"memory,omitempty"`
	IO        *IO         `json:"io,omitempty"`
	Network   *Network    `json:"network,omitempty"`
	Fs        *Fs         `json:"fs,omitempty"`
	Runtime   *Runtime    `json:"runtime,omitempty"`
	Rlimit    *Rlimit     `json:"rlimit,omitempty"`
	Swap      *Swap       `json:"swap,omitempty"`
}

// Runtime are the file systems of images and of writable layers.
type Runtime struct {
	ImageFs     *Fs `json:"imageFs,omitempty"`
	ContainerFs *Fs `json:"containerFs,omitempty"`
}

// Rlimit is how many processes there may be, and are.
type Rlimit struct {
	Time    time.Time `json:"time"`
	MaxPID  *int64    `json:"maxpid,omitempty"`
	CurProc *int64    `json:"curproc,omitempty"`
}

// Pod are the figures of a pod with running containers.
type Pod struct {
	PodRef     Ref         `json:"podRef"`
	StartTime  time.Time   `json:"startTime"`
	Containers []Container `json:"containers"`
	CPU        *CPU        `json:"cpu,omitempty"`
	Memory     *Memory     `json:"memory,omitempty"`
	IO         *IO         `json:"io,omitempty"`
	Network    *Network    `json:"network,omitempty"`
	Volumes    []Volume    `json:"volume,omitempty"`
	Ephemeral  *Fs         `json:"ephemeral-storage,omitempty"`
	Processes  *Processes  `json:"process_stats,omitempty"`
	Swap       *Swap       `json:"swap,omitempty"`
}

// Ref names a pod.
type Ref struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
	UID       string `json:"uid"`
}

// Container are the figures of a running container, or of a part of the system.
type Container struct {
	Name      string    `json:"name"`
	StartTime time.Time `json:"startTime"`
	CPU       *CPU      `json:"cpu,omitempty"`
	Memory    *Memory   `json:"memory,omitempty"`
	IO        *IO       `json:"io,omitempty"`
	Rootfs    *Fs       `json:"rootfs,omitempty"`
	Logs      *Fs       `json:"logs,omitempty"`
	Swap      *Swap     `json:"swap,omitempty"`
}

// CPU is the time that processors worked.
type CPU struct {
	Time                 time.Time `json:"time"`
	UsageNanoCores       *uint64   `json:"usageNanoCores,omitempty"`
	UsageCoreNanoSeconds *uint64   `json:"usageCoreNanoSeconds,omitempty"`
	PSI                  *PSI      `json:"psi,omitempty"`
}

// Memory is the memory in use.
type Memory struct {
	Time            time.Time `json:"time"`
	AvailableBytes  *uint64   `json:"availableBytes,omitempty"`
	UsageBytes      *uint64   `json:"usageBytes,omitempty"`
	WorkingSetBytes *uint64   `json:"workingSetBytes,omitempty"`
	RSSBytes        *uint64   `json:"rssBytes,omitempty"`
	PageFaults      *uint64   `json:"pageFaults,omitempty"`
	MajorPageFaults *uint64   `json:"majorPageFaults,omitempty"`
	PSI             *PSI      `json:"psi,omitempty"`
}

// IO is how long processes waited for disks.
type IO struct {
	Time time.Time `json:"time"`
	PSI  *PSI      `json:"psi,omitempty"`
}

// PSI is the kernel's pressure stall information.
type PSI struct {
	Full PSIData `json:"full"`
	Some PSIData `json:"some"`
}

// PSIData is the time that all, or some, processes waited.
type PSIData struct {
	Total  uint64  `json:"total"`
	Avg10  float64 `json:"avg10"`
	Avg60  float64 `json:"avg60"`
	Avg300 float64 `json:"avg300"`
}

// Swap is the swapped memory.
type Swap struct {
	Time           time.Time `json:"time"`
	AvailableBytes *uint64   `json:"swapAvailableBytes,omitempty"`
	UsageBytes     *uint64   `json:"swapUsageBytes,omitempty"`
}

// Fs is what a file system has, and what is used of it.
type Fs struct {
	Time           time.Time `json:"time"`
	AvailableBytes *uint64   `json:"availableBytes,omitempty"`
	CapacityBytes  *uint64   `json:"capacityBytes,omitempty"`
	UsedBytes      *uint64   `json:"usedBytes,omitempty"`
	InodesFree     *uint64   `json:"inodesFree,omitempty"`
	Inodes         *uint64   `json:"inodes,omitempty"`
	InodesUsed     *uint64   `json:"inodesUsed,omitempty"`
}

// Network are the figures of interfaces: of the default one, and of all.
type Network struct {
	Time time.Time `json:"time"`
	Interface
	Interfaces []Interface `json:"interfaces,omitempty"`
}

// Interface is the traffic of a network interface.
type Interface struct {
	Name     string  `json:"name"`
	RxBytes  *uint64 `json:"rxBytes,omitempty"`
	RxErrors *uint64 `json:"rxErrors,omitempty"`
	TxBytes  *uint64 `json:"txBytes,omitempty"`
	TxErrors *uint64 `json:"txErrors,omitempty"`
}

// Processes is how many processes a pod has.
type Processes struct {
	Count *uint64 `json:"process_count,omitempty"`
}

// Volume are the figures of a volume of a pod.
type Volume struct {
	Fs
	Name   string    `json:"name"`
	PVCRef *ClaimRef `json:"pvcRef,omitempty"`
}

// ClaimRef names the claim of a volume.
type ClaimRef struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
}
