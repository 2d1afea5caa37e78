package stream

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/remotecommand"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	criremote "k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/klog/v2"

	"carob/internal/node/logs"
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

// A runtime is notified before a log is read, and again as long as the container writes meanwhile: the server reads
// what the runtime has dropped.
func TestLogShown(t *testing.T) {
	w, path, get := logWorld(t)
	var notified []string
	writes := 1 // of the container, during the call of the runtime
	h := holder{w, func(_ context.Context, id string) error {
		notified = append(notified, id)
		if writes--; writes < 0 {
			return nil
		}
		f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		_, err = io.WriteString(f, "2026-11-21T00:00:02Z stderr F b\n")
		return err
	}}
	if code, text := get(h, ""); code != 200 || text != "a\nb\n" || len(notified) != 2 || notified[0] != "id1" {
		t.Errorf("%d %q, told of %q", code, text, notified)
	}
	notified, writes = nil, 100 // it never stops: everything is sent, with this many notifications
	if code, text := get(h, ""); code != 200 || text != "a\n"+strings.Repeat("b\n", 1+shownTries) ||
		len(notified) != shownTries {
		t.Errorf("%d %q, told of %q", code, text, notified)
	}
	notified, writes = nil, 0
	// One that has ended is reported, too, and reported again.
	w.change(func() {
		delete(w.running, "c")
		w.pod.Status.ContainerStatuses[0].State = corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{ContainerID: "carob://id1"}}
	})
	if code, text := get(h, "?follow=true&timestamps=false"); code != 200 || !strings.HasPrefix(text, "a\nb\nb\n") ||
		len(notified) != 1 {
		t.Errorf("%d %q, told of %q", code, text, notified)
	}
	for _, query := range []string{"tailLines=0", "tailLines=5", "limitBytes=1", "sinceSeconds=5",
		"sinceTime=2026-11-21T00:00:02Z", "stream=Stdout", "stream=Stderr"} {
		if code, _ := get(h, "?"+query); code != 200 || len(notified) != 1 {
			t.Errorf("%s shows a part of the log: %d, told of %q", query, code, notified)
		}
	}
	for _, query := range []string{"previous=true", "tailLines=x"} {
		if code, _ := get(h, "?"+query); code != 400 || len(notified) != 1 {
			t.Errorf("%s shows nothing: %d, told of %q", query, code, notified)
		}
	}
}

// A client gets the log whatever the runtime does with the report.
func TestLogShownFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _, get := logWorld(t)
		for name, runtime := range map[string]Runtime{
			"a runtime that holds nothing": w,
			"it fails": holder{w,
				func(context.Context, string) error { return errors.New("broken") }},
			"it never answers": holder{w,
				func(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() }},
		} {
			if code, text := get(runtime, ""); code != 200 || text != "a\n" {
				t.Errorf("%s: %d %q", name, code, text)
			}
		}
	})
}

// attacher attaches without a streaming server, and reports whether the container runs.
type attacher struct {
	*world
	attach    func(out io.Writer) error
	state     atomic.Int32 // a cri.ContainerState
	later     bool         // it is known only after a request
	requested atomic.Bool
}

func (a *attacher) AttachContainer(
	_ context.Context, _ string, _ io.Reader, out, _ io.WriteCloser, _ bool, _ <-chan criremote.TerminalSize,
) error {
	return a.attach(out)
}

func (a *attacher) ContainerStatus(ctx context.Context, req *cri.ContainerStatusRequest) (*cri.ContainerStatusResponse,
	error) {
	res, err := a.world.ContainerStatus(ctx, req)
	if err != nil {
		return res, err
	}
	res.Status.State = cri.ContainerState(a.state.Load())
	if a.later && !a.requested.Swap(true) {
		res.Status.State = cri.ContainerState_CONTAINER_RUNNING
		a.change(func() {})
	}
	return res, nil
}

