package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/server/healthz"

	"carob/internal/apiserver/storage"
	"carob/internal/base/errkind"
)

// read requests a path of a running server as an administrator.
func (r *running) read(t *testing.T, path string) (int, string) {
	t.Helper()
	code, body, _ := r.raw(t, http.MethodGet, path, nil, nil)
	return code, body
}

// upstreamChecks are the lines that Kubernetes' own end-to-end test requires
// (test/e2e/apimachinery/health_handlers.go), and more.
func upstreamChecks(more ...string) []string {
	lines := []string{"[+]ping ok\n", "[+]log ok\n", "[+]autoregister-completion ok\n"}
	for _, hook := range []string{"start-apiserver-admission-initializer", "generic-apiserver-start-informers",
		"start-apiextensions-informers", "start-apiextensions-controllers",
		"crd-informer-synced", "bootstrap-controller", "start-system-namespaces-controller",
		"start-service-ip-repair-controllers", "scheduling/bootstrap-system-priority-classes",
		"start-cluster-authentication-info-controller", "start-kube-aggregator-informers",
		"apiservice-registration-controller", "apiservice-status-local-available-controller",
		"apiservice-status-remote-available-controller", "kube-apiserver-autoregistration",
		"apiservice-openapi-controller", "storage-readiness"} {
		lines = append(lines, "[+]poststarthook/"+hook+" ok\n")
	}
	for _, name := range more {
		lines = append(lines, "[+]"+name+" ok\n")
	}
	return lines
}

func testHealth(t *testing.T, r *running) {
	for _, c := range []struct {
		path string
		code int
		want []string
	}{
		{"/healthz", 200, []string{"ok"}},
		{"/healthz?verbose", 200, append(upstreamChecks("etcd"), "healthz check passed\n")},
		{"/livez?verbose=1", 200, append(upstreamChecks("etcd"), "livez check passed\n")},
		{"/livez?verbose&exclude=etcd", 200, []string{"[+]etcd excluded: ok\n"}},
		{"/readyz?verbose", 200,
			append(upstreamChecks("etcd", "etcd-readiness", "informer-sync", "shutdown"), "readyz check passed\n")},
		{"/readyz?verbose&exclude=etcd&exclude=informer-sync", 200,
			[]string{"[+]etcd excluded: ok\n", "[+]informer-sync excluded: ok\n", "[+]etcd-readiness ok\n"}},
		{"/livez/poststarthook/bootstrap-controller", 200, []string{"ok"}},
		{"/readyz/informer-sync", 200, []string{"ok"}}, {"/livez/log", 200, []string{"ok"}},
		{"/livez/informer-sync", 404, nil},
		{"/readyz?verbose&exclude=nothing", 200,
			[]string{`warn: some health checks cannot be excluded: no matches for "nothing"`}},
		{"/readyz/etcd", 200, []string{"ok"}}, {"/healthz/etcd", 200, []string{"ok"}},
		{"/livez/etcd", 200, []string{"ok"}},
		{"/version", 200, []string{`"gitVersion": "v1.`, `"major": "1"`, `"minor": "37"`}},
		{"/metrics/slis", 200, []string{`kubernetes_healthcheck{name="etcd",type="readyz"} 1`,
			`kubernetes_healthcheck{name="poststarthook/start-apiextensions-controllers",type="livez"} 1`,
			`kubernetes_healthchecks_total{name="log",status="success",type="healthz"} `}},
		{"/debug/pprof/", 404, nil}, {"/debug/pprof/heap", 404, nil}, {"/debug/flags/v", 404, nil},
	} {
		code, body := r.read(t, c.path)
		if code != c.code {
			t.Errorf("%s: %d", c.path, code)
		}
		for _, want := range c.want {
			if !strings.Contains(body, want) {
				t.Errorf("%s: %q is missing in\n%s", c.path, want, body)
			}
		}
	}
}

