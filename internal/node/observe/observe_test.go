package observe

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/core/podlife"
	"carob/internal/node/spec"
)

// scene is a runtime that shows what the test puts into it.
type scene struct {
	sandboxes  []*cri.PodSandbox
	status     map[string]*cri.ContainerStatus
	items      []*cri.Container
	gone       map[string]bool // sandboxes without a pod
	mute       error           // of each status call
	statusRead int
}

func (s *scene) ListPodSandbox(context.Context, *cri.ListPodSandboxRequest) (*cri.ListPodSandboxResponse, error) {
	return &cri.ListPodSandboxResponse{Items: s.sandboxes}, nil
}

func (s *scene) PodSandboxStatus(_ context.Context, r *cri.PodSandboxStatusRequest) (*cri.PodSandboxStatusResponse,
	error) {
	s.statusRead++
	if s.gone[r.PodSandboxId] {
		return nil, status.Error(codes.NotFound, "gone")
	}
	return &cri.PodSandboxStatusResponse{Status: &cri.PodSandboxStatus{Id: r.PodSandboxId,
		Network: &cri.PodSandboxNetworkStatus{
			Ip: "10.0.0.1", AdditionalIps: []*cri.PodIP{{Ip: "fd00::1"}},
		}}}, nil
}

func (s *scene) ListContainers(context.Context, *cri.ListContainersRequest) (*cri.ListContainersResponse, error) {
	return &cri.ListContainersResponse{Containers: s.items}, nil
}

func (s *scene) ContainerStatus(_ context.Context, r *cri.ContainerStatusRequest) (*cri.ContainerStatusResponse,
	error) {
	s.statusRead++
	if s.mute != nil {
		return nil, s.mute
	}
	if st := s.status[r.ContainerId]; st != nil {
		return &cri.ContainerStatusResponse{Status: st}, nil
	}
	return nil, status.Error(codes.NotFound, "gone")
}

func (s *scene) ContainerEvents(context.Context, func(*cri.ContainerEventResponse)) error { return nil }

func (s *scene) add(id, name string, state cri.ContainerState, edit func(*cri.ContainerStatus)) {
	labels := map[string]string{spec.LabelPodUID: "u", spec.LabelContainerName: name}
	notes := map[string]string{
		spec.AnnotationRestartCount: "2", spec.AnnotationHash: "h",
		spec.AnnotationTerminationMessagePath:   "/dev/termination-log",
		spec.AnnotationTerminationMessagePolicy: "FallbackToLogsOnError",
	}
	s.items = append(s.items, &cri.Container{Id: id, PodSandboxId: "s", State: state,
		CreatedAt: int64(len(s.items) + 1), Labels: labels, Annotations: notes})
	st := &cri.ContainerStatus{Id: id, State: state, CreatedAt: int64(len(s.items)),
		Image: &cri.ImageSpec{Image: "web"}, ImageRef: "sha256:1", LogPath: "/log/" + id, Labels: labels,
		Annotations: notes}
	if edit != nil {
		edit(st)
	}
	s.status[id] = st
}

func newScene(t *testing.T) (*scene, *Observer, *corev1.Pod, map[string]bool) {
	s := &scene{status: map[string]*cri.ContainerStatus{}}
	logs := map[string]bool{}
	o := New(Config{
		Runtime: s, Image: func(_ context.Context, _ *corev1.Pod, image string) podlife.ImageState {
			return podlife.ImageState{Image: image, Ref: "r"}
		},
		Volumes: func(*corev1.Pod) podlife.VolumeState { return podlife.VolumeState{Mounted: true} },
		TerminationMessage: func(path string) (string, error) {
			switch path {
			case "/host/said":
				return "said", nil
			case "/host/binary":
				return "a\xff\xfeé\xc3", nil
			case "/host/broken":
				return "", errors.New("broken")
			}
			return "", nil
		},
		LogTail: func(path string, lines int, bytes int64) (string, error) {
			if lines != 80 || bytes != 2048 {
				t.Errorf("tail of %d lines, %d bytes", lines, bytes)
			}
			return "tail of " + path, nil
		},
		LogPath: func(id, _ string, running bool) { logs[id] = running },
	})
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}, Spec: corev1.PodSpec{
		InitContainers: []corev1.Container{{Image: "init"}},
		Containers:     []corev1.Container{{Image: "web"}, {Image: "web"}},
	}}
	return s, o, pod, logs
}

