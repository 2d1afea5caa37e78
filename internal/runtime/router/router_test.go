package router

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/runtime"
	"carob/internal/runtime/sim"
)

const image = "docker.io/library/busybox:1.36"

// How a broken runtime answers.
const (
	answers = iota
	refuses // its socket is gone
	hangs
)

// broken is a runtime that can be broken.
type broken struct {
	runtime.Runtime
	mode     atomic.Int32
	noEvents bool
	systemd  bool
	status   *cri.StatusResponse // nil: the runtime's own
}

func (b *broken) fail(ctx context.Context) error {
	switch b.mode.Load() {
	case refuses:
		return status.Error(codes.Unavailable, "connection refused")
	case hangs:
		<-ctx.Done()
		return status.FromContextError(ctx.Err()).Err()
	}
	return nil
}

func (b *broken) Status(ctx context.Context, req *cri.StatusRequest) (*cri.StatusResponse, error) {
	if err := b.fail(ctx); err != nil {
		return nil, err
	}
	if b.status != nil {
		return b.status, nil
	}
	return b.Runtime.Status(ctx, req)
}

func (b *broken) RuntimeConfig(ctx context.Context, _ *cri.RuntimeConfigRequest) (*cri.RuntimeConfigResponse, error) {
	if err := b.fail(ctx); err != nil {
		return nil, err
	}
	driver := cri.CgroupDriver_CGROUPFS
	if b.systemd {
		driver = cri.CgroupDriver_SYSTEMD
	}
	return &cri.RuntimeConfigResponse{Linux: &cri.LinuxRuntimeConfiguration{CgroupDriver: driver}}, nil
}

func (b *broken) ListPodSandbox(ctx context.Context, req *cri.ListPodSandboxRequest) (*cri.ListPodSandboxResponse,
	error) {
	if err := b.fail(ctx); err != nil {
		return nil, err
	}
	return b.Runtime.ListPodSandbox(ctx, req)
}

func (b *broken) ListContainers(ctx context.Context, req *cri.ListContainersRequest) (*cri.ListContainersResponse,
	error) {
	if err := b.fail(ctx); err != nil {
		return nil, err
	}
	return b.Runtime.ListContainers(ctx, req)
}

func (b *broken) PodSandboxStatus(ctx context.Context,
	req *cri.PodSandboxStatusRequest) (*cri.PodSandboxStatusResponse, error) {
	if err := b.fail(ctx); err != nil {
		return nil, err
	}
	return b.Runtime.PodSandboxStatus(ctx, req)
}

func (b *broken) ContainerEvents(ctx context.Context, emit func(*cri.ContainerEventResponse)) error {
	if err := b.fail(ctx); err != nil {
		return err
	}
	if b.noEvents {
		return status.Error(codes.Unimplemented, "no events")
	}
	return b.Runtime.ContainerEvents(ctx, emit)
}

// world is a router with a runtime of its own, and another.
type world struct {
	t          *testing.T
	dir        string
	near, far  *sim.Runtime
	main, side *broken
	*Router
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir(), near: sim.New(sim.Config{Images: []string{image}}),
		far: sim.New(sim.Config{Images: []string{image}})}
	for range 100 { // so that the two give different IDs
		resp, err := w.far.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: pod("0")})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.far.RemovePodSandbox(t.Context(),
			&cri.RemovePodSandboxRequest{PodSandboxId: resp.PodSandboxId}); err != nil {
			t.Fatal(err)
		}
	}
	w.main, w.side = &broken{Runtime: w.near}, &broken{Runtime: w.far}
	w.open()
	return w
}

// open makes the router again, as another start does.
func (w *world) open() {
	w.t.Helper()
	r, err := New(Config{Main: w.main, Dir: w.dir, Handlers: []Handler{
		{Name: "other", Endpoint: "unix:///far.sock", Runtime: w.side},
		{Name: "second", Endpoint: "unix:///far.sock", Handler: "kata", Runtime: w.side}}})
	if err != nil {
		w.t.Fatal(err)
	}
	w.Router = r
}

func pod(uid string) *cri.PodSandboxConfig {
	return &cri.PodSandboxConfig{Metadata: &cri.PodSandboxMetadata{Name: "p" + uid, Namespace: "default", Uid: uid},
		Labels: map[string]string{uidLabel: uid, "app": "x"}}
}

