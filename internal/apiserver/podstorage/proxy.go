package podstorage

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/apiserver/pkg/registry/rest"

	"carob/internal/apiserver/backends"
)

var proxyMethods = []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch,
	http.MethodDelete, http.MethodOptions}

// proxyREST proxies HTTP requests to a port of a pod. The name may be "pod", "pod:port", or
// "https:pod:port".
type proxyREST struct {
	finder
	transport http.RoundTripper
}

var _ rest.Connecter = (*proxyREST)(nil)

// podTransport connects to pods from this host. A pod's certificate is not verified: the client has
// requested this pod by name, and the API server has no CA for it.
func podTransport() http.RoundTripper {
	dialer := &net.Dialer{Timeout: 30 * time.Second}
	return &http.Transport{
		DialContext: dialer.DialContext,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true,
			MinVersion: tls.VersionTLS12}, //nolint:gosec // see above
		MaxIdleConnsPerHost: 2,
		IdleConnTimeout:     30 * time.Second,
	}
}

func (*proxyREST) New() runtime.Object { return &corev1.PodProxyOptions{} }

func (*proxyREST) Destroy() {}

// ConnectMethods are the HTTP methods of the subresource.
func (*proxyREST) ConnectMethods() []string { return proxyMethods }

// NewConnectOptions are the query parameters; the rest of the URL's path is the parameter "path".
func (*proxyREST) NewConnectOptions() (runtime.Object, bool, string) {
	return &corev1.PodProxyOptions{}, true, "path"
}

func (r *proxyREST) Connect(ctx context.Context, id string, options runtime.Object,
	responder rest.Responder) (http.Handler, error) {
	o, ok := options.(*corev1.PodProxyOptions)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid options object: %#v", options))
	}
	location, err := r.target(ctx, id)
	if err != nil {
		return nil, err
	}
	location.Path = joinPath(o.Path)
	return passThrough(location, r.transport, responder), nil
}

// target is the URL of a pod's port; the first declared one if none is named.
func (r *proxyREST) target(ctx context.Context, id string) (*url.URL, error) {
	scheme, name, port, valid := utilnet.SplitSchemeNamePort(id)
	if !valid {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid pod request %q", id))
	}
	p, err := r.pod(ctx, name)
	if err != nil {
		return nil, err
	}
	if port, err = portOf(p, port); err != nil {
		return nil, err
	}
	if p.Status.PodIP == "" {
		return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("pod %s has no address yet", name))
	}
	if err := proxyable(p.Status.PodIP); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if scheme == "" {
		scheme = "http"
	}
	host := p.Status.PodIP
	if port != "" {
		host = net.JoinHostPort(host, port)
	} else if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return &url.URL{Scheme: scheme, Host: host}, nil
}

// portOf is the port that a request names, by its number or a name; the first declared one if it names none.
func portOf(p *corev1.Pod, port string) (string, error) {
	if port == "" {
		return firstPort(p), nil
	}
	if n, ok := namedPort(p, port); ok {
		return n, nil
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return "", apierrors.NewBadRequest(fmt.Sprintf("pod %q has no port %q", p.Name, port))
	}
	return port, nil
}

func firstPort(p *corev1.Pod) string {
	for i := range p.Spec.Containers {
		if ports := p.Spec.Containers[i].Ports; len(ports) > 0 {
			return strconv.Itoa(int(ports[0].ContainerPort))
		}
	}
	return ""
}

func namedPort(p *corev1.Pod, name string) (string, bool) {
	for i := range p.Spec.Containers {
		for _, port := range p.Spec.Containers[i].Ports {
			if port.Name == name {
				return strconv.Itoa(int(port.ContainerPort)), true
			}
		}
	}
	return "", false
}

// proxyable rejects addresses by which a forged pod status would lead to services of this host.
func proxyable(ip string) error {
	addr, err := netip.ParseAddr(ip)
	if err != nil || addr.IsUnspecified() || addr.IsLoopback() || addr.IsLinkLocalUnicast() || addr.IsMulticast() {
		return fmt.Errorf("address not allowed")
	}
	return nil
}

// joinPath keeps a trailing slash, which has a meaning for many servers. Without a path nothing is
// added: a browser is then redirected to the URL with a slash, so that relative links work.
func joinPath(p string) string {
	if p == "" {
		return ""
	}
	out := path.Join("/", p)
	if strings.HasSuffix(p, "/") && out != "/" {
		out += "/"
	}
	return out
}

// passThrough proxies plain and upgraded requests, with the query of the request.
func passThrough(location *url.URL, transport http.RoundTripper, responder rest.Responder) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := proxy.NewUpgradeAwareHandler(location, backends.Checked(transport), true, false,
			proxy.NewErrorResponder(responder))
		// The library leaves it out of an upgrade. It must not be there before: the library parses the location again,
		// and panics where a query like "a#%zz" makes it invalid.
		h.Location.RawQuery = r.URL.RawQuery
		h.MaxBytesPerSec = 0
		h.ServeHTTP(w, r)
	})
}

// nodeProxyREST proxies HTTP requests to the agent of a node, never to another port of the node. A
// request that becomes a stream (exec) requires the verb create, also if it starts with a GET.
type nodeProxyREST struct {
	agents *agents
	create creator
}

// kubeletPort is the default port of node agents.
const kubeletPort = "10250"

var _ rest.Connecter = (*nodeProxyREST)(nil)

func (*nodeProxyREST) New() runtime.Object { return &corev1.NodeProxyOptions{} }

func (*nodeProxyREST) Destroy() {}

// ConnectMethods are the HTTP methods of the subresource.
func (*nodeProxyREST) ConnectMethods() []string { return proxyMethods }

// NewConnectOptions are the query parameters; the rest of the URL's path is the parameter "path".
func (*nodeProxyREST) NewConnectOptions() (runtime.Object, bool, string) {
	return &corev1.NodeProxyOptions{}, true, "path"
}

func (r *nodeProxyREST) Connect(ctx context.Context, id string, options runtime.Object,
	responder rest.Responder) (http.Handler, error) {
	o, ok := options.(*corev1.NodeProxyOptions)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid options object: %#v", options))
	}
	scheme, name, port, valid := utilnet.SplitSchemeNamePort(id)
	if !valid {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid node request %q", id))
	}
	location, transport, err := r.agents.location(ctx, name)
	if err != nil {
		return nil, err
	}
	if port == kubeletPort {
		port = location.Port() // clients use this name for the agent's port, whatever its number is
	}
	if port != "" && port != location.Port() || scheme != "" && scheme != location.Scheme {
		return nil, apierrors.NewBadRequest(
			fmt.Sprintf("only the agent of a node can be reached through the proxy, at %s:%s:%s", location.Scheme, name,
				location.Port()))
	}
	location.Path = joinPath(o.Path)
	return r.create.upgrades(passThrough(location, transport, responder), responder), nil
}
