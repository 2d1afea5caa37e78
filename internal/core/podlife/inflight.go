package podlife

import (
	"slices"
	"time"
)

// do works on an action that the pod waits for, as try does, and reports what the pod waits for.
func (m *machine) do(a Action, cause, what, object string) {
	if f := m.try(a, cause, what, object); f != nil {
		m.waitFor(f, what, object)
	}
}

// try works on an action until it has ended: it begins the action unless the action is in flight
// or in back-off after a failure. A back-off is reported as a wait, with the error.
func (m *machine) try(a Action, cause, what, object string) *flight {
	f := a.flight()
	if in := m.inFlight(f.Op, f.Object); in != nil {
		return in
	}
	if r := m.resting(f.Op, f.Object); r != nil {
		m.waitOut(r, what, object)
		return nil
	}
	m.begin(a, cause)
	return m.inFlight(f.Op, f.Object)
}

// begin begins an action unless the same one is in flight.
func (m *machine) begin(a Action, cause string) {
	f := a.flight()
	f.Key = a.Key()
	if m.flightAt(f.place()) != nil &&
		slices.ContainsFunc(m.s.InFlight, func(other flight) bool { return other.Key == f.Key }) {
		return
	}
	f.Since, f.Arrivals = m.now, m.in.Arrivals
	m.addFlight(f)
	m.out.Begin = append(m.out.Begin, Begin{Action: a, Cause: cause})
}

// cancel aborts an action in flight; it requests the abort only once.
func (m *machine) cancel(f *flight) {
	if f != nil && !f.Cancelled {
		f.Cancelled = true
		m.out.Cancel = append(m.out.Cancel, f.Key)
	}
}

// failed starts or extends the back-off of an action.
func (m *machine) failed(o op, object, err string, at time.Time) {
	r := m.retry(o, object)
	if r == nil {
		m.s.Retries = append(m.s.Retries, retry{Op: o, Object: object, Since: at})
		r = &m.s.Retries[len(m.s.Retries)-1]
	}
	r.Fails++
	r.Err = err
	r.At = at.Add(retryDelay(r.Fails))
	r.Missing = false
}

// succeeded ends the back-off of an action.
func (m *machine) succeeded(o op, object string) {
	m.s.Retries = slices.DeleteFunc(m.s.Retries, func(r retry) bool { return r.Op == o && r.Object == object })
}

func (m *machine) retry(o op, object string) *retry {
	for i := range m.s.Retries {
		if r := &m.s.Retries[i]; r.Op == o && r.Object == object {
			return r
		}
	}
	return nil
}

// resting returns the back-off of an action that failed, until it is over.
func (m *machine) resting(o op, object string) *retry {
	if r := m.retry(o, object); r != nil && m.now.Before(m.nextTry(r)) {
		return r
	}
	return nil
}

// nextTry is when a back-off is over.
func (m *machine) nextTry(r *retry) time.Time {
	if r.Missing && r.Arrivals != m.in.Arrivals {
		return r.Soon
	}
	return r.At
}

// waitOut reports that the pod waits for the end of a back-off.
func (m *machine) waitOut(r *retry, what, object string) {
	m.wait(Wait{For: what, Object: object, Since: r.Since, Until: m.nextTry(r), LastErr: r.Err})
}

// waitFor reports that the pod waits for an action in flight.
func (m *machine) waitFor(f *flight, what, object string) {
	w := Wait{For: what, Object: object, Since: f.Since}
	if r := m.retry(f.Op, f.Object); r != nil {
		w.LastErr = r.Err
	}
	m.out.Waits = append(m.out.Waits, w)
}
