package stream

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	clientexec "k8s.io/client-go/util/exec"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"
	criremote "k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/klog/v2"
	utilexec "k8s.io/utils/exec"

	"carob/internal/node/summary"
)

// authority issues certificates.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	n    int64
}

func newAuthority(t *testing.T) *authority {
	a := &authority{t: t}
	a.cert, a.key = a.issue("ca", true)
	return a
}

func (a *authority) issue(cn string, ca bool) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	a.n++
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(a.n), Subject: pkix.Name{CommonName: cn}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour),
		IsCA:     ca, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = tmpl, key
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert, key
}

func (a *authority) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.cert)
	return p
}

// pair is a certificate in the form of tls and in that of files.
func (a *authority) pair(cn string) (tls.Certificate, []byte, []byte) {
	cert, key := a.issue(cn, false)
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
	return tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key}, certPEM, keyPEM
}

// world is a server with one pod and a runtime with a real streaming server.
type world struct {
	t      *testing.T
	ca     *authority
	base   string
	stop   func() error
	stream streaming.Server

	mu      sync.Mutex
	pod     *corev1.Pod
	running map[string]string // container name to id
	changed chan struct{}
	logs    map[string]string // container id to path
	syncErr error             // of the check syncloop
	// sandboxes are the statistics of pods; nil: the runtime has none. lists counts the calls for containers.
	sandboxes []*cri.PodSandboxStats
	lists     int
	opened    int // streams that were requested from the runtime
	exec      func(ctx context.Context, cmd []string, in io.Reader, out, err io.WriteCloser, tty bool) error
}

func newWorld(t *testing.T) *world { return newWorldWith(t, func(*Config) {}) }

func newWorldWith(t *testing.T, change func(*Config)) *world {
	w := &world{t: t, ca: newAuthority(t), running: map[string]string{}, changed: make(chan struct{}),
		logs: map[string]string{}}
	w.pod = &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "ns", UID: "u1"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}},
	}
	backend := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter,
		r *http.Request) {
		w.stream.ServeHTTP(rw, r)
	}))
	t.Cleanup(backend.Close)
	cfg := streaming.DefaultConfig
	var err error
	if cfg.BaseURL, err = url.Parse(backend.URL + "/"); err != nil {
		t.Fatal(err)
	}
	if w.stream, err = streaming.NewServer(cfg, streams{w}); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.base = "https://" + l.Addr().String()
	own, _, _ := w.ca.pair("node")
	config := Config{
		Listener: l, TLS: &tls.Config{Certificates: []tls.Certificate{own}, ClientCAs: w.ca.pool()},
		AllowedUsers: []string{"api"},
		NodeName:     "n1", Pods: w, Runtime: w, Logger: klog.Background(),
		Checks: []Check{{"ping", func() error { return nil }},
			{"syncloop", func() error { w.mu.Lock(); defer w.mu.Unlock(); return w.syncErr }}},
		Handlers: map[string]http.Handler{"/timeline/": http.HandlerFunc(func(rw http.ResponseWriter,
			_ *http.Request) {
			fmt.Fprint(rw, "timeline")
		})},
	}
	change(&config)
	s, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	w.stop = sync.OnceValue(func() error {
		cancel()
		return <-done
	})
	t.Cleanup(func() {
		if err := w.stop(); err != nil {
			t.Error(err)
		}
	})
	return w
}

func (w *world) Pod(ns, name string) *corev1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	if ns != w.pod.Namespace || name != w.pod.Name {
		return nil
	}
	return w.pod.DeepCopy()
}

func (w *world) List() []*corev1.Pod { return []*corev1.Pod{w.Pod("ns", "web")} }

func (w *world) SandboxID(types.UID) string { return "sb" }

func (w *world) ContainerID(_ types.UID, name string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.running[name]
}

func (w *world) Changed(types.UID) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.changed
}

func (w *world) change(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
	close(w.changed)
	w.changed = make(chan struct{})
}

// run makes the container run with a log.
func (w *world) run(id, text string) (path string) {
	w.t.Helper()
	path = filepath.Join(w.t.TempDir(), "0.log")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
	w.change(func() {
		w.running["c"] = id
		w.logs[id] = path
		w.pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", ContainerID: "carob://" + id,
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Unix(1000, 0)}}}}
	})
	return path
}

