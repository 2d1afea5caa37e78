// Package scheduler assigns pods to nodes. It watches the API, calls core/placement, and writes
// bindings, conditions, and events. app runs it; it must never choose a node itself.
//
// Goroutines: one reflector each for pods, nodes, namespaces, and the four kinds whose pods are
// spread by default; the loop, the sole owner of the cluster snapshot and the queue; at most maxCalls
// API calls. The others send their results to the loop as closures through a mailbox, so a decision
// includes all earlier events and needs no lock. There is no periodic work: the loop sleeps until a
// closure is posted or the time of a waiting pod expires.
//
// Contract: section L2 of docs/spec/pod-lifecycle.md.
package scheduler

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"

	"carob/internal/base/journal"
	"carob/internal/core/placement"
	"carob/internal/scheduler/config"
	"carob/internal/scheduler/extender"
)

// maxCalls limits the API calls in flight; pods of a burst are bound in parallel.
const maxCalls = 64

// Options are optional settings.
type Options struct {
	Journal journal.Recorder // records scheduling attempts; nil records none
	Config  *config.Config   // nil: the defaults
	// Extenders carries the calls to extenders; nil: connections with their TLS settings.
	Extenders http.RoundTripper
}

// Scheduler drives placement. Create it with New and call Run once.
type Scheduler struct {
	client  kubernetes.Interface
	journal journal.Recorder
	box     *mailbox
	calls   *callQueue[types.UID]

	events    events.EventBroadcaster
	recorders map[string]events.EventRecorder // by scheduler name (L2.42)
	placed    *bindingEvents
	config    *config.Config
	extenders []*extender.Client
	others    *placement.Profile // of pods of other schedulers
	synced    chan struct{}      // closed when all watches have delivered their first list

	// Owned by the loop.
	cluster *placement.Cluster
	queue   *queue
	bound   map[types.UID]string         // scheduled pods, as the API shows them
	skipped map[types.UID]bool           // deleted before they were scheduled; event recorded
	assumed map[types.UID]*item          // scheduled, binding not observed yet
	nodes   map[string]*corev1.Node      // newest version of each
	spaces  map[string]*corev1.Namespace // likewise
	owners  map[placement.Owner]bool     // objects that select pods
	missing map[string]bool              // kinds that did not deliver a first list
	start   int                          // where the next decision starts

	devices *deviceWatches
	volumes *volumeWatches
	shown   shownSizes

	toPreempt  []*item               // pods that wait for the disruption budgets, which are being read
	leaving    map[types.UID][]*item // by victim: pods that wait until the watch shows its end
	consulting bool                  // a pod is being checked by extenders or for devices
	toConsult  []*item               // pods that wait for this
}

// New returns a scheduler that uses the API of cfg, without a client-side rate limit.
func New(cfg *rest.Config, o Options) (*Scheduler, error) {
	c := rest.CopyConfig(cfg)
	c.QPS = -1
	if c.ContentType == "" {
		c.ContentType = "application/vnd.kubernetes.protobuf"
		c.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	}
	client, err := kubernetes.NewForConfig(c)
	if err != nil {
		return nil, fmt.Errorf("scheduler: create API client: %w", err)
	}
	return NewForClient(client, o)
}

// NewForClient is New with an existing client.
func NewForClient(client kubernetes.Interface, o Options) (*Scheduler, error) {
	if o.Config == nil {
		o.Config = config.Default()
	}
	s := &Scheduler{
		client:  client,
		journal: o.Journal,
		box:     newMailbox(),
		calls:   newCallQueue[types.UID](maxCalls),
		synced:  make(chan struct{}),
		cluster: placement.NewCluster(),
		queue:   newQueue(o.Config.InitialBackoff, o.Config.MaxBackoff),
		config:  o.Config,
		others:  placement.DefaultProfile(),
		bound:   map[types.UID]string{},
		assumed: map[types.UID]*item{},
		skipped: map[types.UID]bool{},
		leaving: map[types.UID][]*item{},
		nodes:   map[string]*corev1.Node{},
		spaces:  map[string]*corev1.Namespace{},
		owners:  map[placement.Owner]bool{},
		missing: watched(),
		devices: newDeviceWatches(),
		volumes: newVolumeWatches(),
	}
	s.queue.held = func(p *placement.Pod) bool { return p.Gated() || s.holdsForVolumes(p) || s.holds(p) }
	s.queue.holds = func(it *item) {
		if !it.pod.Gated() {
			s.devices.held[it.pod.Object.UID] = it
		}
	}
	if s.journal == nil {
		s.journal = journal.Discard{}
	}
	s.events = events.NewBroadcaster(&events.EventSinkImpl{Interface: client.EventsV1()})
	s.placed = newBindingEvents(client)
	s.recorders = map[string]events.EventRecorder{}
	for name := range s.config.Profiles {
		s.recorders[name] = s.events.NewRecorder(scheme.Scheme, name)
	}
	for _, e := range o.Config.Extenders {
		c, err := extender.New(e, o.Extenders)
		if err != nil {
			return nil, fmt.Errorf("scheduler: %w", err)
		}
		s.extenders = append(s.extenders, c)
	}
	return s, nil
}

// profileOf returns the profile of a pod; nil if it belongs to another scheduler (L2.1).
func (s *Scheduler) profileOf(pod *corev1.Pod) *placement.Profile {
	name := pod.Spec.SchedulerName
	if name == "" {
		name = corev1.DefaultSchedulerName
	}
	return s.config.Profiles[name]
}

// eventf records an event in the name of the pod's scheduler.
func (s *Scheduler) eventf(pod *corev1.Pod, kind, reason, action, note string, args ...any) {
	if p := s.profileOf(pod); p != nil {
		s.recorders[p.Name].Eventf(pod, nil, kind, reason, action, note, args...)
	}
}

// Synced returns a channel that is closed when the scheduler has all pods and nodes and starts to
// schedule.
func (s *Scheduler) Synced() <-chan struct{} { return s.synced }

// Run schedules pods until ctx is done; then it finishes the calls in flight and returns nil.
func (s *Scheduler) Run(ctx context.Context) error {
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithName("scheduler"))
	if err := s.events.StartRecordingToSinkWithContext(ctx); err != nil {
		return fmt.Errorf("scheduler: start recording events: %w", err)
	}
	defer s.events.Shutdown()
	var watching sync.WaitGroup
	s.watch(ctx, &watching)
	s.loop(ctx)
	watching.Wait()
	s.calls.Wait()
	s.placed.Wait()
	return nil
}

func (s *Scheduler) loop(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		s.box.run()
		s.queue.Expire(time.Now())
		if len(s.missing) == 0 {
			for it := s.queue.Pop(); it != nil; it = s.queue.Pop() {
				s.schedule(ctx, it)
				s.box.run()
			}
		}
		s.showSizes()
		timer.Stop()
		if next := s.queue.Next(); !next.IsZero() {
			timer.Reset(time.Until(next))
		}
		select {
		case <-ctx.Done():
			return
		case <-s.box.full:
		case <-timer.C:
		}
	}
}
