package tokens

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// A valid signature is cached for a while and never past the token's expiry; an invalid one never.
func TestSignatures(t *testing.T) {
	now, looks := time.Unix(1_000_000, 0), 0
	s := &signatures[claims]{now: func() time.Time { return now }}
	var bad error
	look := func(token string, end time.Time, after time.Duration, wantLooks int) {
		t.Helper()
		now = now.Add(after)
		_, err := s.claims(token, func(c *claims) *jwt.NumericDate { return c.ExpiresAt }, func(c *claims) error {
			looks++
			c.ExpiresAt = jwt.NewNumericDate(end)
			return bad
		})
		if !errors.Is(err, bad) || looks != wantLooks {
			t.Errorf("%v, %d looks, want %d", err, looks, wantLooks)
		}
	}
	late := now.Add(time.Hour)
	look("a", late, 0, 1)
	look("a", late, signatureLife-1, 1)
	look("a", late, 1, 2)
	look("b", now.Add(time.Second), 0, 3)
	look("b", now, time.Second-1, 3)
	bad = errors.New("expired")
	look("b", now, 1, 4)
	look("b", now, 0, 5) // a rejection is not cached
	bad = nil
	look("a", late, 0, 5)
	for i := range 2 * maxSignatures {
		look(fmt.Sprint("many", i), late, 0, 6+i)
		if len(s.known) > maxSignatures {
			t.Fatalf("%d tokens are known", len(s.known))
		}
	}
}