// Dashboards and alerts made for kube-apiserver find their metrics, and requests change them.
func testMetrics(t *testing.T, r *running) {
	c := r.remote(t, r.pki.Admin.Pair())
	const mine = `apiserver_request_total{code="404",component="apiserver",dry_run="",group="",resource="configmaps",scope="resource",subresource="",verb="GET",version="v1"} `
	count := func() (n int) {
		_, body := r.read(t, "/metrics")
		if _, rest, ok := strings.Cut(body, mine); ok {
			if _, err := fmt.Sscan(rest, &n); err != nil {
				t.Fatal(err)
			}
		}
		return n
	}
	before := count()
	for range 3 {
		_, _ = c.CoreV1().ConfigMaps("default").Get(t.Context(), "not-there", metav1.GetOptions{})
	}
	if got := count() - before; got != 3 {
		t.Errorf("3 requests are counted as %d", got)
	}
	_, _ = c.CoreV1().ComponentStatuses().List(t.Context(), metav1.ListOptions{})
	// One object that is admitted, and one that is not.
	_, _ = c.CoreV1().ConfigMaps("default").Create(t.Context(), config("measured", nil), metav1.CreateOptions{})
	_, _ = c.CoreV1().ConfigMaps("not-there").Create(t.Context(), config("measured", nil), metav1.CreateOptions{})
	w, err := c.CoreV1().Pods("").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	_, body := r.read(t, "/metrics")
	for _, want := range []string{
		`apiserver_request_duration_seconds_bucket{component="apiserver",dry_run="",group="",resource="configmaps",`,
		`apiserver_request_sli_duration_seconds_bucket{component="apiserver",group="",resource="configmaps",`,
		`apiserver_response_sizes_bucket{`,
		`apiserver_longrunning_requests{component="apiserver",group="",resource="pods",`,
		`apiserver_current_inflight_requests{request_kind="readOnly"} `,
		`apiserver_current_inflight_requests{request_kind="mutating"} `,
		`apiserver_resource_objects{group="",resource="namespaces"} `,
		`apiserver_storage_size_bytes{storage_cluster_id="etcd-0"} `,
		`apiserver_client_certificate_expiration_seconds_count `,
		`etcd_request_duration_seconds_bucket{`, `etcd_requests_total{`,
		`authenticated_user_requests{`, `authentication_attempts{`, `authorization_attempts_total{`,
		`rest_client_requests_total{code="200",`, `rest_client_request_duration_seconds_bucket{`,
		`apiserver_admission_controller_admission_duration_seconds_bucket{name="PodSecurity",operation="CREATE",rejected="false",type="validate",le="0.005"} `,
		`apiserver_admission_controller_admission_duration_seconds_count{name="NamespaceLifecycle",operation="CREATE",rejected="true",type="admit"} `,
		`apiserver_admission_controller_admission_duration_seconds_count{name="ResourceQuota",operation="CREATE",rejected="false",type="validate"} `,
		`apiserver_admission_step_admission_duration_seconds_count{operation="CREATE",rejected="true",type="admit"} `,
		`apiserver_storage_objects{`,
		`apiserver_requested_deprecated_apis{group="",removed_release="",resource="componentstatuses",subresource="",version="v1"} 1`, `kubernetes_feature_enabled{`, `registered_metrics_total{`,
		`apiserver_watch_events_total{`, `apiserver_watch_events_sizes_bucket{`, `apiserver_cache_list_total{`,
		`apiserver_init_events_total{`, `etcd_bookmark_counts{`,

		`apiserver_tls_handshake_errors_total`, `apiserver_audit_event_total`,
		`apiserver_audit_requests_rejected_total`,
		`authentication_duration_seconds_bucket{`, `authorization_duration_seconds_bucket{`, `workqueue_adds_total{`,
		`workqueue_queue_duration_seconds_bucket{`, `workqueue_work_duration_seconds_bucket{`,
		`kubernetes_build_info{`, `workqueue_depth{`, `process_resident_memory_bytes `, `process_cpu_seconds_total `,
		`go_goroutines `,
	} {
		if !strings.Contains(body, "\n"+want) {
			t.Errorf("%s is missing", want)
		}
	}
	if strings.Contains(body, `apiserver_resource_objects{group="",resource="namespaces"} 0`) ||
		strings.Contains(body, `storage_size_bytes{storage_cluster_id="etcd-0"} 0`) {
		t.Error("namespaces or bytes are counted as none")
	}
}