func (w *world) run(uid, handler string) string {
	w.t.Helper()
	resp, err := w.RunPodSandbox(w.t.Context(), &cri.RunPodSandboxRequest{Config: pod(uid), RuntimeHandler: handler})
	if err != nil {
		w.t.Fatal(err)
	}
	return resp.PodSandboxId
}

func (w *world) create(sandbox, uid string) string {
	w.t.Helper()
	resp, err := w.CreateContainer(w.t.Context(), &cri.CreateContainerRequest{PodSandboxId: sandbox,
		Config: &cri.ContainerConfig{Metadata: &cri.ContainerMetadata{Name: "c"}, Image: &cri.ImageSpec{Image: image},
			Labels: map[string]string{uidLabel: uid}}, SandboxConfig: pod(uid)})
	if err != nil {
		w.t.Fatal(err)
	}
	return resp.ContainerId
}

func (w *world) list(filter *cri.PodSandboxFilter) ([]string, error) {
	resp, err := w.ListPodSandbox(w.t.Context(), &cri.ListPodSandboxRequest{Filter: filter})
	var ids []string
	for _, i := range resp.GetItems() {
		ids = append(ids, i.Id)
	}
	slices.Sort(ids)
	return ids, err
}

func ofPod(uid string) *cri.PodSandboxFilter {
	return &cri.PodSandboxFilter{LabelSelector: map[string]string{uidLabel: uid}}
}

func (w *world) listed(filter *cri.PodSandboxFilter, want ...string) {
	w.t.Helper()
	slices.Sort(want)
	if got, err := w.list(filter); err != nil || !slices.Equal(got, want) {
		w.t.Errorf("listed %v, %v, want %v", got, err, want)
	}
}

func (w *world) records() int {
	w.t.Helper()
	count, err := Endpoints(w.dir)
	if err != nil {
		w.t.Fatal(err)
	}
	return count["unix:///far.sock"]
}

// Each pod is in the runtime of its handler, with all that belongs to it; pods of others in that runtime are not seen.
func TestRouting(t *testing.T) {
	w := newWorld(t)
	foreign, err := w.far.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: pod("foreign")})
	if err != nil {
		t.Fatal(err)
	}
	near, far := w.run("near", ""), w.run("far", "other")
	w.listed(nil, near, far)
	w.listed(ofPod("near"), near)
	w.listed(ofPod("far"), far)
	w.listed(ofPod("foreign"))
	if _, err := w.far.PodSandboxStatus(t.Context(), &cri.PodSandboxStatusRequest{PodSandboxId: far}); err != nil {
		t.Errorf("the other runtime does not have its pod: %v", err)
	}
	one, two := w.create(near, "near"), w.create(far, "far")
	for id, rt := range map[string]runtime.Runtime{one: w.near, two: w.far} {
		if _, err := w.StartContainer(t.Context(), &cri.StartContainerRequest{ContainerId: id}); err != nil {
			t.Errorf("start %s: %v", id, err)
		}
		got, err := rt.ContainerStatus(t.Context(), &cri.ContainerStatusRequest{ContainerId: id})
		if err != nil || got.Status.State != cri.ContainerState_CONTAINER_RUNNING {
			t.Errorf("status of %s: %v, %v", id, got, err)
		}
	}
	all, err := w.ListContainers(t.Context(), &cri.ListContainersRequest{})
	if err != nil || len(all.Containers) != 2 {
		t.Errorf("containers %v, %v", all, err)
	}
	if w.Attaches(two) || w.Labels("far")["app"] != "x" || w.Labels("near") != nil {
		t.Errorf("attaches %v, labels %v", w.Attaches(two), w.Labels("far"))
	}
	if n := w.records(); n != 1 {
		t.Errorf("%d records, want that of one pod", n)
	}
	w.open() // everything is known after a start, too
	if _, err := w.RemoveContainer(t.Context(), &cri.RemoveContainerRequest{ContainerId: two}); err != nil {
		t.Error(err)
	}
	for _, id := range []string{near, far} {
		if _, err := w.StopPodSandbox(t.Context(), &cri.StopPodSandboxRequest{PodSandboxId: id}); err != nil {
			t.Error(err)
		}
		if _, err := w.RemovePodSandbox(t.Context(), &cri.RemovePodSandboxRequest{PodSandboxId: id}); err != nil {
			t.Error(err)
		}
	}
	w.listed(nil)
	if n := w.records(); n != 0 {
		t.Errorf("%d records of pods that are gone", n)
	}
	if _, err := w.far.PodSandboxStatus(t.Context(),
		&cri.PodSandboxStatusRequest{PodSandboxId: foreign.PodSandboxId}); err != nil {
		t.Errorf("somebody else's pod: %v", err)
	}
}