func (w *world) open() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.opened++
}

func (w *world) Exec(_ context.Context, req *cri.ExecRequest) (*cri.ExecResponse, error) {
	w.open()
	return w.stream.GetExec(req)
}

func (w *world) Attach(_ context.Context, req *cri.AttachRequest) (*cri.AttachResponse, error) {
	w.open()
	return w.stream.GetAttach(req)
}

func (w *world) PortForward(_ context.Context, req *cri.PortForwardRequest) (*cri.PortForwardResponse, error) {
	w.open()
	return w.stream.GetPortForward(req)
}

func (w *world) ContainerStatus(_ context.Context, req *cri.ContainerStatusRequest) (*cri.ContainerStatusResponse,
	error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	path, ok := w.logs[req.ContainerId]
	if !ok {
		return nil, status.Error(codes.NotFound, "no such container")
	}
	return &cri.ContainerStatusResponse{Status: &cri.ContainerStatus{LogPath: path}}, nil
}

func (w *world) ListPodSandboxStats(context.Context, *cri.ListPodSandboxStatsRequest) (*cri.ListPodSandboxStatsResponse,
	error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.sandboxes == nil {
		return nil, status.Error(codes.Unimplemented, "no")
	}
	return &cri.ListPodSandboxStatsResponse{Stats: w.sandboxes}, nil
}

func (w *world) ListContainerStats(context.Context, *cri.ListContainerStatsRequest) (*cri.ListContainerStatsResponse,
	error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lists++
	one := func(id, uid string) *cri.ContainerStats {
		return &cri.ContainerStats{
			Attributes: &cri.ContainerAttributes{Id: id,
				Labels: map[string]string{"io.kubernetes.pod.uid": uid, "io.kubernetes.container.name": "c"}},
			Cpu:    &cri.CpuUsage{Timestamp: 2e9, UsageCoreNanoSeconds: &cri.UInt64Value{Value: 1.5e9}},
			Memory: &cri.MemoryUsage{Timestamp: 2e9, WorkingSetBytes: &cri.UInt64Value{Value: 4096}},
		}
	}
	return &cri.ListContainerStatsResponse{Stats: []*cri.ContainerStats{one("id1", "u1"), one("old", "u1"),
		one("id9", "stranger")}}, nil
}

// streams is what runs behind the streaming server.
type streams struct{ w *world }

func (s streams) Exec(ctx context.Context, _ string, cmd []string, in io.Reader, out, err io.WriteCloser, tty bool,
	_ <-chan criremote.TerminalSize) error {
	return s.w.exec(ctx, cmd, in, out, err, tty)
}

func (s streams) Attach(ctx context.Context, _ string, in io.Reader, out, err io.WriteCloser, tty bool,
	_ <-chan criremote.TerminalSize) error {
	return s.w.exec(ctx, nil, in, out, err, tty)
}

func (s streams) PortForward(_ context.Context, id string, port int32, conn io.ReadWriteCloser) error {
	defer conn.Close()
	_, err := fmt.Fprintf(conn, "%s:%d", id, port)
	return err
}

func (w *world) client(cn string) *http.Client {
	cfg := &tls.Config{RootCAs: w.ca.pool()}
	if cn != "" {
		cert, _, _ := w.ca.pair(cn)
		cfg.Certificates = []tls.Certificate{cert}
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: cfg, DisableKeepAlives: true}}
}

