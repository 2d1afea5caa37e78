package fakeapi

import "time"

// Rest calls act, which lets each controller and node act once, until nothing is written and no controller waits for a
// time. next returns whether a controller must act again soon, and the time that it waits for. The invariant breaks if
// the writes have not ended after the limit.
func (a *API) Rest(ends Invariant, limit time.Duration, act func(), next func() (soon bool, due time.Time)) {
	for last := a.Now.Add(limit); ; {
		before := a.Writes()
		act()
		switch soon, due := next(); {
		case a.Now.After(last):
			Break(ends, "the writes do not end")
		case a.Writes() > before || soon:
			a.Now = a.Now.Add(time.Second)
		case !due.IsZero():
			a.Now = due
		default:
			return
		}
	}
}

// Quiet calls act three times a day after the end. The invariant breaks if anything is written.
func (a *API) Quiet(ends Invariant, act func()) {
	before := a.Writes()
	a.Now = a.Now.Add(24 * time.Hour)
	for range 3 {
		act()
	}
	if n := a.Writes() - before; n > 0 {
		Break(ends, "%d writes after the end", n)
	}
}
