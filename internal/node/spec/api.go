// Package spec builds CRI requests from a pod and the facts about its node, volumes, and images.
//
// SandboxConfig and ContainerConfig are pure: everything that needs I/O is in
// their input. Assemble is the one driver here: it fetches what a container
// refers to, has its files made and calls ContainerConfig. The node agent calls
// SandboxConfig before RunPodSandbox and Assemble before CreateContainer. The package must never call a runtime and
// never decide whether something runs.
//
// Contract: docs/spec/pod-lifecycle.md.
package spec

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/core/resources"
)

// Node are the properties of the machine that a configuration needs. It is read only.
type Node struct {
	Name           string
	Hostname       string   // kernel host name of the machine
	HostIPs        []string // primary first
	ClusterDNS     []string // addresses of the cluster DNS; empty when there is none
	NoClusterDNS   bool     // there is none on purpose: nothing to warn of (L3.147)
	ClusterDomain  string   // "cluster.local"
	Resolver       Resolver // the machine's own, see ParseResolver
	HostsFile      []byte   // the machine's /etc/hosts, for pods on the host network
	LogRoot        string   // root of the pod logs (L3.155)
	SeccompRoot    string   // directory of Localhost profiles (L3.161)
	SeccompDefault bool     // RuntimeDefault instead of Unconfined where a pod specifies no profile
	NetRaw         bool     // containers have CAP_NET_RAW by default
	Capacity       corev1.ResourceList
	Allocatable    corev1.ResourceList
	CgroupV2       bool
	SwapController bool  // cgroups can limit swap
	Swap           int64 // bytes of swap that Burstable containers share (S15); 0: none of them may swap
	// OneProcessOOM has the kernel kill one process of a container that is out of memory, not all (S11.86).
	OneProcessOOM bool
	// NoCPUQuota lifts the CPU limits of containers: the kernel limits no container's CPU time (S11.56).
	NoCPUQuota    bool
	MemoryQoS     resources.MemoryQoS // of containers, with cgroup v2
	PageSizes     []string            // of huge pages, as cgroups spell them: "2MB"
	ThermalEvents []string            // counters of the CPUs below /sys, which containers must not read (L3.161)

	UserNamespaces    bool // the runtime handler supports spec.hostUsers=false (L3.163)
	RecursiveReadOnly bool // the runtime handler supports recursive read-only mounts
}

// Warning is a problem that was corrected; it becomes a Warning event on the pod.
type Warning struct{ Reason, Message string }

// SandboxInput is the input of SandboxConfig.
type SandboxInput struct {
	Pod          *corev1.Pod
	Attempt      uint32
	Node         *Node
	CgroupParent string             // in the form that CRI requires: "/kubepods/burstable/pod<uid>" or a slice name
	UserNS       *cri.UserNamespace // required when spec.hostUsers is false; see UserNamespace
}

// Image is the information from the runtime about the image of a container.
type Image struct {
	Ref      string // resolved reference to run
	UID      *int64 // its user, when numeric
	Username string // its user, when a name
}

// Volume is a volume of a pod on this machine.
type Volume struct {
	HostPath string         // absolute
	Image    *cri.ImageSpec // image volume: mounted by the runtime, HostPath is empty
	ReadOnly bool           // every mount of it is read only
	Relabel  bool           // SELinux relabelling is requested

	Device     string // block device, instead of HostPath
	Claim      string // of a persistent volume
	Persistent string // upstream's plugin for a persistent volume or a CSI driver, such as kubernetes.io/local-volume
}

// Sources is what the environment of a container refers to, fetched beforehand.
// A missing optional object is absent from its map.
type Sources struct {
	ConfigMaps map[string]*corev1.ConfigMap // by name
	Secrets    map[string]*corev1.Secret    // by name
	Services   []*corev1.Service            // of the pod's namespace, and default/kubernetes
	EnvFiles   map[EnvFile][]byte
}