func (w *world) get(cn, path string) (int, string) {
	w.t.Helper()
	res, err := w.client(cn).Get(w.base + path)
	if err != nil {
		w.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return res.StatusCode, string(text)
}

// Only a client whose certificate names an allowed user gets anything.
func TestAuthentication(t *testing.T) {
	w := newWorld(t)
	for _, path := range []string{"/healthz", "/pods", "/timeline/x", "/metrics", "/containerLogs/ns/web/c", "/none"} {
		if code, _ := w.get("", path); code != http.StatusUnauthorized {
			t.Errorf("%s without a certificate: %d", path, code)
		}
		if code, _ := w.get("mallory", path); code != http.StatusForbidden {
			t.Errorf("%s as mallory: %d", path, code)
		}
	}
	foreign, _, _ := newAuthority(t).pair("api")
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: w.ca.pool(),
		Certificates: []tls.Certificate{foreign}}}}
	if res, err := c.Get(w.base + "/healthz"); err == nil && res.StatusCode == http.StatusOK {
		t.Error("a certificate of a foreign CA was accepted")
	}
	for path, want := range map[string]string{"/healthz": "ok", "/timeline/x": "timeline"} {
		if code, text := w.get("api", path); code != http.StatusOK || text != want {
			t.Errorf("%s: %d %s", path, code, text)
		}
	}
	if code, _ := w.get("api", "/none"); code != http.StatusNotFound {
		t.Errorf("unknown path: %d", code)
	}
	if _, err := New(Config{Listener: &net.TCPListener{}, TLS: &tls.Config{}}); err == nil {
		t.Error("a server without a client CA must be refused")
	}
}

func TestContainerLogs(t *testing.T) {
	w := newWorld(t)
	const text = "2026-11-21T00:00:01Z stdout F a\n2026-11-21T00:00:02Z stderr F b\n2026-11-21T00:00:03Z stdout F c\n"
	w.run("id1", text)
	tests := []struct {
		path string
		code int
		want string
	}{
		{"web/c", 200, "a\nb\nc\n"},
		{"web/c?tailLines=1", 200, "c\n"},
		{"web/c?stream=Stderr", 200, "b\n"},
		{"web/c?stream=Stdout&timestamps=true", 200,
			"2026-11-21T00:00:01.000000000Z a\n2026-11-21T00:00:03.000000000Z c\n"},
		{"web/c?sinceTime=2026-11-21T00:00:02Z", 200, "b\nc\n"},
		{"web/c?limitBytes=3", 200, "a\nb"},
		{"web/c?previous=true", 400, "previous terminated container \"c\" in pod \"web\" not found\n"},
		{"web/c?tailLines=x", 400, "invalid value \"x\" of parameter tailLines\n"},
		{"web/c?follow=maybe", 400, "invalid value \"maybe\" of parameter follow\n"},
		{"web/d", 404, "container \"d\" not found in pod \"web\"\n"},
		{"no/c", 404, "pod \"ns/no\" not found\n"},
	}
	for _, tc := range tests {
		if code, got := w.get("api", "/containerLogs/ns/"+tc.path); code != tc.code || got != tc.want {
			t.Errorf("%s: got %d %q, want %d %q", tc.path, code, got, tc.code, tc.want)
		}
	}
}

// Which instance is selected, and the message if there is none (L1.131, L1.132).
func TestLogSource(t *testing.T) {
	terminated := func(id string) corev1.ContainerState {
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ContainerID: id}}
	}
	waiting := func(reason string) corev1.ContainerState {
		return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}
	}
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	tests := []struct {
		name        string
		state, last corev1.ContainerState
		previous    bool
		id, err     string
	}{
		{name: "running", state: running, id: "cur"},
		{name: "previous", state: running, last: terminated("x://old"), previous: true, id: "old"},
		{name: "no previous", state: running, previous: true,
			err: `previous terminated container "c" in pod "web" not found`},
		{name: "terminated", state: terminated("x://t"), last: terminated("x://old"), id: "t"},
		{name: "terminated without id", state: terminated(""), last: terminated("x://old"), id: "old"},
		{name: "terminated without any", state: terminated(""), err: `container "c" in pod "web" is terminated`},
		{name: "crash loop", state: waiting("CrashLoopBackOff"), last: terminated("x://old"), id: "old"},
		{name: "pull error", state: waiting("ErrImagePull"),
			err: `container "c" in pod "web" is waiting to start: image can't be pulled`},
		{name: "pull back-off", state: waiting("ImagePullBackOff"),
			err: `container "c" in pod "web" is waiting to start: trying and failing to pull image`},
		{name: "creating", state: waiting("ContainerCreating"),
			err: `container "c" in pod "web" is waiting to start: ContainerCreating`},
		{name: "nothing known", err: `container "c" in pod "web" is waiting to start - no logs yet`},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web"},
				Status: corev1.PodStatus{InitContainerStatuses: []corev1.ContainerStatus{
					{Name: "c", ContainerID: "x://cur", State: tc.state, LastTerminationState: tc.last}}}}
			id, _, err := logSource(pod, "c", tc.previous)
			if id != tc.id || tc.err == "" && err != nil || tc.err != "" && (err == nil || err.Error() != tc.err) {
				t.Errorf("got %q %v, want %q %s", id, err, tc.id, tc.err)
			}
		})
	}
	if _, _, err := logSource(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web"}}, "c", false); err == nil ||
		err.Error() != `container "c" in pod "web" is not available` {
		t.Error(err)
	}
}

