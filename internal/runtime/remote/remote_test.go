package remote

import (
	"context"
	"math"
	"net"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/base/errkind"
)

// service records the timeout of the last call.
type service struct {
	cri.UnimplementedRuntimeServiceServer
	limits chan time.Duration
}

func (s *service) note(ctx context.Context) {
	limit := time.Duration(0)
	if d, ok := ctx.Deadline(); ok {
		limit = time.Until(d).Round(10 * time.Second)
	}
	s.limits <- limit
}

func (s *service) Version(context.Context, *cri.VersionRequest) (*cri.VersionResponse, error) {
	return &cri.VersionResponse{RuntimeApiVersion: "v1"}, nil
}

func (s *service) RunPodSandbox(ctx context.Context, _ *cri.RunPodSandboxRequest) (*cri.RunPodSandboxResponse, error) {
	s.note(ctx)
	return &cri.RunPodSandboxResponse{}, nil
}

func (s *service) StopContainer(ctx context.Context, _ *cri.StopContainerRequest) (*cri.StopContainerResponse, error) {
	s.note(ctx)
	return &cri.StopContainerResponse{}, nil
}

func (s *service) ExecSync(ctx context.Context, _ *cri.ExecSyncRequest) (*cri.ExecSyncResponse, error) {
	s.note(ctx)
	return &cri.ExecSyncResponse{}, nil
}

func (s *service) ListContainers(ctx context.Context, _ *cri.ListContainersRequest) (*cri.ListContainersResponse,
	error) {
	s.note(ctx)
	return &cri.ListContainersResponse{}, nil
}

func serve(t *testing.T, path string, s *service) (stop func()) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	cri.RegisterRuntimeServiceServer(g, s)
	go func() { _ = g.Serve(l) }()
	t.Cleanup(g.Stop)
	return g.Stop
}

// L0.46
func TestTimeLimits(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	s := &service{limits: make(chan time.Duration, 1)}
	serve(t, path, s)
	r, err := Dial(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for name, c := range map[string]struct {
		want time.Duration
		call func(context.Context) error
	}{
		"ListContainers": {2 * time.Minute, func(ctx context.Context) error {
			_, err := r.ListContainers(ctx, &cri.ListContainersRequest{})
			return err
		}},
		"RunPodSandbox": {4 * time.Minute, func(ctx context.Context) error {
			_, err := r.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{})
			return err
		}},
		"StopContainer": {10 * time.Minute, func(ctx context.Context) error {
			_, err := r.StopContainer(ctx, &cri.StopContainerRequest{Timeout: 480})
			return err
		}},
		"ExecSync": {3 * time.Minute, func(ctx context.Context) error {
			_, err := r.ExecSync(ctx, &cri.ExecSyncRequest{Timeout: 60})
			return err
		}},
		"ExecSync without": {0, func(ctx context.Context) error {
			_, err := r.ExecSync(ctx, &cri.ExecSyncRequest{})
			return err
		}},
	} {
		if err := c.call(context.Background()); err != nil {
			t.Fatal(err)
		}
		if got := <-s.limits; got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

func TestDial(t *testing.T) {
	for endpoint, want := range map[string]errkind.Kind{
		"tcp://127.0.0.1:1": errkind.Invalid, "relative.sock": errkind.Invalid, "": errkind.Invalid,
		"unix://" + filepath.Join(t.TempDir(), "nobody"): errkind.Unavailable,
	} {
		if r, err := Dial(t.Context(), endpoint); errkind.Of(err) != want {
			t.Errorf("%q: %v, %v, want kind %v", endpoint, r, err, want)
		}
	}
}

// A runtime that was restarted is reached again without a new Dial.
func TestReconnects(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	s := &service{limits: make(chan time.Duration, 8)}
	stop := serve(t, path, s)
	r, err := Dial(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	stop()
	if _, err := r.ListContainers(t.Context(), &cri.ListContainersRequest{}); status.Code(err) != codes.Unavailable {
		t.Fatalf("without a server: %v", err)
	}
	serve(t, path, s)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, err = r.runtime.Version(ctx, &cri.VersionRequest{}, grpc.WaitForReady(true))
	if err != nil {
		t.Error(err)
	}
}

// young is a runtime with one container that started recently; the runtime learns of its exit with
// a delay.
type young struct {
	cri.RuntimeServiceClient
	started, known time.Time
}

func (y *young) ContainerStatus(context.Context, *cri.ContainerStatusRequest,
	...grpc.CallOption) (*cri.ContainerStatusResponse, error) {
	st := &cri.ContainerStatus{State: cri.ContainerState_CONTAINER_RUNNING, StartedAt: y.started.UnixNano()}
	if !time.Now().Before(y.known) {
		st.State = cri.ContainerState_CONTAINER_EXITED
	}
	return &cri.ContainerStatusResponse{Status: st}, nil
}

func (y *young) Attach(context.Context, *cri.AttachRequest, ...grpc.CallOption) (*cri.AttachResponse, error) {
	if !time.Now().Before(y.known) {
		return nil, status.Error(codes.Unknown, "container is in CONTAINER_EXITED state")
	}
	return &cri.AttachResponse{Url: "here"}, nil
}

// There is no attach to a command that has exited, although the runtime does not know it yet; a
// running container is attached to, an old one at once.
func TestAttachWaitsForFreshContainers(t *testing.T) {
	for name, c := range map[string]struct {
		age, known, waits time.Duration // known: from now on
		ok                bool
	}{
		"over":           {0, 200 * time.Millisecond, 500 * time.Millisecond, false},
		"runs":           {100 * time.Millisecond, time.Hour, 400 * time.Millisecond, true},
		"old":            {time.Minute, time.Hour, 0, true},
		"clock is ahead": {-time.Hour, time.Hour, 500 * time.Millisecond, true},
		"ended":          {0, -time.Second, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				r := &Runtime{runtime: &young{started: begin.Add(-c.age), known: begin.Add(c.known)}}
				_, err := r.Attach(t.Context(), &cri.AttachRequest{ContainerId: "x"})
				if took := time.Since(begin); took != c.waits || (err == nil) != c.ok {
					t.Errorf("%v after %s, want success %v after %s", err, took, c.ok, c.waits)
				}
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				r = &Runtime{runtime: &young{started: time.Now(), known: time.Now().Add(time.Hour)}}
				if _, err := r.Attach(ctx, &cri.AttachRequest{ContainerId: "x"}); status.Code(err) != codes.Canceled {
					t.Errorf("given up: %v", err)
				}
			})
		})
	}
}

// A grace period that no duration holds is a long one, not a short or negative one.
func TestWithGrace(t *testing.T) {
	const longest = time.Duration(math.MaxInt64)
	for n, want := range map[int64]time.Duration{0: callTimeout, 30: callTimeout + 30*time.Second,
		9_223_372_036: longest, 18_446_744_074: longest, math.MaxInt64: longest} {
		if got := withGrace(n); got != want {
			t.Errorf("%d s: %v, want %v", n, got, want)
		}
	}
}
