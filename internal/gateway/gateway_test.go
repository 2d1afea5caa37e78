package gateway

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/base/testwait"
	"carob/internal/core/gatewayplan"
	"carob/internal/core/httproute"
	"carob/internal/gateway/certs"
	"carob/internal/gateway/feed"
)

// lab is a gateway with the world of a test and no API server.
type lab struct {
	*Gateway
	t       testing.TB
	world   gatewayplan.World
	slices  map[name][]*discoveryv1.EndpointSlice
	certs   map[name]*tls.Certificate
	http    string
	https   string
	created int
}

var loopbacks atomic.Uint32

// freePort is a port without a listener. Each is on a loopback address of its own, so that no other socket takes it.
func freePort(t testing.TB) netip.AddrPort { t.Helper(); return freePorts(t, 1)[0] }

// freePorts are several of one address.
func freePorts(t testing.TB, count int) (out []netip.AddrPort) {
	t.Helper()
	n := uint32(os.Getpid())<<8 + loopbacks.Add(1) // other processes run the same tests
	host := netip.AddrFrom4([4]byte{127, 64 | byte(n>>16)&63, byte(n >> 8), byte(n)})
	for range count {
		ln, err := net.Listen("tcp", netip.AddrPortFrom(host, 0).String())
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		out = append(out, netip.MustParseAddrPort(ln.Addr().String()))
	}
	return out
}

func newLab(t testing.TB) *lab {
	t.Helper()
	plain, secure := freePort(t), freePort(t)
	class := &networkingv1.IngressClass{ObjectMeta: metav1.ObjectMeta{Name: "carob"},
		Spec: networkingv1.IngressClassSpec{Controller: gatewayplan.IngressController}}
	l := &lab{t: t, slices: map[name][]*discoveryv1.EndpointSlice{}, certs: map[name]*tls.Certificate{},
		http: plain.String(), https: secure.String(),
		world: gatewayplan.World{Classes: []*networkingv1.IngressClass{class}, Services: map[name]*corev1.Service{},
			Secrets: map[name]gatewayplan.Material{}}}
	l.Gateway = New(Config{HTTP: plain, HTTPS: secure, Host: func() []netip.Addr { return nil }})
	t.Cleanup(l.stop)
	return l
}

func (l *lab) update() {
	l.t.Helper()
	world := l.world
	world.Services = maps.Clone(world.Services) // the plan keeps it
	w := &feed.Snapshot{World: world, Services: world.Services, Slices: l.slices, Certificates: l.certs}
	l.apply(l.t.Context(), w)
	if len(l.failed) > 0 {
		l.t.Fatal(l.failed)
	}
}

// service adds a Service with endpoints.
func (l *lab) service(of string, appProtocol string, endpoints ...discoveryv1.Endpoint) {
	key := name{Namespace: "default", Name: of}
	port := corev1.ServicePort{Name: "p", Port: 80}
	if appProtocol != "" {
		port.AppProtocol = &appProtocol
	}
	l.world.Services[key] = &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: of},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{port}}}
	l.slices[key] = nil
	for i := range endpoints { // each has its own port number
		var ip string
		var number int32
		_, err := fmt.Sscanf(strings.Replace(endpoints[i].Addresses[0], ":", " ", 1), "%s %d", &ip, &number)
		if err != nil {
			l.t.Fatal(err)
		}
		endpoints[i].Addresses = []string{ip}
		pname := "p"
		l.slices[key] = append(l.slices[key], &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4,
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint(of, i)},
			Ports:      []discoveryv1.EndpointPort{{Name: &pname, Port: &number}}, Endpoints: endpoints[i : i+1]})
	}
}

func at(addr string, pod types.UID) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{Addresses: []string{strings.TrimPrefix(addr, "http://")},
		TargetRef: &corev1.ObjectReference{Kind: "Pod", UID: pod}}
}

// ingress adds an Ingress for a host; paths are path=service.
func (l *lab) ingress(host string, annotations map[string]string, paths ...string) *networkingv1.Ingress {
	l.created++
	class := "carob"
	in := &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("i", l.created),
		Annotations: map[string]string{}}, Spec: networkingv1.IngressSpec{IngressClassName: &class}}
	for k, v := range annotations {
		in.Annotations["nginx.ingress.kubernetes.io/"+k] = v
	}
	rule := networkingv1.IngressRule{Host: host}
	rule.HTTP = &networkingv1.HTTPIngressRuleValue{}
	for _, p := range paths {
		path, service, _ := strings.Cut(p, "=")
		kind := networkingv1.PathTypePrefix
		if strings.Contains(path, "(") {
			kind = networkingv1.PathTypeImplementationSpecific
		}
		rule.HTTP.Paths = append(rule.HTTP.Paths, networkingv1.HTTPIngressPath{Path: path, PathType: &kind,
			Backend: networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{Name: service,
				Port: networkingv1.ServiceBackendPort{Number: 80}}}})
	}
	in.Spec.Rules = []networkingv1.IngressRule{rule}
	l.world.Ingresses = append(l.world.Ingresses, in)
	return in
}

