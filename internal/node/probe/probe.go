// Package probe runs one probe once and returns its result (L5.20–26). core/podlife decides when and how often; the
// node agent calls Run for each RunProbe action. It must never keep state between runs.
//
// Contract: docs/spec/pod-lifecycle.md.
package probe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/core/podlife"
	"carob/internal/node/spec"
)

const (
	userAgent = "kube-probe/1.37"
	maxOutput = 10 << 10        // bytes of a body or of a command's output that are kept
	execSlack = 5 * time.Second // how long a runtime may take beyond the timeout to respond
)

// Execer is the call of a runtime that exec probes need.
type Execer interface {
	ExecSync(context.Context, *cri.ExecSyncRequest) (*cri.ExecSyncResponse, error)
}

// Target is the container that is probed.
type Target struct {
	Runtime     Execer
	Container   *corev1.Container
	ContainerID string
	PodIP       string
}

// Run runs the probe once, at most for its timeout, and returns the verdict and
// the text for the event. It leaves no goroutine and no connection behind.
func Run(ctx context.Context, t Target, p *corev1.Probe) (podlife.ProbeVerdict, string) {
	timeout := max(time.Duration(p.TimeoutSeconds)*time.Second, time.Second)
	var verdict podlife.ProbeVerdict
	var text string
	switch {
	case p.Exec != nil:
		verdict, text = execCommand(ctx, t, p.Exec, timeout)
	case p.HTTPGet != nil:
		verdict, text = httpGet(ctx, t, p.HTTPGet, timeout)
	case p.TCPSocket != nil:
		verdict, text = tcpSocket(ctx, t, p.TCPSocket, timeout)
	case p.GRPC != nil:
		verdict, text = grpcHealth(ctx, t, p.GRPC, timeout)
	default:
		return podlife.ProbeError, "missing probe handler for container " + t.Container.Name
	}
	if err := ctx.Err(); err != nil {
		return podlife.ProbeError, err.Error() // aborted: it has no result
	}
	return verdict, text
}

// execCommand succeeds when the command exits with 0; running out of time is a failure, not an error (L5.20).
func execCommand(ctx context.Context, t Target, action *corev1.ExecAction, timeout time.Duration) (podlife.ProbeVerdict,
	string) {
	literals := make(map[string]string, len(t.Container.Env))
	for _, v := range t.Container.Env {
		if v.ValueFrom == nil {
			literals[v.Name] = v.Value
		}
	}
	command, err := spec.ExecProbeCommand(action.Command, literals)
	if err != nil {
		return podlife.ProbeError, err.Error()
	}
	limited, cancel := context.WithTimeout(ctx, timeout+execSlack)
	defer cancel()
	res, err := t.Runtime.ExecSync(limited, &cri.ExecSyncRequest{
		ContainerId: t.ContainerID,
		Cmd:         command,
		Timeout:     int64(timeout / time.Second),
	})
	switch {
	case err == nil && res.ExitCode == 0:
		return podlife.ProbeSuccess, output(res)
	case err == nil:
		return podlife.ProbeFailure, output(res)
	case status.Code(err) == codes.DeadlineExceeded || errors.Is(err, context.DeadlineExceeded):
		return podlife.ProbeFailure,
			fmt.Sprintf("command timed out: %q timed out after %v", strings.Join(command, " "), timeout)
	default:
		return podlife.ProbeError, err.Error()
	}
}

func output(res *cri.ExecSyncResponse) string {
	out := append(slices.Clip(res.Stdout), res.Stderr...)
	return string(out[:min(len(out), maxOutput)])
}

// httpGet succeeds for codes from 200 to 399 (L5.21–23).
func httpGet(ctx context.Context, t Target, action *corev1.HTTPGetAction, timeout time.Duration) (podlife.ProbeVerdict,
	string) {
	host := action.Host
	if host == "" {
		host = t.PodIP
	}
	port, err := Port(action.Port, t.Container)
	if err != nil {
		return podlife.ProbeError, err.Error()
	}
	if to, plain := plainTarget(action, host, port); plain {
		if p, err := sockets(); err == nil {
			return plainGet(ctx, p, t, action, host, to, timeout)
		}
	}
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return get(limited, t, action, oneRequest{})
}

