package probe

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// maxRedirects is how many redirects to the same host are followed (L5.22).
const maxRedirects = 10

// Transport is for requests to containers: certificates are not verified, there is no proxy and no compression, and no
// connection outlives its request (L5.23).
func Transport() *http.Transport {
	return &http.Transport{
		TLSClientConfig:    &tls.Config{InsecureSkipVerify: true}, // there are no certificates for pod IPs
		DisableKeepAlives:  true,
		DisableCompression: true,
		ForceAttemptHTTP2:  true,
		DialContext:        dialer(0).DialContext,
	}
}

// dialer lingers for a second at most when it closes, so that probes leave few
// sockets in TIME_WAIT (L5.26).
func dialer(timeout time.Duration) *net.Dialer {
	return &net.Dialer{
		Timeout: timeout,
		Control: func(_, _ string, c syscall.RawConn) error {
			var err error
			if ctlErr := c.Control(func(fd uintptr) {
				err = syscall.SetsockoptLinger(int(fd), syscall.SOL_SOCKET, syscall.SO_LINGER,
					&syscall.Linger{Onoff: 1, Linger: 1})
			}); ctlErr != nil {
				return ctlErr
			}
			return err
		},
	}
}

// SameHost follows redirects to the same host name only (L5.22).
func SameHost(req *http.Request, via []*http.Request) error {
	if req.URL.Hostname() != via[0].URL.Hostname() {
		return http.ErrUseLastResponse
	}
	if len(via) >= maxRedirects {
		return errors.New("stopped after 10 redirects")
	}
	return nil
}

// Request builds the GET of an httpGet action (L5.21, L5.23). host is used when the action names none.
func Request(ctx context.Context, action *corev1.HTTPGetAction, c *corev1.Container, host,
	userAgent string) (*http.Request, error) {
	if action.Host != "" {
		host = action.Host
	}
	port, err := Port(action.Port, c)
	if err != nil {
		return nil, err
	}
	target, err := url.Parse(action.Path)
	if err != nil {
		target = &url.URL{Path: action.Path} // a path that can't be parsed is sent unchanged
	}
	target.Scheme = strings.ToLower(string(action.Scheme))
	if target.Scheme == "" {
		target.Scheme = "http"
	}
	target.Host = net.JoinHostPort(host, strconv.Itoa(port))
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return nil, err
	}
	for _, h := range action.HTTPHeaders {
		req.Header.Add(h.Name, h.Value)
		if strings.EqualFold(h.Name, "Host") {
			req.Host = h.Value
		}
	}
	if _, ok := req.Header["User-Agent"]; !ok {
		req.Header.Set("User-Agent", userAgent)
	}
	switch accept, ok := req.Header["Accept"]; {
	case !ok:
		req.Header.Set("Accept", "*/*")
	case accept[0] == "":
		req.Header.Del("Accept")
	}
	return req, nil
}

// Port resolves a port number or the name of a port of the container.
func Port(p intstr.IntOrString, c *corev1.Container) (int, error) {
	port := p.IntValue()
	if p.Type == intstr.String && port == 0 {
		for i := range c.Ports {
			if c.Ports[i].Name == p.StrVal {
				return int(c.Ports[i].ContainerPort), nil
			}
		}
		return 0, fmt.Errorf("couldn't find port: %q", p.StrVal)
	}
	if port < 1 || port > 65535 {
		return 0, fmt.Errorf("invalid port number: %d", port)
	}
	return port, nil
}
