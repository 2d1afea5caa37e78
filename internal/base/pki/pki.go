// Package pki creates and stores a cluster's keys and certificates: the CA, the certificates of API
// server, node agent, and administrator, and the key that signs service account tokens. Package app
// uses it at the start. All keys are P-256. It must never return the CA's key or write a private
// key that others can read.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"carob/internal/base/atomicfile"
	"carob/internal/base/errkind"
)

const (
	leafLife = 365 * 24 * time.Hour
	// A certificate is renewed when less than renewBefore of its lifetime is left, so users who
	// copied the administrator's certificate have that long to replace it.
	renewBefore = 60 * 24 * time.Hour
	// The clocks of clients may be behind.
	backdate = time.Hour
)

// Config describes the certificates to issue.
type Config struct {
	// Dir contains the files; it is created with mode 0700.
	Dir string
	// Hosts are names and IP addresses of the API server, in addition to localhost, the loopback
	// addresses, and the names of the kubernetes Service.
	Hosts []string
	// ServiceIP is the address of the kubernetes Service, the first of the range.
	ServiceIP net.IP
	// NodeName and NodeHosts are the name and the addresses of the local node agent.
	NodeName  string
	NodeHosts []string
}

// KeyPair is a certificate with its private key.
type KeyPair struct {
	CertPEM, KeyPEM []byte
	// TLS is the same pair, parsed, with Leaf set.
	TLS tls.Certificate
}

// PKI is the loaded or newly created set.
type PKI struct {
	CAPEM []byte
	CA    *x509.Certificate
	// Pool contains only CA.
	Pool *x509.CertPool

	// Serving is the API server's certificate.
	Serving *Leaf
	// Admin authenticates the administrator (system:masters).
	Admin *Leaf
	// NodeClient authenticates the local node agent to the API server (system:node:NAME in
	// system:nodes); NodeServing is the agent's serving certificate.
	NodeClient, NodeServing *Leaf
	// APIServerClient authenticates the API server to node agents
	// (CN APIServerClientName).
	APIServerClient *Leaf
	// ServiceAccountKey signs service-account tokens (ES256).
	ServiceAccountKey *ecdsa.PrivateKey

	ca  *authority
	dir string

	mu         sync.Mutex
	leaves     []issued
	frontProxy *FrontProxy // nil until it is requested
}

// Identities in certificates.
const (
	// AdminName is the common name of the administrator's certificate.
	AdminName = "kubernetes-admin"
	// APIServerClientName is the common name of the API server's client certificate for node
	// agents; an agent accepts no other.
	APIServerClientName = "kube-apiserver-kubelet-client"
	mastersGroup        = "system:masters"
	nodesGroup          = "system:nodes"
)

// Open loads the set from cfg.Dir and creates what is missing, damaged, about to expire at now, or
// issued for other names. The keys of the CA and of tokens are never replaced silently: if one is
// damaged, Open fails with errkind.Corrupt.
func Open(cfg Config, now time.Time) (*PKI, error) {
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("create the key directory: %w", err)
	}
	if err := os.Chmod(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("protect the key directory: %w", err)
	}
	ca, err := openAuthority(cfg.Dir, now)
	if err != nil {
		return nil, err
	}
	p := &PKI{CAPEM: ca.pem, CA: ca.cert, Pool: x509.NewCertPool(), ca: ca, dir: cfg.Dir}
	p.Pool.AddCert(p.CA)
	if p.ServiceAccountKey, err = openKey(filepath.Join(cfg.Dir, "sa.key")); err != nil {
		return nil, err
	}
	server, node := cfg.serverHosts(), cfg.nodeHosts()
	for _, leaf := range []struct {
		file string
		to   **Leaf
		Request
	}{
		{"apiserver", &p.Serving, Request{CommonName: "kube-apiserver", Hosts: server, Server: true}},
		{"admin", &p.Admin, Request{CommonName: AdminName, Organizations: []string{mastersGroup}}},
		{"apiserver-kubelet-client", &p.APIServerClient,
			Request{CommonName: APIServerClientName, Organizations: []string{mastersGroup}}},
		{"node-client", &p.NodeClient,
			Request{CommonName: "system:node:" + cfg.NodeName, Organizations: []string{nodesGroup}}},
		{"node-serving", &p.NodeServing,
			Request{CommonName: "system:node:" + cfg.NodeName, Organizations: []string{nodesGroup}, Hosts: node,
				Server: true}},
	} {
		l := &Leaf{file: leaf.file, request: leaf.Request}
		if err = ca.open(l, cfg.Dir, now); err != nil {
			return nil, err
		}
		*leaf.to = l
		p.leaves = append(p.leaves, issued{l, ca})
	}
	return p, nil
}

