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
	// askTime is between two looks at issuers that have not answered yet.
	askTime = 200 * time.Millisecond
	// grace lets requests that came before a change fetch keys.
	grace = time.Minute
)

// follower is what the goroutine that follows the file knows.
type follower struct {
	seen string      // the content that was looked at last, good or not
	next *generation // waits for its issuers; nil when there is none
}

// Run follows the file until ctx ends. A content that is no good is told, and
// what was there before stays; a good one takes over as soon as its issuers
// have answered.
func (s *Structured) Run(ctx context.Context) {
	if s == nil {
		return
	}
	s.seen = s.current.Load().data
	filewatch.Follow(ctx, s.cfg.File, func(ctx context.Context) time.Duration {
		s.look(ctx)
		if s.takeOver(ctx) {
			return askTime
		}
		return 0
	})
}

// look reads the file and makes the next generation when it has changed.
func (s *Structured) look(ctx context.Context) {
	log := klog.FromContext(ctx).WithValues("file", s.cfg.File)
	content, err := os.ReadFile(s.cfg.File)
	if err != nil {
		// It may be on its way: neither remembered nor forgotten.
		log.Error(err, "The authentication configuration can't be read, the one before stays")
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
		return // back to what is in use
	}
	g, err := s.generation(ctx, data, now)
	if err != nil {
		log.Error(err, "The authentication configuration is no good, the one before stays")
		authnmetrics.RecordAuthenticationConfigAutomaticReloadFailure(serverID)
		return
	}
	s.next = g
}

// takeOver puts the next generation in place when the issuers that are new in it
// have answered; it reports whether it waits for one.
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

// has reports whether an issuer of that URL is there.
func (g *generation) has(url string) bool {
	for _, i := range g.issuers {
		if i.cfg.Issuer.URL == url {
			return true
		}
	}
	return false
}
