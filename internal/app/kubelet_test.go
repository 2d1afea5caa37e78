package app

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"carob/internal/base/instance"
	"carob/internal/base/kubeletconfig"
	"carob/internal/node"
)

// What has no flag reaches the node agent.
func TestKubeletSettings(t *testing.T) {
	k := &kubeletconfig.Configuration{
		RegistryPullQPS: new(int32(3)), MaxParallelImagePulls: new(int32(2)), ProviderID: "carob://x",
		SystemReserved:      map[string]string{"memory": "1Gi"},
		ContainerLogMaxSize: "1Mi", ContainerLogMaxFiles: new(int32(3)), NodeLeaseDurationSeconds: 60,
		AllowedUnsafeSysctls: []string{"net.core.somaxconn"}, TLSMinVersion: "VersionTLS13",
		EnforceNodeAllocatable: []string{"system-reserved-compressible"}, SystemReservedCgroup: "/system",
		SingleProcessOOMKill: new(true), CPUCFSQuota: new(false),
		ImagePullCredentialsVerificationPolicy: "AlwaysVerify",
	}
	k.MemoryReservationPolicy, k.MemoryThrottlingFactor = kubeletconfig.TieredReservation, new(0.9)
	k.MemorySwap.SwapBehavior = kubeletconfig.LimitedSwap
	in, err := instance.Derive(instance.Flags{DataDir: t.TempDir(), Kubelet: k}, "host")
	if err != nil {
		t.Fatal(err)
	}
	cfg := node.Config{MaxPods: 110, TLS: &tls.Config{MinVersion: tls.VersionTLS12},
		Handlers: map[string]http.Handler{}}
	if err := kubeletSettings(&in, &cfg); err != nil {
		t.Fatal(err)
	}
	if cfg.Pulls.Limit() != 3 || cfg.Pulls.Burst() != 10 || cfg.MaxPulls != 2 || cfg.ProviderID != "carob://x" ||
		cfg.Reserved.Memory().Value() != 1<<30 || cfg.EnforceReserved || cfg.LogMaxSize != 1<<20 ||
		cfg.LogMaxFiles != 3 || cfg.LeaseSeconds != 60 || len(cfg.UnsafeSysctls) != 1 || !cfg.LimitedSwap ||
		!cfg.NoCPUQuota || !cfg.PullPolicy.VerifiesUnknown() || !cfg.OneProcessOOM ||
		!cfg.MemoryQoS.Tiered || cfg.MemoryQoS.Throttling != 0.9 ||
		cfg.TLS.MinVersion != tls.VersionTLS13 {
		t.Errorf("%+v", cfg)
	}
	if r := cfg.Reservations; len(r) != 1 || r[0].For != "system" || r[0].Cgroup != "/system" || !r[0].CPUOnly ||
		r[0].Limits.Memory().Value() != 1<<30 {
		t.Errorf("reservations: %+v", r)
	}
	rec := httptest.NewRecorder()
	cfg.Handlers["/configz"].ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/configz", nil))
	var shown map[string]*kubeletconfig.Configuration
	if err := json.Unmarshal(rec.Body.Bytes(), &shown); err != nil || len(shown) != 1 ||
		shown["kubeletconfig"].ProviderID != "carob://x" {
		t.Errorf("%v %s", err, rec.Body)
	}
}

