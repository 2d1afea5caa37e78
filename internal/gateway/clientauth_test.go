package gateway

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"math/big"
	"testing"
	"time"

	"carob/internal/core/gatewayplan"
	"carob/internal/core/httproute"
	"carob/internal/gateway/certs"
)

// clientCert is a certificate of a client that is its own CA, valid for some time.
func clientCert(t *testing.T, valid time.Duration) (cert tls.Certificate, ca string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	template := &x509.Certificate{SerialNumber: big.NewInt(now.UnixNano()), NotBefore: now.Add(-2 * time.Hour),
		NotAfter: now.Add(valid), IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key},
		string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// Only clients with a valid certificate are let in, also when they resume a session that began when another CA, none,
// or any certificate was enough.
func TestClientCertificates(t *testing.T) {
	first, firstCA := clientCert(t, time.Hour)
	second, secondCA := clientCert(t, time.Hour)
	expired, expiredCA := clientCert(t, -time.Hour)
	own, err := certs.SelfSigned(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	set := certs.New()
	set.Add("x.example.com", own)
	table, errs := httproute.Compile([]httproute.Listener{{}})
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	emptied := make(chan struct{}, 1)
	siteWith := func(c *gatewayplan.ClientAuth) *site {
		return &site{tls: true, certs: set, clients: c, table: table, pools: newPools(), emptied: emptied}
	}
	g := New(Config{})
	at := freePort(t)
	p, err := listen(t.Context(), at, siteWith(nil), &g.open, g.mirrors, g.seen, nil, g.cfg.Sockets)
	if err != nil {
		t.Fatal(err)
	}
	defer p.stop()
	reached := func(cfg *tls.Config) (resumed bool, err error) {
		c, err := tls.Dial("tcp", at.String(), cfg)
		if err != nil {
			return false, err
		}
		defer c.Close()
		const request = "GET / HTTP/1.1\r\nHost: x.example.com\r\nConnection: close\r\n\r\n"
		if _, err := io.WriteString(c, request); err != nil {
			return false, err
		}
		answer, err := io.ReadAll(c)
		if err == nil && len(answer) == 0 {
			err = io.EOF
		}
		return c.ConnectionState().DidResume, err
	}
	need := func(ca string) *gatewayplan.ClientAuth { return &gatewayplan.ClientAuth{CA: ca} }
	optional := func(ca string) *gatewayplan.ClientAuth { return &gatewayplan.ClientAuth{CA: ca, Fallback: true} }
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		for what, c := range map[string]struct {
			cert          tls.Certificate
			before, after *gatewayplan.ClientAuth
			let           bool
		}{
			"a valid one":        {first, need(firstCA), need(firstCA), true},
			"another CA":         {first, need(firstCA), need(secondCA), false},
			"was not needed":     {tls.Certificate{}, nil, need(firstCA), false},
			"was not looked at":  {second, nil, need(firstCA), false},
			"any was enough":     {second, optional(firstCA), need(firstCA), false},
			"expired":            {expired, nil, need(expiredCA), false},
			"expired, from then": {expired, optional(expiredCA), need(expiredCA), false},
		} {
			cfg := &tls.Config{ServerName: "x.example.com", InsecureSkipVerify: true, MaxVersion: version,
				ClientSessionCache: tls.NewLRUClientSessionCache(8),
				GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
					return &c.cert, nil
				}}
			p.site.Store(siteWith(c.before))
			if _, err := reached(cfg); err != nil {
				t.Errorf("%s: before: %v", what, err)
			}
			p.site.Store(siteWith(c.after))
			if resumed, err := reached(cfg); (err == nil) != c.let || c.let && !resumed {
				t.Errorf("%s, %s: %v, resumed: %v", what, tls.VersionName(version), err, resumed)
			}
		}
	}
}