// A pod has sandboxes in one runtime at a time, whatever becomes of its class.
func TestOneRuntimeForEachPod(t *testing.T) {
	w := newWorld(t)
	id := w.run("a", "other")
	_, err := w.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: pod("a")})
	if status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a second sandbox elsewhere: %v", err)
	}
	if _, err := w.RemovePodSandbox(t.Context(), &cri.RemovePodSandboxRequest{PodSandboxId: id}); err != nil {
		t.Fatal(err)
	}
	w.listed(ofPod("a"))
	w.run("a", "")
}

// The node's own runtime refuses a handler that no runtime has.
func TestUnknownHandler(t *testing.T) {
	w := newWorld(t)
	resp, err := w.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: pod("a"), RuntimeHandler: "nobody"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.near.PodSandboxStatus(t.Context(),
		&cri.PodSandboxStatusRequest{PodSandboxId: resp.PodSandboxId}); err != nil {
		t.Errorf("the node's own runtime did not get the request: %v", err)
	}
	if n := w.records(); n != 0 {
		t.Errorf("%d records", n)
	}
}

// Calls about pods of the node's own runtime do not wait for another one that hangs or is gone; that one's pods get an
// error soon, and an event when it is back.
func TestBroken(t *testing.T) {
	for name, mode := range map[string]int32{"hangs": hangs, "refuses": refuses} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				near, far := w.run("near", ""), w.run("far", "other")
				w.listed(nil, near, far)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				changes := make(chan string, 100)
				go func() { _ = w.Run(ctx) }()
				go func() {
					_ = w.ContainerEvents(ctx, func(e *cri.ContainerEventResponse) {
						changes <- e.GetPodSandboxStatus().GetMetadata().GetUid()
					})
				}()
				states := make(chan runtime.HandlerState, 100)
				watched := make(chan struct{})
				go func() {
					defer close(watched)
					w.WatchHandlers(ctx, func(s runtime.HandlerState) { states <- s })
				}()
				synctest.Wait()
				if len(states) > 0 {
					t.Errorf("a runtime that answers has the state %v", <-states)
				}
				w.side.mode.Store(mode)
				began := time.Now()
				w.listed(ofPod("near"), near)
				if d := time.Since(began); d != 0 {
					t.Errorf("the pod of the node's own runtime waited %v", d)
				}
				w.listed(nil, near, far) // as last known
				if d := time.Since(began); d > listLimit {
					t.Errorf("a list of all waited %v", d)
				}
				time.Sleep(checkEvery + checkLimit)
				began = time.Now()
				if _, err := w.list(ofPod("far")); status.Code(err) != codes.Unavailable ||
					!strings.Contains(err.Error(), "handler other, second at unix:///far.sock does not answer") {
					t.Errorf("the other runtime's pod: %v", err)
				}
				if _, err := w.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: far}); status.Code(err) !=
					codes.Unavailable {
					t.Errorf("its end: %v", err)
				}
				w.listed(nil, near, far)
				if d := time.Since(began); d != 0 {
					t.Errorf("it is known to be down, and calls waited %v", d)
				}
				if h := handlers(t, w); slices.Contains(h, "other") {
					t.Errorf("the node has the handlers %v", h)
				}
				if len(changes) == 0 {
					t.Error("its pod is not looked at when it is down")
				}
				for len(changes) > 0 {
					<-changes
				}
				time.Sleep(10 * checkEvery) // more checks that fail: reported once
				if s := <-states; status.Code(s.Err) != codes.Unavailable || s.Endpoint != "unix:///far.sock" ||
					!slices.Equal(s.Handlers, []string{"other", "second"}) || len(states) > 0 {
					t.Errorf("down: %v, and %d more", s, len(states))
				}
				w.side.mode.Store(answers)
				if uid := <-changes; uid != "far" { // the event that ends the wait
					t.Errorf("a change of %q", uid)
				}
				w.listed(ofPod("far"), far)
				if h := handlers(t, w); !slices.Contains(h, "other") || !slices.Contains(h, "second") {
					t.Errorf("the node has the handlers %v", h)
				}
				synctest.Wait()
				if s := <-states; s.Err != nil || len(states) > 0 {
					t.Errorf("up again: %v, and %d more", s, len(states))
				}
				cancel()
				<-watched
				synctest.Wait()
			})
		})
	}
}

