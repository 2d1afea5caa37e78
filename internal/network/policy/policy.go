// Package policy enforces network policies on the pod network of this node. It follows policies, pods, and namespaces
// of the API, passes them to core/netplan/policies, and writes the result to nftables, each change in one transaction.
// Package bridge waits for it before a pod gets its address; package app runs it. It must never decide which packets
// pass.
//
// Packets between pods, and between pods and the world, are forwarded by the host, where the rules
// are. Packets between a pod and its own node are not forwarded, so no rule sees them.
//
//	API ──watches──┐                       ┌── nftables, IPv4
//	               ├─▶ plan ──changes──▶ writer
//	bridge ─Admit──┘                       └── nftables, IPv6; conntrack: UDP flows that are not allowed
//
// While there is no policy, only policies are watched, and there is no table.
//
// Contract: N5 in docs/spec/network.md.
package policy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"carob/internal/base/errkind"
	"carob/internal/core/netplan/policies"
	"carob/internal/network"
)

// Config is the configuration of an Enforcer.
type Config struct {
	Table string // name of the nftables tables (ip and ip6), used for nothing else
	Node  string // name of this node
}

// Enforcer keeps the rules. Make it with New in the network namespace of the host, and Run it once.
type Enforcer struct {
	cfg      Config
	ns       *os.File
	patience time.Duration

	mu         sync.Mutex
	plan       *policies.Plan
	objects    map[string]*object                  // by identity
	places     map[string]map[string]network.Place // by identity and sandbox
	used       map[netip.Addr]bool                 // addresses that pods have left
	synced     map[kind]bool                       // lists that are complete
	unlisted   map[kind]error                      // why the last list failed
	settled    chan struct{}                       // closed and replaced when settledNow may have changed
	namespaces map[string]bool                     // that the plan has
	planned    uint64                              // counts the changes of the plan
	written    uint64                              // the last change that is in the kernel
	tried      uint64                              // the last change that was to be written
	failed     error                               // why the write failed; nil: it succeeded
	round      chan struct{}                       // closed and replaced after each write

	wake      chan struct{}
	flowCheck chan struct{} // the flows must be checked again
	follow    chan bool     // whether there are policies
}

// object is a pod of the API.
type object struct {
	policies.Pod
	node    string
	ips     []netip.Addr // of its status
	deleted bool         // the object is gone, but the pod still has an address here
}

// admitPatience is how long a pod waits for the lists of policies, pods and namespaces.
const admitPatience = 10 * time.Second

// New returns an Enforcer; nothing happens before Run.
func New(cfg Config) (*Enforcer, error) {
	ns, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, fmt.Errorf("open the network namespace: %w", err)
	}
	return &Enforcer{cfg: cfg, ns: ns, patience: admitPatience, plan: policies.New(), objects: map[string]*object{},
		places: map[string]map[string]network.Place{}, namespaces: map[string]bool{}, used: map[netip.Addr]bool{},
		synced: map[kind]bool{}, unlisted: map[kind]error{},
		settled: make(chan struct{}), round: make(chan struct{}),
		wake: make(chan struct{}, 1), flowCheck: make(chan struct{}, 1), follow: make(chan bool, 1)}, nil
}

// Close frees what New took. The rules stay in force.
func (e *Enforcer) Close() error { return e.ns.Close() }

var _ network.Gate = (*Enforcer)(nil)

// Adopt implements network.Gate.
func (e *Enforcer) Adopt(all []network.Place) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, p := range all {
		e.occupy(p)
	}
	e.changed()
}

// Admit implements network.Gate. Kinds: Unavailable if the policies have not been listed yet, or cannot be written.
func (e *Enforcer) Admit(ctx context.Context, p network.Place) error {
	ctx, cancel := context.WithTimeoutCause(ctx, e.patience, errors.New("no answer within "+e.patience.String()))
	defer cancel()
	e.mu.Lock()
	defer e.mu.Unlock()
	for !e.settledNow() {
		if err := e.await(ctx, e.settled); err != nil {
			for k, failure := range e.unlisted {
				if !e.synced[k] {
					err = failure // it names an object that cannot be read
				}
			}
			return errkind.Errorf(errkind.Unavailable,
				"the network policies of the cluster are not known yet, so pod %s/%s gets no network: %w", p.Namespace,
				p.Name, err)
		}
	}
	e.occupy(p)
	isolated := e.plan.Isolated(identity(p.UID, p.Namespace, p.Name))
	again := slices.ContainsFunc(p.IPs, func(a netip.Addr) bool { return e.used[a] })
	if e.plan.Policies() == 0 {
		return nil
	}
	want := e.changed()
	if !isolated && !again {
		return nil // as a peer of others it is written soon
	}
	for e.written < want {
		err := e.failed
		if e.tried < want || err == nil {
			if err = e.await(ctx, e.round); err == nil {
				continue
			}
		}
		e.vacate(p.SandboxID)
		e.changed()
		return errkind.Errorf(errkind.Unavailable,
			"the network policies of pod %s/%s cannot be put in force, so it gets no network: %w", p.Namespace, p.Name, err)
	}
	if isolated && again {
		e.mu.Unlock()
		err := e.forgetFlows(p.IPs)
		e.mu.Lock()
		if err != nil {
			e.vacate(p.SandboxID)
			e.changed()
			return errkind.Errorf(errkind.Unavailable,
				"connections of an earlier pod at the address of pod %s/%s cannot be ended, so it gets no network: %w",
				p.Namespace, p.Name, err)
		}
		for _, a := range p.IPs {
			delete(e.used, a)
		}
	}
	return nil
}

