package podstorage

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"carob/internal/apiserver/admission"
)

var nodeResource = schema.GroupResource{Resource: "nodes"}

// agents finds the node agents and has one HTTP transport per node. It is safe for concurrent use.
type agents struct {
	config NodeAgents
	reader admission.Reader

	mu         sync.Mutex
	transports map[string]*http.Transport
}

func newAgents(c NodeAgents, reader admission.Reader) *agents {
	return &agents{config: c, reader: reader, transports: map[string]*http.Transport{}}
}

// location returns the address of a node's agent, and the transport for it.
func (g *agents) location(ctx context.Context, nodeName string) (*url.URL, http.RoundTripper, error) {
	obj, err := g.reader.Get(ctx, nodeResource, "", nodeName)
	if err != nil {
		return nil, nil, err
	}
	node, ok := obj.(*corev1.Node)
	if !ok {
		return nil, nil, apierrors.NewInternalError(fmt.Errorf("read node %s: unexpected %T", nodeName, obj))
	}
	if g.config.Dial == nil {
		return nil, nil, apierrors.NewServiceUnavailable("this server has no connection to node agents")
	}
	port := node.Status.DaemonEndpoints.KubeletEndpoint.Port
	host := agentHost(node)
	if host == "" || port == 0 {
		return nil, nil,
			apierrors.NewServiceUnavailable(fmt.Sprintf("node %s has not reported the address and port of its agent yet",
				nodeName))
	}
	scheme := "https"
	if g.config.TLS == nil {
		scheme = "http"
	}
	return &url.URL{Scheme: scheme, Host: net.JoinHostPort(host, strconv.Itoa(int(port)))}, g.transport(nodeName), nil
}

// agentHost prefers addresses, which need no name resolution, over names.
func agentHost(n *corev1.Node) string {
	for _, t := range [...]corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP, corev1.NodeHostName,
		corev1.NodeInternalDNS, corev1.NodeExternalDNS} {
		for _, a := range n.Status.Addresses {
			if a.Type == t && a.Address != "" {
				return a.Address
			}
		}
	}
	return ""
}

// idleAgent is how long an unused connection to an agent is kept.
const idleAgent = 90 * time.Second

func (g *agents) transport(nodeName string) *http.Transport {
	g.mu.Lock()
	defer g.mu.Unlock()
	if t, ok := g.transports[nodeName]; ok {
		return t
	}
	t := &http.Transport{
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			return g.config.Dial(ctx, nodeName, addr)
		},
		IdleConnTimeout: idleAgent,
		// An upgraded connection (exec) needs HTTP/1.1.
		Protocols: new(http.Protocols),
	}
	t.Protocols.SetHTTP1(true)
	if g.config.TLS != nil {
		t.TLSClientConfig = g.config.TLS.Clone()
		t.TLSClientConfig.ServerName = nodeName // the name in its certificate, whatever address is used
	}
	g.transports[nodeName] = t
	return t
}