// A follower gets what comes and ends with its container.
func TestFollow(t *testing.T) {
	w := newWorld(t)
	path := w.run("id1", "2026-11-21T00:00:01Z stdout F a\n")
	res, err := w.client("api").Get(w.base + "/containerLogs/ns/web/c?follow=true")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var buf [2]byte
	if _, err := io.ReadFull(res.Body, buf[:]); err != nil || string(buf[:]) != "a\n" {
		t.Fatalf("%q %v", buf, err)
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	io.WriteString(f, "2026-11-21T00:00:02Z stdout F b\n")
	if _, err := io.ReadFull(res.Body, buf[:]); err != nil || string(buf[:]) != "b\n" {
		t.Fatalf("%q %v", buf, err)
	}
	io.WriteString(f, "2026-11-21T00:00:02Z stdout F end\n")
	w.change(func() { delete(w.running, "c") })
	if rest, err := io.ReadAll(res.Body); err != nil || string(rest) != "end\n" {
		t.Errorf("%q %v", rest, err)
	}
}

// An open stream does not keep the server from stopping.
func TestStopEndsStreams(t *testing.T) {
	w := newWorld(t)
	w.run("id1", "2026-11-21T00:00:01Z stdout F a\n")
	inside := make(chan struct{})
	w.exec = func(ctx context.Context, _ []string, in io.Reader, _, _ io.WriteCloser, _ bool) error {
		close(inside)
		_, err := io.Copy(io.Discard, in) // until the connection ends
		return err
	}
	res, err := w.client("api").Get(w.base + "/containerLogs/ns/web/c?follow=true")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r, _ := io.Pipe()
		w.remote(t, "exec", false, url.Values{"command": {"cat"}, "input": {"1"}, "output": {"1"}},
			remotecommand.StreamOptions{Stdin: r, Stdout: io.Discard})
	}()
	<-inside
	if err := w.stop(); err != nil {
		t.Error(err)
	}
	io.Copy(io.Discard, res.Body)
	<-ended
}

func (w *world) restConfig() *rest.Config {
	_, cert, key := w.ca.pair("api")
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: w.ca.cert.Raw})
	return &rest.Config{Host: w.base, TLSClientConfig: rest.TLSClientConfig{CAData: ca, CertData: cert, KeyData: key}}
}

// remote runs a stream as kubectl does.
func (w *world) remote(t *testing.T, kind string, websocket bool, q url.Values, o remotecommand.StreamOptions) error {
	t.Helper()
	return w.executor(t, kind, websocket, q).StreamWithContext(context.Background(), o)
}

