package probe

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/core/podlife"
)

type execFunc func(context.Context, *cri.ExecSyncRequest) (*cri.ExecSyncResponse, error)

func (f execFunc) ExecSync(ctx context.Context, req *cri.ExecSyncRequest) (*cri.ExecSyncResponse, error) {
	return f(ctx, req)
}

func check(t *testing.T, verdict podlife.ProbeVerdict, text string, wantVerdict podlife.ProbeVerdict, wantText string) {
	t.Helper()
	if verdict != wantVerdict || text != wantText {
		t.Errorf("got %s %q, want %s %q", verdict, text, wantVerdict, wantText)
	}
}

// Exec probes (L5.20, L3.131).
func TestExec(t *testing.T) {
	tests := []struct {
		name    string
		answer  *cri.ExecSyncResponse
		err     error
		verdict podlife.ProbeVerdict
		text    string
	}{
		{"success", &cri.ExecSyncResponse{Stdout: []byte("ok")}, nil, podlife.ProbeSuccess, "ok"},
		{"failure", &cri.ExecSyncResponse{ExitCode: 2, Stdout: []byte("out "), Stderr: []byte("err")}, nil,
			podlife.ProbeFailure, "out err"},
		{"long output", &cri.ExecSyncResponse{ExitCode: 1, Stdout: []byte(strings.Repeat("x", 20<<10))}, nil,
			podlife.ProbeFailure, strings.Repeat("x", 10<<10)},
		{"timeout", nil, status.Error(codes.DeadlineExceeded, "late"), podlife.ProbeFailure,
			`command timed out: "cat me $(FROM)" timed out after 3s`},
		{"error", nil, status.Error(codes.NotFound, "no container"), podlife.ProbeError,
			"rpc error: code = NotFound desc = no container"},
	}
	c := &corev1.Container{Name: "c",
		Env: []corev1.EnvVar{{Name: "WHO", Value: "me"}, {Name: "FROM", ValueFrom: &corev1.EnvVarSource{}}}}
	p := &corev1.Probe{TimeoutSeconds: 3,
		ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"cat", "$(WHO)", "$(FROM)"}}}}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			verdict, text := Run(t.Context(),
				Target{Container: c, ContainerID: "id",
					Runtime: execFunc(func(_ context.Context, req *cri.ExecSyncRequest) (*cri.ExecSyncResponse, error) {
						if req.ContainerId != "id" || req.Timeout != 3 ||
							strings.Join(req.Cmd, " ") != "cat me $(FROM)" {
							t.Errorf("request %v", req)
						}
						return tc.answer, tc.err
					})}, p)
			check(t, verdict, text, tc.verdict, tc.text)
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	verdict, _ := Run(ctx,
		Target{Container: c,
			Runtime: execFunc(func(ctx context.Context, _ *cri.ExecSyncRequest) (*cri.ExecSyncResponse, error) {
				cancel()
				return nil, status.FromContextError(ctx.Err()).Err()
			})}, p)
	if verdict != podlife.ProbeError {
		t.Errorf("an aborted probe says nothing about the container: %s", verdict)
	}
}

func target(addr net.Addr) (Target, intstr.IntOrString) {
	tcp := addr.(*net.TCPAddr)
	return Target{Container: &corev1.Container{Name: "c",
			Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: int32(tcp.Port)}}}, PodIP: "127.0.0.1"},
		intstr.FromInt32(int32(tcp.Port))
}