// Free implements network.Gate.
func (e *Enforcer) Free(sandbox string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.vacate(sandbox)
	e.changed()
}

// await waits for an event without the lock.
func (e *Enforcer) await(ctx context.Context, event <-chan struct{}) error {
	e.mu.Unlock()
	defer e.mu.Lock()
	select {
	case <-event:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// settledNow reports whether everything that the rules of a pod depend on is known.
func (e *Enforcer) settledNow() bool {
	return e.synced[ofPolicies] && (e.plan.Policies() == 0 || e.synced[ofPods] && e.synced[ofNamespaces])
}

// changed informs the writer that the plan may have changed, and returns the number of the
// change.
func (e *Enforcer) changed() uint64 {
	if !e.settledNow() {
		return e.planned
	}
	e.planned++
	poke(e.wake)
	return e.planned
}

// settle wakes those that wait for settledNow: its answer may have changed.
func (e *Enforcer) settle() {
	close(e.settled)
	e.settled = make(chan struct{})
	e.changed()
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (e *Enforcer) occupy(p network.Place) {
	id := identity(p.UID, p.Namespace, p.Name)
	if e.places[id] == nil {
		e.places[id] = map[string]network.Place{}
	}
	e.places[id][p.SandboxID] = p
	e.update(id)
}

// identity is the UID by which the plan knows a pod. It contains the name: anybody who may create pods chooses the
// annotation of a mirror pod, and the UID in it may be that of a pod in another namespace.
func identity(uid, namespace, name string) string { return uid + "/" + namespace + "/" + name }

func (e *Enforcer) vacate(sandbox string) {
	for id, list := range e.places {
		p, ok := list[sandbox]
		if !ok {
			continue
		}
		for _, a := range p.IPs {
			e.used[a] = true
		}
		if delete(list, sandbox); len(list) == 0 {
			delete(e.places, id)
			if o := e.objects[id]; o != nil && o.deleted {
				delete(e.objects, id)
			}
		}
		e.update(id)
	}
}

// update passes the state of a pod to the plan: its addresses on this node are those that the pod network assigned, not
// those in its status.
func (e *Enforcer) update(id string) {
	o, places := e.objects[id], e.places[id]
	var pod policies.Pod
	switch {
	case len(places) > 0:
		sandboxes := slices.Sorted(maps.Keys(places))
		if o != nil {
			pod = o.Pod
			pod.Gone = pod.Gone || o.deleted
		} else {
			pod = fromPlace(places[sandboxes[0]])
		}
		pod.Here = true
		for _, sandbox := range sandboxes {
			pod.Addresses = append(pod.Addresses, places[sandbox].IPs...)
		}
	case o != nil && o.node != "" && o.node != e.cfg.Node && !o.Gone:
		pod = o.Pod
		pod.Addresses = o.ips
	default:
		e.plan.DeletePod(id)
		return
	}
	slices.SortFunc(pod.Addresses, netip.Addr.Compare)
	pod.Addresses = slices.Compact(pod.Addresses)
	e.plan.SetPod(pod)
}

// fromPlace is a pod that the watch has not delivered yet, such as a static pod without its mirror.
func fromPlace(p network.Place) policies.Pod {
	pod := policies.Pod{UID: identity(p.UID, p.Namespace, p.Name), Namespace: p.Namespace, Name: p.Name,
		Labels: map[string]string{}}
	for k, v := range p.Labels {
		if !strings.HasPrefix(k, "io.kubernetes.pod.") { // added by the node agent
			pod.Labels[k] = v
		}
	}
	return pod
}

// Run enforces the policies of an API server until ctx is done. The rules stay in force after it.
func (e *Enforcer) Run(ctx context.Context, api API) error {
	var parts sync.WaitGroup
	defer parts.Wait()
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithName("network policies"))
	parts.Go(func() { e.watchPolicies(ctx, api) })
	parts.Go(func() { e.watchOthers(ctx, api) })
	parts.Go(func() { e.checkFlows(ctx) })
	e.write(ctx)
	return nil
}
