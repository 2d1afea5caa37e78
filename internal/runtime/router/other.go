package router

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"carob/internal/runtime"
)

// Times of the checks of another runtime. checkLimit is how long it may take to answer; a runtime
// that does not is down, and its calls fail at once until it answers again. A runtime that is up is
// checked every checkEvery, one that is down every retryEvery and when its socket accepts a connection.
const (
	checkLimit = 10 * time.Second
	checkEvery = 30 * time.Second
	retryEvery = 2 * time.Second
	firstLimit = 2 * time.Second // of the check that a first call waits for
)

// Waiter is an optional extension of a runtime behind a socket: it returns when there is a connection.
type Waiter interface {
	Connected(ctx context.Context) error
}

// other is a runtime besides the node's own.
//
//	unknown ──first check──▶ up ◀──answers── down
//	                          └─no answer──▶
type other struct {
	endpoint string
	names    []string // of its handlers
	rt       runtime.Runtime
	main     runtime.Runtime // the node's own
	checks   chan struct{}   // capacity 1: check now

	mu      sync.Mutex
	last    *cri.StatusResponse // of the last check; nil before the first answer
	failure error               // why it is down; nil: up or unknown
	back    chan struct{}       // closed when it is up again, and replaced then
	turned  chan struct{}       // closed when problem has another code than before, and replaced then

	listed     []*cri.PodSandbox // by the last list that worked
	containers []*cri.Container
	images     []*cri.Image
	everListed bool
}

func newOther(h Handler, main runtime.Runtime) *other {
	return &other{endpoint: h.Endpoint, rt: h.Runtime, main: main, checks: make(chan struct{}, 1),
		back: make(chan struct{}), turned: make(chan struct{})}
}

// String names the runtime in messages.
func (o *other) String() string {
	if len(o.names) == 0 {
		return "the container runtime at " + o.endpoint
	}
	return fmt.Sprintf("the container runtime of handler %s at %s", strings.Join(o.names, ", "), o.endpoint)
}

// unavailable is the error of a call that the runtime did not answer.
func (o *other) unavailable(err error) error {
	return status.Errorf(codes.Unavailable, "%s does not answer: %s", o, status.Convert(err).Message())
}

// problem is why calls need not be tried, or nil.
func (o *other) problem() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.current()
}

// current is problem for a caller that holds mu.
func (o *other) current() error {
	switch {
	case o.failure == nil:
		return nil
	case status.Code(o.failure) == codes.FailedPrecondition:
		return o.failure
	}
	return o.unavailable(o.failure)
}

// check requests a check soon.
func (o *other) check() {
	select {
	case o.checks <- struct{}{}:
	default:
	}
}

// up returns a channel that is closed when the runtime answers again after it was down.
func (o *other) up() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.back
}

// state is a channel that is closed when the problem of the runtime changes, and that problem.
func (o *other) state() (turned <-chan struct{}, problem error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.turned, o.current()
}

// watch calls emit when the runtime stops to answer and when it answers again, until ctx ends.
func (o *other) watch(ctx context.Context, emit func(error)) {
	for last := codes.OK; ; {
		turned, problem := o.state()
		if code := status.Code(problem); code != last {
			last = code
			emit(problem)
		}
		select {
		case <-ctx.Done():
			return
		case <-turned:
		}
	}
}

