package controllertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"

	"carob/internal/controllers/source"
)

// Runner is a controller.
type Runner interface{ Run(ctx context.Context) }

// Running is a running controller.
type Running struct {
	Recorder *record.FakeRecorder
	cancel   context.CancelFunc
	ended    chan struct{}
}

// Start starts the watches and, when they have listed their objects, the controller. It does not wait: the
// controller runs until Stop.
func Start(ctx context.Context, c Runner, events *record.FakeRecorder, watches ...*source.Watch) *Running {
	r := &Running{Recorder: events, ended: make(chan struct{})}
	ctx, r.cancel = context.WithCancel(ctx)
	go func() {
		defer close(r.ended)
		var all sync.WaitGroup
		defer all.Wait()
		for _, w := range watches {
			all.Go(func() { w.Run(ctx) })
		}
		for _, w := range watches {
			select {
			case <-w.Synced():
			case <-ctx.Done():
				return
			}
		}
		c.Run(ctx)
	}()
	return r
}

// Cancel ends the controller and its watches without waiting, because a fault may happen in the middle of a call.
func (r *Running) Cancel() { r.cancel() }

// Ended returns a channel that is closed when all of it has ended.
func (r *Running) Ended() <-chan struct{} { return r.ended }

// Stop ends the controller and its watches, and waits for that.
func (r *Running) Stop() {
	r.cancel()
	<-r.ended
}

// Events returns the recorded events as "TYPE REASON MESSAGE", in order, and clears them.
func (r *Running) Events() []string { return Events(r.Recorder) }

// Run starts the watches and, when they have listed their objects, the controller. It returns when
// the controller has nothing left to do at this moment. All of them end with the test.
func Run(t *testing.T, c Runner, watches ...*source.Watch) {
	t.Helper()
	t.Cleanup(Start(context.WithoutCancel(t.Context()), c, nil, watches...).Stop)
	for _, w := range watches {
		<-w.Synced()
	}
	synctest.Wait()
}

// FailOnce makes the next request with this verb and resource, such as "update" and "pods/status",
// fail with err.
func FailOnce(client *fake.Clientset, verb, resource string, err error) {
	failed := false // the fake client serializes its reactors
	client.PrependReactor(verb, "*", func(a ktesting.Action) (bool, runtime.Object, error) {
		r := a.GetResource().Resource
		if s := a.GetSubresource(); s != "" {
			r += "/" + s
		}
		if failed || r != resource {
			return false, nil, nil
		}
		failed = true
		return true, nil, err
	})
}

// Writes returns the requests that change something as "VERB RESOURCE[/SUBRESOURCE]", in order, and
// clears them.
func Writes(client *fake.Clientset) []string {
	var out []string
	for _, a := range client.Actions() {
		if slices.Contains([]string{"get", "list", "watch"}, a.GetVerb()) {
			continue
		}
		s := a.GetVerb() + " " + a.GetResource().Resource
		if sub := a.GetSubresource(); sub != "" {
			s += "/" + sub
		}
		out = append(out, s)
	}
	client.ClearActions()
	return out
}

// Events returns the recorded events as "TYPE REASON MESSAGE", in order, and clears them.
func Events(r *record.FakeRecorder) []string {
	var out []string
	for {
		select {
		case e := <-r.Events:
			out = append(out, e)
		default:
			return out
		}
	}
}

// Equal fails the test unless two lists are the same.
func Equal(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %s, want %s", what, fmt.Sprintf("%q", got), fmt.Sprintf("%q", want))
	}
}

// Refuse makes requests with a verb and resource fail with an error until the returned function is called, as a webhook
// does; it returns how many there were.
func Refuse(api *API, verb, resource string, err error) (end func() int) {
	n, over := 0, false // Before is called under the lock of the server
	api.Before = func(v string, gvr schema.GroupVersionResource, _ metav1.Object) error {
		if v != verb || gvr.Resource != resource || over {
			return nil
		}
		n++
		return err
	}
	return func() int {
		api.mu.Lock()
		defer api.mu.Unlock()
		over = true
		return n
	}
}

// Refusals are the errors of webhooks that look like those of an object that is gone or has changed.
func Refusals(resource schema.GroupResource) []error {
	return []error{apierrors.NewNotFound(resource, "x"),
		apierrors.NewConflict(resource, "x", errors.New("a webhook says so"))}
}

// MostTries is how often a write that is refused for a minute is tried at most: the waits between two grow.
const MostTries = 20