func (w *world) executor(t *testing.T, kind string, websocket bool, q url.Values) remotecommand.Executor {
	t.Helper()
	u, err := url.Parse(w.base + "/" + kind + "/ns/web/c?" + q.Encode())
	if err != nil {
		t.Fatal(err)
	}
	var e remotecommand.Executor
	if websocket {
		e, err = remotecommand.NewWebSocketExecutorForProtocols(w.restConfig(), "GET", u.String(), "v4.channel.k8s.io")
	} else {
		e, err = remotecommand.NewSPDYExecutor(w.restConfig(), "POST", u)
	}
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// Exec and attach, over SPDY: streams, half-close and exit codes.
func TestExec(t *testing.T) {
	w := newWorld(t)
	w.exec = func(_ context.Context, cmd []string, in io.Reader, out, stderr io.WriteCloser, tty bool) error {
		var text []byte
		if in != nil {
			var err error
			if text, err = io.ReadAll(in); err != nil {
				return err
			}
		}
		fmt.Fprintf(out, "%q %s tty=%v", cmd, text, tty)
		if stderr != nil {
			io.WriteString(stderr, "warn")
		}
		if len(cmd) > 0 && cmd[0] == "fail" {
			return utilexec.CodeExitError{Err: errors.New("exit 7"), Code: 7}
		}
		return nil
	}
	if err := w.remote(t, "exec", false, url.Values{"command": {"x"}, "output": {"1"}},
		remotecommand.StreamOptions{Stdout: io.Discard}); err == nil ||
		!strings.Contains(err.Error(), `container not found ("c")`) {
		t.Errorf("no container runs: %v", err)
	}
	w.run("id1", "")
	call := func(kind string, q url.Values, tty bool) (string, string, error) {
		t.Helper()
		var out, stderr bytes.Buffer
		o := remotecommand.StreamOptions{Stdin: strings.NewReader("in"), Stdout: &out, Tty: tty}
		q.Set("input", "1")
		q.Set("output", "1")
		if tty {
			q.Set("tty", "1")
		} else {
			q.Set("error", "1")
			o.Stderr = &stderr
		}
		err := w.remote(t, kind, false, q, o)
		return out.String(), stderr.String(), err
	}
	out, stderr, err := call("exec", url.Values{"command": {"a", "b c"}}, false)
	if out != `["a" "b c"] in tty=false` || stderr != "warn" || err != nil {
		t.Errorf("exec: %q %q %v", out, stderr, err)
	}
	out, _, err = call("exec", url.Values{"command": {"fail"}}, true)
	var exit clientexec.CodeExitError
	if out != `["fail"] in tty=true` || !errors.As(err, &exit) || exit.Code != 7 {
		t.Errorf("exec with a terminal: %q %v", out, err)
	}
	out, _, err = call("attach", url.Values{}, false)
	if out != `[] in tty=false` || err != nil {
		t.Errorf("attach: %q %v", out, err)
	}
	if code, text := w.get("api", "/exec/ns/web/c?command=x"); code != http.StatusBadRequest ||
		text != "you must specify at least 1 of stdin, stdout, stderr\n" {
		t.Errorf("no streams: %d %q", code, text)
	}
	if code, text := w.get("api", "/exec/ns/web/other-uid/c?command=x&output=1"); code != http.StatusNotFound {
		t.Errorf("wrong uid: %d %q", code, text)
	}

	// Websockets pass through, too: in the protocol of the runtime's streaming server.
	// That of kubectl (v5) is translated by the API server.
	var ws bytes.Buffer
	q := url.Values{"command": {"a"}, "output": {"1"}, "error": {"1"}}
	if err := w.remote(t, "exec", true, q, remotecommand.StreamOptions{Stdout: &ws, Stderr: io.Discard}); err != nil ||
		ws.String() != `["a"]  tty=false` {
		t.Errorf("websocket: %q %v", ws.String(), err)
	}
}

// A request that is not an upgrade reaches no runtime, from any user and with any method: a link that a user follows,
// or a program that fetches URLs for others, runs nothing.
func TestPlainRequestsRunNothing(t *testing.T) {
	w := newWorld(t)
	w.run("id1", "")
	w.exec = func(context.Context, []string, io.Reader, io.WriteCloser, io.WriteCloser, bool) error {
		t.Error("a plain request ran a command")
		return nil
	}
	for _, path := range []string{"/exec/ns/web/c?command=id&output=1", "/exec/ns/web/u1/c?command=id&output=1",
		"/attach/ns/web/c?output=1", "/portForward/ns/web?port=80"} {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			req, err := http.NewRequestWithContext(t.Context(), method, w.base+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Upgrade", "websocket") // without "Connection: Upgrade" it means nothing
			res, err := w.client("api").Do(req)
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(res.Body)
			res.Body.Close()
			if err != nil || res.StatusCode != http.StatusBadRequest || string(text) != "upgrade request required\n" {
				t.Errorf("%s %s: %d %q %v", method, path, res.StatusCode, text, err)
			}
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.opened != 0 {
		t.Errorf("the runtime was asked for %d streams", w.opened)
	}
}

func TestPortForward(t *testing.T) {
	w := newWorld(t)
	rt, upgrader, err := spdy.RoundTripperFor(w.restConfig())
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(w.base + "/portForward/ns/web")
	if err != nil {
		t.Fatal(err)
	}
	stop, ready := make(chan struct{}), make(chan struct{})
	fw, err := portforward.NewOnAddresses(spdy.NewDialer(upgrader, &http.Client{Transport: rt}, "POST", u),
		[]string{"127.0.0.1"}, []string{"0:8080"}, stop, ready, io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- fw.ForwardPorts() }()
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	}
	ports, err := fw.GetPorts()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", ports[0].Local))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(conn)
	if err != nil || string(text) != "sb:8080" {
		t.Errorf("%q %v", text, err)
	}
	close(stop)
	<-done
	if code, text := w.get("api", "/portForward/ns/web?port=0"); code != http.StatusBadRequest ||
		text != "unable to parse \"0\" as a port\n" {
		t.Errorf("%d %q", code, text)
	}
	if code, text := w.get("api", "/portForward/ns/web?port=1"+strings.Repeat(",1", mostPorts)); text !=
		"at most 128 ports can be forwarded in one connection\n" {
		t.Errorf("%d %q", code, text)
	}
}

// What monitors read is about running instances of our pods only.
func TestStats(t *testing.T) {
	w := newWorld(t)
	w.run("id1", "")
	code, text := w.get("api", "/stats/summary")
	var got summary.Summary
	if err := json.Unmarshal([]byte(text), &got); err != nil || code != http.StatusOK {
		t.Fatal(code, text, err)
	}
	if len(got.Pods) != 1 || len(got.Pods[0].Containers) != 1 ||
		*got.Pods[0].Containers[0].Memory.WorkingSetBytes != 4096 || got.Node.NodeName != "n1" {
		t.Errorf("%s", text)
	}
	if !strings.Contains(text, `"rlimit":`) {
		t.Errorf("not whole: %s", text)
	}
	if _, text = w.get("api", "/stats/summary?only_cpu_and_memory=true"); strings.Contains(text, `"rlimit":`) ||
		!strings.Contains(text, `"usageCoreNanoSeconds":1500000000`) {
		t.Errorf("only CPU and memory: %s", text)
	}
	if code, text = w.get("api", "/stats/summary?only_cpu_and_memory=perhaps"); code != http.StatusBadRequest {
		t.Errorf("%d %s", code, text)
	}
	_, text = w.get("api", "/metrics/resource")
	for _, want := range []string{
		`container_cpu_usage_seconds_total{container="c",namespace="ns",pod="web"} 1.5 2000`,
		`container_memory_working_set_bytes{container="c",namespace="ns",pod="web"} 4096 2000`,
		`container_start_time_seconds{container="c",namespace="ns",pod="web"} 1000`,
		`pod_cpu_usage_seconds_total{namespace="ns",pod="web"} 1.5`,
		`pod_memory_working_set_bytes{namespace="ns",pod="web"} 4096`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("%s is missing in\n%s", want, text)
		}
	}
	for _, want := range []string{"node_cpu_usage_seconds_total ", "node_memory_working_set_bytes "} {
		if !strings.Contains(text, "\n"+want) {
			t.Errorf("%s is missing in\n%s", want, text)
		}
	}
	if !strings.Contains(text, "\nresource_scrape_error 0\n") {
		t.Errorf("no resource_scrape_error in\n%s", text)
	}
	_, text = w.get("api", "/metrics/cadvisor")
	for _, want := range []string{
		`container_cpu_usage_seconds_total{container="c",id="id1",image="",name="id1",namespace="ns",pod="web",cpu="total"} 1.5`,
		`container_memory_working_set_bytes{container="c",id="id1",image="",name="id1",namespace="ns",pod="web"} 4096`,
		`container_start_time_seconds{container="c",id="id1",image="",name="id1",namespace="ns",pod="web"} 1000`,
		"# TYPE machine_cpu_cores gauge",
		"# TYPE container_cpu_usage_seconds_total counter",
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("%s is missing in\n%s", want, text)
		}
	}
	_, text = w.get("api", "/pods")
	var pods corev1.PodList
	if err := json.Unmarshal([]byte(text), &pods); err != nil || pods.Kind != "PodList" || len(pods.Items) != 1 {
		t.Error(cmp.Diff(nil, err), text)
	}
}
