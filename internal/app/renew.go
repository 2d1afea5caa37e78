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

// renewEvery is between two looks at the certificates: a machine that slept
// past their end finds new ones soon after it woke.
const renewEvery = time.Hour

// renewKeys makes certificates anew while carob runs. Connections take them from
// the next handshake on; the administrator's is written for kubectl.
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

// renewKeys looks at the keys until ctx ends; it calls write when the
// administrator's has changed, until that succeeds.
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
			log.Error(err, "Renewing certificates failed")
		}
		for _, l := range renewed {
			leaf := l.Pair().TLS.Leaf
			log.Info("A certificate was renewed", "name", leaf.Subject.CommonName, "until", leaf.NotAfter)
		}
		written = written && !slices.Contains(renewed, keys.Admin)
		if written {
			continue
		}
		if err := write(); err != nil {
			log.Error(err, "The administrator's new certificate could not be handed out")
			continue
		}
		written = true
	}
}
