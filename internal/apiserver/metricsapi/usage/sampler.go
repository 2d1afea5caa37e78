package usage

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Summary is the part of an agent's /stats/summary that is used here: CPU time and memory.
type Summary struct {
	Node Measured `json:"node"`
	Pods []struct {
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
	} `json:"pods"`
}

// longestSummary is more than an agent has to say about thousands of pods, in bytes. An agent is not trusted with the
// memory of the API server.
const longestSummary = 64 << 20

// ReadSummary reads the answer of an agent; a longer one than longestSummary is an error.
func ReadSummary(answer io.Reader) (*Summary, error) {
	text, err := io.ReadAll(io.LimitReader(answer, longestSummary+1))
	if err != nil {
		return nil, err
	}
	if len(text) > longestSummary {
		return nil, fmt.Errorf("the answer is longer than %d bytes", longestSummary)
	}
	var sum Summary
	if err := json.Unmarshal(text, &sum); err != nil {
		return nil, err
	}
	return &sum, nil
}

// Measured are the values of a node or a container.
type Measured struct {
	CPU *struct {
		Time                 time.Time `json:"time"`
		UsageCoreNanoSeconds *uint64   `json:"usageCoreNanoSeconds"`
	} `json:"cpu"`
	Memory *struct {
		WorkingSetBytes *uint64 `json:"workingSetBytes"`
	} `json:"memory"`
}

// The values of a node are at most fresh old; a rate is computed over at least reach, if there are
// values that old, and never over more than memory. The first request after a pause waits for
// patience, to have two.
const (
	fresh    = 5 * time.Second
	reach    = 10 * time.Second
	memory   = 2 * time.Minute
	patience = time.Second
	// youngest is how long a container must have run: its start says nothing about its usage.
	youngest = 2 * time.Second
)

// point is a measurement of one node or container.
type point struct {
	at      time.Time
	started time.Time // of a container
	cpu     uint64    // nanoseconds of CPU time since the start
	memory  uint64    // working set, bytes
}

// Rate is an average usage over a window.
type Rate struct {
	At     time.Time
	Window time.Duration
	CPU    uint64 // nanocores
	Memory uint64 // bytes
}

// container identifies a container during the life of its pod.
type container struct {
	pod  types.UID
	name string
}

// snapshot is what a node measured at one time.
type snapshot struct {
	at         time.Time
	node       *point
	containers map[container]point
}

// Sampler turns the counters of node agents into rates. It reads them from the agents on request, and keeps what it
// needs for the next request: nothing runs without requests.
type Sampler struct {
	// Read reads the summary of a node.
	Read func(ctx context.Context, node string) (*Summary, error)

	mu    sync.Mutex
	nodes map[string]*sampled
}

// sampled is one node; the lock is held during a request to its agent, so that concurrent requests
// cost one.
type sampled struct {
	room      chan struct{} // has a value if no request is in progress
	snapshots []snapshot    // oldest first
}

// Rates are the usage of a node and its containers.
type Rates struct {
	Node       *Rate
	containers map[container]Rate
}

// Container returns the usage of a container.
func (r *Rates) Container(pod types.UID, name string) (Rate, bool) {
	got, ok := r.containers[container{pod, name}]
	return got, ok
}

