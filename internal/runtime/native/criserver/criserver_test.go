package criserver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/base/errkind"
	"carob/internal/runtime"
)

func TestListen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cri.sock")
	first, err := Listen(path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if _, err := Listen(path, 0o600); !errkind.Is(err, errkind.InUse) {
		t.Errorf("a socket in use: %v", err)
	}
	// What a killed process leaves: the file without a listener.
	first.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := Listen(path, 0o660)
	if err != nil {
		t.Fatalf("a dead socket: %v", err)
	}
	again.Close()
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(path, 0o600); !errkind.Is(err, errkind.Invalid) {
		t.Errorf("a regular file: %v", err)
	}
	if body, err := os.ReadFile(path); err != nil || string(body) != "mine" {
		t.Errorf("the file is gone: %q, %v", body, err)
	}
	if _, err := Listen(filepath.Join(t.TempDir(), "no", "dir"), 0o600); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
}

// fake returns lists, and errors without a code.
type fake struct {
	runtime.Runtime
	sandboxes int
}

func (f *fake) ListPodSandbox(context.Context, *cri.ListPodSandboxRequest) (*cri.ListPodSandboxResponse, error) {
	resp := &cri.ListPodSandboxResponse{}
	for i := range f.sandboxes {
		resp.Items = append(resp.Items, &cri.PodSandbox{Id: fmt.Sprint(i)})
	}
	return resp, nil
}

func (f *fake) Version(context.Context, *cri.VersionRequest) (*cri.VersionResponse, error) {
	return nil, errors.New("plain")
}

func (f *fake) Status(ctx context.Context, _ *cri.StatusRequest) (*cri.StatusResponse, error) {
	return nil, fmt.Errorf("wrapped: %w", context.DeadlineExceeded)
}

func (f *fake) ContainerEvents(ctx context.Context, emit func(*cri.ContainerEventResponse)) error {
	emit(&cri.ContainerEventResponse{ContainerId: "c1"})
	return status.Error(codes.ResourceExhausted, "too slow")
}

func dial(t *testing.T, rt runtime.Runtime) cri.RuntimeServiceClient {
	t.Helper()
	path := filepath.Join(t.TempDir(), "cri.sock")
	l, err := Listen(path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- New(rt).Run(ctx, l) }()
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return cri.NewRuntimeServiceClient(conn)
}

func TestListsInParts(t *testing.T) {
	for _, n := range []int{0, 1, itemsPerMessage, itemsPerMessage + 1, 3 * itemsPerMessage} {
		s, err := dial(t, &fake{sandboxes: n}).StreamPodSandboxes(t.Context(), &cri.StreamPodSandboxesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		got := 0
		for {
			part, err := s.Recv()
			if err != nil {
				break
			}
			if len(part.PodSandboxes) == 0 {
				t.Error("an empty part")
			}
			for _, sb := range part.PodSandboxes {
				if sb.Id != fmt.Sprint(got) {
					t.Fatalf("item %d is %s", got, sb.Id)
				}
				got++
			}
		}
		if got != n {
			t.Errorf("%d items of %d", got, n)
		}
	}
}

func TestErrorsHaveCodes(t *testing.T) {
	c := dial(t, &fake{})
	if _, err := c.Version(t.Context(), &cri.VersionRequest{}); status.Code(err) != codes.Unknown ||
		status.Convert(err).Message() != "plain" {
		t.Errorf("a plain error: %v", err)
	}
	if _, err := c.Status(t.Context(), &cri.StatusRequest{}); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("a deadline: %v", err)
	}
	if _, err := c.ListMetricDescriptors(t.Context(),
		&cri.ListMetricDescriptorsRequest{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("what the contract doesn't have: %v", err)
	}
	s, err := c.GetContainerEvents(t.Context(), &cri.GetEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if e, err := s.Recv(); err != nil || e.ContainerId != "c1" {
		t.Errorf("event %v, %v", e, err)
	}
	if _, err := s.Recv(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("end of the events: %v", err)
	}
}
