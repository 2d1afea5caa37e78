// Package cniserver attaches the pods of other container runtimes to carob's pod network: it serves the requests of the
// CNI plugin `carob cni` on a unix socket. app runs it beside the network. It must check every string of a request, and
// never touch the pods of carob's own runtime.
//
// The network records each attachment, so a request may be repeated, also to a carob that was started
// again. A namespace that its runtime removed without DEL is collected at the start and by GC.
package cniserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"carob/internal/base/cniapi"
	"carob/internal/base/errkind"
	"carob/internal/base/netns"
	"carob/internal/network"
)

// Network is the pod network that pods are attached to.
type Network interface {
	network.PodNetwork
	// Find returns the device of a sandbox that is attached.
	Find(sandboxID string) (_ network.Device, ok bool)
	// Collect frees the attachments whose namespace its runtime has removed.
	Collect(ctx context.Context) error
}

// Config is what a Server works with.
type Config struct {
	Network Network
	Socket  string // mode 0600, in a directory that exists
	// Labels are those of a pod's sandbox, if they are known before the pod is watched; may be nil.
	Labels func(uid string) map[string]string
}

// Limits of a request. A pod waits longest for its network policies.
const (
	requestTimeout = 2 * time.Minute
	readTimeout    = 10 * time.Second
	maxClients     = 64
	stopTimeout    = 2 * time.Second
)

// sandboxPrefix distinguishes these attachments from those of carob's own runtime: no request can name one
// of those.
const sandboxPrefix = "cni-"

// Serve listens on the socket until ctx ends. A socket of a process that has ended is replaced.
func Serve(ctx context.Context, cfg Config) error {
	l, err := listen(cfg.Socket)
	if err != nil {
		return err
	}
	s := &server{cfg: cfg, slots: make(chan struct{}, maxClients)}
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+cniapi.Path, s.serve)
	h := &http.Server{Handler: mux, ReadTimeout: readTimeout, WriteTimeout: requestTimeout + readTimeout,
		IdleTimeout: readTimeout, MaxHeaderBytes: 1 << 14,
		BaseContext: func(net.Listener) context.Context { return context.WithoutCancel(ctx) }}
	done := make(chan error, 1)
	go func() { done <- h.Serve(l) }()
	select {
	case err := <-done:
		return fmt.Errorf("serve the CNI plugin: %w", err)
	case <-ctx.Done():
	}
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	if h.Shutdown(stopping) != nil { // requests that wait
		_ = h.Close()
	}
	<-done //nolint:errcheck // it was shut down
	return nil
}

func listen(socket string) (net.Listener, error) {
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("replace the socket of the CNI plugin: %w", err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		return nil, fmt.Errorf("open the socket of the CNI plugin: %w", err)
	}
	if err := os.Chmod(socket, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("restrict the socket of the CNI plugin: %w", err), l.Close())
	}
	return l, nil
}

type server struct {
	cfg   Config
	slots chan struct{}
}

func (s *server) serve(w http.ResponseWriter, req *http.Request) {
	ctx, cancel := context.WithTimeout(req.Context(), requestTimeout)
	defer cancel()
	var reply cniapi.Reply
	var r cniapi.Request
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
		if err := json.NewDecoder(http.MaxBytesReader(w, req.Body, cniapi.MaxBytes)).Decode(&r); err != nil {
			reply.Error = &cniapi.Error{Code: cniapi.CodeBadJSON, Msg: "read the request", Details: err.Error()}
		} else if reply.Error = r.Check(); reply.Error == nil {
			reply = s.answer(ctx, &r)
		}
	case <-ctx.Done():
		return // the client is gone
	}
	if reply.Error != nil {
		klog.FromContext(ctx).V(1).Info("A request of the CNI plugin failed",
			"command", r.Command, "container", r.Container, "err", reply.Error)
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(reply) // the client may have gone
}