// A reader of the states that is slow gets the last one, also if it was down and up meanwhile; one that begins late
// gets what is wrong now.
func TestSlowReaderOfHandlers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		ctx, cancel := context.WithCancel(t.Context())
		w.side.mode.Store(refuses)
		go func() { _ = w.Run(ctx) }()
		synctest.Wait()
		states := make(chan error)
		go w.WatchHandlers(ctx, func(s runtime.HandlerState) { states <- s.Err })
		synctest.Wait()
		for range 3 { // while it waits
			w.side.mode.Store(answers)
			time.Sleep(2 * retryEvery)
			w.side.mode.Store(refuses)
			time.Sleep(2 * checkEvery)
		}
		w.side.mode.Store(answers)
		time.Sleep(2 * retryEvery)
		if err := <-states; err == nil {
			t.Error("it was down at the start")
		}
		if err := <-states; err != nil {
			t.Errorf("it is up now: %v", err)
		}
		cancel()
		synctest.Wait()
	})
}

func handlers(t *testing.T, w *world) (names []string) {
	t.Helper()
	resp, err := w.Status(t.Context(), &cri.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range resp.RuntimeHandlers {
		names = append(names, h.Name)
	}
	return names
}

// At a start the other runtime may not run yet: its pods are known by their records, not taken for gone, and unknown
// objects are the node's own.
func TestStartWithoutTheOther(t *testing.T) {
	w := newWorld(t)
	w.run("far", "other")
	w.side.mode.Store(refuses)
	w.open()
	resp, err := w.ListPodSandbox(t.Context(), &cri.ListPodSandboxRequest{})
	if err != nil || len(resp.Items) != 1 || resp.Items[0].Labels[uidLabel] != "far" {
		t.Errorf("listed %v, %v", resp, err)
	}
	if _, err := w.list(ofPod("far")); status.Code(err) != codes.Unavailable {
		t.Errorf("the pod: %v", err)
	}
	_, err = w.ContainerStatus(t.Context(), &cri.ContainerStatusRequest{ContainerId: "unknown"})
	if status.Code(err) != codes.NotFound {
		t.Errorf("an unknown container: %v", err)
	}
	if n := w.records(); n != 1 {
		t.Errorf("%d records", n)
	}
}

// carob may be killed after the other runtime created a sandbox, and before its ID is recorded.
func TestKilledBeforeTheID(t *testing.T) {
	w := newWorld(t)
	done, err := w.places.claim("a", w.handlers["other"].other, pod("a"))
	if err != nil {
		t.Fatal(err)
	}
	made, err := w.far.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: pod("a")})
	if err != nil {
		t.Fatal(err)
	}
	w.listed(ofPod("a"), made.PodSandboxId)
	done()
	w.open()
	w.listed(ofPod("a"), made.PodSandboxId)
	if _, err := w.RemovePodSandbox(t.Context(),
		&cri.RemovePodSandboxRequest{PodSandboxId: made.PodSandboxId}); err != nil {
		t.Fatal(err)
	}
	w.listed(nil)
	if n := w.records(); n != 0 {
		t.Errorf("%d records", n)
	}
}

// A record stays while its first sandbox is being created, also if a list meanwhile has nothing of the pod.
func TestListDuringCreation(t *testing.T) {
	w := newWorld(t)
	done, err := w.places.claim("a", w.handlers["other"].other, pod("a"))
	if err != nil {
		t.Fatal(err)
	}
	w.listed(ofPod("a"))
	w.listed(nil)
	if n := w.records(); n != 1 {
		t.Fatalf("%d records while a sandbox is being created", n)
	}
	done()
	w.listed(ofPod("a"))
	if n := w.records(); n != 0 {
		t.Errorf("%d records after the creation has failed", n)
	}
}

