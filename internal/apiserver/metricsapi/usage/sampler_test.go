package usage

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// machine is a node with one container, which uses a share of a core.
type machine struct {
	mu      sync.Mutex
	reads   int
	began   time.Time // of the container
	load    uint64    // nanoseconds per second
	used    uint64
	at      time.Time
	fail    error
	restart bool
}

func (m *machine) read(context.Context, string) (*Summary, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reads++
	if m.fail != nil {
		return nil, m.fail
	}
	now := time.Now()
	m.used += m.load * uint64(now.Sub(m.at)/time.Second)
	m.at = now
	if m.restart {
		m.restart, m.began, m.used = false, now, 0
	}
	measured := func(cpu uint64) Measured {
		var out Measured
		out.CPU = &struct {
			Time                 time.Time `json:"time"`
			UsageCoreNanoSeconds *uint64   `json:"usageCoreNanoSeconds"`
		}{now, &cpu}
		out.Memory = &struct {
			WorkingSetBytes *uint64 `json:"workingSetBytes"`
		}{new(uint64(4096))}
		return out
	}
	sum := &Summary{Node: measured(2 * m.used)}
	sum.Pods = append(sum.Pods, struct {
		PodRef struct {
			Namespace string    `json:"namespace"`
			Name      string    `json:"name"`
			UID       types.UID `json:"uid"`
		} `json:"podRef"`
		Containers []struct {
			Name      string    `json:"name"`
			StartTime time.Time `json:"startTime"`
			Measured
		} `json:"containers"`
	}{})
	sum.Pods[0].PodRef.UID = "u"
	sum.Pods[0].Containers = append(sum.Pods[0].Containers, struct {
		Name      string    `json:"name"`
		StartTime time.Time `json:"startTime"`
		Measured
	}{"c", m.began, measured(m.used)})
	return sum, nil
}

func TestSampler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &machine{began: time.Now(), at: time.Now(), load: 500_000_000}
		s := &Sampler{Read: m.read}
		time.Sleep(time.Hour)
		expect := func(what string, reads int, cpu uint64, window time.Duration) {
			t.Helper()
			r, err := s.Rates(t.Context(), "n")
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			c, ok := r.Container("u", "c")
			if !ok || c.CPU != cpu || c.Window != window || r.Node == nil || r.Node.CPU != 2*cpu || c.Memory != 4096 {
				t.Errorf("%s: %+v, the node %+v; want %d over %v", what, c, r.Node, cpu, window)
			}
			if m.reads != reads {
				t.Errorf("%s: read %d times, want %d", what, m.reads, reads)
			}
		}
		began := time.Now()
		expect("the first question waits for two measurements", 2, 500_000_000, patience)
		if got := time.Since(began); got != patience {
			t.Errorf("the first answer took %v", got)
		}
		expect("at once again", 2, 500_000_000, patience)
		// Every 15 s, like an autoscaler: its period is the window.
		time.Sleep(15 * time.Second)
		m.load = 100_000_000
		expect("15 s later", 3, 100_000_000, 15*time.Second)
		time.Sleep(15 * time.Second)
		expect("30 s later", 4, 100_000_000, 15*time.Second)
		// Another client requests values in between: the window stays long enough.
		time.Sleep(6 * time.Second)
		expect("in between", 5, 100_000_000, 21*time.Second)
		time.Sleep(6 * time.Second)
		expect("in between", 6, 100_000_000, 12*time.Second)
		// No client requests values for a long time: old values are not used any more.
		m.load = 900_000_000
		time.Sleep(time.Hour)
		expect("an hour later", 8, 900_000_000, patience)
	})
}

func TestSamplerOfNewContainers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &machine{began: time.Now(), at: time.Now(), load: 500_000_000}
		s := &Sampler{Read: m.read}
		if _, err := s.Rates(t.Context(), "n"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(12 * time.Second)
		m.restart = true
		r, err := s.Rates(t.Context(), "n")
		if err != nil {
			t.Fatal(err)
		}
		if c, ok := r.Container("u", "c"); ok {
			t.Errorf("a container that has just started uses %+v", c)
		}
		time.Sleep(6 * time.Second)
		if r, err = s.Rates(t.Context(), "n"); err != nil {
			t.Fatal(err)
		}
		if c, _ := r.Container("u", "c"); c.Window != 6*time.Second || c.CPU != 500_000_000 {
			t.Errorf("6 s after its start it uses %+v", c)
		}
	})
}

// Concurrent requests become one; a cancelled one does not affect the others.
func TestSamplerReadsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &machine{began: time.Now(), at: time.Now()}
		s := &Sampler{Read: m.read}
		gone, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for i := range 20 {
			all.Go(func() {
				ctx := t.Context()
				if i%2 == 0 {
					ctx = gone
				}
				if _, err := s.Rates(ctx, "n"); err != nil && !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		cancel()
		all.Wait()
		if m.reads > 3 {
			t.Errorf("read %d times", m.reads)
		}
		m.fail = errors.New("away")
		time.Sleep(time.Minute)
		if _, err := s.Rates(t.Context(), "n"); !errors.Is(err, m.fail) {
			t.Errorf("an agent that is away: %v", err)
		}
		s.Keep(map[string]bool{"other": true})
		if len(s.nodes) != 0 {
			t.Error("a node that is gone is remembered")
		}
	})
}

// endless is an answer that never ends.
type endless struct{ read int }

func (e *endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	e.read += len(p)
	return len(p), nil
}

func TestReadSummary(t *testing.T) {
	sum, err := ReadSummary(strings.NewReader(`{"node":{},"pods":[{"podRef":{"name":"p"}}]}`))
	if err != nil || len(sum.Pods) != 1 || sum.Pods[0].PodRef.Name != "p" {
		t.Errorf("%+v, %v", sum, err)
	}
	if _, err := ReadSummary(strings.NewReader(`{"node":`)); err == nil {
		t.Error("half an answer is one")
	}
	hostile := &endless{}
	if _, err := ReadSummary(hostile); err == nil || hostile.read > 2*longestSummary {
		t.Errorf("%d bytes of an endless answer were read: %v", hostile.read, err)
	}
}
