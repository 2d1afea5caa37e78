package app

import (
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"carob/internal/base/atomicfile"
	"carob/internal/base/pki"
)

// renewEvery is the interval between checks of the certificates: a machine that was suspended past
// their end gets new ones soon after it resumes.
const renewEvery = time.Hour

// renewKeys renews certificates while carob runs. Connections use them from the next handshake on;
// the administrator's is written for kubectl.
func (c *carob) renewKeys(ctx context.Context) error {
	renewKeys(ctx, c.keys, c.writeKubeconfig)
	return nil
}

func (c *carob) writeKubeconfig() error {
	config := pki.Kubeconfig(c.in.ID, url(c.in), c.keys.CAPEM, c.keys.Admin.Pair())
	if err := atomicfile.Write(c.in.Kubeconfig, config, 0o600); err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	return nil
}

// renewKeys checks the keys until ctx is done; when the administrator's certificate has changed, it
// calls write until that succeeds.
func renewKeys(ctx context.Context, keys *pki.PKI, write func() error) {
	log := klog.FromContext(ctx)
	t := time.NewTicker(renewEvery)
	defer t.Stop()
	written := true
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		renewed, err := keys.Renew(time.Now())
		if err != nil {
			log.Error(err, "Cannot renew certificates")
		}
		for _, l := range renewed {
			leaf := l.Pair().TLS.Leaf
			log.Info("Renewed a certificate", "name", leaf.Subject.CommonName, "until", leaf.NotAfter)
		}
		written = written && !slices.Contains(renewed, keys.Admin)
		if written {
			continue
		}
		if err := write(); err != nil {
			log.Error(err, "Cannot write the kubeconfig with the administrator's new certificate")
			continue
		}
		written = true
	}
}
