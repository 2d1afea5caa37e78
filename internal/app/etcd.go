package app

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"

	"carob/internal/base/instance"
)

// etcdClientTLS is the TLS configuration for an external etcd; nil without files.
func etcdClientTLS(in instance.Instance) (*tls.Config, error) {
	if in.EtcdCA == "" && in.EtcdCert == "" {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if in.EtcdCA != "" {
		pem, err := os.ReadFile(in.EtcdCA)
		if err != nil {
			return nil, fmt.Errorf("--etcd-cafile: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("--etcd-cafile: %s contains no certificate", in.EtcdCA)
		}
	}
	if in.EtcdCert != "" {
		pair, err := tls.LoadX509KeyPair(in.EtcdCert, in.EtcdKey)
		if err != nil {
			return nil, fmt.Errorf("--etcd-certfile: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}