func (s *server) answer(ctx context.Context, r *cniapi.Request) cniapi.Reply {
	id := sandboxPrefix + r.Container
	switch r.Command {
	case "ADD":
		return s.add(ctx, id, r)
	case "DEL":
		return failed(s.cfg.Network.Detach(ctx, id))
	case "CHECK":
		return s.check(id, r)
	case "GC":
		return failed(s.cfg.Network.Collect(ctx))
	}
	if err := s.cfg.Network.Ready(ctx); err != nil {
		return cniapi.Reply{Error: &cniapi.Error{Code: cniapi.CodeNotAvailable,
			Msg: "the pod network of carob is not ready", Details: err.Error()}}
	}
	return cniapi.Reply{}
}

// failed is the reply about an error, or an empty one.
func failed(err error) cniapi.Reply {
	if err == nil {
		return cniapi.Reply{}
	}
	code := uint(cniapi.CodeFailed)
	switch errkind.Of(err) {
	case errkind.Unavailable, errkind.Exhausted:
		code = cniapi.CodeTryAgain
	case errkind.Invalid:
		code = cniapi.CodeBadConfig
	default:
	}
	return cniapi.Reply{Error: &cniapi.Error{Code: code, Msg: err.Error()}}
}

func (s *server) add(ctx context.Context, id string, r *cniapi.Request) cniapi.Reply {
	if err := foreign(r.NetNS); err != nil {
		return cniapi.Reply{Error: &cniapi.Error{Code: cniapi.CodeBadEnvironment, Msg: err.Error()}}
	}
	pod := network.Pod{UID: r.Args.UID, Namespace: r.Args.Namespace, Name: r.Args.Name, SandboxID: id,
		NetNS: r.NetNS, External: true,
		Bandwidth: network.Bandwidth{Ingress: r.Bandwidth.IngressRate, Egress: r.Bandwidth.EgressRate}}
	if pod.UID == "" { // a container of no pod
		pod.UID, pod.Name = id, id
	} else if s.cfg.Labels != nil {
		pod.Labels = s.cfg.Labels(pod.UID)
	}
	for _, p := range r.Ports {
		if p.HostPort == 0 {
			continue
		}
		m := network.PortMapping{Protocol: strings.ToLower(p.Protocol), ContainerPort: uint16(p.ContainerPort),
			HostPort: uint16(p.HostPort)}
		if p.HostIP != "" {
			m.HostIP, _ = netip.ParseAddr(p.HostIP) // checked
		}
		pod.Ports = append(pod.Ports, m)
	}
	if _, err := s.cfg.Network.Attach(ctx, pod); err != nil {
		return failed(err)
	}
	d, ok := s.cfg.Network.Find(id)
	if !ok {
		return failed(errkind.Errorf(errkind.Unavailable, "container %s lost its network at once", r.Container))
	}
	return cniapi.Reply{IPs: d.IPs, Gateways: d.Gateways, MAC: d.MAC}
}

func (s *server) check(id string, r *cniapi.Request) cniapi.Reply {
	d, ok := s.cfg.Network.Find(id)
	if !ok {
		return cniapi.Reply{Error: &cniapi.Error{Code: cniapi.CodeUnknownContainer,
			Msg: fmt.Sprintf("container %s is not attached", r.Container)}}
	}
	for _, ip := range r.IPs {
		if !slices.Contains(d.IPs, ip.Unmap()) {
			return cniapi.Reply{Error: &cniapi.Error{Code: cniapi.CodeFailed,
				Msg: fmt.Sprintf("container %s does not have the address %s", r.Container, ip)}}
		}
	}
	return cniapi.Reply{IPs: d.IPs, Gateways: d.Gateways, MAC: d.MAC}
}

// foreign returns an error unless path is a network namespace other than the host's.
func foreign(path string) error {
	var fsys unix.Statfs_t
	if err := unix.Statfs(path, &fsys); err != nil {
		return fmt.Errorf("CNI_NETNS %s: %w", path, err)
	}
	if fsys.Type != unix.NSFS_MAGIC {
		return fmt.Errorf("CNI_NETNS %s is not a namespace", path)
	}
	at, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("CNI_NETNS: %w", err)
	}
	own, err := os.Stat(netns.Current)
	if err != nil {
		return fmt.Errorf("find the host's network namespace: %w", err)
	}
	if os.SameFile(at, own) {
		return fmt.Errorf("CNI_NETNS %s is the network namespace of the host", path)
	}
	return nil
}
