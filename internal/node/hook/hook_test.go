package hook

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

type execFunc func(context.Context, *cri.ExecSyncRequest) (*cri.ExecSyncResponse, error)

func (f execFunc) ExecSync(ctx context.Context, req *cri.ExecSyncRequest) (*cri.ExecSyncResponse, error) {
	return f(ctx, req)
}

func newTarget(exec execFunc) Target {
	return Target{
		Runtime: exec, ContainerID: "id", PodIP: "127.0.0.1", Container: &corev1.Container{Name: "c"},
		Pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "ns", UID: "u"}},
	}
}

func want(t *testing.T, err error, text string) {
	t.Helper()
	if text == "" && err != nil || text != "" && (err == nil || err.Error() != text) {
		t.Errorf("got %v, want %q", err, text)
	}
}

// Exec hooks and the text of their failure (L6.2, L6.9).
func TestExec(t *testing.T) {
	h := &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"sh", "-c", "$(X)"}}}
	run := func(res *cri.ExecSyncResponse, err error) error {
		return Run(t.Context(),
			newTarget(func(ctx context.Context, req *cri.ExecSyncRequest) (*cri.ExecSyncResponse, error) {
				if _, limited := ctx.Deadline(); limited || req.Timeout != 0 {
					t.Error("hooks have no time limit of their own")
				}
				if req.ContainerId != "id" || len(req.Cmd) != 3 || req.Cmd[2] != "$(X)" {
					t.Errorf("hook commands are not expanded (L3.131): %v", req)
				}
				return res, err
			}), h)
	}
	want(t, run(&cri.ExecSyncResponse{}, nil), "")
	want(t, run(&cri.ExecSyncResponse{ExitCode: 3, Stdout: []byte("out"), Stderr: []byte("err")}, nil),
		`Exec lifecycle hook ([sh -c $(X)]) for Container "c" in Pod "web_ns(u)" failed - error: command 'sh -c $(X)' exited with 3: err, message: "outerr"`)
	want(t, run(nil, errors.New("gone")),
		`Exec lifecycle hook ([sh -c $(X)]) for Container "c" in Pod "web_ns(u)" failed - error: gone, message: ""`)
}

// HTTP hooks: any answer is a success, and HTTPS falls back to HTTP (L6.9, L12.2).
func TestHTTPGet(t *testing.T) {
	var seen *http.Request
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen = r
		w.WriteHeader(http.StatusInternalServerError)
	}))
	addr := server.Listener.Addr().(*net.TCPAddr)
	action := func(scheme corev1.URIScheme) *corev1.LifecycleHandler {
		return &corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/p", Port: intstr.FromInt(addr.Port),
			Scheme:      scheme,
			HTTPHeaders: []corev1.HTTPHeader{{Name: "Authorization", Value: "secret"}}}}
	}
	to := newTarget(nil)
	var events []string
	to.Event = func(reason, message string) { events = append(events, reason+" "+message) }

	want(t, Run(t.Context(), to, action(corev1.URISchemeHTTP)), "")
	if seen.UserAgent() != "kube-lifecycle/1.37" || seen.Header.Get("Accept") != "*/*" ||
		seen.Header.Get("Authorization") != "secret" {
		t.Errorf("headers %v", seen.Header)
	}
	want(t, Run(t.Context(), to, action(corev1.URISchemeHTTPS)), "")
	if seen.Header.Get("Authorization") != "" {
		t.Error("credentials meant for HTTPS went over HTTP")
	}
	text := fmt.Sprintf(
		"LifecycleHTTPFallback request to HTTPS lifecycle hook %s got HTTP response, retry with HTTP succeeded", addr)
	if len(events) != 1 || events[0] != text {
		t.Errorf("events %q, want %q", events, text)
	}
	server.Close()
	want(t, Run(t.Context(), to, action(corev1.URISchemeHTTP)), fmt.Sprintf(
		`HTTP lifecycle hook (/p) for Container "c" in Pod "web_ns(u)" failed - error: Get "http://%s/p": dial tcp %s: connect: connection refused`, addr, addr))
	to.PodIP = ""
	want(t, Run(t.Context(), to, action(corev1.URISchemeHTTP)),
		`HTTP lifecycle hook (/p) for Container "c" in Pod "web_ns(u)" failed - error: failed to find networking container: the pod has no IP`)
}

// Sleep hooks end in time, or with the container (L6.9).
func TestSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 5}}
		began := time.Now()
		want(t, Run(t.Context(), newTarget(nil), h), "")
		if d := time.Since(began); d != 5*time.Second {
			t.Errorf("slept %v", d)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		want(t, Run(ctx, newTarget(nil), h),
			`Sleep lifecycle hook (5) for Container "c" in Pod "web_ns(u)" failed - error: container terminated before sleep hook finished`)
		if d := time.Since(began); d != 7*time.Second {
			t.Errorf("ended after %v", d)
		}
		// A sleep longer than a duration ends with the container, too, not at once.
		h.Sleep.Seconds = math.MaxInt64/int64(time.Second) + 1
		ctx, cancel = context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := Run(ctx, newTarget(nil), h); err == nil || time.Since(began) != 7*time.Second+time.Hour {
			t.Errorf("a sleep of over 292 years ended after %v: %v", time.Since(began), err)
		}
	})
	if err := Run(t.Context(), newTarget(nil), &corev1.LifecycleHandler{}); err == nil {
		t.Error("no handler must be a failure")
	}
}