// kubectl run reads the log and attaches then. Whatever the container does between the two,
// what it wrote comes once: in the log, or by the attach.
func TestAttachAfterTheLog(t *testing.T) {
	const line = "2026-11-21T00:00:02Z stdout F two\n2026-11-21T00:00:02Z stderr F oops\n"
	tests := []struct {
		name    string
		log     bool // the log was read before
		ended   bool // the agent has noticed the end
		state   cri.ContainerState
		later   bool // the runtime notices the end a moment later
		attach  func(io.Writer) error
		out     string
		refused string
	}{
		{name: "it runs", log: true,
			attach: func(w io.Writer) error { _, err := io.WriteString(w, "live\n"); return err }, out: "live\n"},
		{name: "it has ended", log: true, ended: true, state: cri.ContainerState_CONTAINER_EXITED, out: "two\noops\n"},
		{name: "it ends meanwhile, and its monitor", log: true, state: cri.ContainerState_CONTAINER_EXITED,
			attach: func(io.Writer) error { return errors.New("no monitor") }, out: "two\noops\n"},
		{name: "it ends meanwhile, its monitor knows first", log: true, state: cri.ContainerState_CONTAINER_EXITED,
			later:  true,
			attach: func(io.Writer) error { return errors.New("not running") }, out: "two\noops\n"},
		{name: "it runs and can't be attached to", log: true, state: cri.ContainerState_CONTAINER_RUNNING,
			attach: func(io.Writer) error { return errors.New("no monitor") }, refused: "no monitor"},
		{name: "it has ended, the log was not read", ended: true, state: cri.ContainerState_CONTAINER_EXITED,
			refused: `container not found ("c")`},
		{name: "it ends meanwhile, the log was not read", state: cri.ContainerState_CONTAINER_EXITED,
			attach: func(io.Writer) error { return errors.New("no monitor") }, refused: "no monitor"},
	}
	for _, tc := range tests {
		for _, websocket := range []bool{false, true} {
			t.Run(tc.name, func(t *testing.T) {
				a := &attacher{attach: tc.attach}
				w := newWorldWith(t, func(c *Config) {
					a.world = c.Runtime.(*world)
					c.Runtime, c.Attacher = a, a
				})
				path := w.run("id1", "2026-11-21T00:00:01Z stdout F one\n")
				if tc.log {
					if code, text := w.get("api", "/containerLogs/ns/web/c"); code != 200 || text != "one\n" {
						t.Fatal(code, text)
					}
				}
				f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				if _, err := io.WriteString(f, line); err != nil {
					t.Fatal(err)
				}
				a.state.Store(int32(tc.state))
				a.requested.Store(false) // the log has notified
				a.later = tc.later
				if tc.ended {
					w.change(func() { delete(w.running, "c") })
				}
				for i, want := range []string{tc.out, ""} { // for the second reader nothing is left
					var out, errs strings.Builder
					q := url.Values{"output": {"1"}, "error": {"1"}}
					err := w.remote(t, "attach", websocket, q, remotecommand.StreamOptions{Stdout: &out, Stderr: &errs})
					got := out.String() + errs.String()
					switch {
					case tc.refused != "":
						if err == nil || !websocket && !strings.Contains(err.Error(), tc.refused) {
							t.Errorf("%v", err)
						}
					case err != nil && i == 0:
						t.Error(err)
					case got != want && tc.ended:
						t.Errorf("client %d: %q", i, got)
					case got != want && i == 0:
						t.Errorf("%q", got)
					}
				}
			})
		}
	}
}

// What was shown is remembered for a while, and of so many containers.
func TestShownLogsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s shownLogs
		for i := range shownCount + 10 {
			s.add(string(rune(i+1)), "/log", logs.Mark{})
			time.Sleep(time.Millisecond)
		}
		if len(s.logs) != shownCount || s.has(string(rune(10))) || !s.has(string(rune(11))) {
			t.Errorf("%d are remembered", len(s.logs))
		}
		time.Sleep(shownFor)
		if s.has(string(rune(shownCount))) {
			t.Error("one is remembered for too long")
		}
		s.add("new", "/log", logs.Mark{})
		if len(s.logs) != 1 {
			t.Errorf("%d are kept", len(s.logs))
		}
	})
}
