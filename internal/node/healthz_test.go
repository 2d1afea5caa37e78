package node

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/node/observe"
	"carob/internal/node/pods"
	"carob/internal/runtime"
)

// L8.27: an owner that does not come back makes the agent unhealthy after five
// minutes, names its pod, and is healthy again when it does.
func TestBlockedOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start()
		defer w.stop()
		w.api.put(webPod("a"))
		settle(time.Minute)
		if err := w.pods.Healthy(time.Now(), syncLoopMax); err != nil {
			t.Errorf("at rest: %v", err)
		}
		release := make(chan struct{})
		w.hold(release) // in the next decision
		w.pods.NodeChanged()
		settle(syncLoopMax)
		if err := w.pods.Healthy(time.Now(), syncLoopMax); err != nil {
			t.Errorf("after five minutes: %v", err)
		}
		settle(time.Second)
		if err := w.pods.Healthy(time.Now(), syncLoopMax); err == nil || !strings.Contains(err.Error(), "default/a") {
			t.Errorf("stuck: %v", err)
		}
		close(release)
		settle(time.Second)
		if err := w.pods.Healthy(time.Now(), syncLoopMax); err != nil {
			t.Errorf("released: %v", err)
		}
	})
}

// L8.5, L8.27: pods are not looked after while the runtime is down for 30 s, or was not
// listed for three minutes; five minutes later the agent is unhealthy.
func TestStalledRuntime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := newFakeRuntime()
		p := &parts{
			machine: &machine{started: time.Now(), health: newHealth(rt)},
			podLoop: &podLoop{pods: pods.New(pods.Config{}),
				watcher: &observe.Watcher{Observer: observe.New(observe.Config{Runtime: rt})}},
		}
		look := func(wait time.Duration) error {
			time.Sleep(wait)
			return p.syncLoop()
		}
		if err := look(5*time.Minute + 30*time.Second); err != nil {
			t.Errorf("before the first answer: %v", err)
		}
		if err := look(time.Second); !errors.Is(err, errSyncLoop) {
			t.Errorf("no answer yet: %v", err)
		}
		answer := func() { p.health.good.Store(new(time.Now())) }
		answer()
		p.watcher.Listed(t.Context())
		if err := look(0); err != nil {
			t.Errorf("it answers: %v", err)
		}
		for range 8 {
			if err := look(time.Minute); err != nil {
				t.Errorf("not listed for a while: %v", err)
			}
			answer()
		}
		if err := look(time.Second); !errors.Is(err, errSyncLoop) {
			t.Errorf("not listed: %v", err)
		}
	})
}

// answering is a runtime that reports no conditions.
type answering struct{ runtime.Runtime }

func (answering) Status(context.Context, *cri.StatusRequest) (*cri.StatusResponse, error) {
	return &cri.StatusResponse{}, nil
}

// The age of the last answer and of the last list does not depend on the wall clock, which NTP may set years ahead
// while carob runs: both times have the monotonic clock, which is used when two times have it.
func TestAgesAreMonotonic(t *testing.T) {
	rt := answering{newFakeRuntime()}
	h, watcher := newHealth(rt), &observe.Watcher{Observer: observe.New(observe.Config{Runtime: rt})}
	h.look(t.Context())
	watcher.Listed(t.Context())
	for name, at := range map[string]time.Time{"answer": *h.good.Load(), "list": watcher.ListedAt()} {
		if !strings.Contains(at.String(), "m=") {
			t.Errorf("time of the last %s: %s, without the monotonic clock", name, at)
		}
	}
}

// A check that hangs has failed, and is not started again meanwhile.
func TestCheckThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release, calls := make(chan struct{}), 0
		check := inTime(func() error { calls++; <-release; return nil })
		for range 2 {
			if check() == nil {
				t.Error("it hangs and is healthy")
			}
		}
		close(release)
		synctest.Wait()
		if err := check(); err != nil || calls != 2 {
			t.Errorf("%v, asked %d times", err, calls)
		}
	})
}

// The check of the log succeeds as long as the log is read.
func TestLogFlows(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	fd := int(w.Fd())
	if err := logFlows(fd); err != nil {
		t.Error(err)
	}
	fill(t, fd)
	if err := logFlows(fd); err == nil {
		t.Error("its pipe is full")
	}
}

// The event about a runtime of handlers has the cause, also if the runtime sends an error without a text.
func TestHandlerEvent(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{nil, "Normal RuntimeHandlerReady The container runtime of handler a, b at unix:///x answers again"},
		{status.Error(codes.Unavailable, "gone"),
			"Warning RuntimeHandlerNotReady The container runtime of handler a, b at unix:///x cannot be used: gone"},
		{status.Error(codes.Internal, ""),
			"Warning RuntimeHandlerNotReady The container runtime of handler a, b at unix:///x cannot be used: Internal"},
	} {
		kind, reason, message := handlerEvent(runtime.HandlerState{Handlers: []string{"a", "b"}, Endpoint: "unix:///x",
			Err: c.err})
		if got := kind + " " + reason + " " + message; got != c.want {
			t.Errorf("%v: %s", c.err, got)
		}
	}
}

