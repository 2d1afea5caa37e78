package tokens

import (
	"crypto/sha256"
	"sync"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

const (
	// signatureLife is how long a token's claims are cached without verifying its signature again.
	// The existence of its objects is checked each time.
	signatureLife = time.Minute
	// maxSignatures limits the cached tokens; only valid ones are cached.
	maxSignatures = 4096
)

// signatures cache the claims of tokens with a valid signature: verification costs 20 times as much
// as the rest.
type signatures[C any] struct {
	now func() time.Time

	mu    sync.Mutex
	known map[[sha256.Size]byte]signed[C]
}

// signed are the claims of a token; they are never changed.
type signed[C any] struct {
	claims *C
	until  time.Time
}

// claims returns the claims of a token, verified now or recently.
func (s *signatures[C]) claims(token string, expires func(*C) *jwt.NumericDate, verify func(*C) error) (*C, error) {
	start, id := time.Now(), sha256.Sum256([]byte(token))
	s.mu.Lock()
	k, hit := s.known[id]
	s.mu.Unlock()
	status := "hit"
	if hit = hit && s.now().Before(k.until); !hit {
		status = "miss"
	}
	defer func() {
		cacheRequests.WithLabelValues(status).Inc()
		cacheSeconds.WithLabelValues(status).Observe(time.Since(start).Seconds())
	}()
	if hit {
		return k.claims, nil
	}
	fetching := cacheFetching.WithLabelValues("in_flight")
	fetching.Inc()
	defer fetching.Dec()
	c := new(C)
	if err := verify(c); err != nil {
		cacheFetches.WithLabelValues("error").Inc()
		return nil, err
	}
	cacheFetches.WithLabelValues("ok").Inc()
	until := s.now().Add(signatureLife)
	if end := expires(c); end != nil && end.Before(until) {
		until = end.Time
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known == nil || len(s.known) >= maxSignatures {
		s.known = map[[sha256.Size]byte]signed[C]{}
	}
	s.known[id] = signed[C]{c, until}
	return c, nil
}