// recorded waits until the request of a client's connection has ended in the gateway, too: log, metrics, and traces
// have it after the client has the response.
func (l *lab) recorded(client string) {
	l.t.Helper()
	testwait.For(l.t, "the request is recorded", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, p := range l.ports {
			if p.conns.Serves(client) || p.plain != nil && p.plain.Serves(client) {
				return false
			}
		}
		return true
	})
}

// get sends a request and returns status and body, when the gateway has recorded it.
func (l *lab) get(method, host, path string, body io.Reader, headers ...string) (int, string, http.Header) {
	l.t.Helper()
	var local string
	ctx := httptrace.WithClientTrace(l.t.Context(), &httptrace.ClientTrace{GotConn: func(got httptrace.GotConnInfo) {
		local = got.Conn.LocalAddr().String()
	}})
	r, err := http.NewRequestWithContext(ctx, method, "http://"+l.http+path, body)
	if err != nil {
		l.t.Fatal(err)
	}
	r.Host = host
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	defer client.CloseIdleConnections()
	res, err := client.Do(r)
	if err != nil {
		l.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		l.t.Fatal(err)
	}
	l.recorded(local)
	return res.StatusCode, string(text), res.Header
}

// echo answers with what it was sent.
func echo(t *testing.T, who string) *httptest.Server {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		w.Header().Set("X-Who", who)
		fmt.Fprintf(w, "%s %s %s host=%s body=%d xff=%q proto=%s te=%v", who, r.Method, r.RequestURI, r.Host, len(text),
			r.Header["X-Forwarded-For"], r.Header.Get("X-Forwarded-Proto"), r.TransferEncoding)
	}))
	t.Cleanup(s.Close)
	return s
}

func want(t *testing.T, what string, status int, text string, wantStatus int, parts ...string) {
	t.Helper()
	if status != wantStatus {
		t.Errorf("%s: status %d, want %d: %s", what, status, wantStatus, text)
	}
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("%s: %q is not in %q", what, p, text)
		}
	}
}

func TestIngress(t *testing.T) {
	l := newLab(t)
	l.service("a", "", at(echo(t, "a").URL, "pa"))
	l.service("b", "", at(echo(t, "b").URL, "pb"))
	l.service("empty", "")
	l.ingress("x.example.com", nil, "/=a", "/b=b", "/none=missing", "/empty=empty")
	l.ingress("*.example.com", nil, "/=b")
	l.ingress("rw.example.com", map[string]string{"rewrite-target": "/new/$2", "proxy-body-size": "10"},
		"/old(/|$)(.*)=a")
	l.ingress("auth.example.com", map[string]string{"auth-url": "http://x"}, "/=a")
	l.update()
	for _, c := range []struct {
		host, path string
		status     int
		part       string
	}{
		{"x.example.com", "/", 200, "a GET / host=x.example.com"}, {"X.example.com:99", "/b/c?d=%zz;e", 200,
			"b GET /b/c?d=%zz;e "},
		{"x.example.com", "/a%2fb", 200, "a GET /a%2fb "}, {"x.example.com", "/none", 500, ""},
		{"x.example.com", "/empty/", 503, ""}, {"y.example.com", "/q", 200, "b GET /q"}, {"z.y.example.com", "/", 404,
			""},
		{"example.com", "/", 404, ""}, {"rw.example.com", "/old/thing", 200, "a GET /new/thing"},
		{"rw.example.com", "/other", 404, ""}, {"auth.example.com", "/", 200, "b GET"},
		// the wildcard's, not the refused one's
		{"x.example.com", "/b/../secret", 200, "a GET /secret "}, {"x.example.com", "/b/%2e%2e/secret", 200,
			"a GET /secret "},
		{"x.example.com", "/%00", 400, ""}, {"a..b", "/", 400, ""},
	} {
		status, text, _ := l.get("GET", c.host, c.path, nil, "X-Forwarded-For", "6.6.6.6", "X-Forwarded-Proto", "https")
		want(t, c.host+c.path, status, text, c.status, c.part)
		if status == 200 {
			want(t, "forwarded", status, text, 200, `xff=["127.0.0.1"] proto=http`)
		}
	}
	status, text, _ := l.get("POST", "rw.example.com", "/old/", strings.NewReader("more than ten bytes"))
	want(t, "a large body", status, text, 413)
	status, text, _ = l.get("POST", "rw.example.com", "/old/", io.MultiReader(strings.NewReader("more than "),
		strings.NewReader("ten bytes")))
	want(t, "a large body of unknown length", status, text, 413)
	problems := l.plan.Ingresses[name{Namespace: "default", Name: "i4"}].Problems
	if len(problems) != 1 || problems[0].Reason != "UnsupportedAnnotation" {
		t.Errorf("%v", problems)
	}
}