// Settings that only their part can check are refused before anything starts.
func TestWrongKubeletSettings(t *testing.T) {
	for want, k := range map[string]*kubeletconfig.Configuration{
		"Valid options are": {ImagePullCredentialsVerificationPolicy: "Sometimes"},
		"invalid image pattern": {ImagePullCredentialsVerificationPolicy: "NeverVerifyAllowlistedImages",
			PreloadedImagesVerificationAllowlist: []string{"*"}},
		"can't set": {PreloadedImagesVerificationAllowlist: []string{"a"}},
	} {
		in, err := instance.Derive(instance.Flags{DataDir: t.TempDir(), Kubelet: k}, "host")
		if err != nil {
			t.Fatal(err)
		}
		cfg := node.Config{TLS: &tls.Config{MinVersion: tls.VersionTLS12}, Handlers: map[string]http.Handler{}}
		err = kubeletSettings(&in, &cfg)
		if !errors.Is(err, instance.ErrFlag) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// All flags are shown, as text for people, or structured if the client requests it.
func TestFlagz(t *testing.T) {
	in, err := instance.Derive(instance.Flags{DataDir: t.TempDir(), Profiling: true}, "host")
	if err != nil {
		t.Fatal(err)
	}
	in.FlagValues = map[string]string{"max-pods": "500", "node-name": "n"}
	cfg := node.Config{Handlers: map[string]http.Handler{}}
	if err := kubeletSettings(&in, &cfg); err != nil {
		t.Fatal(err)
	}
	for accept, want := range map[string][]string{
		"":           {"kubelet flagz\nWarning: ", "max-pods", "500", "node-name"},
		"text/plain": {"kubelet flagz", "node-name"},
		"application/json;v=v1beta1;g=config.k8s.io;as=Flagz": {`"kind":"Flagz"`, `"max-pods":"500"`},
	} {
		req, rec := httptest.NewRequest(http.MethodGet, "/flagz", nil), httptest.NewRecorder()
		if accept != "" {
			req.Header.Set("Accept", accept)
		}
		cfg.Handlers["GET /flagz"].ServeHTTP(rec, req)
		for _, s := range want {
			if rec.Code != http.StatusOK || !strings.Contains(rec.Body.String(), s) {
				t.Errorf("accept %q: %d %s, want %q", accept, rec.Code, rec.Body, s)
			}
		}
	}
	for path, want := range map[string]string{"/debug/pprof/": "goroutine", "/debug/pprof/cmdline": "app.test",
		"/debug/pprof/symbol": "num_symbols"} {
		rec := httptest.NewRecorder()
		cfg.Handlers["GET "+path].ServeHTTP(rec, httptest.NewRequest(http.MethodGet, path, nil))
		if rec.Code != http.StatusOK || !strings.Contains(rec.Body.String(), want) {
			t.Errorf("%s: %d %.200s", path, rec.Code, rec.Body)
		}
	}
	in.Profiling, cfg.Handlers = false, map[string]http.Handler{}
	if err := kubeletSettings(&in, &cfg); err != nil {
		t.Fatal(err)
	}
	for path := range cfg.Handlers {
		if strings.Contains(path, "pprof") {
			t.Errorf("%s is served without --profiling", path)
		}
	}
}

// A configuration that forbids the host is an error that names the reason.
func TestHostFits(t *testing.T) {
	const header = "Filename Type Size Used Priority\n"
	forbids := &kubeletconfig.Configuration{FailSwapOn: new(true), FailCgroupV1: new(true)}
	for _, tt := range []struct {
		k     *kubeletconfig.Configuration
		v2    bool
		swaps string
		want  string
	}{
		{nil, false, header + "/dev/sda2 partition 1 0 -2\n", ""},
		{&kubeletconfig.Configuration{}, false, header + "/dev/sda2 partition 1 0 -2\n", ""},
		{forbids, true, header, ""},
		{forbids, true, "", ""},
		{forbids, true, header + "/dev/sda2 partition 1 0 -2\n", "running with swap on is not supported"},
		{forbids, false, header, "kubelet is configured to not run on a host using cgroup v1"},
		{&kubeletconfig.Configuration{SingleProcessOOMKill: new(false)}, false, "", "singleProcessOOMKill"},
	} {
		err := hostFits(tt.k, tt.v2, tt.swaps)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v %v: %v, want %q", tt.k, tt.v2, err, tt.want)
		}
	}
}

// The health of the node agent is served only where the configuration enables it.
func TestNodeHealth(t *testing.T) {
	for _, k := range []*kubeletconfig.Configuration{nil, {}, {HealthzPort: new(int32(0))}} {
		if run, err := nodeHealth(k); run != nil || err != nil {
			t.Errorf("%v: it is served (%v)", k, err)
		}
	}
	const port = 39248
	run, err := nodeHealth(&kubeletconfig.Configuration{HealthzPort: new(int32(port)),
		HealthzBindAddress: "127.88.7.3"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := run(ctx); err != nil {
			t.Error(err)
		}
	})
	client := http.Client{Timeout: 30 * time.Second}
	for path, want := range map[string]int{"/healthz": 200, "/metrics": 404} {
		res, err := client.Get("http://127.88.7.3:39248" + path)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, res.Body)
		res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("%s: %d, want %d", path, res.StatusCode, want)
		}
	}
	cancel()
	wg.Wait()
}
