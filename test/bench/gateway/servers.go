package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"

	"carob/internal/base/gctuning"
	"carob/internal/core/gatewayplan"
	"carob/internal/gateway"
)

const benchHost = "bench.test"

// routeHost is the host of one of many routes.
func routeHost(i int) string { return fmt.Sprintf("h%d.%s", i, benchHost) }

// upstream answers /1k and /100k until ctx is done.
func upstream(ctx context.Context) error {
	ln, err := net.Listen("tcp", upstreamAt)
	if err != nil {
		return err
	}
	bodies := map[string][]byte{"/1k": bytes.Repeat([]byte("x"), 1<<10), "/100k": bytes.Repeat([]byte("x"), 100<<10)}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, known := bodies[r.URL.Path]
		if !known {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(body)))
		w.Header().Set("Content-Type", "text/plain")
		_, _ = w.Write(body)
	}), ReadHeaderTimeout: time.Minute}
	context.AfterFunc(ctx, func() { _ = s.Close() })
	if err := s.Serve(ln); ctx.Err() == nil {
		return err
	}
	return nil
}

// carob runs carob's gateway alone, with an API server in memory: what it costs is the gateway's. Each line of its
// standard input is the host of one more Ingress.
func carob(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("carob", flag.ExitOnError)
	routes := flags.Int("routes", 0, "further routes")
	dir := flags.String("dir", "", "directory with the certificate")
	profile := flags.String("profile", "", "file for a profile of the processor")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *profile != "" {
		f, err := os.Create(*profile)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	cert, err := os.ReadFile(filepath.Join(*dir, "cert.pem"))
	if err != nil {
		return err
	}
	key, err := os.ReadFile(filepath.Join(*dir, "key.pem"))
	if err != nil {
		return err
	}
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "default", Name: name} }
	to := netip.MustParseAddrPort(upstreamAt)
	port, portName, prefix, ready := int32(to.Port()), "http", networkingv1.PathTypePrefix, true
	ingress := func(host string) *networkingv1.Ingress {
		in := &networkingv1.Ingress{ObjectMeta: meta(host), Spec: networkingv1.IngressSpec{
			IngressClassName: new(gatewayplan.Class), Rules: []networkingv1.IngressRule{{Host: host}}}}
		in.Spec.Rules[0].HTTP = &networkingv1.HTTPIngressRuleValue{Paths: []networkingv1.HTTPIngressPath{{Path: "/",
			PathType: &prefix, Backend: networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{
				Name: "up", Port: networkingv1.ServiceBackendPort{Number: 80}}}}}}
		in.Status.LoadBalancer.Ingress = []networkingv1.IngressLoadBalancerIngress{{ // it has been served before
			IP: netip.MustParseAddrPort(plainAt).Addr().String()}}
		return in
	}
	first := ingress(benchHost)
	first.Spec.TLS = []networkingv1.IngressTLS{{SecretName: "cert"}}
	objects := []apiruntime.Object{first,
		&networkingv1.IngressClass{ObjectMeta: metav1.ObjectMeta{Name: gatewayplan.Class},
			Spec: networkingv1.IngressClassSpec{Controller: gatewayplan.IngressController}},
		&corev1.Service{ObjectMeta: meta("up"), Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: portName,
			Port: 80}}}},
		&discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "up-1",
			Labels: map[string]string{discoveryv1.LabelServiceName: "up"}}, AddressType: discoveryv1.AddressTypeIPv4,
			Ports: []discoveryv1.EndpointPort{{Name: &portName, Port: &port}},
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{to.Addr().String()},
				Conditions: discoveryv1.EndpointConditions{Ready: &ready}}}},
		&corev1.Secret{ObjectMeta: meta("cert"), Type: corev1.SecretTypeTLS,
			Data: map[string][]byte{corev1.TLSCertKey: cert, corev1.TLSPrivateKeyKey: key}}}
	for i := range *routes {
		objects = append(objects, ingress(routeHost(i)))
	}
	client := fake.NewClientset(objects...)
	g := gateway.New(gateway.Config{Client: client, HTTP: netip.MustParseAddrPort(plainAt),
		HTTPS: netip.MustParseAddrPort(secureAt), Host: func() []netip.Addr { return nil },
		Events: record.NewFakeRecorder(1 << 20)})
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		lines := bufio.NewScanner(os.Stdin)
		for lines.Scan() {
			in := ingress(lines.Text())
			_, err := client.NetworkingV1().Ingresses("default").Create(ctx, in, metav1.CreateOptions{})
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}
		cancel() // the parent has ended
	}()
	var group errgroup.Group
	group.Go(func() error { return gctuning.Follow(ctx, time.Second) }) // as in carob up
	group.Go(func() error { defer cancel(); return g.Run(ctx) })
	return group.Wait()
}

