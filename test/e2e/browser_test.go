package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"carob/internal/base/testwait"
)

// blog is document 003's WordPress behind an Ingress and behind a Gateway, both with TLS.
const blog = `
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: wp}
spec:
  tls: [{hosts: [blog.example.com], secretName: blog}]
  rules:
  - host: blog.example.com
    http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: wp, port: {number: 80}}}}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: wp}
spec:
  gatewayClassName: carob
  listeners:
  - {name: https, port: 443, protocol: HTTPS, hostname: blog.example.com, tls: {certificateRefs: [{name: blog}]}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: wp}
spec:
  parentRefs: [{name: wp}]
  hostnames: [blog.example.com]
  rules: [{backendRefs: [{name: wp, port: 80}]}]
`

// browser runs a headless Chromium: it takes a picture of a page, and returns its document after all scripts. host is
// reached at an address, and only the certificate of one key is trusted.
func browser(t *testing.T, page, host, at, spki, picture string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	args := []string{"--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
		"--disable-background-networking", "--no-first-run", "--user-data-dir=" + t.TempDir(),
		"--host-resolver-rules=MAP " + host + " " + at + ", MAP * ~NOTFOUND", // parts of other sites must not delay it
		"--ignore-certificate-errors-spki-list=" + spki, "--window-size=1200,900", "--timeout=60000"}
	var dom string
	for _, what := range []string{"--dump-dom", "--screenshot=" + picture} {
		cmd := exec.CommandContext(ctx, os.Getenv("BROWSER"), append(args, what, page)...)
		var errs strings.Builder
		cmd.Stderr = &errs
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s %s: %v: %s", page, what, err, errs.String())
		}
		if what == "--dump-dom" {
			if dom = string(out); dom == "" {
				t.Errorf("%s: the browser shows nothing: %s", page, errs.String())
			}
		}
	}
	if picture, err := os.Stat(picture); err != nil || picture.Size() < 10_000 {
		t.Errorf("the picture of %s: %v %v", page, picture, err)
	}
	return dom
}

// TestWordPressInBrowser shows the document's WordPress in a browser (BROWSER=chromium), through an Ingress and through
// an HTTPRoute, both with TLS. PICTURES is where its pictures are left.
func TestWordPressInBrowser(t *testing.T) {
	if os.Getenv("BROWSER") == "" {
		t.Skip("BROWSER names no browser")
	}
	const host, ingress, gateway = "blog.example.com", "127.77.9.5", "127.77.9.6"
	c := startCluster(t, "--registry-config", mirrors.dir, "--gateway-http", ingress+":80", "--gateway-https",
		ingress+":443", "--gateway-addresses", gateway)
	c.kubectl(t, "apply", "-f", manifest("doc003-wordpress"))
	cert, key, spki := pairFor(t, host)
	dir := t.TempDir()
	for name, text := range map[string][]byte{"cert": cert, "key": key} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c.kubectl(t, "create", "secret", "tls", "blog", "--cert", filepath.Join(dir, "cert"), "--key",
		filepath.Join(dir, "key"))
	c.acceptGateways(t)
	c.kubectlIn(t, blog, "apply", "-f", "-")
	c.wait(t, "pod/mydb", "condition=Ready")
	c.wait(t, "pod/wordpress", "condition=Ready")
	c.kubectl(t, "wait", "--for=condition=Programmed", "--timeout="+patience.String(), "gateway/wp")
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(cert)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots},
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, ingress+":443")
		}}}
	page := "https://" + host + "/"
	text := func(res *http.Response, err error) (string, error) {
		if err != nil {
			return "", err
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		return string(body), err
	}
	testwait.Until(t, "WordPress has a database", func() error {
		body, err := text(client.Get(page + "wp-admin/install.php"))
		if err == nil && !strings.Contains(body, "WordPress &rsaquo; Installation") {
			err = errors.New(firstWord(strings.TrimSpace(body)))
		}
		return err
	})
	body, err := text(client.PostForm(page+"wp-admin/install.php?step=2", url.Values{"weblog_title": {"Seen in a browser"},
		"user_name": {"admin"}, "admin_password": {"a-Long-Passw0rd"}, "admin_password2": {"a-Long-Passw0rd"},
		"admin_email": {"admin@example.com"}, "Submit": {"Install WordPress"}}))
	if err != nil || !strings.Contains(body, "Success!") {
		t.Fatalf("%v:\n%s", err, tail([]byte(body), 2000))
	}
	pictures := os.Getenv("PICTURES")
	if pictures == "" {
		pictures = t.TempDir()
	} else if err := os.MkdirAll(pictures, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, at := range map[string]string{"ingress": ingress, "httproute": gateway} {
		dom := browser(t, page, host, at, spki, filepath.Join(pictures, name+".png"))
		contains(t, "the page behind the "+name, dom, "Seen in a browser", "Hello world!", page)
		if strings.Contains(dom, `"http://`+host) {
			t.Errorf("the page behind the %s loads parts without TLS", name)
		}
	}
}

// pairFor makes a certificate for a host that signs itself, and the hash of its key.
func pairFor(t *testing.T, host string) (cert, key []byte, spki string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{host},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	public, err := x509.MarshalPKIXPublicKey(&private.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	hash := sha256.Sum256(public)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), base64.StdEncoding.EncodeToString(hash[:])
}
