package stream

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
)

// holder is a runtime that holds output for clients that attach late.
type holder struct {
	*world
	logShown func(ctx context.Context, id string) error
}

func (h holder) LogShown(ctx context.Context, id string) error { return h.logShown(ctx, id) }

// logWorld is a pod with a running container that has a log, and the handler of requests for it.
func logWorld(t *testing.T) (w *world, path string, get func(Runtime, string) (int, string)) {
	w = &world{t: t, running: map[string]string{}, changed: make(chan struct{}), logs: map[string]string{}}
	w.pod = &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "ns", UID: "u1"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}},
	}
	path = w.run("id1", "2026-11-21T00:00:01Z stdout F a\n")
	return w, path, func(r Runtime, query string) (int, string) {
		s := &Server{cfg: Config{Pods: w, Runtime: r, Logger: klog.Background()}}
		rec := httptest.NewRecorder()
		s.routes().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/containerLogs/ns/web/c"+query, nil))
		return rec.Code, rec.Body.String()
	}
}

// A runtime hears that a log is shown before it is read: whatever comes once it was told is in the
// log or still held.
func TestLogShown(t *testing.T) {
	w, path, get := logWorld(t)
	var told []string
	h := holder{w, func(_ context.Context, id string) error {
		told = append(told, id)
		f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		_, err = io.WriteString(f, "2026-11-21T00:00:02Z stderr F b\n")
		return err
	}}
	if code, text := get(h, ""); code != 200 || text != "a\nb\n" || len(told) != 1 || told[0] != "id1" {
		t.Errorf("%d %q, told of %q", code, text, told)
	}
	// One that has ended is told of, too, and told again.
	w.change(func() {
		delete(w.running, "c")
		w.pod.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ContainerID: "carob://id1"}}
	})
	if code, text := get(h, "?follow=true&timestamps=false"); code != 200 || text != "a\nb\nb\n" || len(told) != 2 {
		t.Errorf("%d %q, told of %q", code, text, told)
	}
	for _, query := range []string{"tailLines=0", "tailLines=5", "limitBytes=1", "sinceSeconds=5", "sinceTime=2026-11-21T00:00:02Z", "stream=Stdout", "stream=Stderr"} {
		if code, _ := get(h, "?"+query); code != 200 || len(told) != 2 {
			t.Errorf("%s shows a part of the log: %d, told of %q", query, code, told)
		}
	}
	for _, query := range []string{"previous=true", "tailLines=x"} {
		if code, _ := get(h, "?"+query); code != 400 || len(told) != 2 {
			t.Errorf("%s shows nothing: %d, told of %q", query, code, told)
		}
	}
}

// A client gets the log whatever the runtime does when it is told.
func TestLogShownFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _, get := logWorld(t)
		for name, runtime := range map[string]Runtime{
			"a runtime that holds nothing": w,
			"it fails":                     holder{w, func(context.Context, string) error { return errors.New("broken") }},
			"it never answers":             holder{w, func(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() }},
		} {
			if code, text := get(runtime, ""); code != 200 || text != "a\n" {
				t.Errorf("%s: %d %q", name, code, text)
			}
		}
	})
}