func TestTLS(t *testing.T) {
	l := newLab(t)
	l.service("a", "", at(echo(t, "a").URL, "pa"))
	in := l.ingress("x.example.com", map[string]string{"ssl-redirect": "true"}, "/=a")
	in.Spec.TLS = []networkingv1.IngressTLS{{Hosts: []string{"x.example.com"}, SecretName: "s"}}
	cert, err := certs.SelfSigned(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	secret := name{Namespace: "default", Name: "s"}
	l.certs[secret], l.world.Secrets[secret] = cert, gatewayplan.Material{}
	l.update()
	status, _, h := l.get("GET", "x.example.com", "/p?q=1", nil)
	_, port, _ := net.SplitHostPort(l.https)
	if status != 308 || h.Get("Location") != "https://x.example.com:"+port+"/p?q=1" {
		t.Errorf("redirect: %d %v", status, h)
	}
	seen := func(server string) []byte {
		conn, err := tls.Dial("tcp", l.https, &tls.Config{InsecureSkipVerify: true, ServerName: server,
			NextProtos: []string{"h2"}})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if conn.ConnectionState().NegotiatedProtocol != "h2" {
			t.Error("no HTTP/2")
		}
		return conn.ConnectionState().PeerCertificates[0].Raw
	}
	if string(seen("x.example.com")) != string(cert.Certificate[0]) {
		t.Error("another certificate")
	}
	if string(seen("other.example.com")) != string(l.fallback.Certificate[0]) {
		t.Error("an unknown name does not get the default certificate")
	}
	// A new certificate is used by the next connection; a connection that is open goes on.
	pool := x509.NewCertPool()
	leaf, _ := x509.ParseCertificate(cert.Certificate[0])
	pool.AddCert(leaf)
	client := &http.Client{Transport: &http.Transport{ForceAttemptHTTP2: true,
		TLSClientConfig: &tls.Config{RootCAs: pool, ServerName: "x.example.com", InsecureSkipVerify: true}}}
	defer client.CloseIdleConnections()
	get := func() string {
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+l.https+"/", nil)
		r.Host = "x.example.com"
		res, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		text, _ := io.ReadAll(res.Body)
		return res.Proto + " " + string(text)
	}
	want(t, "https", 200, get(), 200, "HTTP/2.0 a GET / host=x.example.com", "proto=https")
	next, err := certs.SelfSigned(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	l.certs[secret] = next
	l.update()
	if string(seen("x.example.com")) != string(next.Certificate[0]) {
		t.Error("the new certificate is not used")
	}
	want(t, "https again", 200, get(), 200, "a GET / host=x.example.com")
}

// What a backend gets is one request for each request, however a client frames it.
func TestSmuggling(t *testing.T) {
	var mu sync.Mutex
	got := map[string]int{}
	backend := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		got[r.URL.Path]++
		mu.Unlock()
		_, _ = io.Copy(io.Discard, r.Body)
	}))
	defer backend.Close()
	l := newLab(t)
	l.service("a", "", at(backend.URL, "pa"))
	l.ingress("x.example.com", nil, "/=a")
	l.update()
	cases := 0
	const evil = "GET /evil HTTP/1.1\r\nHost: x.example.com\r\n\r\n"
	for what, raw := range map[string]string{
		"CL.TE": "POST /ok HTTP/1.1\r\nHost: x.example.com\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n" +
			"Connection: close\r\n\r\n0\r\n\r\n" + evil,
		"TE.CL": "POST /ok HTTP/1.1\r\nHost: x.example.com\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n" +
			"Connection: close\r\n\r\n2b\r\n" + evil[:43] + "\r\n0\r\n\r\n",
		"TE obscured":            "POST /ok HTTP/1.1\r\nHost: x.example.com\r\nTransfer-Encoding: xchunked\r\nContent-Length: 0\r\n\r\n" + evil,
		"TE with a tab":          "POST /ok HTTP/1.1\r\nHost: x.example.com\r\nTransfer-Encoding:\tchunked, identity\r\n\r\n0\r\n\r\n" + evil,
		"two lengths":            "POST /ok HTTP/1.1\r\nHost: x.example.com\r\nContent-Length: 0\r\nContent-Length: 44\r\n\r\n" + evil,
		"space before the colon": "POST /ok HTTP/1.1\r\nHost: x.example.com\r\nContent-Length : 44\r\n\r\n" + evil,
		"sign in the length":     "POST /ok HTTP/1.1\r\nHost: x.example.com\r\nContent-Length: +44\r\n\r\n" + evil,
		"bare CR":                "POST /ok HTTP/1.1\r\nHost: x.example.com\r\nX: y\rTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n",
		"two hosts":              "GET /ok HTTP/1.1\r\nHost: x.example.com\r\nHost: y.example.com\r\n\r\n",
		"chunk extension": "POST /ok HTTP/1.1\r\nHost: x.example.com\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n" +
			"0;a\n\r\n\r\n" + evil,
		"upgrade to h2c": "GET /ok HTTP/1.1\r\nHost: x.example.com\r\nConnection: Upgrade, HTTP2-Settings, close\r\n" +
			"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n",
	} {
		cases++
		raw = strings.Replace(raw, "/ok", fmt.Sprint("/ok", cases), 1)
		conn, err := net.Dial("tcp", l.http)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
		if _, err := io.WriteString(conn, raw); err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(conn)
		conn.Close()
		mu.Lock()
		if n := got["/evil"]; n > 0 {
			t.Errorf("%s: the backend got a request that was hidden in another: %s", what, text)
			delete(got, "/evil")
		}
		mu.Unlock()
	}
	mu.Lock()
	defer mu.Unlock()
	for path, n := range got {
		if n != 1 {
			t.Errorf("the backend got %s %d times", path, n)
		}
	}
	if len(got) == 0 || len(got) == cases {
		t.Errorf("%d of %d requests were sent on", len(got), cases)
	}
}