// get sends the request of an action as http.Client does.
func get(ctx context.Context, t Target, action *corev1.HTTPGetAction, via http.RoundTripper) (podlife.ProbeVerdict,
	string) {
	req, err := Request(ctx, action, t.Container, t.PodIP, userAgent)
	if err != nil {
		return podlife.ProbeError, err.Error()
	}
	client := &http.Client{Transport: via, CheckRedirect: SameHost}
	res, err := client.Do(req)
	if err != nil {
		return podlife.ProbeFailure, err.Error()
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxOutput))
	if err != nil {
		return podlife.ProbeFailure, err.Error()
	}
	return verdict(res.StatusCode, body)
}

// verdict is that of an answer.
func verdict(code int, body []byte) (podlife.ProbeVerdict, string) {
	switch {
	case code < 200 || code >= 400:
		return podlife.ProbeFailure, fmt.Sprintf("HTTP probe failed with statuscode: %d", code)
	case code >= 300:
		return podlife.ProbeWarning, fmt.Sprintf("Probe terminated redirects, Response body: %v", string(body))
	default:
		return podlife.ProbeSuccess, string(body)
	}
}

// tcpSocket succeeds when the connection is accepted (L5.24).
func tcpSocket(ctx context.Context, t Target, action *corev1.TCPSocketAction,
	timeout time.Duration) (podlife.ProbeVerdict, string) {
	port, err := Port(action.Port, t.Container)
	if err != nil {
		return podlife.ProbeError, err.Error()
	}
	host := action.Host
	if host == "" {
		host = t.PodIP
	}
	if addr, err := netip.ParseAddr(host); err == nil && addr.Zone() == "" && !addr.Is4In6() {
		if p, err := sockets(); err == nil {
			return tcpConnect(ctx, p, netip.AddrPortFrom(addr, uint16(port)), timeout)
		}
	}
	conn, err := dialer(timeout).DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return podlife.ProbeFailure, err.Error()
	}
	conn.Close()
	return podlife.ProbeSuccess, ""
}

// tcpConnect is tcpSocket for an address.
func tcpConnect(ctx context.Context, p *poller, to netip.AddrPort, timeout time.Duration) (podlife.ProbeVerdict,
	string) {
	s, err := open(to, timeout)
	if err == nil {
		err = s.established(ctx, p)
		if errors.Is(err, context.DeadlineExceeded) {
			err = s.failed("dial", "", os.ErrDeadlineExceeded)
		}
		s.close()
	}
	if err != nil {
		return podlife.ProbeFailure, err.Error()
	}
	return podlife.ProbeSuccess, ""
}

// grpcHealth succeeds if the health service returns SERVING (L5.25).
func grpcHealth(ctx context.Context, t Target, action *corev1.GRPCAction, timeout time.Duration) (podlife.ProbeVerdict,
	string) {
	addr := net.JoinHostPort(t.PodIP, strconv.Itoa(int(action.Port)))
	conn, err := grpc.NewClient("passthrough:///"+addr,
		grpc.WithUserAgent(userAgent),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithNoProxy(),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return dialer(0).DialContext(ctx, "tcp", addr)
		}))
	if err != nil {
		return podlife.ProbeError, err.Error()
	}
	defer conn.Close()
	service := ""
	if action.Service != nil {
		service = *action.Service
	}
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	res, err := healthpb.NewHealthClient(conn).Check(limited, &healthpb.HealthCheckRequest{Service: service})
	if err == nil {
		if res.Status != healthpb.HealthCheckResponse_SERVING {
			return podlife.ProbeFailure, fmt.Sprintf("service unhealthy (responded with %q)", res.Status)
		}
		return podlife.ProbeSuccess, ""
	}
	connected := conn.GetState() == connectivity.Ready
	s := status.Convert(err)
	switch {
	case s.Code() == codes.Unimplemented:
		return podlife.ProbeFailure,
			"error: this server does not implement the grpc health protocol (grpc.health.v1.Health): " + s.Message()
	case s.Code() == codes.DeadlineExceeded && connected:
		return podlife.ProbeFailure, fmt.Sprintf("timeout: health rpc did not complete within %v", timeout)
	case s.Code() == codes.DeadlineExceeded:
		return podlife.ProbeFailure,
			fmt.Sprintf("timeout: failed to connect service %q within %v: %+v", addr, timeout, s.Message())
	case s.Code() == codes.Unavailable && !connected:
		return podlife.ProbeFailure, fmt.Sprintf("error: failed to connect service at %q: %+v", addr, s.Message())
	default:
		return podlife.ProbeFailure, fmt.Sprintf("error: health rpc probe failed: %+v", err)
	}
}