// A runtime without events is listed every second.
func TestPolled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.side.noEvents = true
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		changes := make(chan string, 100)
		go func() {
			_ = w.ContainerEvents(ctx, func(e *cri.ContainerEventResponse) {
				changes <- e.GetPodSandboxStatus().GetMetadata().GetUid()
			})
		}()
		sandbox := w.run("far", "other")
		container := w.create(sandbox, "far")
		if uid := <-changes; uid != "far" {
			t.Errorf("a change of %q", uid)
		}
		time.Sleep(5 * time.Second)
		for len(changes) > 0 {
			<-changes
		}
		if _, err := w.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: container}); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if uid := <-changes; uid != "far" || time.Since(began) > pollEvery {
			t.Errorf("a change of %q after %v", uid, time.Since(began))
		}
		cancel()
		synctest.Wait()
	})
}

// What the other runtime does not support is refused, not left out.
func TestUnsupported(t *testing.T) {
	w := newWorld(t)
	w.side.status = &cri.StatusResponse{RuntimeHandlers: []*cri.RuntimeHandler{{Name: ""}}}
	cfg := pod("a")
	cfg.Linux = &cri.LinuxPodSandboxConfig{SecurityContext: &cri.LinuxSandboxSecurityContext{
		NamespaceOptions: &cri.NamespaceOption{UsernsOptions: &cri.UserNamespace{Mode: cri.NamespaceMode_POD}}}}
	_, err := w.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: cfg, RuntimeHandler: "other"})
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("a user namespace: %v", err)
	}
	sandbox := w.run("b", "other")
	_, err = w.CreateContainer(t.Context(), &cri.CreateContainerRequest{PodSandboxId: sandbox, SandboxConfig: pod("b"),
		Config: &cri.ContainerConfig{Mounts: []*cri.Mount{
			{ContainerPath: "/x", Readonly: true, RecursiveReadOnly: true}}}})
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("a recursive read-only mount: %v", err)
	}
	if h := handlers(t, w); slices.Contains(h, "second") {
		t.Errorf("the runtime has no handler kata, and the node has %v", h)
	}
	w = newWorld(t)
	w.side.systemd = true
	w.others[0].look(t.Context(), time.Minute)
	_, err = w.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: pod("c"), RuntimeHandler: "other"})
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "the cgroup driver systemd") {
		t.Errorf("another cgroup driver: %v", err)
	}
}

// Images of a handler are those of its runtime.
func TestImages(t *testing.T) {
	w := newWorld(t)
	const name = "docker.io/library/special:1"
	if _, err := w.PullImage(t.Context(),
		&cri.PullImageRequest{Image: &cri.ImageSpec{Image: name, RuntimeHandler: "other"}}); err != nil {
		t.Fatal(err)
	}
	for handler, want := range map[string]bool{"": false, "other": true, "second": true} {
		resp, err := w.ImageStatus(t.Context(),
			&cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: name, RuntimeHandler: handler}})
		if err != nil || (resp.GetImage() != nil) != want {
			t.Errorf("handler %q: %v, %v", handler, resp.GetImage(), err)
		}
	}
	list, err := w.ListImages(t.Context(), &cri.ListImagesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	of := map[string]int{}
	for _, im := range list.Images {
		of[im.GetSpec().GetRuntimeHandler()]++
	}
	if of[""] != 1 || of["other"] != 2 {
		t.Errorf("images by handler: %v", of)
	}
}

// A UID becomes the name of a file.
func TestHostileUIDs(t *testing.T) {
	w := newWorld(t)
	for _, uid := range []string{"", "../x", "a/b", ".hidden", "a\x00b", strings.Repeat("x", 129)} {
		_, err := w.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: pod(uid), RuntimeHandler: "other"})
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("%q: %v", uid, err)
		}
	}
	if entries, err := os.ReadDir(w.dir); err != nil || len(entries) != 0 {
		t.Errorf("files %v, %v", entries, err)
	}
}

// A damaged record is reported, because it alone shows in which runtime a pod is. Other files are ignored.
func TestDamagedRecords(t *testing.T) {
	for name, bad := range map[string]bool{"a.json": true, ".a.json123": false, "a.txt": false} {
		dir := t.TempDir()
		for _, text := range []string{"{", `{"uid":"b"}`} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := New(Config{Main: sim.New(sim.Config{}), Dir: dir})
			if (err != nil) != bad || bad && !strings.Contains(err.Error(), name) {
				t.Errorf("%s with %s: %v", name, text, err)
			}
		}
	}
}