// HTTP probes: codes, redirects, headers, limits and texts (L5.21–23).
func TestHTTPGet(t *testing.T) {
	var seen *http.Request
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen = r
		switch r.URL.Path {
		case "/code":
			code, _ := strconv.Atoi(r.URL.Query().Get("c"))
			w.WriteHeader(code)
			fmt.Fprint(w, "body")
		case "/big":
			fmt.Fprint(w, strings.Repeat("x", 20<<10))
		case "/same":
			http.Redirect(w, r, "/code?c=204", http.StatusFound)
		case "/loop":
			http.Redirect(w, r, "/loop", http.StatusFound)
		case "/other":
			http.Redirect(w, r, "http://other.example/", http.StatusFound)
		case "/slow":
			<-r.Context().Done()
		}
	})
	plain, secure := httptest.NewServer(handler), httptest.NewUnstartedServer(handler)
	defer plain.Close()
	secure.EnableHTTP2 = true
	secure.StartTLS()
	defer secure.Close()
	base := plain.URL
	tests := []struct {
		name, path string
		secure     bool
		timeout    int32
		port       *intstr.IntOrString
		headers    []corev1.HTTPHeader
		verdict    podlife.ProbeVerdict
		text       string
		check      func(*testing.T)
	}{
		{name: "200", path: "/code?c=200", verdict: podlife.ProbeSuccess, text: "body"},
		{name: "399", path: "/code?c=399", verdict: podlife.ProbeWarning,
			text: "Probe terminated redirects, Response body: body"},
		{name: "500", path: "/code?c=500", verdict: podlife.ProbeFailure,
			text: "HTTP probe failed with statuscode: 500"},
		{name: "404", path: "/code?c=404", verdict: podlife.ProbeFailure,
			text: "HTTP probe failed with statuscode: 404"},
		{name: "big", path: "/big", verdict: podlife.ProbeSuccess, text: strings.Repeat("x", 10<<10)},
		{name: "redirect", path: "/same", verdict: podlife.ProbeSuccess},
		{name: "loop", path: "/loop", verdict: podlife.ProbeFailure, text: `Get "/loop": stopped after 10 redirects`},
		{name: "other host", path: "/other", verdict: podlife.ProbeWarning,
			text: "Probe terminated redirects, Response body: <a href=\"http://other.example/\">Found</a>.\n\n"},
		{name: "named port", path: "code?c=200", port: new(intstr.FromString("web")), verdict: podlife.ProbeSuccess,
			text: "body"},
		{name: "unknown port", path: "/", port: new(intstr.FromString("no")), verdict: podlife.ProbeError,
			text: `couldn't find port: "no"`},
		{name: "defaults", path: "/code?c=200", verdict: podlife.ProbeSuccess, text: "body", check: func(t *testing.T) {
			if seen.UserAgent() != "kube-probe/1.37" || seen.Header.Get("Accept") != "*/*" ||
				seen.Header.Get("Accept-Encoding") != "" {
				t.Errorf("headers %v", seen.Header)
			}
		}},
		{name: "headers", path: "/code?c=200",
			headers: []corev1.HTTPHeader{{Name: "Host", Value: "example.com"}, {Name: "User-Agent", Value: "me"},
				{Name: "Accept", Value: ""}, {Name: "X", Value: "1"}, {Name: "X", Value: "2"}},
			verdict: podlife.ProbeSuccess, text: "body", check: func(t *testing.T) {
				if _, ok := seen.Header["Accept"]; ok || seen.Host != "example.com" || seen.UserAgent() != "me" ||
					len(seen.Header["X"]) != 2 {
					t.Errorf("host %s headers %v", seen.Host, seen.Header)
				}
			}},
		{name: "https", path: "/code?c=200", secure: true, verdict: podlife.ProbeSuccess, text: "body",
			check: func(t *testing.T) {
				if seen.ProtoMajor != 2 {
					t.Errorf("proto %s", seen.Proto)
				}
			}},
		{name: "timeout", path: "/slow", timeout: 1, verdict: podlife.ProbeFailure,
			text: `Get "` + base +
				`/slow": context deadline exceeded (Client.Timeout exceeded while awaiting headers)`},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			server, scheme := plain, corev1.URISchemeHTTP
			if tc.secure {
				server, scheme = secure, corev1.URISchemeHTTPS
			}
			to, port := target(server.Listener.Addr())
			if tc.port != nil {
				port = *tc.port
			}
			verdict, text := Run(t.Context(), to,
				&corev1.Probe{TimeoutSeconds: max(tc.timeout, 1), ProbeHandler: corev1.ProbeHandler{
					HTTPGet: &corev1.HTTPGetAction{Path: tc.path, Port: port, Scheme: scheme,
						HTTPHeaders: tc.headers}}})
			check(t, verdict, text, tc.verdict, tc.text)
			if tc.check != nil {
				tc.check(t)
			}
		})
	}
	t.Run("refused", func(t *testing.T) {
		to, port := target(plain.Listener.Addr())
		plain.Close()
		verdict, text := Run(t.Context(), to,
			&corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/", Port: port}}})
		u, _ := url.Parse(base)
		check(t, verdict, text, podlife.ProbeFailure,
			fmt.Sprintf(`Get "%s/": dial tcp %s: connect: connection refused`, base, u.Host))
	})
}

