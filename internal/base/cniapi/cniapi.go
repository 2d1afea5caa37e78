// Package cniapi defines the requests of the CNI plugin `carob cni` to a running carob, over HTTP on a
// unix socket that only root can use; both sides share these types and checks. It does nothing by
// itself.
package cniapi

import (
	"fmt"
	"net/netip"
	"path"
	"regexp"
	"strings"
)

// Path is where requests are posted: a Request, answered by a Reply.
const Path = "/cni"

// MaxBytes is the largest request, and the largest configuration that the plugin reads.
const MaxBytes = 1 << 20

// Codes of CNI errors.
const (
	CodeUnsupportedVersion = 1
	CodeUnsupportedField   = 2
	CodeUnknownContainer   = 3
	CodeBadEnvironment     = 4
	CodeIO                 = 5
	CodeBadJSON            = 6
	CodeBadConfig          = 7
	CodeTryAgain           = 11
	CodeNotAvailable       = 50 // of STATUS
	CodeFailed             = 100
)

// Request is what a container runtime requests from the plugin.
type Request struct {
	Command   string // ADD, DEL, CHECK, STATUS, or GC
	Container string
	NetNS     string // path; may be empty for DEL
	Device    string // name of the device in the pod
	Args      Args
	Ports     []PortMapping
	Bandwidth Bandwidth
	// IPs are those of the earlier result, for CHECK.
	IPs []netip.Addr
}

// Args are the parts of CNI_ARGS that name a pod; all or none are set.
type Args struct{ Namespace, Name, UID string }

// PortMapping is one of the capability portMappings.
type PortMapping struct {
	HostPort      int    `json:"hostPort"`
	ContainerPort int    `json:"containerPort"`
	Protocol      string `json:"protocol"`
	HostIP        string `json:"hostIP,omitempty"`
}

// Bandwidth is the capability bandwidth, in bits per second and bits.
type Bandwidth struct {
	IngressRate  uint64 `json:"ingressRate,omitempty"`
	IngressBurst uint64 `json:"ingressBurst,omitempty"`
	EgressRate   uint64 `json:"egressRate,omitempty"`
	EgressBurst  uint64 `json:"egressBurst,omitempty"`
}

// Reply is the place of a pod, or an error.
type Reply struct {
	IPs      []netip.Addr `json:",omitempty"`
	Gateways []netip.Addr `json:",omitempty"`
	MAC      string       `json:",omitempty"`
	Error    *Error       `json:",omitempty"`
}

// Error is an error in the form of CNI.
type Error struct {
	Code    uint   `json:"code"`
	Msg     string `json:"msg"`
	Details string `json:"details,omitempty"`
}

func (e *Error) Error() string {
	if e.Details == "" {
		return e.Msg
	}
	return e.Msg + ": " + e.Details
}

// Device is the name of a pod's device; there is no other.
const Device = "eth0"

// Limits of strings and lists.
const (
	maxPath  = 4096
	maxArgs  = 4096
	maxPorts = 1024
	maxRate  = 1_000_000_000_000_000
)

var (
	containerPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$`)
	uidPattern       = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,127}$`)
	namePattern      = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$`)
	namespacePattern = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
)

func refuse(code uint, format string, args ...any) *Error {
	return &Error{Code: code, Msg: fmt.Sprintf(format, args...)}
}

// Check returns why the request cannot be carried out, or nil.
func (r *Request) Check() *Error {
	switch r.Command {
	case "STATUS", "GC":
		return nil
	case "ADD", "CHECK", "DEL":
	default:
		return refuse(CodeBadEnvironment, "CNI_COMMAND is %.20q, not ADD, DEL, CHECK, STATUS, GC, or VERSION", r.Command)
	}
	if !containerPattern.MatchString(r.Container) {
		return refuse(CodeBadEnvironment, "CNI_CONTAINERID is %.40q, not letters, digits, '_', '.', and '-'", r.Container)
	}
	if r.Device != Device {
		return refuse(CodeBadEnvironment, "CNI_IFNAME is %.40q: the device of a pod is always %s", r.Device, Device)
	}
	if err := checkNetNS(r.NetNS, r.Command == "DEL"); err != nil {
		return err
	}
	if err := r.Args.check(); err != nil {
		return err
	}
	if len(r.Ports) > maxPorts {
		return refuse(CodeBadConfig, "there are %d port mappings, more than %d", len(r.Ports), maxPorts)
	}
	for _, p := range r.Ports {
		if err := p.check(); err != nil {
			return err
		}
	}
	if r.Bandwidth.IngressRate > maxRate || r.Bandwidth.EgressRate > maxRate {
		return refuse(CodeBadConfig, "a bandwidth is more than %d bits per second", maxRate)
	}
	return nil
}

func checkNetNS(p string, optional bool) *Error {
	if p == "" && optional {
		return nil
	}
	if !path.IsAbs(p) || path.Clean(p) != p || len(p) > maxPath || strings.ContainsRune(p, 0) {
		return refuse(CodeBadEnvironment, "CNI_NETNS is %.80q, not the path of a network namespace", p)
	}
	return nil
}

func (a Args) check() *Error {
	if a == (Args{}) {
		return nil
	}
	switch {
	case !namespacePattern.MatchString(a.Namespace):
		return refuse(CodeBadEnvironment, "K8S_POD_NAMESPACE is %.80q, not the name of a namespace", a.Namespace)
	case !namePattern.MatchString(a.Name):
		return refuse(CodeBadEnvironment, "K8S_POD_NAME is %.80q, not the name of a pod", a.Name)
	case !uidPattern.MatchString(a.UID):
		return refuse(CodeBadEnvironment, "K8S_POD_UID is %.80q, not the UID of a pod", a.UID)
	}
	return nil
}

// ParseArgs reads CNI_ARGS, K=V pairs separated by semicolons. Other keys than those of pods are ignored;
// without all three of those there is no pod.
func ParseArgs(s string) (Args, *Error) {
	if len(s) > maxArgs {
		return Args{}, refuse(CodeBadEnvironment, "CNI_ARGS has more than %d bytes", maxArgs)
	}
	var a Args
	keys := map[string]*string{"K8S_POD_NAMESPACE": &a.Namespace, "K8S_POD_NAME": &a.Name, "K8S_POD_UID": &a.UID}
	for pair := range strings.SplitSeq(s, ";") {
		if pair == "" {
			continue
		}
		key, value, ok := strings.Cut(pair, "=")
		if !ok {
			return Args{}, refuse(CodeBadEnvironment, "CNI_ARGS has %.40q, which is not KEY=VALUE", pair)
		}
		if to := keys[key]; to != nil {
			*to = value
		}
	}
	if a.Namespace == "" || a.Name == "" || a.UID == "" {
		return Args{}, nil
	}
	return a, a.check()
}

func (p PortMapping) check() *Error {
	const last = 1<<16 - 1
	if p.HostPort < 0 || p.HostPort > last || p.ContainerPort < 1 || p.ContainerPort > last {
		return refuse(CodeBadConfig, "port mapping %d to %d: a port is between 1 and %d", p.HostPort, p.ContainerPort, last)
	}
	switch strings.ToLower(p.Protocol) {
	case "tcp", "udp", "sctp":
	default:
		return refuse(CodeBadConfig, "port mapping %d: %.20q is not a protocol", p.HostPort, p.Protocol)
	}
	if p.HostIP != "" {
		if ip, err := netip.ParseAddr(p.HostIP); err != nil || ip.Zone() != "" {
			return refuse(CodeBadConfig, "port mapping %d: %.60q is not an IP address", p.HostPort, p.HostIP)
		}
	}
	return nil
}