func TestUpgrade(t *testing.T) {
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "websocket" {
			http.Error(w, "no", http.StatusBadRequest)
			return
		}
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		fmt.Fprint(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		_ = rw.Flush()
		line, _ := rw.ReadString('\n')
		fmt.Fprint(rw, "echo "+line)
		_ = rw.Flush()
	}))
	defer backend.Close()
	l := newLab(t)
	l.service("a", "kubernetes.io/ws", at(backend.URL, "pa"))
	l.ingress("x.example.com", nil, "/=a")
	l.update()
	conn, err := net.Dial("tcp", l.http)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: x.example.com\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	r := bufio.NewReader(conn)
	res, err := http.ReadResponse(r, nil)
	if err != nil || res.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%v %v", res, err)
	}
	if !l.Routed("pa") {
		t.Error("the pod with the connection is not routed")
	}
	fmt.Fprint(conn, "hello\n")
	if line, err := r.ReadString('\n'); line != "echo hello\n" {
		t.Errorf("%q %v", line, err)
	}
}

// HTTP/2 without TLS on both sides, with trailers, as gRPC uses it.
func TestH2C(t *testing.T) {
	backend := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "Grpc-Status")
		_, _ = io.Copy(w, r.Body)
		fmt.Fprint(w, r.Proto)
		w.Header().Set("Grpc-Status", "0")
	}))
	backend.Config.Protocols = &http.Protocols{}
	backend.Config.Protocols.SetUnencryptedHTTP2(true)
	backend.Start()
	defer backend.Close()
	l := newLab(t)
	l.service("a", "kubernetes.io/h2c", at(backend.URL, "pa"))
	l.ingress("x.example.com", nil, "/=a")
	l.update()
	tr := &http.Transport{Protocols: &http.Protocols{}}
	tr.Protocols.SetUnencryptedHTTP2(true)
	defer tr.CloseIdleConnections()
	r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+l.http+"/svc/m",
		strings.NewReader("body "))
	r.Host = "x.example.com"
	res, err := tr.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	text, _ := io.ReadAll(res.Body)
	res.Body.Close()
	if res.Proto != "HTTP/2.0" || string(text) != "body HTTP/2.0" || res.Trailer.Get("Grpc-Status") != "0" {
		t.Errorf("%s %q %v", res.Proto, text, res.Trailer)
	}
}

