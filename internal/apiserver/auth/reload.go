package auth

import (
	"context"
	"os"
	"time"

	authnmetrics "k8s.io/apiserver/pkg/server/options/authenticationconfig/metrics"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/oidc"
	"k8s.io/klog/v2"

	"carob/internal/base/filewatch"
)

const (
	// issuerPollInterval is the time between two requests to issuers that have not answered yet.
	issuerPollInterval = 200 * time.Millisecond
	// grace lets requests from before a change fetch keys.
	grace = time.Minute
)

// follower is the state of the goroutine that follows the file.
type follower struct {
	seen string      // the content that was read last, valid or not
	next *generation // waits for its issuers; nil if there is none
}

// Run follows the file until ctx ends. An invalid file is reported and the previous configuration
// stays; a valid one is used as soon as its issuers have answered.
func (s *Structured) Run(ctx context.Context) {
	if s == nil {
		return
	}
	s.seen = s.current.Load().data
	filewatch.Follow(ctx, s.cfg.File, func(ctx context.Context) time.Duration {
		s.look(ctx)
		if s.takeOver(ctx) {
			return issuerPollInterval
		}
		return 0
	})
}

// look reads the file and creates the next generation if it has changed.
func (s *Structured) look(ctx context.Context) {
	log := klog.FromContext(ctx).WithValues("file", s.cfg.File)
	content, err := os.ReadFile(s.cfg.File)
	if err != nil {
		// The file may be half written: keep the state as it is.
		log.Error(err, "The authentication configuration cannot be read; the previous one stays in effect")
		authnmetrics.RecordAuthenticationConfigAutomaticReloadFailure(serverID)
		return
	}
	data := string(content)
	if data == s.seen {
		return
	}
	s.seen = data
	now := s.current.Load()
	if s.next != nil {
		s.next.end(now)
		s.next = nil
	}
	if data == now.data {
		return // it is the one in use again
	}
	g, err := s.generation(ctx, data, now)
	if err != nil {
		log.Error(err, "The authentication configuration is invalid; the previous one stays in effect")
		authnmetrics.RecordAuthenticationConfigAutomaticReloadFailure(serverID)
		return
	}
	s.next = g
}

// takeOver uses the next generation if its new issuers have answered; it reports whether it waits
// for one.
func (s *Structured) takeOver(ctx context.Context) bool {
	if s.next == nil {
		return false
	}
	before, g := s.current.Load(), s.next
	for _, i := range g.issuers {
		if before.issuer(i.cfg) != i && i.HealthCheck() != nil {
			return true
		}
	}
	s.next = nil
	s.current.Store(g)
	authnmetrics.RecordAuthenticationConfigAutomaticReloadSuccess(serverID, g.data)
	klog.FromContext(ctx).Info("The authentication configuration was changed", "file", s.cfg.File, "issuers",
		len(g.issuers))
	time.AfterFunc(grace, func() {
		before.end(g)
		for _, i := range before.issuers {
			if !g.has(i.cfg.Issuer.URL) {
				oidc.DeleteJWKSFetchMetrics(i.cfg.Issuer.URL, serverID)
			}
		}
	})
	return false
}

// has reports whether there is an issuer with that URL.
func (g *generation) has(url string) bool {
	for _, i := range g.issuers {
		if i.cfg.Issuer.URL == url {
			return true
		}
	}
	return false
}