// lab has the programs, and the server behind them.
type lab struct {
	options
	dir       string
	upstream  *exec.Cmd
	programs  map[string]string
	libraries []string // directories with what the programs need
}

// prepare starts the server behind all, and finds the programs.
func (l *lab) prepare(ctx context.Context) error {
	if err := l.certificate(); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	l.programs = map[string]string{"carob": self, "before": l.before}
	var missing []string
	for _, name := range []string{"nginx", "haproxy", "caddy"} {
		if path, err := exec.LookPath(name); err == nil {
			l.programs[name] = path
		} else if slices.Contains(l.only, name) {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		if err := l.download(ctx, missing); err != nil {
			return fmt.Errorf("%s are not installed: %w", strings.Join(missing, ", "), err)
		}
	}
	l.upstream = exec.Command(self, "upstream")
	l.upstream.Stderr = os.Stderr
	if err := l.upstream.Start(); err != nil {
		return err
	}
	return waits(ctx, upstreamAt)
}

func (l *lab) end() { stop(l.upstream) }

// download unpacks packages of Debian with the libraries that they need and the machine lacks; nothing is installed.
func (l *lab) download(ctx context.Context, names []string) error {
	debs := filepath.Join(l.dir, "debs")
	if err := os.MkdirAll(filepath.Join(debs, "partial"), 0o755); err != nil {
		return err
	}
	get := exec.CommandContext(ctx, "apt-get", append([]string{"-qq", "-y", "--download-only", "--no-install-recommends",
		"-o", "Debug::NoLocking=1", "-o", "Dir::Cache::archives=" + debs, "install"}, names...)...)
	if out, err := get.CombinedOutput(); err != nil {
		return fmt.Errorf("apt-get install --download-only: %w: %s", err, out)
	}
	packages, err := filepath.Glob(filepath.Join(debs, "*.deb"))
	if err != nil {
		return err
	}
	root := filepath.Join(l.dir, "root")
	for _, p := range packages {
		if out, err := exec.CommandContext(ctx, "dpkg", "-x", p, root).CombinedOutput(); err != nil {
			return fmt.Errorf("dpkg -x: %w: %s", err, out)
		}
	}
	for _, at := range []string{"lib", "usr/lib"} {
		found, err := filepath.Glob(filepath.Join(root, at, "*-linux-gnu"))
		if err != nil {
			return err
		}
		l.libraries = append(l.libraries, found...)
	}
	runs := func(path, arg string) bool {
		cmd := exec.CommandContext(ctx, path, arg)
		cmd.Env = l.environment()
		return cmd.Run() == nil
	}
	for _, name := range names {
		for _, at := range []string{"usr/sbin", "usr/bin"} {
			if path := filepath.Join(root, at, name); runs(path, "-v") || runs(path, "version") {
				l.programs[name] = path
			}
		}
		if l.programs[name] == "" {
			return fmt.Errorf("%s does not run: install its package", name)
		}
	}
	return nil
}

// environment is that of a program: its home is temporary, and the libraries that were downloaded are there.
func (l *lab) environment() []string {
	return append(os.Environ(), "HOME="+l.dir, "XDG_DATA_HOME="+l.dir, "XDG_CONFIG_HOME="+l.dir,
		"LD_LIBRARY_PATH="+strings.Join(l.libraries, ":"))
}

// certificate writes the certificate that all show: ECDSA P-256.
func (l *lab) certificate() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{benchHost},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	private := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})
	return errors.Join(l.write("cert.pem", cert), l.write("key.pem", private),
		l.write("both.pem", append(cert, private...)))
}

func (l *lab) write(name string, text []byte) error {
	return os.WriteFile(filepath.Join(l.dir, name), text, 0o600)
}

// start starts a server with a number of further routes, and waits until it serves.
func (l *lab) start(ctx context.Context, name string, routes int) (*exec.Cmd, io.WriteCloser, error) {
	var args []string
	var text string
	switch name {
	case "carob", "before":
		args = []string{"carob", "-dir", l.dir, "-routes", fmt.Sprint(routes), "-profile", l.profile}
	case "nginx":
		args, text = []string{"-p", l.dir, "-e", "stderr", "-c", "conf"}, l.nginx(routes)
	case "haproxy":
		args, text = []string{"-q", "-f", filepath.Join(l.dir, "conf")}, l.haproxy(routes)
	case "caddy":
		args = []string{"run", "--config", filepath.Join(l.dir, "conf"), "--adapter", "caddyfile"}
		text = l.caddy(routes)
	default:
		return nil, nil, errors.New("unknown server")
	}
	if err := l.write("conf", []byte(text)); err != nil {
		return nil, nil, err
	}
	cmd := exec.Command(l.programs[name], args...)
	cmd.Env = l.environment()
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, nil, err
	}
	errs := &bytes.Buffer{}
	cmd.Stderr = errs
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	if err := errors.Join(waits(ctx, plainAt), waits(ctx, secureAt)); err != nil {
		stop(cmd)
		return nil, nil, fmt.Errorf("%w: %s", err, errs)
	}
	return cmd, in, nil
}

