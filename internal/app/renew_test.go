package app

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"carob/internal/base/pki"
)

// handshake connects a client to a server, each with its current certificate.
func handshake(keys *pki.PKI, server, client *pki.Leaf) error {
	here, there := net.Pipe()
	defer here.Close()
	defer there.Close()
	s := tls.Server(here, &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: server.Serve,
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: keys.Pool, SessionTicketsDisabled: true})
	c := tls.Client(there, &tls.Config{MinVersion: tls.VersionTLS12, ServerName: "localhost", RootCAs: keys.Pool,
		GetClientCertificate: client.Present})
	done := make(chan error, 1)
	go func() { done <- s.Handshake() }()
	err := c.Handshake()
	return errors.Join(err, <-done)
}

// A carob that runs for years never presents an expired certificate.
func TestCertificatesAreRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		config := pki.Config{Dir: dir, NodeName: "n"}
		keys, err := pki.Open(config, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		first, err := keys.FrontProxy(time.Now())
		if err != nil {
			t.Fatal(err)
		}
		proxyEnd := first.Pair().TLS.Leaf.NotAfter
		written, full := keys.Admin.Pair(), false
		ctx, cancel := context.WithCancel(t.Context())
		defer func() { cancel(); synctest.Wait() }()
		go renewKeys(ctx, keys, func() error {
			if full {
				return errors.New("no space left")
			}
			written = keys.Admin.Pair()
			return nil
		})
		started := time.Now()
		for time.Since(started) < 3*365*24*time.Hour {
			time.Sleep(20 * 24 * time.Hour)
			synctest.Wait()
			for name, err := range map[string]error{
				"API server":   handshake(keys, keys.Serving, keys.Admin),
				"agent":        handshake(keys, keys.NodeServing, keys.APIServerClient),
				"another node": handshake(keys, keys.Serving, keys.NodeClient),
			} {
				if err != nil {
					t.Fatalf("%s after %v: %v", name, time.Since(started), err)
				}
			}
			if left := time.Until(written.TLS.Leaf.NotAfter); left < 30*24*time.Hour {
				t.Fatalf("the kubeconfig ends in %v", left)
			}
		}
		if !first.Pair().TLS.Leaf.NotAfter.After(proxyEnd) || time.Now().After(first.Pair().TLS.Leaf.NotAfter) {
			t.Error("the front proxy's certificate was not renewed")
		}
		again, err := pki.Open(config, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if !again.Serving.Pair().TLS.Leaf.Equal(keys.Serving.Pair().TLS.Leaf) {
			t.Error("the renewed certificate was not stored")
		}

		full = true
		before := written.TLS.Leaf
		time.Sleep(365 * 24 * time.Hour)
		if synctest.Wait(); written.TLS.Leaf != before {
			t.Fatal("written despite a full disk")
		}
		full = false
		time.Sleep(2 * renewEvery)
		if synctest.Wait(); written.TLS.Leaf == before {
			t.Error("not written although there was space")
		}
	})
}