func look(t *testing.T, o *Observer, pod *corev1.Pod) podlife.Observed {
	t.Helper()
	seen, err := o.Look(t.Context(), pod)
	if err != nil {
		t.Fatal(err)
	}
	return seen
}

// The message of a container that ended (L3.150, L3.151).
func TestTerminationMessage(t *testing.T) {
	mount := func(path string) []*cri.Mount {
		return []*cri.Mount{{ContainerPath: "/other", HostPath: "/host/said"},
			{ContainerPath: "/dev/termination-log", HostPath: path}}
	}
	for name, tt := range map[string]struct {
		edit func(*cri.ContainerStatus)
		want string
	}{
		"file": {func(s *cri.ContainerStatus) { s.Mounts, s.ExitCode = mount("/host/said"), 1 },
			"said"},
		"file after runtime's": {func(s *cri.ContainerStatus) { s.Mounts, s.Message = mount("/host/said"), "oops" },
			"oops: said"},
		"file is no text": {func(s *cri.ContainerStatus) { s.Mounts, s.Message = mount("/host/binary"), "b\x80" },
			"b\uFFFD: a\uFFFDé\uFFFD"},
		"empty file, exit 1": {func(s *cri.ContainerStatus) { s.Mounts, s.ExitCode = mount("/host/empty"), 1 },
			"tail of /log/c"},
		"empty file, exit 0": {func(s *cri.ContainerStatus) { s.Mounts = mount("/host/empty") }, ""},
		"could not run": {func(s *cri.ContainerStatus) {
			s.ExitCode, s.Reason, s.Message = 127, "ContainerCannotRun", "no such file"
		}, "no such file"},
		"file can't be read": {func(s *cri.ContainerStatus) { s.Mounts = mount("/host/broken") },
			"Error on reading termination log /host/broken: broken"},
		"runtime's word, log 2": {func(s *cri.ContainerStatus) { s.ExitCode, s.Message = 2, "oops" },
			"oops: tail of /log/c"},
	} {
		s, o, pod, _ := newScene(t)
		s.add("c", "web", cri.ContainerState_CONTAINER_EXITED, tt.edit)
		if got := look(t, o, pod).Containers[0].Message; got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

// A picture has everything that Step may look at, in the order it promises.
func TestSnapshotIsComplete(t *testing.T) {
	s, o, pod, logs := newScene(t)
	s.sandboxes = []*cri.PodSandbox{
		{Id: "old", CreatedAt: 1, Metadata: &cri.PodSandboxMetadata{}, State: cri.PodSandboxState_SANDBOX_NOTREADY},
		{Id: "s", CreatedAt: 2, Metadata: &cri.PodSandboxMetadata{Attempt: 1}},
	}
	s.add("dead", "web", cri.ContainerState_CONTAINER_EXITED,
		func(st *cri.ContainerStatus) { st.ExitCode, st.FinishedAt = 3, 9 })
	s.add("live", "web", cri.ContainerState_CONTAINER_RUNNING, func(st *cri.ContainerStatus) {
		st.StartedAt = 11
		st.User = &cri.ContainerUser{Linux: &cri.LinuxContainerUser{Uid: 5, Gid: 6, SupplementalGroups: []int64{7}}}
		st.Resources = &cri.ContainerResources{Linux: &cri.LinuxContainerResources{CpuShares: 102, CpuQuota: 20000,
			CpuPeriod: 100000, MemoryLimitInBytes: 64 << 20}}
	})
	seen := look(t, o, pod)
	if len(seen.Sandboxes) != 2 || seen.Sandboxes[0].ID != "s" || !seen.Sandboxes[0].Ready || seen.Sandboxes[1].Ready {
		t.Errorf("sandboxes %+v", seen.Sandboxes)
	}
	if diff := cmp.Diff([]string{"10.0.0.1", "fd00::1"}, seen.Sandboxes[0].IPs); diff != "" {
		t.Error(diff)
	}
	if len(seen.Images) != 2 || seen.Images[0].Image != "init" || seen.Images[1].Image != "web" {
		t.Errorf("images %+v", seen.Images)
	}
	want := podlife.Container{
		ID: "live", Name: "web", Attempt: 2, SandboxID: "s", State: podlife.ContainerRunning,
		CreatedAt: time.Unix(0, 2), StartedAt: time.Unix(0, 11),
		Image: "web", ImageRef: "sha256:1", Hash: "h",
		Resources: &corev1.ResourceRequirements{
			Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("200m"),
				corev1.ResourceMemory: resource.MustParse("64Mi")},
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")},
		},
		User: &corev1.ContainerUser{Linux: &corev1.LinuxContainerUser{UID: 5, GID: 6, SupplementalGroups: []int64{7}}},
	}
	if diff := cmp.Diff(want, seen.Containers[1]); diff != "" {
		t.Error(diff)
	}
	if seen.Containers[0].ID != "dead" || seen.Containers[0].ExitCode != 3 {
		t.Errorf("containers %+v", seen.Containers)
	}
	if running, recorded := logs["live"]; !running || !recorded || logs["dead"] {
		t.Errorf("logs %v", logs)
	}
	if o.RunningID("u", "web") != "live" || o.SandboxID("u") != "s" || o.LogPath("u", "dead") != "/log/dead" {
		t.Error("the memory of the look is wrong")
	}
}

// Only changed objects are requested again; those that vanish between two calls are omitted.
func TestSnapshotsReadOnlyChanges(t *testing.T) {
	s, o, pod, logs := newScene(t)
	s.sandboxes = []*cri.PodSandbox{{Id: "s", Metadata: &cri.PodSandboxMetadata{}}}
	s.add("live", "web", cri.ContainerState_CONTAINER_RUNNING, nil)
	look(t, o, pod)
	read := s.statusRead
	look(t, o, pod)
	if s.statusRead != read {
		t.Errorf("%d status calls for nothing", s.statusRead-read)
	}
	o.Refresh("u", "live")
	look(t, o, pod)
	if s.statusRead != read+1 {
		t.Errorf("%d status calls after Refresh", s.statusRead-read)
	}
	s.items[0].State, s.status["live"].State = cri.ContainerState_CONTAINER_EXITED, cri.ContainerState_CONTAINER_EXITED
	if got := look(t, o, pod).Containers[0].State; got != podlife.ContainerExited {
		t.Errorf("state %s", got)
	}
	if logs["live"] {
		t.Error("the log of a dead container is still watched")
	}
	s.add("ghost", "web", cri.ContainerState_CONTAINER_RUNNING, nil)
	delete(s.status, "ghost")
	if n := len(look(t, o, pod).Containers); n != 1 {
		t.Errorf("%d containers", n)
	}
}

// A clock that was set back does not make an old instance the newest.
func TestNewestIsByAttempt(t *testing.T) {
	s, o, pod, _ := newScene(t)
	s.sandboxes = []*cri.PodSandbox{
		{Id: "s1", CreatedAt: 9, Metadata: &cri.PodSandboxMetadata{}},
		{Id: "s2", CreatedAt: 2, Metadata: &cri.PodSandboxMetadata{Attempt: 1}},
	}
	s.add("second", "web", cri.ContainerState_CONTAINER_RUNNING, func(st *cri.ContainerStatus) { st.CreatedAt = 2 })
	s.add("first", "web", cri.ContainerState_CONTAINER_EXITED, func(st *cri.ContainerStatus) { st.CreatedAt = 9 })
	s.items[1].Annotations[spec.AnnotationRestartCount] = "1"
	seen := look(t, o, pod)
	if seen.Sandboxes[0].ID != "s2" || o.SandboxID("u") != "s2" {
		t.Errorf("newest sandbox %s, %s", seen.Sandboxes[0].ID, o.SandboxID("u"))
	}
	if seen.Containers[1].ID != "second" {
		t.Errorf("newest container %s", seen.Containers[1].ID)
	}
}

// What a list misses once is there as long as its status is; what has no status is gone.
func TestIncompleteList(t *testing.T) {
	s, o, pod, logs := newScene(t)
	s.gone = map[string]bool{}
	s.sandboxes = []*cri.PodSandbox{{Id: "s", CreatedAt: 3, Metadata: &cri.PodSandboxMetadata{Attempt: 4}}}
	s.add("live", "web", cri.ContainerState_CONTAINER_RUNNING, nil)
	whole := look(t, o, pod)
	sandboxes, items := s.sandboxes, s.items
	for range 2 {
		s.sandboxes, s.items = nil, nil
		seen := look(t, o, pod)
		if diff := cmp.Diff(whole.Sandboxes, seen.Sandboxes); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff(whole.Containers, seen.Containers); diff != "" {
			t.Error(diff)
		}
		o.Refresh("u", "live")
	}
	s.status["live"].State = cri.ContainerState_CONTAINER_EXITED
	if got := look(t, o, pod).Containers[0].State; got != podlife.ContainerExited {
		t.Errorf("it ended unlisted, and is %s", got)
	}
	s.sandboxes, s.items = sandboxes, items
	s.items[0].State = cri.ContainerState_CONTAINER_EXITED
	if seen := look(t, o, pod); len(seen.Sandboxes) != 1 || len(seen.Containers) != 1 {
		t.Errorf("listed again: %+v", seen)
	}
	s.sandboxes, s.items = nil, nil
	delete(s.status, "live")
	s.gone["s"] = true
	if seen := look(t, o, pod); len(seen.Sandboxes)+len(seen.Containers) > 0 {
		t.Errorf("removed, but seen: %+v", seen)
	}
	if logs["live"] {
		t.Error("the log of a container that is gone is still watched")
	}
}

// A snapshot with a gap that can't be resolved is an error.
func TestGapThatCannotBeResolved(t *testing.T) {
	s, o, pod, _ := newScene(t)
	s.add("live", "web", cri.ContainerState_CONTAINER_RUNNING, nil)
	look(t, o, pod)
	s.items = nil
	s.mute = errors.New("busy")
	if _, err := o.Look(t.Context(), pod); err == nil {
		t.Error("a look without the status of what is not listed worked")
	}
	s.mute = nil
	if seen := look(t, o, pod); len(seen.Containers) != 1 {
		t.Errorf("%d containers", len(seen.Containers))
	}
}

// A container that was just made is there even if the first list misses it.
func TestGapAfterAStart(t *testing.T) {
	s, o, pod, _ := newScene(t)
	s.add("new", "web", cri.ContainerState_CONTAINER_RUNNING, nil)
	o.Made("u", "s", "new")
	items := s.items
	s.items = nil
	unlisted := look(t, o, pod)
	s.items = items
	if diff := cmp.Diff(look(t, o, pod).Containers, unlisted.Containers); diff != "" || len(unlisted.Containers) != 1 {
		t.Errorf("unlisted it is another: %s", diff)
	}
	s.items = nil
	delete(s.status, "new")
	if seen := look(t, o, pod); len(seen.Containers) > 0 {
		t.Errorf("removed, but seen: %+v", seen)
	}
}

// A new agent requests the containers that the status of a pod names. It can't find the sandbox of a container that is
// not listed, so it takes another snapshot.
func TestGapAfterARestart(t *testing.T) {
	s, o, pod, _ := newScene(t)
	s.add("old", "web", cri.ContainerState_CONTAINER_RUNNING, nil)
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "web", ContainerID: "carob://old"},
		{Name: "other", ContainerID: "carob://gone"}, {Name: "never"}}
	items := s.items
	s.items = nil
	if _, err := o.Look(t.Context(), pod); err == nil {
		t.Error("a look that misses a container worked")
	}
	s.items = items
	if seen := look(t, o, pod); len(seen.Containers) != 1 || seen.Containers[0].SandboxID != "s" {
		t.Errorf("%+v", seen.Containers)
	}
}