// EnvFile names a file of a volume that fileKeyRef reads (L3.136).
type EnvFile struct{ Volume, Path string }

// Files are the files of one instance of a container, made beforehand.
type Files struct {
	Hosts          string         // file for /etc/hosts; empty: none is managed (L3.140)
	TerminationLog string         // file for terminationMessagePath (L3.150)
	SubPaths       map[int]string // resolved host path by index of volumeMounts
	Volumes        map[string]Volume
}

// ContainerInput is the input of ContainerConfig. Sources and Files are
// filled by Assemble.
type ContainerInput struct {
	Pod       *corev1.Pod
	Container *corev1.Container // of any kind; see Find
	Attempt   int               // restart count
	Node      *Node
	PodIPs    []string // primary first
	Image     Image
	TargetID  string             // ephemeral container with a target: id of that container (L3.162)
	UserNS    *cri.UserNamespace // the same as the sandbox's
	Sources   Sources
	Files     Files
	Devices   *Devices // nil: none
}

// Fetcher gets the API objects that an environment refers to; refs.Store is one.
type Fetcher interface {
	// ConfigMap returns an error for which apierrors.IsNotFound is true if there is none.
	ConfigMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error)
	Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error)
	// Services are the services of the namespace, and default/kubernetes. It fails until services were read once.
	Services(ctx context.Context, namespace string) ([]*corev1.Service, error)
}

// Disk makes the files of a container; volume.Manager is one.
type Disk interface {
	// Volumes are the prepared volumes of the pod by name.
	Volumes(uid types.UID) map[string]Volume
	// SubPath resolves a path inside a volume and pins it, so that it cannot be redirected until
	// the container has it mounted. A missing path is created.
	SubPath(ctx context.Context, req SubPath) (string, error)
	// HostsFile stores the hosts file of the pod (L3.140).
	HostsFile(uid types.UID, content []byte) (string, error)
	// TerminationLog makes a new empty termination message file (L3.150).
	TerminationLog(uid types.UID, container string) (string, error)
	// ReadFile reads a small file of a prepared volume.
	ReadFile(uid types.UID, volume, path string) ([]byte, error)
}

// SubPath requests a path inside a volume.
type SubPath struct {
	UID       types.UID
	Container string
	Index     int // of volumeMounts
	Volume    string
	Path      string // relative, already expanded
	ReadOnly  bool   // the mount that uses it is read only
}

// EnvVar is a variable of the environment.
type EnvVar struct{ Name, Value string }

// Devices is what a container gets of the devices that are given to it.
type Devices struct {
	Env         []EnvVar // the container's own variables come after them
	Mounts      []*cri.Mount
	Nodes       []*cri.Device
	Annotations map[string]string // the agent's own win
	CDI         []string          // names of CDI devices
}

// Add adds what d lacks: of two variables, mounts or nodes of the same name, the first one stays (S8.25).
func (d *Devices) Add(o *Devices) {
	for _, e := range o.Env {
		if !slices.ContainsFunc(d.Env, func(have EnvVar) bool { return have.Name == e.Name }) {
			d.Env = append(d.Env, e)
		}
	}
	for _, m := range o.Mounts {
		if !slices.ContainsFunc(d.Mounts, func(have *cri.Mount) bool { return have.ContainerPath == m.ContainerPath }) {
			d.Mounts = append(d.Mounts, m)
		}
	}
	for _, n := range o.Nodes {
		if !slices.ContainsFunc(d.Nodes, func(have *cri.Device) bool { return have.ContainerPath == n.ContainerPath }) {
			d.Nodes = append(d.Nodes, n)
		}
	}
	for name, value := range o.Annotations { // any order: a map becomes a map
		if _, have := d.Annotations[name]; !have {
			d.Annotations[name] = value
		}
	}
	for _, name := range o.CDI {
		if !slices.Contains(d.CDI, name) {
			d.CDI = append(d.CDI, name)
		}
	}
}
