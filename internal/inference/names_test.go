package inference

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
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

// Whatever status a server, or a gateway that calls the picker, claims: errors of a model have few series.
func TestSeriesOfErrors(t *testing.T) {
	f := newFigures()
	k := &Pick{request: &routing.Request{Model: "errors"}, series: f.of(&routing.Request{Model: "errors"})}
	for status := range 100_000 {
		f.ended(k, &Result{Outcome: routing.Failed, Status: status - 1000}, time.Now())
	}
	all, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	codes := map[string]float64{}
	for _, m := range all {
		if m.GetName() != "inference_objective_request_error_total" {
			continue
		}
		for _, s := range m.GetMetric() {
			labels := map[string]string{}
			for _, l := range s.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if labels["model_name"] == "errors" {
				codes[labels["error_code"]] += s.GetCounter().GetValue()
			}
		}
	}
	if len(codes) > 64 || codes["429"] != 1 || codes["other"] < 90_000 || codes["502"] < 1000 {
		t.Errorf("%d codes: %v", len(codes), codes)
	}
}

// Pods that come and go leave no series behind, and models that clients make up cannot multiply those of pods.
func TestSeriesOfPods(t *testing.T) {
	f := newFigures()
	count := func(pod string) (n int) {
		all, err := legacyregistry.DefaultGatherer.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range all {
			for _, s := range m.GetMetric() {
				for _, l := range s.GetLabel() {
					if l.GetName() == "pod_name" && strings.HasPrefix(l.GetValue(), pod) {
						n++
					}
				}
			}
		}
		return n
	}
	pick := func(pod string) *Pick {
		k := &Pick{pod: types.NamespacedName{Namespace: "series", Name: pod}}
		k.addresses[0] = netip.MustParseAddrPort("192.0.2.1:8000")
		return k
	}
	pods := map[types.NamespacedName]bool{}
	for i := range 40 {
		k := pick(fmt.Sprint("many-", i))
		pods[k.pod] = true
		for j := range mostNames {
			f.chosen(f.name("model", fmt.Sprint("made up ", j)), k).Inc()
		}
	}
	if n := count("many-"); n > mostChoices+len(pods) || n < mostChoices/2 {
		t.Errorf("%d series", n)
	}
	f.left(pods)
	if n := count("many-"); n != 0 || len(f.chose) > mostChoices/2 {
		t.Errorf("%d series of pods that have left, %d are kept", n, len(f.chose))
	}
	synctest.Test(t, func(t *testing.T) {
		p, _ := start(t, "", 1)
		all := endpoints(1)
		all[0].Name = types.NamespacedName{Namespace: "series", Name: "one"}
		for range 2 {
			p.SetEndpoints(all)
			k, err := p.Pick(t.Context(), &routing.Request{Model: "m"})
			if err != nil {
				t.Fatal(err)
			}
			k.End(Result{})
			if n := count("one"); n != 1 {
				t.Errorf("%d series of the pod", n)
			}
			p.SetEndpoints(nil)
			if n := count("one"); n != 0 {
				t.Errorf("%d series of a pod that has left", n)
			}
		}
	})
}
