package flow

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace/noop"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/apiserver/pkg/endpoints/filterlatency"
	epmetrics "k8s.io/apiserver/pkg/endpoints/metrics"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericfilters "k8s.io/apiserver/pkg/server/filters"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/storage"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"
	flowrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

// Config is what the dispatcher needs from the API server.
type Config struct {
	// Client returns the configuration of an in-process client with all permissions.
	Client func() *restclient.Config
	// Reads and Writes are the limits on requests in flight; their sum is divided among the
	// priority levels.
	Reads, Writes  int
	LongRunning    apirequest.LongRunningRequestCheck
	RequestTimeout time.Duration
	// Count returns how many objects of a kind are stored; the work of a list is estimated from it.
	Count func(ctx context.Context, gr schema.GroupResource) (int64, error)
}

// Dispatcher executes and queues requests by priority and fairness.
type Dispatcher struct {
	cfg     Config
	ready   atomic.Pointer[http.Handler]        // set when the configuration is loaded
	debug   atomic.Pointer[mux.PathRecorderMux] // set with ready
	next    http.Handler
	deleted chan struct{} // has a value when an object was deleted
	// Requests in flight: executing, and received.
	executed, come inFlight

	mu     sync.Mutex
	counts map[string]count // of resources that have objects
}

// count is how many objects a resource had.
type count struct {
	storage.Stats
	until time.Time // it is recent enough
}

// New returns a dispatcher that only limits the number of requests until Run has loaded its
// configuration.
func New(cfg Config) *Dispatcher { return &Dispatcher{cfg: cfg, deleted: make(chan struct{}, 1)} }

// Deleted announces the deletion of an object of this package's kinds: a built-in one is created
// again.
func (d *Dispatcher) Deleted() {
	select {
	case d.deleted <- struct{}{}:
	default:
	}
}

// Active reports whether priority and fairness is active.
func (d *Dispatcher) Active() bool { return d.ready.Load() != nil }

// Filter returns next behind the dispatcher. It is called once.
func (d *Dispatcher) Filter(next http.Handler) http.Handler {
	d.next = d.counted(next)
	plain := genericfilters.WithMaxInFlightLimit(d.next, d.cfg.Reads, d.cfg.Writes, d.cfg.LongRunning)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n := d.come.of(r, d.cfg.LongRunning); n != nil {
			n.Add(1)
			defer n.Add(-1)
		}
		if h := d.ready.Load(); h != nil {
			(*h).ServeHTTP(w, r)
			return
		}
		plain.ServeHTTP(w, r)
	})
}

// DebugPath is the path of Debug.
const DebugPath = "/debug/api_priority_and_fairness/"

// Debug lists the requests that are waiting and executing, once the configuration is loaded.
func (d *Dispatcher) Debug(w http.ResponseWriter, r *http.Request) {
	debug := d.debug.Load()
	if debug == nil {
		http.Error(w, "requests are not sorted yet", http.StatusServiceUnavailable)
		return
	}
	debug.ServeHTTP(w, r)
}

// inFlight are numbers of requests that are not long-running.
type inFlight struct{ reads, writes atomic.Int64 }

// of returns the counter to which a request belongs, nil for a long-running one.
func (n *inFlight) of(r *http.Request, lasts apirequest.LongRunningRequestCheck) *atomic.Int64 {
	info, ok := apirequest.RequestInfoFrom(r.Context())
	if !ok || lasts(r, info) {
		return nil
	}
	if info.Verb == "get" || info.Verb == "list" {
		return &n.reads
	}
	return &n.writes
}

// counted counts the executing requests.
func (d *Dispatcher) counted(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n := d.executed.of(r, d.cfg.LongRunning); n != nil {
			n.Add(1)
			defer n.Add(-1)
		}
		next.ServeHTTP(w, r)
	})
}

// Measure updates apiserver_current_inflight_requests and apiserver_current_inqueue_requests.
func (d *Dispatcher) Measure() {
	// In this order, so that a request that was just let through does not count as waiting.
	come := [2]int64{d.come.reads.Load(), d.come.writes.Load()}
	reads, writes := d.executed.reads.Load(), d.executed.writes.Load()
	epmetrics.UpdateInflightRequestMetrics(epmetrics.ExecutingPhase, int(reads), int(writes))
	epmetrics.UpdateInflightRequestMetrics(epmetrics.WaitingPhase, int(max(come[0]-reads, 0)),
		int(max(come[1]-writes, 0)))
}

