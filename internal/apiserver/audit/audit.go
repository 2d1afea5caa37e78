// Package audit records who sent which requests to the API server, by the user's policy, to a file
// and to a webhook. The API server drives it: it puts the filters around its chain and runs the
// backend. Without a policy there is no filter and no goroutine.
package audit

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"gopkg.in/natefinch/lumberjack.v2"
	"k8s.io/apimachinery/pkg/util/wait"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/audit/policy"
	genericapifilters "k8s.io/apiserver/pkg/endpoints/filters"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/plugin/pkg/audit/buffered"
	auditwebhook "k8s.io/apiserver/plugin/pkg/audit/webhook"
	"k8s.io/klog/v2"

	"carob/internal/base/errkind"
	"carob/internal/base/linefile"
)

// Config selects what is recorded, and where.
type Config struct {
	// PolicyFile holds an audit.k8s.io/v1 Policy. Nothing is recorded without one.
	PolicyFile string
	// LogPath is the file of events, one JSON object per line; "-" is standard output.
	LogPath string
	// WebhookConfig is a kubeconfig of the server that receives events in batches.
	WebhookConfig string
	// MaxAgeDays, MaxBackups, and MaxSizeMB limit the rotated files; zero is unlimited (100 MB for
	// the size).
	MaxAgeDays, MaxBackups, MaxSizeMB int
}

// Auditor records by one policy. Nil records nothing.
type Auditor struct {
	policy  audit.PolicyRuleEvaluator
	backend audit.Backend
	out     io.Closer
}

// New reads the policy and opens the outputs.
func New(cfg Config) (*Auditor, error) {
	if cfg.PolicyFile == "" {
		if cfg.LogPath != "" || cfg.WebhookConfig != "" {
			return nil, errkind.Errorf(errkind.Invalid, "an audit log needs a policy: add --audit-policy-file")
		}
		return nil, nil
	}
	if cfg.LogPath == "" && cfg.WebhookConfig == "" {
		return nil, errkind.Errorf(errkind.Invalid,
			"an audit policy needs an output: add --audit-log-path or --audit-webhook-config-file")
	}
	rules, err := policy.LoadPolicyFromFile(cfg.PolicyFile)
	if err != nil {
		return nil, errkind.Errorf(errkind.Invalid, "read the audit policy: %w", err)
	}
	a := &Auditor{policy: policy.NewPolicyRuleEvaluator(rules)}
	var backends []audit.Backend
	if cfg.LogPath != "" {
		out, half, err := openLog(cfg)
		if err != nil {
			return nil, err
		}
		a.out = out
		backends = append(backends, newFileLog(out, half))
	}
	if cfg.WebhookConfig != "" {
		hook, err := auditwebhook.NewBackend(cfg.WebhookConfig, auditv1.SchemeGroupVersion, retry, nil)
		if err != nil {
			return nil, errkind.Errorf(errkind.Invalid, "read the configuration of the audit webhook: %w", err)
		}
		backends = append(backends, buffered.NewBackend(hook, batches))
	}
	a.backend = audit.Union(backends...)
	return a, nil
}

// Upstream's values for the webhook.
var (
	retry   = wait.Backoff{Steps: 5, Duration: 10 * time.Second, Factor: 1.5, Jitter: 0.2}
	batches = buffered.BatchConfig{BufferSize: 10000, MaxBatchSize: 400, MaxBatchWait: 30 * time.Second,
		ThrottleEnable: true, ThrottleQPS: 10, ThrottleBurst: 15, AsyncDelegate: true}
)

type writeCloser struct{ io.Writer }

func (writeCloser) Close() error { return nil }

// openLog opens the file of events. It reports whether the file ends with half a line.
func openLog(cfg Config) (out io.WriteCloser, half bool, err error) {
	if cfg.LogPath == "-" {
		return writeCloser{os.Stdout}, false, nil
	}
	if err := os.MkdirAll(filepath.Dir(cfg.LogPath), 0o700); err != nil {
		return nil, false, fmt.Errorf("make the directory of the audit log: %w", err)
	}
	// Opened here, so that a file that cannot be written is reported at the start.
	f, half, err := linefile.Open(cfg.LogPath, 0o600)
	if err != nil {
		return nil, false, errkind.Errorf(errkind.Denied, "open the audit log: %w", err)
	}
	if err := f.Close(); err != nil {
		return nil, false, fmt.Errorf("open the audit log: %w", err)
	}
	return &lumberjack.Logger{Filename: cfg.LogPath, MaxAge: cfg.MaxAgeDays, MaxBackups: cfg.MaxBackups,
		MaxSize: cfg.MaxSizeMB}, half, nil
}

// Requests records the requests to next.
func (a *Auditor) Requests(next http.Handler, longRunning apirequest.LongRunningRequestCheck) http.Handler {
	if a == nil {
		return next
	}
	return genericapifilters.WithAudit(next, a.backend, a.policy, longRunning)
}

// Refused records unauthenticated requests, which refuse answers.
func (a *Auditor) Refused(refuse http.Handler) http.Handler {
	if a == nil {
		return refuse
	}
	return genericapifilters.WithFailedAuthenticationAudit(refuse, a.backend, a.policy)
}

// shutdownTime is how long the webhook gets for the last events when the server stops. One that does not answer would
// keep it running for minutes: each batch is sent up to five times.
const shutdownTime = 5 * time.Second

// Run writes events until ctx ends, then the remaining ones for shutdownTime, and closes the outputs.
func (a *Auditor) Run(ctx context.Context) {
	if a == nil {
		return
	}
	stop := make(chan struct{})
	if err := a.backend.Run(stop); err != nil {
		close(stop)
		return
	}
	<-ctx.Done()
	close(stop)
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		a.backend.Shutdown()
	}()
	limit := time.NewTimer(shutdownTime)
	defer limit.Stop()
	select {
	case <-sent:
	case <-limit.C:
		klog.FromContext(ctx).Error(nil, "The audit webhook does not answer; the last events are lost")
	}
	if a.out != nil {
		_ = a.out.Close() // each event is written at once
	}
}
