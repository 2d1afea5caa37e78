// Package stream is the HTTPS server of the node agent: logs, exec, attach and
// port-forward for the API server, and what a monitor reads (the subset of the
// kubelet's API that kubectl and the API server use). It serves only clients
// whose certificate names an allowed user. It must never decide anything about
// pods; it reads them through Pods.
package stream

import (
	"context"
	"net"
	"net/http"

	"crypto/tls"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
)

// Pods is what the server must know of the pods on this node; the agent implements it.
type Pods interface {
	// Pod returns the pod with its newest status (not older than the runtime's), or nil.
	Pod(namespace, name string) *corev1.Pod
	// List returns all pods with their newest status.
	List() []*corev1.Pod
	// SandboxID is the id of the ready sandbox of the pod, or empty.
	SandboxID(uid types.UID) string
	// ContainerID is the runtime's id of the running instance of the container, or empty.
	ContainerID(uid types.UID, container string) string
	// Changed returns a channel that is closed at the next change of the pod.
	Changed(uid types.UID) <-chan struct{}
}

// Runtime are the calls of a runtime that the server needs.
type Runtime interface {
	Exec(context.Context, *cri.ExecRequest) (*cri.ExecResponse, error)
	Attach(context.Context, *cri.AttachRequest) (*cri.AttachResponse, error)
	PortForward(context.Context, *cri.PortForwardRequest) (*cri.PortForwardResponse, error)
	ExecSync(context.Context, *cri.ExecSyncRequest) (*cri.ExecSyncResponse, error)
	ContainerStatus(context.Context, *cri.ContainerStatusRequest) (*cri.ContainerStatusResponse, error)
	ListPodSandboxStats(context.Context, *cri.ListPodSandboxStatsRequest) (*cri.ListPodSandboxStatsResponse, error)
	ListContainerStats(context.Context, *cri.ListContainerStatsRequest) (*cri.ListContainerStatsResponse, error)
}

// Config says where the server listens and whom it serves.
type Config struct {
	Listener     net.Listener // plain TCP; Run closes it
	TLS          *tls.Config  // certificate of the node and ClientCAs
	AllowedUsers []string     // common names of client certificates, e.g. "kube-apiserver-kubelet-client"
	NodeName     string
	Pods         Pods
	Runtime      Runtime
	Handlers     map[string]http.Handler // further paths, e.g. "/timeline/"; behind the same authentication
	Logger       klog.Logger
}

// Server serves until Run ends.
type Server struct{}

// New makes a server; it answers from the moment Run is called.
func New(cfg Config) (*Server, error) { panic("unfinished") }

// Run serves until ctx ends; open streams end with it.
func (s *Server) Run(ctx context.Context) error { panic("unfinished") }
