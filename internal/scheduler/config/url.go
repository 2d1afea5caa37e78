package config

import (
	"errors"
	"net/url"

	configv1 "k8s.io/kube-scheduler/config/v1"
)

// checkURL requires an http or https address that is consistent with the TLS settings.
func checkURL(e *configv1.Extender) error {
	u, err := url.Parse(e.URLPrefix)
	switch {
	case err != nil:
		return err
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return errors.New("must be an address with scheme http or https and a host")
	case u.User != nil:
		return errors.New("must not contain a user")
	case u.Scheme == "http" && (e.EnableHTTPS || e.TLSConfig != nil):
		return errors.New("must have scheme https when enableHTTPS or tlsConfig is set")
	}
	return nil
}