// Rates returns the current usage of a node and its containers.
func (s *Sampler) Rates(ctx context.Context, node string) (*Rates, error) {
	n := s.node(node)
	select {
	case <-n.room:
		defer func() { n.room <- struct{}{} }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if err := s.refresh(ctx, node, n); err != nil {
		s.forget(node, n)
		return nil, err
	}
	if len(n.snapshots) < 2 {
		wait := time.NewTimer(patience)
		defer wait.Stop()
		select {
		case <-wait.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if err := s.take(ctx, node, n); err != nil {
			return nil, err
		}
	}
	last := &n.snapshots[len(n.snapshots)-1]
	return between(base(n.snapshots), last), nil
}

func (s *Sampler) node(name string) *sampled {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nodes == nil {
		s.nodes = map[string]*sampled{}
	}
	n := s.nodes[name]
	if n == nil {
		n = &sampled{room: make(chan struct{}, 1)}
		n.room <- struct{}{}
		s.nodes[name] = n
	}
	return n
}

// forget removes a node without values: a pod may name any node, and no list of nodes need follow.
func (s *Sampler) forget(name string, n *sampled) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(n.snapshots) == 0 && s.nodes[name] == n {
		delete(s.nodes, name)
	}
}

// Keep removes all other nodes.
func (s *Sampler) Keep(nodes map[string]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.nodes {
		if !nodes[name] {
			delete(s.nodes, name)
		}
	}
}

// refresh drops old values, and reads new ones from the agent if none are fresh.
func (s *Sampler) refresh(ctx context.Context, name string, n *sampled) error {
	now := time.Now()
	for len(n.snapshots) > 0 && now.Sub(n.snapshots[0].at) > memory {
		n.snapshots = n.snapshots[1:]
	}
	if k := len(n.snapshots); k > 1 && now.Sub(n.snapshots[k-1].at) < fresh {
		return nil
	}
	return s.take(ctx, name, n)
}

// take reads the values from the agent.
func (s *Sampler) take(ctx context.Context, name string, n *sampled) error {
	at := time.Now()
	sum, err := s.Read(ctx, name)
	if err != nil {
		return err
	}
	next := snapshot{at: at, containers: map[container]point{}}
	if p, ok := sum.Node.point(time.Time{}); ok {
		next.node = &p
	}
	for i := range sum.Pods {
		for j := range sum.Pods[i].Containers {
			c := &sum.Pods[i].Containers[j]
			if p, ok := c.point(c.StartTime); ok {
				next.containers[container{sum.Pods[i].PodRef.UID, c.Name}] = p
			}
		}
	}
	n.snapshots = append(n.snapshots, next)
	// One that is old enough for the window suffices.
	for len(n.snapshots) > 2 && at.Sub(n.snapshots[1].at) >= reach+fresh {
		n.snapshots = n.snapshots[1:]
	}
	return nil
}

func (m *Measured) point(started time.Time) (point, bool) {
	if m.CPU == nil || m.CPU.UsageCoreNanoSeconds == nil || m.Memory == nil || m.Memory.WorkingSetBytes == nil {
		return point{}, false
	}
	return point{at: m.CPU.Time, started: started, cpu: *m.CPU.UsageCoreNanoSeconds, memory: *m.Memory.WorkingSetBytes},
		true
}

// base returns the measurement with which the last one is compared: the newest that is old enough,
// or else the oldest.
func base(snapshots []snapshot) *snapshot {
	last := snapshots[len(snapshots)-1].at
	best := 0
	for i := range snapshots[:len(snapshots)-1] {
		if last.Sub(snapshots[i].at) >= reach {
			best = i
		}
	}
	return &snapshots[best]
}

func between(from, to *snapshot) *Rates {
	out := &Rates{containers: make(map[container]Rate, len(to.containers))}
	if from.node != nil && to.node != nil {
		if r, ok := rate(*from.node, *to.node); ok {
			out.Node = &r
		}
	}
	for name, p := range to.containers {
		before, there := from.containers[name]
		if !there || !before.started.Equal(p.started) {
			// It was started since, with a counter of zero.
			before = point{at: p.started, started: p.started}
			if p.at.Sub(p.started) < youngest {
				continue
			}
		}
		if r, ok := rate(before, p); ok {
			out.containers[name] = r
		}
	}
	return out
}

func rate(from, to point) (Rate, bool) {
	window := to.at.Sub(from.at)
	if window <= 0 || to.cpu < from.cpu {
		return Rate{}, false // a counter that was reset
	}
	return Rate{At: to.at, Window: window, CPU: uint64(float64(to.cpu-from.cpu) / window.Seconds()), Memory: to.memory},
		true
}