// Run keeps the built-in objects and follows the configuration until ctx ends.
func (d *Dispatcher) Run(ctx context.Context) {
	log := klog.FromContext(ctx)
	client, err := kubernetes.NewForConfig(d.cfg.Client())
	if err != nil {
		log.Error(err, "Priority and fairness is off")
		return
	}
	if err := ensure(ctx, client); err != nil && ctx.Err() == nil {
		log.Error(err, "Storing the built-in flow schemas failed")
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	control := utilflowcontrol.New(factory, client.FlowcontrolV1(), d.cfg.Reads+d.cfg.Writes)
	factory.Start(ctx.Done())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := control.Run(ctx.Done()); err != nil && ctx.Err() == nil {
			log.Error(err, "Priority and fairness has ended")
		}
	}()
	defer func() { <-ended; factory.Shutdown() }()
	for _, synced := range factory.WaitForCacheSync(ctx.Done()) {
		if !synced {
			return
		}
	}
	estimate := flowrequest.NewWorkEstimator(d.stats, control.GetInterestedWatchCount,
		flowrequest.DefaultWorkEstimatorConfig(), control.GetMaxSeats)
	h := genericfilters.WithPriorityAndFairness(filterlatency.TrackCompleted(d.next), d.cfg.LongRunning, control,
		estimate, d.cfg.RequestTimeout/4)
	h = filterlatency.TrackStarted(h, noop.NewTracerProvider(), "priorityandfairness")
	debug := mux.NewPathRecorderMux("priority-and-fairness")
	control.Install(debug)
	d.debug.Store(debug)
	d.ready.Store(&h)
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.deleted:
			if err := ensure(ctx, client); err != nil && ctx.Err() == nil {
				log.Error(err, "Storing the built-in flow schemas failed")
			}
		}
	}
}

// objectSize is the assumed size of an object of unknown kind, in bytes.
const objectSize = 2 << 10

// How old a count may be for the estimate of a long list: counting 10,000 takes as long as a page
// of 500. The library's own numbers may be a minute old.
const countedFor = 5 * time.Second

// stats returns the numbers of a resource by the library's name for it.
func (d *Dispatcher) stats(resource string) (storage.Stats, error) {
	d.mu.Lock()
	known, ok := d.counts[resource]
	d.mu.Unlock()
	if ok && time.Now().Before(known.until) {
		return known.Stats, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	n, err := d.cfg.Count(ctx, schema.ParseGroupResource(resource))
	if err != nil || n == 0 {
		return storage.Stats{}, flowrequest.ObjectCountNotFoundErr
	}
	counted := storage.Stats{ObjectCount: n, EstimatedAverageObjectSizeBytes: objectSize}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.counts == nil {
		d.counts = map[string]count{}
	}
	d.counts[resource] = count{counted, time.Now().Add(countedFor)}
	return counted, nil
}

// ensure creates missing built-in objects and updates those that no client has changed. Mandatory
// objects with a fixed content are always corrected.
func ensure(ctx context.Context, client kubernetes.Interface) error {
	c := client.FlowcontrolV1()
	for i, list := range [][]*flowcontrolv1.PriorityLevelConfiguration{bootstrap.MandatoryPriorityLevelConfigurations,
		bootstrap.SuggestedPriorityLevelConfigurations} {
		for _, want := range list {
			old, err := c.PriorityLevelConfigurations().Get(ctx, want.Name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				_, err = c.PriorityLevelConfigurations().Create(ctx, annotated(want.DeepCopy()),
					metav1.CreateOptions{FieldManager: manager})
			} else if err == nil && mayUpdate(old, i == 0) && !sameLevel(&old.Spec, &want.Spec) {
				old.Spec = *want.Spec.DeepCopy()
				_, err = c.PriorityLevelConfigurations().Update(ctx, old, metav1.UpdateOptions{FieldManager: manager})
			}
			if err != nil && !apierrors.IsAlreadyExists(err) && !apierrors.IsConflict(err) {
				return fmt.Errorf("priority level %s: %w", want.Name, err)
			}
		}
	}
	for i, list := range [][]*flowcontrolv1.FlowSchema{bootstrap.MandatoryFlowSchemas, bootstrap.SuggestedFlowSchemas} {
		for _, want := range list {
			old, err := c.FlowSchemas().Get(ctx, want.Name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				_, err = c.FlowSchemas().Create(ctx, annotated(want.DeepCopy()),
					metav1.CreateOptions{FieldManager: manager})
			} else if err == nil && mayUpdate(old, i == 0) && !equality.Semantic.DeepEqual(old.Spec, want.Spec) {
				old.Spec = *want.Spec.DeepCopy()
				_, err = c.FlowSchemas().Update(ctx, old, metav1.UpdateOptions{FieldManager: manager})
			}
			if err != nil && !apierrors.IsAlreadyExists(err) && !apierrors.IsConflict(err) {
				return fmt.Errorf("flow schema %s: %w", want.Name, err)
			}
		}
	}
	return nil
}

const manager = "api-priority-and-fairness-config-producer-v1"

func annotated[T metav1.Object](o T) T {
	o.SetAnnotations(map[string]string{flowcontrolv1.AutoUpdateAnnotationKey: "true"})
	return o
}

// mayUpdate reports whether the server manages an object: until another writer changes it, or as
// the annotation says.
func mayUpdate(o metav1.Object, mandatory bool) bool {
	if mandatory {
		return true
	}
	switch o.GetAnnotations()[flowcontrolv1.AutoUpdateAnnotationKey] {
	case "true":
		return true
	case "false":
		return false
	}
	return o.GetGeneration() == 1
}

// sameLevel compares with defaults applied; administrators may tune the exempt level.
func sameLevel(have, want *flowcontrolv1.PriorityLevelConfigurationSpec) bool {
	if want.Exempt != nil {
		return have.Type == want.Type
	}
	return equality.Semantic.DeepEqual(*have, *want)
}
