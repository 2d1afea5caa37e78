package tokens

import (
	"crypto/sha256"
	"sync"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

const (
	// signatureLife is how long a token's claims are known without looking at its signature
	// again. Whether what the token is bound to still exists is asked each time.
	signatureLife = time.Minute
	// maxSignatures bounds the tokens known; only good ones are.
	maxSignatures = 4096
)

// signatures remember the claims of tokens whose signature was good: to verify one
// costs 20 times as much as the rest of the look at a token.
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

// claims returns what the token says, verified now or not long ago.
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