// TCP probes (L5.24).
func TestTCPSocket(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	to, port := target(l.Addr())
	p := &corev1.Probe{TimeoutSeconds: 1,
		ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: port}}}
	verdict, text := Run(t.Context(), to, p)
	check(t, verdict, text, podlife.ProbeSuccess, "")
	l.Close()
	verdict, text = Run(t.Context(), to, p)
	check(t, verdict, text, podlife.ProbeFailure, fmt.Sprintf("dial tcp %s: connect: connection refused", l.Addr()))
}

// gRPC probes (L5.25).
func TestGRPC(t *testing.T) {
	serve := func(register func(*grpc.Server)) net.Addr {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s := grpc.NewServer()
		register(s)
		go s.Serve(l)
		t.Cleanup(s.Stop)
		return l.Addr()
	}
	run := func(addr net.Addr, service string) (podlife.ProbeVerdict, string) {
		to, port := target(addr)
		return Run(t.Context(), to,
			&corev1.Probe{TimeoutSeconds: 1,
				ProbeHandler: corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: port.IntVal, Service: &service}}})
	}
	h := health.NewServer()
	h.SetServingStatus("bad", healthpb.HealthCheckResponse_NOT_SERVING)
	healthy := serve(func(s *grpc.Server) { healthpb.RegisterHealthServer(s, h) })
	verdict, text := run(healthy, "")
	check(t, verdict, text, podlife.ProbeSuccess, "")
	verdict, text = run(healthy, "bad")
	check(t, verdict, text, podlife.ProbeFailure, `service unhealthy (responded with "NOT_SERVING")`)
	verdict, text = run(healthy, "none")
	check(t, verdict, text, podlife.ProbeFailure,
		"error: health rpc probe failed: rpc error: code = NotFound desc = unknown service")

	verdict, text = run(serve(func(*grpc.Server) {}), "")
	check(t, verdict, text, podlife.ProbeFailure,
		"error: this server does not implement the grpc health protocol (grpc.health.v1.Health): unknown service grpc.health.v1.Health")

	verdict, text = run(serve(func(s *grpc.Server) { healthpb.RegisterHealthServer(s, slowHealth{}) }), "")
	check(t, verdict, text, podlife.ProbeFailure, "timeout: health rpc did not complete within 1s")

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	verdict, text = run(l.Addr(), "")
	if want := fmt.Sprintf("error: failed to connect service at %q: connection error:",
		l.Addr()); verdict != podlife.ProbeFailure || !strings.HasPrefix(text, want) ||
		!strings.Contains(text, "connection refused") {
		t.Errorf("got %s %q, want %s…", verdict, text, want)
	}

	mute, err := net.Listen("tcp", "127.0.0.1:0") // accepts, but sends nothing
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	verdict, text = run(mute.Addr(), "")
	if want := fmt.Sprintf("timeout: failed to connect service %q within 1s: ",
		mute.Addr()); verdict != podlife.ProbeFailure || !strings.HasPrefix(text, want) {
		t.Errorf("got %s %q, want %s…", verdict, text, want)
	}
}

type slowHealth struct {
	healthpb.UnimplementedHealthServer
}

func (slowHealth) Check(ctx context.Context, _ *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestNoHandler(t *testing.T) {
	verdict, text := Run(t.Context(), Target{Container: &corev1.Container{Name: "c"}}, &corev1.Probe{})
	check(t, verdict, text, podlife.ProbeError, "missing probe handler for container c")
}
