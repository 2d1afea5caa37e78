package pki_test

import (
	"bytes"
	"crypto/elliptic"
	"crypto/x509"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"carob/internal/base/errkind"
	"carob/internal/base/pki"
)

var now = time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)

func config(dir string) pki.Config {
	return pki.Config{Dir: dir, Hosts: []string{"example.com", "192.0.2.7"}, ServiceIP: net.IPv4(10, 96, 0, 1),
		NodeName: "node-1", NodeHosts: []string{"192.0.2.7"}}
}

func open(t *testing.T, c pki.Config, at time.Time) *pki.PKI {
	t.Helper()
	p, err := pki.Open(c, at)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestCertificates(t *testing.T) {
	p := open(t, config(t.TempDir()), now)
	for _, host := range []string{"localhost", "127.0.0.1", "::1", "kubernetes.default.svc.cluster.local", "kubernetes",
		"10.96.0.1", "example.com", "192.0.2.7"} {
		if err := p.Serving.Pair().TLS.Leaf.VerifyHostname(host); err != nil {
			t.Error(err)
		}
	}
	if err := p.NodeServing.Pair().TLS.Leaf.VerifyHostname("node-1"); err != nil {
		t.Error(err)
	}
	for _, tc := range []struct {
		name, cn, org string
		pair          pki.KeyPair
		usage         x509.ExtKeyUsage
	}{
		{"serving", "kube-apiserver", "", p.Serving.Pair(), x509.ExtKeyUsageServerAuth},
		{"admin", pki.AdminName, "system:masters", p.Admin.Pair(), x509.ExtKeyUsageClientAuth},
		{"node client", "system:node:node-1", "system:nodes", p.NodeClient.Pair(), x509.ExtKeyUsageClientAuth},
		{"node serving", "system:node:node-1", "system:nodes", p.NodeServing.Pair(), x509.ExtKeyUsageServerAuth},
		{"API server client", pki.APIServerClientName, "system:masters", p.APIServerClient.Pair(),
			x509.ExtKeyUsageClientAuth},
	} {
		leaf := tc.pair.TLS.Leaf
		if _, err := leaf.Verify(x509.VerifyOptions{Roots: p.Pool, CurrentTime: now,
			KeyUsages: []x509.ExtKeyUsage{tc.usage}}); err != nil {
			t.Errorf("%s: %v", tc.name, err)
		}
		org := ""
		if len(leaf.Subject.Organization) > 0 {
			org = leaf.Subject.Organization[0]
		}
		if leaf.Subject.CommonName != tc.cn || org != tc.org || leaf.IsCA {
			t.Errorf("%s is for %v", tc.name, leaf.Subject)
		}
	}
	if p.ServiceAccountKey.Curve != elliptic.P256() {
		t.Error("the token key is not P-256")
	}
}

func TestReopen(t *testing.T) {
	c := config(t.TempDir())
	first := open(t, c, now)
	again := open(t, c, now.Add(time.Hour))
	if !bytes.Equal(first.Serving.Pair().CertPEM, again.Serving.Pair().CertPEM) ||
		!bytes.Equal(first.CAPEM, again.CAPEM) || !first.ServiceAccountKey.Equal(again.ServiceAccountKey) {
		t.Error("made again without a reason")
	}
	for name, change := range map[string]func() (pki.Config, time.Time){
		"another name": func() (pki.Config, time.Time) { d := c; d.Hosts = []string{"other"}; return d, now },
		"near its end": func() (pki.Config, time.Time) { return c, now.AddDate(0, 11, 15) },
		"a torn pair": func() (pki.Config, time.Time) {
			truncate(t, filepath.Join(c.Dir, "apiserver.key"))
			return c, now
		},
		"a missing file": func() (pki.Config, time.Time) {
			remove(t, filepath.Join(c.Dir, "apiserver.crt"))
			return c, now
		},
	} {
		before := open(t, c, now)
		d, at := change()
		after := open(t, d, at)
		if bytes.Equal(before.Serving.Pair().CertPEM, after.Serving.Pair().CertPEM) {
			t.Errorf("%s: not issued again", name)
		}
		if !bytes.Equal(before.CAPEM, after.CAPEM) {
			t.Errorf("%s: the CA changed", name)
		}
	}
}

func TestDamagedAuthority(t *testing.T) {
	for _, file := range []string{"ca.crt", "ca.key", "sa.key"} {
		c := config(t.TempDir())
		open(t, c, now)
		truncate(t, filepath.Join(c.Dir, file))
		if _, err := pki.Open(c, now); !errkind.Is(err, errkind.Corrupt) {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// A CA that is about to expire, or was created with a wrong clock, is signed again with its key:
// existing certificates stay valid for old and new clients.
func TestAuthorityIsRenewed(t *testing.T) {
	for name, at := range map[string]time.Time{"near its end": now.AddDate(8, 1, 0),
		"after its end": now.AddDate(12, 0, 0), "before its time": now.AddDate(-5, 0, 0)} {
		c := config(t.TempDir())
		before := open(t, c, now)
		leaf, err := before.Issue(pki.Request{CommonName: "jane", Life: 20 * 365 * 24 * time.Hour}, at)
		if err != nil {
			t.Fatal(err)
		}
		proxy, err := before.FrontProxy(now)
		if err != nil {
			t.Fatal(err)
		}
		after := open(t, c, at)
		if bytes.Equal(before.CAPEM, after.CAPEM) ||
			after.CA.CheckSignature(before.CA.SignatureAlgorithm, before.CA.RawTBSCertificate,
				before.CA.Signature) != nil {
			t.Fatalf("%s: the authority is the same, or of another key", name)
		}
		verify := func(c *x509.Certificate, p *pki.PKI, usage x509.ExtKeyUsage) {
			t.Helper()
			if _, err := c.Verify(x509.VerifyOptions{Roots: p.Pool, CurrentTime: at,
				KeyUsages: []x509.ExtKeyUsage{usage}}); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		verify(leaf.TLS.Leaf, after, x509.ExtKeyUsageClientAuth)
		verify(after.Serving.Pair().TLS.Leaf, after, x509.ExtKeyUsageServerAuth)
		if at.Before(before.CA.NotAfter) && at.After(before.CA.NotBefore) {
			verify(after.Serving.Pair().TLS.Leaf, before, x509.ExtKeyUsageServerAuth)
		}
		if p, err := after.FrontProxy(at); err != nil || bytes.Equal(p.CAPEM, proxy.CAPEM) ||
			at.After(p.Pair().TLS.Leaf.NotAfter) {
			t.Errorf("%s: front proxy: %v", name, err)
		}
		if again := open(t, c, at.Add(time.Hour)); !bytes.Equal(again.CAPEM, after.CAPEM) {
			t.Errorf("%s: issued again at each start", name)
		}
	}
}

func TestModes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	open(t, config(dir), now)
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("directory: %v, %v", info.Mode(), err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if info, err := e.Info(); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", e.Name(), info.Mode(), err)
		}
	}
}

func TestKubeconfig(t *testing.T) {
	p := open(t, config(t.TempDir()), now)
	c, err := clientcmd.RESTConfigFromKubeConfig(pki.Kubeconfig("carob", "https://127.0.0.1:6443", p.CAPEM,
		p.Admin.Pair()))
	if err != nil {
		t.Fatal(err)
	}
	if c.Host != "https://127.0.0.1:6443" || !bytes.Equal(c.CAData, p.CAPEM) ||
		!bytes.Equal(c.CertData, p.Admin.Pair().CertPEM) || !bytes.Equal(c.KeyData, p.Admin.Pair().KeyPEM) {
		t.Errorf("%+v", c)
	}
}

func truncate(t *testing.T, file string) {
	t.Helper()
	if err := os.Truncate(file, 10); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, file string) {
	t.Helper()
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
}

// After the machine's addresses change, its servers get new certificates, which are kept at the
// next start.
func TestRename(t *testing.T) {
	c := config(t.TempDir())
	p := open(t, c, now)
	serving, admin := p.Serving.Pair().TLS.Leaf, p.Admin.Pair().TLS.Leaf
	if err := p.Rename(c, now); err != nil || p.Serving.Pair().TLS.Leaf != serving {
		t.Errorf("the same names make another certificate, %v", err)
	}
	c.Hosts, c.NodeHosts = []string{"node-1", "198.51.100.3"}, []string{"198.51.100.3"}
	if err := p.Rename(c, now); err != nil {
		t.Fatal(err)
	}
	for _, l := range []*pki.Leaf{p.Serving, p.NodeServing} {
		leaf := l.Pair().TLS.Leaf
		if err := leaf.VerifyHostname("198.51.100.3"); err != nil {
			t.Error(err)
		}
		if leaf.VerifyHostname("192.0.2.7") == nil {
			t.Errorf("%s: the old address is still there", leaf.Subject.CommonName)
		}
	}
	if p.Admin.Pair().TLS.Leaf != admin {
		t.Error("the administrator's certificate was made anew")
	}
	renamed := p.Serving.Pair().TLS.Leaf
	if again := open(t, c, now).Serving.Pair().TLS.Leaf; !again.Equal(renamed) {
		t.Error("the next start makes it anew")
	}
}