// look checks the runtime once.
func (o *other) look(ctx context.Context, limit time.Duration) {
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	resp, err := o.rt.Status(limited, &cri.StatusRequest{})
	if err == nil {
		err = o.sameCgroups(limited)
	}
	if err != nil && ctx.Err() != nil {
		return // the caller gave up
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	before := status.Code(o.current())
	defer func() {
		if status.Code(o.current()) != before {
			close(o.turned)
			o.turned = make(chan struct{})
		}
	}()
	switch {
	case err == nil:
		if o.last = resp; o.failure != nil {
			klog.FromContext(ctx).Info("A container runtime answers again", "handlers", o.names, "endpoint", o.endpoint)
			close(o.back)
			o.failure, o.back = nil, make(chan struct{})
		}
	case o.failure == nil:
		klog.FromContext(ctx).Info("A container runtime does not answer; pods of its handlers wait", "handlers", o.names,
			"endpoint", o.endpoint, "err", err)
		o.failure = err
	default:
		o.failure = err
	}
}

// sameCgroups returns an error if the runtime would put containers into other cgroups than those of their
// pod. Runtimes of CRI before 1.28 do not say which driver they use.
func (o *other) sameCgroups(ctx context.Context) error {
	theirs, err := o.rt.RuntimeConfig(ctx, &cri.RuntimeConfigRequest{})
	if status.Code(err) == codes.Unimplemented {
		return nil
	}
	if err != nil {
		return err
	}
	ours, err := o.main.RuntimeConfig(ctx, &cri.RuntimeConfigRequest{})
	if err != nil {
		return nil //nolint:nilerr // it does not say, either
	}
	if a, b := theirs.GetLinux().GetCgroupDriver(), ours.GetLinux().GetCgroupDriver(); a != b {
		return status.Errorf(codes.FailedPrecondition, "%s uses the cgroup driver %s, and this node %s: configure one for both",
			o, strings.ToLower(a.String()), strings.ToLower(b.String()))
	}
	return nil
}

// keepChecking checks the runtime until ctx ends.
func (o *other) keepChecking(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		connected, stop := o.awaitConnection(ctx)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-o.checks:
		case <-connected:
		}
		stop()
		if ctx.Err() != nil {
			return
		}
		o.look(ctx, checkLimit)
		if o.problem() != nil {
			timer.Reset(retryEvery)
		} else {
			timer.Reset(checkEvery)
		}
	}
}

// awaitConnection returns a channel that is closed when the socket of a runtime that is down accepts a
// connection; nil if the runtime is up, or cannot tell.
func (o *other) awaitConnection(ctx context.Context) (<-chan struct{}, func()) {
	w, ok := o.rt.(Waiter)
	if !ok || o.problem() == nil {
		return nil, func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	connected, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		if w.Connected(ctx) == nil {
			select {
			case <-ctx.Done():
			case <-time.After(retryEvery / 20): // a hung runtime accepts connections, too
				close(connected)
			}
		}
	}()
	return connected, func() { cancel(); <-ended }
}

// status is that of the last check. The first caller waits for one.
func (o *other) status(ctx context.Context) *cri.StatusResponse {
	o.mu.Lock()
	unknown := o.last == nil && o.failure == nil
	o.mu.Unlock()
	if unknown {
		o.look(ctx, firstLimit)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.failure != nil {
		return nil
	}
	return o.last
}

// handlerFeatures is what a handler of the runtime supports; ok is false if the runtime does not answer
// or says that it has no such handler. Runtimes of CRI before 1.30 do not list handlers.
func (o *other) handlerFeatures(ctx context.Context, handler string) (_ *cri.RuntimeHandlerFeatures, ok bool) {
	st := o.status(ctx)
	if st == nil {
		return nil, false
	}
	for _, h := range st.GetRuntimeHandlers() {
		if h.GetName() == handler {
			return h.GetFeatures(), true
		}
	}
	return nil, len(st.GetRuntimeHandlers()) == 0
}

// features is what a handler supports; nothing if that is not known.
func (o *other) features(ctx context.Context, handler string) *cri.RuntimeHandlerFeatures {
	f, _ := o.handlerFeatures(ctx, handler)
	return f
}

// anyHandler is what the handlers of the runtime that carob uses support together: a container's sandbox does
// not say which of them it has.
func (o *other) anyHandler(ctx context.Context) *cri.RuntimeHandlerFeatures {
	all := &cri.RuntimeHandlerFeatures{}
	for i, h := range o.status(ctx).GetRuntimeHandlers() {
		f := h.GetFeatures()
		all.RecursiveReadOnlyMounts = f.GetRecursiveReadOnlyMounts() && (i == 0 || all.RecursiveReadOnlyMounts)
	}
	return all
}