// An endpoint that cannot be connected to makes way for the next one, also for a request with a body.
func TestRetryOfConnections(t *testing.T) {
	l := newLab(t)
	dead := freePort(t).String()
	l.service("a", "", at(dead, "dead"), at(echo(t, "a").URL, "pa"))
	l.ingress("x.example.com", nil, "/=a")
	l.update()
	for range 10 {
		status, text, _ := l.get("POST", "x.example.com", "/", strings.NewReader("12345"))
		want(t, "post", status, text, 200, "body=5")
	}
	l.service("a", "", at(dead, "dead"))
	l.update()
	status, text, _ := l.get("GET", "x.example.com", "/", nil)
	want(t, "all are dead", status, text, 503)
}

// A deleted pod gets no new request; it is routed until its requests have ended, and then Follow reports it. No request
// fails meanwhile.
func TestDeletedPodLosesNoRequest(t *testing.T) {
	hold, entered := make(chan struct{}), make(chan struct{})
	var late atomic.Int64
	var leaving atomic.Bool
	old := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			close(entered)
			<-hold
			fmt.Fprint(w, "slow")
			return
		}
		if leaving.Load() {
			late.Add(1)
		}
	}))
	defer old.Close()
	l := newLab(t)
	next := echo(t, "new")
	l.service("a", "", at(old.URL, "old"))
	l.ingress("x.example.com", nil, "/=a")
	l.update()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	released := make(chan types.UID, 100)
	var wg sync.WaitGroup
	wg.Go(func() { l.Follow(ctx, func(pod types.UID) { released <- pod }) })
	slow := make(chan string, 1)
	go func() {
		_, text, _ := l.get("GET", "x.example.com", "/slow", nil)
		slow <- text
	}()
	<-entered
	var failed, done atomic.Int64
	load, stopLoad := context.WithCancel(t.Context())
	for range 4 {
		wg.Go(func() {
			client := &http.Client{Transport: &http.Transport{}}
			defer client.CloseIdleConnections()
			for load.Err() == nil {
				r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+l.http+"/", nil)
				r.Host = "x.example.com"
				res, err := client.Do(r)
				if err != nil || res.StatusCode != http.StatusOK {
					failed.Add(1)
					continue
				}
				_, _ = io.Copy(io.Discard, res.Body)
				res.Body.Close()
				done.Add(1)
			}
		})
	}
	for done.Load() < 50 && failed.Load() == 0 {
		time.Sleep(time.Millisecond) //nolint:forbidigo // requests are under way
	}
	var target *Target
	for _, t := range l.traffic.targets {
		target = t
	}
	l.service("a", "", at(next.URL, "new"))
	l.update()
	if !l.Routed("old") {
		t.Error("the pod has a request, but it is not routed")
	}
	for target.requests.Load() > 1 {
		time.Sleep(time.Millisecond) //nolint:forbidigo // requests that began before are ending; the slow one stays
	}
	leaving.Store(true)
	for mark := done.Load(); done.Load() < mark+50 && failed.Load() == 0; {
		time.Sleep(time.Millisecond) //nolint:forbidigo // requests are under way
	}
	close(hold)
	if text := <-slow; text != "slow" {
		t.Errorf("the request in flight got %q", text)
	}
	for pod := range released {
		if pod == "old" {
			break
		}
	}
	if l.Routed("old") {
		t.Error("the pod is routed though its last request has ended")
	}
	stopLoad()
	cancel()
	wg.Wait()
	if failed.Load() > 0 || late.Load() > 0 {
		t.Errorf("%d requests failed, %d came late, of %d", failed.Load(), late.Load(), done.Load())
	}
	if !l.Routed("new") || l.Routed("unknown") {
		t.Error("pods that go on are routed, others are not")
	}
}

// Headers that are too long are refused by the server, and a silent client is disconnected.
func TestHeaderBombs(t *testing.T) {
	l := newLab(t)
	l.service("a", "", at(echo(t, "a").URL, "pa"))
	l.ingress("x.example.com", nil, "/=a")
	l.update()
	status, text, _ := l.get("GET", "x.example.com", "/", nil, "X-Long", strings.Repeat("a", 80<<10))
	want(t, "a long header", status, text, 431)
	status, text, _ = l.get("GET", "x.example.com", "/", nil, "X-Long", strings.Repeat("a", 30<<10))
	want(t, "a header that fits", status, text, 200)
	if s := l.ports[l.cfg.HTTP].server; s.ReadHeaderTimeout != headerTime || s.IdleTimeout != keepAlive {
		t.Error("a slow client is not cut off")
	}
}

