// Package hook runs postStart and preStop handlers (L6.9). core/podlife decides when they run, and what a failure
// means; the node agent calls Run for each RunHook action. It must never keep state between runs.
//
// Contract: docs/spec/pod-lifecycle.md.
package hook

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/base/seconds"
	"carob/internal/node/probe"
)

const userAgent = "kube-lifecycle/1.37"

// Execer is the call of a runtime that exec hooks need.
type Execer interface {
	ExecSync(context.Context, *cri.ExecSyncRequest) (*cri.ExecSyncResponse, error)
}

// Target is the container whose hook runs.
type Target struct {
	Runtime     Execer
	Pod         *corev1.Pod
	Container   *corev1.Container
	ContainerID string
	PodIP       string
	// Event records a Warning on the container (LifecycleHTTPFallback). May be nil.
	Event func(reason, message string)
}

// Run runs the handler until it ends or ctx does. The error is the text of the
// waiting message (L6.2). A sleep that ctx ends fails with `container terminated
// before sleep hook finished`.
func Run(ctx context.Context, t Target, h *corev1.LifecycleHandler) error {
	place := fmt.Sprintf("for Container %q in Pod %q failed - error: ", t.Container.Name,
		fmt.Sprintf("%s_%s(%s)", t.Pod.Name, t.Pod.Namespace, t.Pod.UID))
	switch {
	case h.Exec != nil:
		out, err := execCommand(ctx, t, h.Exec.Command)
		if err != nil {
			return fmt.Errorf("Exec lifecycle hook (%v) %s%w, message: %q", h.Exec.Command, place, err, out)
		}
	case h.HTTPGet != nil:
		if err := httpGet(ctx, t, h.HTTPGet); err != nil {
			return fmt.Errorf("HTTP lifecycle hook (%s) %s%w", h.HTTPGet.Path, place, err)
		}
	case h.Sleep != nil:
		if err := sleep(ctx, seconds.Duration(h.Sleep.Seconds)); err != nil {
			return fmt.Errorf("Sleep lifecycle hook (%d) %s%w", h.Sleep.Seconds, place, err)
		}
	default:
		return fmt.Errorf("invalid handler: %v", h)
	}
	return nil
}

// execCommand runs without its own time limit and returns stdout and stderr.
func execCommand(ctx context.Context, t Target, command []string) (string, error) {
	res, err := t.Runtime.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: t.ContainerID, Cmd: command})
	if err != nil {
		return "", err
	}
	out := string(res.Stdout) + string(res.Stderr)
	if res.ExitCode != 0 {
		return out, fmt.Errorf("command '%s' exited with %d: %s", strings.Join(command, " "), res.ExitCode, res.Stderr)
	}
	return out, nil
}

// httpGet counts any response as success, whatever its code.
func httpGet(ctx context.Context, t Target, action *corev1.HTTPGetAction) error {
	if action.Host == "" && t.PodIP == "" {
		return errors.New("failed to find networking container: the pod has no IP")
	}
	req, err := probe.Request(ctx, action, t.Container, t.PodIP, userAgent)
	if err != nil {
		return err
	}
	transport := probe.Transport()
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, CheckRedirect: probe.SameHost}
	res, err := client.Do(req)
	if errors.Is(err, http.ErrSchemeMismatch) {
		// The server uses HTTP without TLS: try that, but do not send it the credentials.
		plain := req.Clone(ctx)
		plain.URL.Scheme = "http"
		plain.Header.Del("Authorization")
		if res, err = client.Do(plain); err == nil && t.Event != nil {
			t.Event("LifecycleHTTPFallback",
				fmt.Sprintf("request to HTTPS lifecycle hook %s got HTTP response, retry with HTTP succeeded",
					req.URL.Host))
		}
	}
	if err != nil {
		return err
	}
	return res.Body.Close()
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return errors.New("container terminated before sleep hook finished")
	}
}