// A share of swap that containers would not get is an error at the start (S15.4).
func TestSwapNeedsVersion2(t *testing.T) {
	for _, c := range []struct{ limited, v2, fails bool }{
		{true, false, true}, {true, true, false}, {false, false, false},
	} {
		if err := checkSwap(c.limited, c.v2); (err != nil) != c.fails {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// L10.70, L10.75, L10.77: the events about the node at the start of an agent.
func TestStartEvents(t *testing.T) {
	eventsOf := func(h host) string {
		var lines []string
		for _, e := range startEvents(h) {
			lines = append(lines, e.kind+" "+e.reason+" "+e.message)
		}
		return strings.Join(lines, "\n")
	}
	const began, enforced = "Normal Starting Starting kubelet.",
		"Normal NodeAllocatableEnforced Updated Node Allocatable limit across pods"
	for _, c := range []struct {
		host host
		want string
	}{
		{host{cgroupV2: true}, ""},
		{host{cgroupV2: true, swap: true, noswap: true}, ""},
		{host{}, "Warning CgroupV1 cgroup v1 detected. cgroup v1 support is deprecated and will be removed in a future release. " +
			"Please migrate to cgroup v2. More information at https://git.k8s.io/enhancements/keps/sig-node/5573-remove-cgroup-v1"},
		{host{cgroupV2: true, swap: true},
			"Warning PossibleMemoryBackedVolumesOnDisk The tmpfs noswap option is not supported. " +
				"Memory-backed volumes (e.g. secrets, emptyDirs, etc.) might be swapped to disk and should no longer be considered secure."},
	} {
		want := began
		if c.want != "" {
			want += "\n" + c.want
		}
		if got := eventsOf(c.host); got != want+"\n"+enforced {
			t.Errorf("%+v:\n%s\nwant\n%s", c.host, got, want)
		}
	}
	failed := eventsOf(host{cgroupV2: true, enforce: errors.New("no")})
	if failed != began+"\nWarning FailedNodeAllocatableEnforcement no" {
		t.Error(failed)
	}
	many := host{cgroupV2: true, resolverFile: "/etc/resolv.conf", domain: "cluster.local"}
	for range 30 {
		many.resolver.Searches = append(many.resolver.Searches, "example.com")
	}
	if got := eventsOf(many); !strings.Contains(got,
		"Warning CheckLimitsForResolvConf Resolv.conf file '/etc/resolv.conf' contains search line consisting of more than 29 domains!") {
		t.Error(got)
	}
}

// S11.123: limits that cannot be set at the start are tried each minute: they are set late, or never.
func TestLimitsAreSetLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var recorded []string
		record := func(e nodeEvent) { recorded = append(recorded, e.kind+" "+e.reason) }
		began, tries := time.Now(), 0
		enforceAgain(t.Context(), func() error {
			if tries++; tries < 3 {
				return errors.New("device or resource busy")
			}
			return nil
		}, record)
		const failed, set = "Warning FailedNodeAllocatableEnforcement", "Normal NodeAllocatableEnforced"
		if want := []string{failed, failed, set}; !slices.Equal(recorded, want) || time.Since(began) != 3*time.Minute {
			t.Errorf("after %v: %v, want %v", time.Since(began), recorded, want)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour+time.Second)
		defer cancel()
		recorded = nil
		enforceAgain(ctx, func() error { return errors.New("device or resource busy") }, record)
		if len(recorded) != 60 {
			t.Errorf("%d tries in an hour", len(recorded))
		}
	})
}

// L10.16: a pod whose change requires features that the node lacks gets an event; other changes get none.
func TestUpdateNeedsFeatures(t *testing.T) {
	old := webPod("a")
	size := resource.MustParse("1Mi")
	old.Spec.Volumes = []corev1.Volume{{Name: "v",
		VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory,
			SizeLimit: &size}}}}
	old.Spec.InitContainers = []corev1.Container{{Name: "init"}}
	changed := func(change func(*corev1.Pod)) *corev1.Pod {
		pod := old.DeepCopy()
		pod.Generation++
		change(pod)
		return pod
	}
	larger := resource.MustParse("2Mi")
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		want string
	}{
		"volume": {changed(func(p *corev1.Pod) { p.Spec.Volumes[0].EmptyDir.SizeLimit = &larger }),
			"Pod requires node features that are not available: InPlacePodVerticalScalingMemoryBackedVolumes"},
		"nothing": {changed(func(*corev1.Pod) {}), ""},
		"init container": {changed(func(p *corev1.Pod) {
			p.Spec.InitContainers[0].Resources.Requests = corev1.ResourceList{"cpu": larger}
		}), ""},
		"other pod": {changed(func(p *corev1.Pod) { p.Spec.InitContainers = nil }), ""},
	} {
		e, ok := updateEvent(old, c.pod)
		if ok != (c.want != "") || e.Message != c.want || ok &&
			(e.Type != "Warning" || e.Reason != "FailedNodeDeclaredFeaturesCheck") {
			t.Errorf("%s: %+v", name, e)
		}
	}
	if _, ok := updateEvent(old, old); ok {
		t.Error("the same pod")
	}
}

// fill writes into a pipe until it takes no more.
func fill(t *testing.T, fd int) {
	t.Helper()
	if err := unix.SetNonblock(fd, true); err != nil {
		t.Fatal(err)
	}
	block := make([]byte, 4096)
	for {
		switch _, err := unix.Write(fd, block); {
		case errors.Is(err, unix.EAGAIN):
			return
		case err != nil:
			t.Fatal(err)
		}
	}
}
