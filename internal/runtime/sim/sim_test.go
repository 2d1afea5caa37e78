package sim

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// run creates a runtime with one running container.
func run(t *testing.T, b Behaviour) (r *Runtime, sandbox, container string) {
	t.Helper()
	r = New(Config{Behaviour: func(*cri.ContainerConfig) Behaviour { return b }, Images: []string{"image"}})
	ctx := t.Context()
	s, err := r.RunPodSandbox(ctx,
		&cri.RunPodSandboxRequest{Config: &cri.PodSandboxConfig{Metadata: &cri.PodSandboxMetadata{Name: "p",
			Uid: "u"}}})
	if err != nil {
		t.Fatal(err)
	}
	c, err := r.CreateContainer(ctx, create(s.PodSandboxId, "c", 0))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: c.ContainerId}); err != nil {
		t.Fatal(err)
	}
	return r, s.PodSandboxId, c.ContainerId
}

func create(sandbox, name string, attempt uint32) *cri.CreateContainerRequest {
	return &cri.CreateContainerRequest{PodSandboxId: sandbox, Config: &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: name, Attempt: attempt}, Image: &cri.ImageSpec{Image: "image"}}}
}

func state(t *testing.T, r *Runtime, id string) *cri.ContainerStatus {
	t.Helper()
	s, err := r.ContainerStatus(t.Context(), &cri.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		t.Fatal(err)
	}
	return s.Status
}

func TestStopKillsAfterGrace(t *testing.T) {
	for _, test := range []struct {
		name  string
		does  Behaviour
		grace int64
		takes time.Duration
		code  int32
	}{
		{"heeds SIGTERM", Behaviour{Linger: 3 * time.Second, TermCode: 143}, 30, 3 * time.Second, 143},
		{"ignores SIGTERM", Behaviour{IgnoreTerm: true}, 5, 5 * time.Second, 137},
		{"too slow", Behaviour{Linger: time.Minute, TermCode: 143}, 5, 5 * time.Second, 137},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, _, id := run(t, test.does)
				begun := time.Now()
				if _, err := r.StopContainer(t.Context(),
					&cri.StopContainerRequest{ContainerId: id, Timeout: test.grace}); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(begun); took != test.takes {
					t.Errorf("took %v, not %v", took, test.takes)
				}
				if s := state(t, r, id); s.State != cri.ContainerState_CONTAINER_EXITED || s.ExitCode != test.code {
					t.Errorf("ended with %v, %d", s.State, s.ExitCode)
				}
			})
		})
	}
}

// A cancelled stop leaves the container with its signal, and it is not killed; another stop may be
// shorter.
func TestStopIsShortened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _, id := run(t, Behaviour{IgnoreTerm: true})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := r.StopContainer(ctx,
			&cri.StopContainerRequest{ContainerId: id, Timeout: 2}); status.Code(err) != codes.DeadlineExceeded {
			t.Fatalf("an aborted stop returns %v", err)
		}
		time.Sleep(10 * time.Second)
		if s := state(t, r, id); s.State != cri.ContainerState_CONTAINER_RUNNING {
			t.Fatalf("an aborted stop killed: %v", s.State)
		}
		begun := time.Now()
		if _, err := r.StopContainer(t.Context(), &cri.StopContainerRequest{ContainerId: id, Timeout: 1}); err != nil ||
			time.Since(begun) != time.Second {
			t.Fatalf("%v after %v", err, time.Since(begun))
		}
	})
}

func TestNamesAreReserved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, sandbox, _ := run(t, Behaviour{})
		if _, err := r.CreateContainer(t.Context(), create(sandbox, "c", 0)); status.Code(err) != codes.AlreadyExists {
			t.Errorf("the same container twice: %v", err)
		}
		if _, err := r.RunPodSandbox(t.Context(),
			&cri.RunPodSandboxRequest{
				Config: &cri.PodSandboxConfig{Metadata: &cri.PodSandboxMetadata{Uid: "u"}}}); status.Code(
			err) != codes.AlreadyExists {
			t.Errorf("the same sandbox twice: %v", err)
		}
		if _, err := r.StopPodSandbox(t.Context(), &cri.StopPodSandboxRequest{PodSandboxId: sandbox}); err != nil {
			t.Fatal(err)
		}
		if _, err := r.CreateContainer(t.Context(),
			create(sandbox, "c", 1)); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("a container in a stopped sandbox: %v", err)
		}
	})
}

func TestSandboxEndsItsContainers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, sandbox, id := run(t, Behaviour{Exit: time.Hour})
		var kinds []cri.ContainerEventType
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			done <- r.ContainerEvents(ctx,
				func(e *cri.ContainerEventResponse) { kinds = append(kinds, e.ContainerEventType) })
		}()
		synctest.Wait()
		r.KillSandbox(sandbox)
		if s := state(t, r, id); s.State != cri.ContainerState_CONTAINER_EXITED {
			t.Errorf("%v in a dead sandbox", s.State)
		}
		if _, err := r.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: sandbox}); err != nil {
			t.Fatal(err)
		}
		if l, _ := r.ListContainers(ctx, &cri.ListContainersRequest{}); len(l.Containers) != 0 {
			t.Errorf("left: %v", l.Containers)
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("the stream ends with %v", err)
		}
		want := []cri.ContainerEventType{cri.ContainerEventType_CONTAINER_STOPPED_EVENT,
			cri.ContainerEventType_CONTAINER_STOPPED_EVENT, cri.ContainerEventType_CONTAINER_DELETED_EVENT,
			cri.ContainerEventType_CONTAINER_DELETED_EVENT}
		if !slices.Equal(kinds, want) {
			t.Errorf("events %v", kinds)
		}
	})
}

func TestStartFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(Config{Behaviour: func(*cri.ContainerConfig) Behaviour { return Behaviour{StartErr: "no such file"} },
			Images: []string{"image"}})
		s, _ := r.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{})
		c, err := r.CreateContainer(t.Context(), create(s.PodSandboxId, "c", 0))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.StartContainer(t.Context(), &cri.StartContainerRequest{ContainerId: c.ContainerId}); err == nil {
			t.Fatal("started")
		}
		if st := state(t, r, c.ContainerId); st.Reason != "StartError" || st.ExitCode != 128 {
			t.Errorf("%s, %d", st.Reason, st.ExitCode)
		}
	})
}