// stop ends a program that this one has started.
func stop(cmd *exec.Cmd) {
	_ = cmd.Process.Signal(os.Interrupt)
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		_ = cmd.Process.Kill()
		<-ended
	}
}

// waits for an address that is listened on.
func waits(ctx context.Context, at string) error {
	for limit := time.Now().Add(3 * time.Minute); ; {
		c, err := net.Dial("tcp", at)
		if err == nil {
			return c.Close()
		}
		if time.Now().After(limit) || ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (l *lab) nginx(routes int) string {
	var b strings.Builder
	fmt.Fprintf(&b, `daemon off;
pid nginx.pid;
worker_processes auto;
%s
events { worker_connections 9000; }
http {
	access_log off;
	server_names_hash_max_size 65536;
	server_names_hash_bucket_size 128;
	client_body_temp_path tmp-body; proxy_temp_path tmp-proxy; fastcgi_temp_path tmp-fastcgi;
	uwsgi_temp_path tmp-uwsgi; scgi_temp_path tmp-scgi;
	keepalive_requests 100000000; keepalive_timeout 600s;
	upstream up { server %s; keepalive 512; keepalive_requests 100000000; }
	proxy_http_version 1.1;
	proxy_set_header Connection "";
	proxy_set_header Host $host;
	proxy_set_header X-Forwarded-For $remote_addr;
	ssl_certificate cert.pem; ssl_certificate_key key.pem; ssl_session_tickets off; ssl_session_cache off;
	ssl_protocols TLSv1.3;
`, userLine(), upstreamAt)
	server := func(host string) {
		fmt.Fprintf(&b, "	server { listen %s; listen %s ssl http2; server_name %s; location / { proxy_pass http://up; } }\n",
			plainAt, secureAt, host)
	}
	server(benchHost)
	for i := range routes {
		server(routeHost(i))
	}
	return b.String() + "}\n"
}

// userLine keeps nginx's workers able to read the directory of root.
func userLine() string {
	if os.Getuid() == 0 {
		return "user root root;"
	}
	return ""
}

func (l *lab) haproxy(routes int) string {
	var hosts strings.Builder
	for i := range routes {
		fmt.Fprintf(&hosts, "%s up\n", routeHost(i))
	}
	fmt.Fprintf(&hosts, "%s up\n", benchHost)
	_ = l.write("hosts", []byte(hosts.String())) // the start reports it
	return fmt.Sprintf(`global
	maxconn 9000
	nbthread %d
	tune.ssl.cachesize 0
	ssl-default-bind-options no-tls-tickets ssl-min-ver TLSv1.3
defaults
	mode http
	option forwardfor
	http-reuse always
	timeout connect 5s
	timeout client 600s
	timeout server 600s
	timeout http-keep-alive 600s
frontend main
	bind %s
	bind %s ssl crt %s alpn h2,http/1.1
	use_backend %%[req.hdr(host),lower,map(%s)]
backend up
	server up %s pool-max-conn 512
`, runtime.NumCPU(), plainAt, secureAt, filepath.Join(l.dir, "both.pem"), filepath.Join(l.dir, "hosts"), upstreamAt)
}

func (l *lab) caddy(routes int) string {
	hosts := []string{"http://" + benchHost + ":8080"}
	for i := range routes {
		hosts = append(hosts, "http://"+routeHost(i)+":8080")
	}
	ip := strings.TrimSuffix(plainAt, ":8080")
	block := "{\n	bind " + ip + "\n	reverse_proxy " + upstreamAt + "\n%s}\n"
	return "{\n	admin off\n	auto_https off\n	default_bind " + ip + "\n	http_port 8080\n	https_port 8443\n}\n" +
		strings.Join(hosts, ", ") + " " + fmt.Sprintf(block, "") + "https://" + benchHost + ":8443 " +
		fmt.Sprintf(block, "	tls "+filepath.Join(l.dir, "cert.pem")+" "+filepath.Join(l.dir, "key.pem")+"\n")
}
