package zerocopy

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"carob/internal/base/partiallist"
)

// server is a client of a server that hands over what a response accepts.
type server struct {
	own      *corev1.PodList
	unread   error                // fails lists that must be complete
	watches  []*watch.FakeWatcher // its own
	response *watch.FakeWatcher
	example  runtime.Object
	fails    error
	options  metav1.ListOptions
	bare     watch.Interface // what its handler sees
}

func (s *server) List(ctx context.Context, o metav1.ListOptions) (*corev1.PodList, error) {
	s.options = o
	if s.unread != nil && !partiallist.Accepted(ctx) {
		return nil, s.unread
	}
	if response := ResponseFor(ctx, func() runtime.Object { return s.example }); response != nil {
		response.SetList(s.own)
	}
	return &corev1.PodList{}, s.fails
}

func (s *server) Watch(ctx context.Context, _ metav1.ListOptions) (watch.Interface, error) {
	s.response = watch.NewFake()
	if response := ResponseFor(ctx, func() runtime.Object { return s.example }); response != nil {
		w := watch.NewFakeWithChanSize(1, false)
		s.watches = append(s.watches, w)
		s.bare = response.SetWatch(w)
		if s.fails == nil && len(s.watches) == 1 { // a request that is repeated
			return s.Watch(ctx, metav1.ListOptions{})
		}
	}
	if s.fails != nil {
		return nil, s.fails
	}
	return s.response, nil
}

func TestObjectsAreNotCopied(t *testing.T) {
	s := &server{own: &corev1.PodList{Items: []corev1.Pod{{}}}, example: &corev1.Pod{}}
	lw := New(s, &corev1.Pod{}, fields.OneTermEqualSelector("metadata.name", "x"))
	list, err := lw.List(metav1.ListOptions{ResourceVersion: "0", Limit: 500})
	if err != nil || list != s.own || !lw.Shared() {
		t.Errorf("list %v, %v, shared: %v", list, err, lw.Shared())
	}
	if s.options.ResourceVersion != "" || s.options.Limit != 0 || s.options.FieldSelector != "metadata.name=x" {
		t.Errorf("asked for %+v", s.options)
	}
	w, err := lw.Watch(metav1.ListOptions{})
	if err != nil || !lw.Shared() {
		t.Fatal(err, lw.Shared())
	}
	if !s.watches[0].IsStopped() {
		t.Error("the watch of a lost response goes on")
	}
	pod := &corev1.Pod{}
	s.watches[1].Add(pod)
	if ev := <-w.ResultChan(); ev.Object != pod {
		t.Errorf("event %v", ev)
	}
	if s.bare.ResultChan() != nil {
		t.Error("the handler gets events, too")
	}
	w.Stop()
	if !s.watches[1].IsStopped() || !s.response.IsStopped() {
		t.Error("the watch or its response goes on")
	}
}

// When the handler ends (the server stops, or the time of the watch is over), the watch ends for the client.
func TestHandlerEndsWatch(t *testing.T) {
	s := &server{example: &corev1.Pod{}}
	w, err := New(s, &corev1.Pod{}, fields.Everything()).Watch(metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.bare.Stop()
	if ev, open := <-w.ResultChan(); open {
		t.Errorf("event %v", ev)
	}
	w.Stop()
}

func TestObjectsOfOtherTypesAreDecoded(t *testing.T) {
	s := &server{own: &corev1.PodList{}, example: &corev1.Node{}} // of another type
	lw := New(s, &corev1.Pod{}, fields.Everything())
	if list, err := lw.List(metav1.ListOptions{}); err != nil || list == s.own || lw.Shared() {
		t.Errorf("list %v, %v, shared: %v", list, err, lw.Shared())
	}
	if w, err := lw.Watch(metav1.ListOptions{}); err != nil || w != s.response || lw.Shared() {
		t.Errorf("watch %v, %v, shared: %v", w, err, lw.Shared())
	}
	if ResponseFor(t.Context(), nil) != nil {
		t.Error("a response in a context without one")
	}
	// A client of all types takes it.
	if list, err := New(s, nil, fields.Everything()).List(metav1.ListOptions{}); err != nil || list != s.own {
		t.Errorf("list %v, %v", list, err)
	}
}

func TestFailedRequestsEndTheirWatch(t *testing.T) {
	s := &server{own: &corev1.PodList{}, example: &corev1.Pod{}, fails: errors.New("refused")}
	lw := New(s, &corev1.Pod{}, fields.Everything())
	if list, err := lw.List(metav1.ListOptions{}); !errors.Is(err, s.fails) || list != nil {
		t.Errorf("list %v, %v", list, err)
	}
	if w, err := lw.Watch(metav1.ListOptions{}); !errors.Is(err, s.fails) || w != nil || !s.watches[0].IsStopped() {
		t.Errorf("watch %v, %v", w, err)
	}
}

// A part that accepts less gets what can be read, and the names of the rest; others get the error.
func TestPartialLists(t *testing.T) {
	unread := &apierrors.StatusError{ErrStatus: metav1.Status{Reason: metav1.StatusReasonStoreReadError,
		Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Field: "/registry/pods/ns/bad",
			Type: metav1.CauseTypeUnexpectedServerResponse}}}}}
	s := &server{own: &corev1.PodList{}, example: &corev1.Pod{}, unread: unread}
	if list, err := New(s, &corev1.Pod{}, fields.Everything()).List(metav1.ListOptions{}); !errors.Is(err, unread) {
		t.Errorf("list %v, %v", list, err)
	}
	var names []types.NamespacedName
	lw := New(s, &corev1.Pod{}, fields.Everything()).Partial(func(n []types.NamespacedName) { names = n })
	if list, err := lw.List(metav1.ListOptions{}); err != nil || list != s.own || !lw.Shared() || len(names) != 1 ||
		names[0].String() != "ns/bad" {
		t.Errorf("list %v, %v, unread %v", list, err, names)
	}
	s.unread = nil
	if list, err := lw.List(metav1.ListOptions{}); err != nil || list != s.own || len(names) > 0 {
		t.Errorf("list %v, %v, unread %v", list, err, names)
	}
}