// serverHosts are the names of the API server's certificate.
func (c *Config) serverHosts() []string {
	return slices.Concat([]string{"localhost", "127.0.0.1", "::1", "kubernetes", "kubernetes.default",
		"kubernetes.default.svc",
		"kubernetes.default.svc.cluster.local"}, ipString(c.ServiceIP), c.Hosts)
}

// nodeHosts are the names of the node agent's certificate.
func (c *Config) nodeHosts() []string {
	return slices.Concat([]string{"localhost", "127.0.0.1", "::1", c.NodeName}, c.NodeHosts)
}

func ipString(ip net.IP) []string {
	if ip == nil {
		return nil
	}
	return []string{ip.String()}
}

// Request describes a certificate to issue.
type Request struct {
	CommonName    string
	Organizations []string
	// Hosts are DNS names and IP addresses of a server certificate.
	Hosts []string
	// Server selects a server certificate, otherwise it is a client certificate.
	Server bool
	// Life is the validity; zero means a year.
	Life time.Duration
}

// Issue creates a new key and a certificate for it, valid from now.
func (p *PKI) Issue(r Request, now time.Time) (KeyPair, error) { return p.ca.issue(r, now) }

func template(cn string, now time.Time, life time.Duration) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 126))
	if err != nil {
		return nil, fmt.Errorf("create a serial number: %w", err)
	}
	if life == 0 {
		life = leafLife
	}
	return &x509.Certificate{SerialNumber: serial.Add(serial, big.NewInt(1)), Subject: pkix.Name{CommonName: cn},
		NotBefore: now.Add(-backdate), NotAfter: now.Add(life), BasicConstraintsValid: true}, nil
}

// hosts splits, sorts, and deduplicates names and addresses.
func hosts(in []string) (dns []string, ips []net.IP) {
	in = slices.Clone(in)
	slices.Sort(in)
	for _, h := range slices.Compact(in) {
		if ip := net.ParseIP(h); ip != nil {
			ips = append(ips, ip)
		} else if h != "" {
			dns = append(dns, h)
		}
	}
	return dns, ips
}

func readPair(certFile, keyFile string) (KeyPair, error) {
	cert, err := os.ReadFile(certFile)
	if err != nil {
		return KeyPair{}, err
	}
	key, err := os.ReadFile(keyFile)
	if errors.Is(err, fs.ErrNotExist) {
		return KeyPair{}, fmt.Errorf("%s exists, but %s does not", certFile, keyFile)
	}
	if err != nil {
		return KeyPair{}, err
	}
	pair, err := newKeyPair(cert, key)
	if err != nil {
		return KeyPair{}, fmt.Errorf("%s: %w", certFile, err)
	}
	return pair, nil
}

func newKeyPair(cert, key []byte) (KeyPair, error) {
	t, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return KeyPair{}, err
	}
	return KeyPair{CertPEM: cert, KeyPEM: key, TLS: t}, nil
}

func openKey(file string) (*ecdsa.PrivateKey, error) {
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return nil, fmt.Errorf("create the token key: %w", err)
		}
		keyPEM, err := encodeKey(key)
		if err != nil {
			return nil, err
		}
		return key, atomicfile.Write(file, keyPEM, 0o600)
	}
	if err != nil {
		return nil, fmt.Errorf("read the token key: %w", err)
	}
	block, _ := pem.Decode(b)
	if block == nil {
		return nil, errkind.Errorf(errkind.Corrupt, "read the token key: %s contains no key", file)
	}
	key, err := x509.ParseECPrivateKey(block.Bytes)
	if err != nil {
		return nil, errkind.Errorf(errkind.Corrupt, "read the token key: %s: %w", file, err)
	}
	return key, nil
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode a key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}

// Kubeconfig returns a kubeconfig file with one cluster, user and context.
// server is the URL; the context is current and has the given name.
func Kubeconfig(name, server string, caPEM []byte, user KeyPair) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, `apiVersion: v1
kind: Config
current-context: %[1]q
clusters:
- name: %[1]q
  cluster:
    server: %[2]q
    certificate-authority-data: %[3]s
users:
- name: %[4]q
  user:
    client-certificate-data: %[5]s
    client-key-data: %[6]s
contexts:
- name: %[1]q
  context:
    cluster: %[1]q
    user: %[4]q
`, name, server, base64.StdEncoding.EncodeToString(caPEM), name+"-"+user.TLS.Leaf.Subject.CommonName, base64.StdEncoding.EncodeToString(user.CertPEM), base64.StdEncoding.EncodeToString(user.KeyPEM))
	return []byte(b.String())
}
