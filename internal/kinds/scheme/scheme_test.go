package scheme_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"pgregory.net/rapid"

	"carob/internal/kinds/scheme"
)

func newSet(t interface{ Fatal(...any) }) *scheme.Set {
	s, err := scheme.New()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Every kind's hub is the same Go type, so conversion only sets the kind.
func TestHubIsExternalType(t *testing.T) {
	s := newSet(t)
	pod := &corev1.Pod{}
	hub, err := s.Scheme.ConvertToVersion(pod, scheme.Hub(""))
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := hub.(*corev1.Pod); !ok {
		t.Errorf("the hub of a pod is a %T", hub)
	}
	for gvk := range s.External.AllKnownTypes() {
		if gvk.Version == runtime.APIVersionInternal && gvk.Kind != "WatchEvent" {
			t.Errorf("the external types hold the hub %v", gvk)
		}
	}
}

// An event written in one group and read in the other loses no data.
func TestEventConversion(t *testing.T) {
	s := newSet(t)
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringN(0, 8, -1)
		in := &corev1.Event{Message: text.Draw(t, "message"), Reason: text.Draw(t, "reason"),
			Type: text.Draw(t, "type"), Action: text.Draw(t, "action"),
			ReportingController: text.Draw(t, "controller"), ReportingInstance: text.Draw(t, "instance"),
			Count:          rapid.Int32().Draw(t, "count"),
			InvolvedObject: corev1.ObjectReference{Kind: text.Draw(t, "kind"), Name: text.Draw(t, "name")},
			Source:         corev1.EventSource{Component: text.Draw(t, "component")}}
		in.Name = text.Draw(t, "event")
		if rapid.Bool().Draw(t, "series") {
			in.Series = &corev1.EventSeries{Count: rapid.Int32().Draw(t, "seen")}
		}
		out, back := &eventsv1.Event{}, &corev1.Event{}
		if err := s.Scheme.Convert(in, out, nil); err != nil {
			t.Fatal(err)
		}
		if err := s.Scheme.Convert(out, back, nil); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(in, back); d != "" {
			t.Fatal(d)
		}
	})
}