func TestProfiling(t *testing.T) {
	cfg := newConfig(t, t.TempDir())
	cfg.Profiling = true
	r := startWith(t, cfg)
	if code, body := r.read(t, "/debug/pprof/goroutine?debug=1"); code != http.StatusOK ||
		!strings.Contains(body, "goroutine profile: total") {
		t.Errorf("%d, %.200s", code, body)
	}
	res := r.client(t, "somebody").CoreV1().RESTClient().Get().AbsPath("/debug/pprof/cmdline").Do(t.Context())
	var code int
	if res.StatusCode(&code); code != http.StatusForbidden {
		t.Errorf("somebody without rights: %d", code)
	}
}

// emptyKV answers reads as an empty etcd does.
type emptyKV struct{ pb.UnimplementedKVServer }

func (emptyKV) Range(context.Context, *pb.RangeRequest) (*pb.RangeResponse, error) {
	return &pb.RangeResponse{Header: &pb.ResponseHeader{Revision: 1}}, nil
}

// An unavailable external etcd makes the server unready, and authorized users see the reason; the
// process stays live.
func TestHealthWithoutEtcd(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	kv := grpc.NewServer()
	pb.RegisterKVServer(kv, emptyKV{})
	go func() { _ = kv.Serve(l) }()
	defer kv.Stop()
	engine, err := storage.Open(t.Context(), storage.Config{Servers: []string{"http://" + l.Addr().String()}})
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	kv.Stop()
	s := &Server{engine: engine, ready: make(chan struct{})}
	health, live, ready := s.healthChecks()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "/readyz", nil)
	if err != nil {
		t.Fatal(err)
	}
	etcd := func(checks []healthz.HealthChecker) error {
		for _, c := range checks {
			if c.Name() == "etcd" {
				return c.Check(req)
			}
		}
		t.Fatal("there is no check of etcd")
		return nil
	}
	for name, checks := range map[string][]healthz.HealthChecker{"healthz": health, "readyz": ready} {
		err := etcd(checks)
		if !errkind.Is(err, errkind.Unavailable) || !strings.Contains(err.Error(), l.Addr().String()) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := etcd(live); err != nil {
		t.Errorf("livez: %v", err)
	}
}

// Each check of a part fails before the part runs, and after it has ended while the server runs.
func TestHealthOfParts(t *testing.T) {
	s := &Server{ready: make(chan struct{})}
	of := func(name string) error {
		_, live, _ := s.healthChecks()
		for _, c := range live {
			if c.Name() == name {
				return c.Check(nil)
			}
		}
		t.Fatalf("there is no check %s", name)
		return nil
	}
	parts := slices.Concat(admissionChecks, crdChecks, aggregationChecks, policyChecks, groupChecks, trustChecks,
		flowChecks, keeperChecks, repairChecks)
	for _, name := range slices.Concat(parts, startChecks) {
		if err := of(name); !errors.Is(err, errStarting) {
			t.Errorf("%s before the start: %v", name, err)
		}
	}
	close(s.ready)
	for _, name := range parts {
		if err := of(name); err != nil {
			t.Errorf("%s after the start: %v", name, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		s.conditions.checked(func(context.Context) {}, name)(ctx)
		if err := of(name); err != nil {
			t.Errorf("%s, ended with the server: %v", name, err)
		}
		s.conditions.checked(func(context.Context) {}, name)(t.Context())
		if err := of(name); !errors.Is(err, errEnded) {
			t.Errorf("%s, ended early: %v", name, err)
		}
	}
}

// A log that cannot be written fails the check; a slow one does not, and nothing runs without a
// request.
func TestLogCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		flushes, blocked := 0, make(chan struct{})
		var wait chan struct{}
		l := &logCheck{now: time.Now, flush: func() {
			flushes++
			if wait != nil {
				<-wait
			}
		}}
		check := func(after time.Duration, failed bool, count int) {
			t.Helper()
			time.Sleep(after)
			err := l.Check(nil)
			synctest.Wait()
			if (err != nil) != failed || flushes != count {
				t.Errorf("%v, %d flushes, want failed %v and %d", err, flushes, failed, count)
			}
		}
		check(0, false, 1)
		check(logPeriod-1, false, 1)
		wait = blocked
		check(1, false, 2)
		check(logTime-1, false, 2)
		check(1, true, 2)
		check(time.Hour, true, 2)
		wait = nil
		close(blocked)
		synctest.Wait()
		check(0, false, 3)
	})
}
