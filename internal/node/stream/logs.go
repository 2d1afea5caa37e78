package stream

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/base/seconds"
	"carob/internal/node/logs"
	"carob/internal/node/spec"
)

// containerLogs streams the log of a container.
func (s *Server) containerLogs(w http.ResponseWriter, req *http.Request) {
	pod := s.find(w, req)
	if pod == nil {
		return
	}
	name := req.PathValue("container")
	if c, _ := spec.Find(pod, name); c == nil {
		http.Error(w, fmt.Sprintf("container %q not found in pod %q", name, pod.Name), http.StatusNotFound)
		return
	}
	q, err := parseLogQuery(req.URL.Query(), time.Now())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	id, running, err := logSource(pod, name, q.previous)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	status, err := s.cfg.Runtime.ContainerStatus(req.Context(), &cri.ContainerStatusRequest{ContainerId: id})
	if err != nil || status.GetStatus().GetLogPath() == "" {
		http.Error(w, fmt.Sprintf("unable to retrieve container logs for %v", id), http.StatusBadRequest)
		return
	}
	ctx, cancel := context.WithCancel(req.Context())
	defer cancel()
	var ended <-chan struct{}
	if q.Follow {
		ended = s.ended(ctx, pod, name, id, running)
	}
	out := &body{w: w}
	w.Header().Set("Content-Type", "text/plain")
	if q.Follow {
		out.Flush() // so that the client sees that it is connected
	}
	var stdout, stderr io.Writer
	if q.stdout {
		stdout = out
	}
	if q.stderr {
		stderr = out
	}
	path := status.Status.LogPath
	q.Until = s.logShown(ctx, id, path, q)
	end, err := logs.ReadTo(ctx, path, q.Options, ended, stdout, stderr)
	if err == nil && q.whole() && !q.Follow {
		s.shown.add(id, path, end)
	}
	if err != nil && ctx.Err() == nil {
		s.cfg.Logger.V(2).Info("Reading a container log failed", "path", path, "err", err)
		if !out.begun {
			http.Error(w, fmt.Sprintf("failed to read the log of container %q in pod %q: %v", name, pod.Name, err),
				http.StatusInternalServerError)
		}
	}
}

// ended is closed when that instance of the container no longer runs.
func (s *Server) ended(ctx context.Context, pod *corev1.Pod, name, id string, running bool) <-chan struct{} {
	ended := make(chan struct{})
	if !running {
		close(ended)
		return ended
	}
	go func() {
		for {
			changed := s.cfg.Pods.Changed(pod.UID)
			if s.cfg.Pods.ContainerID(pod.UID, name) != id {
				close(ended)
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}()
	return ended
}

// body records whether anything was sent.
type body struct {
	w     http.ResponseWriter
	begun bool
}

func (b *body) Write(p []byte) (int, error) {
	b.begun = true
	return b.w.Write(p)
}

// Flush sends what was written, the header if that is all.
func (b *body) Flush() {
	b.begun = true
	if f, ok := b.w.(http.Flusher); ok {
		f.Flush()
	}
}

// logQuery are the parameters of a request.
type logQuery struct {
	logs.Options
	previous       bool
	stdout, stderr bool
}

// whole reports whether a request selects the whole log.
func (q *logQuery) whole() bool {
	return q.Tail == nil && q.Limit == nil && q.Since.IsZero() && q.stdout && q.stderr
}

func parseLogQuery(v url.Values, now time.Time) (logQuery, error) {
	q := logQuery{stdout: true, stderr: true}
	var err error
	flag := func(name string) bool {
		text := v.Get(name)
		if text == "" || err != nil {
			return false
		}
		on, e := strconv.ParseBool(text)
		if e != nil {
			err = fmt.Errorf("invalid value %q of parameter %s", text, name)
		}
		return on
	}
	number := func(name string) *int64 {
		text := v.Get(name)
		if text == "" || err != nil {
			return nil
		}
		n, e := strconv.ParseInt(text, 10, 64)
		if e != nil || n < 0 {
			err = fmt.Errorf("invalid value %q of parameter %s", text, name)
		}
		return &n
	}
	q.Follow, q.Timestamps, q.previous = flag("follow"), flag("timestamps"), flag("previous")
	q.Tail, q.Limit = number("tailLines"), number("limitBytes")
	if n := number("sinceSeconds"); n != nil {
		q.Since = now.Add(-seconds.Duration(*n))
	}
	if text := v.Get("sinceTime"); text != "" && err == nil {
		if q.Since, err = time.Parse(time.RFC3339, text); err != nil {
			err = fmt.Errorf("invalid value %q of parameter sinceTime", text)
		}
	}
	switch text := v.Get("stream"); text {
	case "", corev1.LogStreamAll:
	case corev1.LogStreamStdout:
		q.stderr = false
	case corev1.LogStreamStderr:
		q.stdout = false
	default:
		err = fmt.Errorf("invalid value %q of parameter stream", text)
	}
	return q, err
}

// logSource chooses the instance whose log is requested (L1.131, L1.132), and reports whether it
// runs.
func logSource(pod *corev1.Pod, name string, previous bool) (id string, running bool, err error) {
	st := containerStatus(pod, name)
	if st == nil {
		return "", false, fmt.Errorf("container %q in pod %q is not available", name, pod.Name)
	}
	last := ""
	if t := st.LastTerminationState.Terminated; t != nil {
		last = t.ContainerID
	}
	switch {
	case previous && last == "":
		return "", false, fmt.Errorf("previous terminated container %q in pod %q not found", name, pod.Name)
	case previous:
		id = last
	case st.State.Running != nil:
		id, running = st.ContainerID, true
	case st.State.Terminated != nil && st.State.Terminated.ContainerID != "":
		id = st.State.Terminated.ContainerID
	case last != "":
		id = last
	case st.State.Terminated != nil || st.LastTerminationState.Terminated != nil:
		return "", false, fmt.Errorf("container %q in pod %q is terminated", name, pod.Name)
	case st.State.Waiting != nil && st.State.Waiting.Reason == "ErrImagePull":
		return "", false, fmt.Errorf("container %q in pod %q is waiting to start: image can't be pulled", name,
			pod.Name)
	case st.State.Waiting != nil && st.State.Waiting.Reason == "ImagePullBackOff":
		return "", false, fmt.Errorf("container %q in pod %q is waiting to start: trying and failing to pull image",
			name, pod.Name)
	case st.State.Waiting != nil && st.State.Waiting.Reason != "":
		return "", false, fmt.Errorf("container %q in pod %q is waiting to start: %v", name, pod.Name,
			st.State.Waiting.Reason)
	default:
		return "", false, fmt.Errorf("container %q in pod %q is waiting to start - no logs yet", name, pod.Name)
	}
	_, bare, ok := strings.Cut(id, "://")
	if !ok {
		bare = id
	}
	return bare, running, nil
}

func containerStatus(pod *corev1.Pod, name string) *corev1.ContainerStatus {
	for _, list := range [][]corev1.ContainerStatus{
		pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses, pod.Status.EphemeralContainerStatuses,
	} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}