// A change of routes breaks no connection, and a port that is no longer wanted is closed.
// A port that another process uses is tried again without a new plan, whose cost is that of all routes, unless the
// addresses of the host have changed.
func TestTakenPortIsTriedAgain(t *testing.T) {
	l := newLab(t)
	taken, err := net.Listen("tcp", l.http)
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	l.service("a", "", at(echo(t, "a").URL, "pa"))
	l.ingress("x.example.com", nil, "/=a")
	l.apply(t.Context(), &feed.Snapshot{World: l.world, Services: l.world.Services, Slices: l.slices})
	plan := l.plan
	if !l.reopen(t.Context()) || !l.anyFailed() {
		t.Error("the port is not taken any more")
	}
	taken.Close()
	if !l.reopen(t.Context()) || l.anyFailed() || l.plan != plan {
		t.Errorf("%v, or there is a new plan", l.failed)
	}
	status, text, _ := l.get("GET", "x.example.com", "/", nil)
	want(t, "when it is free", status, text, 200)
	l.cfg.Host = func() []netip.Addr { return []netip.Addr{netip.MustParseAddr("10.0.0.1")} }
	if l.reopen(t.Context()) {
		t.Error("the plan may be another one with other addresses")
	}
}

func TestPortsFollow(t *testing.T) {
	l := newLab(t)
	l.service("a", "", at(echo(t, "a").URL, "pa"))
	l.update()
	if len(l.ports) != 0 {
		t.Error("a port is open though there is no Ingress")
	}
	l.ingress("x.example.com", nil, "/=a")
	l.update()
	status, text, _ := l.get("GET", "x.example.com", "/", nil)
	want(t, "first", status, text, 200)
	l.world.Ingresses = nil
	l.update()
	l.closed.Wait()
	if _, err := net.Dial("tcp", l.http); err == nil {
		t.Error("the port is still open")
	}
	if l.Routed("pa") {
		t.Error("a pod without routes is routed")
	}
}

// deadlines is an answer that notes its deadlines.
type deadlines struct {
	*httptest.ResponseRecorder
	set []time.Time
}

func (d *deadlines) SetWriteDeadline(t time.Time) error {
	d.set = append(d.set, t)
	return nil
}

// The deadline of an answer does not hold for the next one on the same connection, which may come later.
func TestDeadlinesEnd(t *testing.T) {
	l := newLab(t)
	l.service("a", "", at(echo(t, "a").URL, "pa"))
	l.ingress("x.example.com", nil, "/=a")
	l.update()
	w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://x.example.com/", nil)
	l.ports[l.cfg.HTTP].ServeHTTP(w, r)
	if w.Code != http.StatusOK || len(w.set) != 2 || !w.set[0].IsZero() || w.set[1].IsZero() {
		t.Errorf("%d, deadlines %v", w.Code, w.set)
	}
}

// late is a picker during whose first call something happens.
type late struct {
	Picker
	once  sync.Once
	event func()
}

func (l *late) Pick(ctx context.Context, f *Facts, endpoints []*Target) ([]*Target, error) {
	l.once.Do(l.event)
	return l.Picker.Pick(ctx, f, endpoints)
}

// An endpoint that leaves after it was picked, and before the request is sent, does not get the request: it is picked
// again.
func TestPickedBeforeItLeft(t *testing.T) {
	l := newLab(t)
	old, next := echo(t, "old"), echo(t, "next")
	l.service("a", "", at(old.URL, "old"))
	l.ingress("x.example.com", nil, "/=a")
	l.update()
	p, _ := l.pools.Get(httproute.Ref{Namespace: "default", Name: "a", Port: 80})
	p.pick = &late{Picker: p.pick, event: func() {
		l.service("a", "", at(next.URL, "next"))
		l.update()
		if l.Routed("old") {
			t.Error("the pod has no request, and is routed")
		}
	}}
	status, text, _ := l.get("POST", "x.example.com", "/", strings.NewReader("12345"))
	want(t, "the request", status, text, 200, "next POST", "body=5")
	p.pick = &late{Picker: p.pick, event: func() {
		l.service("a", "")
		l.update()
	}}
	status, text, _ = l.get("GET", "x.example.com", "/", nil)
	want(t, "nobody is left", status, text, 503)
}
