package inference

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/component-base/metrics/legacyregistry"

	"carob/internal/core/routing"
)

// Whatever clients call their models and flows, the requests are served, and nothing of them stays.
func TestHostileNames(t *testing.T) {
	for _, name := range []string{"\xff\xfe", "a\x00b", "\u202e", "a\nb{c=\"d\"}", strings.Repeat("x", 1<<20), ""} {
		synctest.Test(t, func(t *testing.T) {
			p, f := start(t, flowControl, 1)
			f.set(addr(0), 50)
			time.Sleep(time.Minute)
			done := make(chan error, 1)
			go func() {
				k, err := p.Pick(t.Context(), &routing.Request{Model: name, Target: name, FairnessID: name})
				if err == nil {
					k.FirstByte()
					k.End(Result{Status: 200, InputTokens: 5, OutputTokens: 7, AnswerBytes: 9})
				}
				done <- err
			}()
			time.Sleep(time.Second) // it is held
			f.set(addr(0), 0)
			if err := <-done; err != nil {
				t.Errorf("%.20q: %v", name, err)
			}
			if sums, all := p.Statuses(); sums.Held != 0 || all[0].InFlight != 0 {
				t.Errorf("%.20q: %d held, %d in flight", name, sums.Held, all[0].InFlight)
			}
		})
	}
	if _, err := legacyregistry.DefaultGatherer.Gather(); err != nil {
		t.Error(err)
	}
}

// Requests with the same labels are counted in the same series.
func TestSeries(t *testing.T) {
	f := newFigures()
	count := func() (n float64) {
		all, err := legacyregistry.DefaultGatherer.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range all {
			for _, s := range m.GetMetric() {
				if m.GetName() == "inference_objective_request_total" {
					n += s.GetCounter().GetValue()
				}
			}
		}
		return n
	}
	before := count()
	const n = 3
	for i := range n {
		r := &routing.Request{Model: "m", Target: "t", Priority: i}
		f.of(r).requests.Inc()
		f.of(r).requests.Inc()
	}
	if got := count() - before; got != 2*n {
		t.Errorf("%v requests are counted, not %d", got, 2*n)
	}
}
