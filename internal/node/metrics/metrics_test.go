package metrics

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/core/podlife"
	"carob/internal/core/resources"
	"carob/internal/node/pinning"
	"carob/internal/node/pods"
	"carob/internal/runtime"
)

// world is a meter around parts that do nothing.
type world struct {
	*Meter
	runtime runtime.Runtime
	run     pods.Executor
	status  pods.StatusWriter

	result pods.Result
	took   time.Duration
	err    error
	views  []pods.View
}

func newWorld() *world {
	w := &world{}
	w.Meter = New()
	w.Show(Facts{
		Kept: func() resources.MemoryTiers { return resources.MemoryTiers{Guaranteed: 7, Burstable: 9} },
		Node: "n1", Pods: func() []pods.View { return w.views }, Mirrors: func() int { return 2 },
		Listed:  func() time.Time { return time.Unix(1000, 5e8) },
		Mounted: func(p *corev1.Pod) bool { return p.Name == "web" },
		Plugin: func(p *corev1.Pod, volume string) string {
			if p.Name == "web" && volume == "claimed" {
				return "kubernetes.io/csi:disk.example.com"
			}
			return ""
		},
		Claims: func() (map[string]int, int) {
			return map[string]int{"gpu.example.com": 2, "nic.example.com": 1}, 2
		},
		Credentials: "sha256:00",
	})
	w.runtime, w.run, w.status = w.Runtime(stub{w: w}), w.Executor(stub{w: w}), w.Statuses(silent{})
	return w
}

// stub returns the values of the test's world.
type stub struct {
	runtime.Runtime
	w *world
}

func (s stub) RunPodSandbox(context.Context, *cri.RunPodSandboxRequest) (*cri.RunPodSandboxResponse, error) {
	time.Sleep(s.w.took)
	return nil, s.w.err
}

func (s stub) RemoveImage(context.Context, *cri.RemoveImageRequest) (*cri.RemoveImageResponse, error) {
	return nil, s.w.err
}

func (s stub) Do(context.Context, *corev1.Pod, podlife.Action) pods.Result {
	time.Sleep(s.w.took)
	return s.w.result
}
func (stub) Forget(*corev1.Pod)                      {}
func (stub) Ensure(*corev1.Pod) error                { return nil }
func (stub) Resize(*corev1.Pod, bool) error          { return nil }
func (stub) Remove(context.Context, types.UID) error { return nil }
func (stub) Parent(*corev1.Pod) string               { return "" }

type silent struct{}

func (silent) Set(*corev1.Pod, *corev1.PodStatus) {}
func (silent) Seen(*corev1.Pod)                   {}
func (silent) Forget(types.UID)                   {}

func (w *world) text(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	req := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	rec := httptest.NewRecorder()
	w.Handler(prometheus.NewRegistry()).ServeHTTP(rec, req)
	all.WriteString(rec.Body.String())
	rec = httptest.NewRecorder()
	w.Probes().ServeHTTP(rec, req)
	all.WriteString(rec.Body.String())
	return all.String()
}

func (w *world) expect(t *testing.T, lines ...string) {
	t.Helper()
	text := w.text(t)
	for _, l := range lines {
		if !strings.Contains("\n"+text, "\n"+l+"\n") {
			name, _, _ := strings.Cut(l, "{")
			var have []string
			for h := range strings.Lines(text) {
				if strings.HasPrefix(h, name) {
					have = append(have, h)
				}
			}
			t.Errorf("%s is missing; there is\n%s", l, strings.Join(have, ""))
		}
	}
}

func pod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "u1", CreationTimestamp: metav1.Now()},
		Spec: corev1.PodSpec{
			InitContainers: []corev1.Container{{Name: "init"}}, Containers: []corev1.Container{{Name: "c"}},
			Volumes: []corev1.Volume{{Name: "v",
				VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
}

func ended(id, reason string, code int32) *corev1.ContainerStateTerminated {
	return &corev1.ContainerStateTerminated{ContainerID: id, Reason: reason, ExitCode: code}
}

// Starts, errors and probes are counted under the kubelet's names, and what was counted
// by pod goes with it.
func TestActions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, p := newWorld(), pod()
		w.took = 2 * time.Second
		w.run.Do(t.Context(), p, podlife.CreateSandbox{})
		w.run.Do(t.Context(), p, podlife.StartContainer{Container: "init"})
		w.result = pods.Result{Err: &podlife.Failure{Reason: "RunContainerError"}}
		isolated := pod()
		isolated.Spec.HostUsers = new(bool)
		w.run.Do(t.Context(), isolated, podlife.CreateSandbox{})
		w.run.Do(t.Context(), p, podlife.StartContainer{Container: "c"})
		w.run.Do(t.Context(), p, podlife.RunProbe{Container: "c", Type: podlife.Liveness}) // given up
		w.result = pods.Result{Pulled: &podlife.Pulled{Size: 20 << 20, Took: 3 * time.Second}}
		w.run.Do(t.Context(), p, podlife.PullImage{})
		w.result = pods.Result{Verdict: podlife.ProbeFailure}
		w.run.Do(t.Context(), p, podlife.RunProbe{Container: "c", Type: podlife.Liveness})
		w.result = pods.Result{Verdict: podlife.ProbeSuccess}
		w.run.Do(t.Context(), p, podlife.RunProbe{Container: "c", Type: podlife.Readiness})
		w.expect(t,
			"kubelet_started_pods_total 2", "kubelet_started_pods_errors_total 1",
			"kubelet_started_user_namespaced_pods_total 1", "kubelet_started_user_namespaced_pods_errors_total 1",
			`kubelet_started_containers_total{container_type="init_container"} 1`,
			`kubelet_started_containers_total{container_type="container"} 1`,
			`kubelet_started_containers_errors_total{code="RunContainerError",container_type="container"} 1`,
			`kubelet_image_pull_duration_seconds_sum{image_size_in_bytes="10MB-100MB"} 3`,
			`prober_probe_total{container="c",namespace="ns",pod="web",pod_uid="u1",probe_type="Liveness",result="failed"} 1`,
			`prober_probe_total{container="c",namespace="ns",pod="web",pod_uid="u1",probe_type="Readiness",result="successful"} 1`,
			`prober_probe_duration_seconds_sum{container="c",namespace="ns",pod="web",probe_type="Readiness"} 2`,
		)
		w.run.Forget(p)
		if text := w.text(t); strings.Contains(text, "prober_") || len(w.pods) != 0 {
			t.Errorf("a pod that is gone is remembered:\n%s", text)
		}
	})
}

// The indicator of starts leaves out pulls, however many run at once, and init containers; pods with other volumes than
// those that the agent writes, and static pods, do not count.
func TestStartIndicator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, p := newWorld(), pod()
		p.CreationTimestamp = metav1.Now()
		w.status.Seen(p)
		w.took = 4 * time.Second
		both := make(chan struct{})
		go func() { w.run.Do(t.Context(), p, podlife.PullImage{}); close(both) }()
		time.Sleep(time.Second)
		w.run.Do(t.Context(), p, podlife.PullImage{}) // from 1 s to 5 s, the other from 0 s to 4 s
		<-both
		begun := metav1.Now()
		time.Sleep(10 * time.Second)
		running := &corev1.PodStatus{Phase: corev1.PodRunning}
		running.InitContainerStatuses = []corev1.ContainerStatus{{Name: "init",
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{StartedAt: begun,
				FinishedAt: metav1.NewTime(begun.Add(8 * time.Second))}}}}
		w.status.Set(p, running)
		claim := pod()
		claim.UID, claim.CreationTimestamp = "u2", metav1.Now()
		claim.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}}
		static := pod()
		static.UID, static.CreationTimestamp = "u3", metav1.Time{}
		for _, other := range []*corev1.Pod{claim, static} {
			w.status.Seen(other)
			w.status.Set(other, &corev1.PodStatus{Phase: corev1.PodRunning})
		}
		w.expect(t, "kubelet_pod_start_sli_duration_seconds_sum 2", "kubelet_pod_start_sli_duration_seconds_count 1",
			"kubelet_pod_start_total_duration_seconds_sum 15", "kubelet_pod_start_total_duration_seconds_count 2",
			"kubelet_pod_start_duration_seconds_count 3")
	})
}

// An end of a container counts once, whichever state shows it; what had happened before
// the agent started does not.
func TestContainerEndsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, p := newWorld(), pod()
		before := pod()
		before.UID, before.Name = "u2", "old"
		before.Status = corev1.PodStatus{Phase: corev1.PodRunning,
			ContainerStatuses: []corev1.ContainerStatus{{Name: "c",
				LastTerminationState: corev1.ContainerState{Terminated: ended("x://0", "Error", 1)}}}}
		w.status.Seen(before)
		w.status.Set(before, &before.Status)
		w.status.Seen(p)
		time.Sleep(1500 * time.Millisecond)
		running := &corev1.PodStatus{Phase: corev1.PodRunning}
		running.InitContainerStatuses = []corev1.ContainerStatus{{Name: "init",
			State: corev1.ContainerState{Terminated: ended("x://1", "Completed", 0)}}}
		running.ContainerStatuses = []corev1.ContainerStatus{{Name: "c",
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
		w.status.Set(p, running)
		crashed := running.DeepCopy()
		crashed.ContainerStatuses[0].State = corev1.ContainerState{Terminated: ended("x://2", "Error", 139)}
		w.status.Set(p, crashed)
		waits := crashed.DeepCopy()
		waits.ContainerStatuses[0].State = corev1.ContainerState{
			Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
		waits.ContainerStatuses[0].LastTerminationState = crashed.ContainerStatuses[0].State
		w.status.Set(p, waits)
		again := waits.DeepCopy()
		// the end itself was never published
		again.ContainerStatuses[0].LastTerminationState.Terminated.ContainerID = "x://3"
		w.status.Set(p, again)
		w.expect(t,
			`kubelet_terminated_containers_total{container_type="container",exit_code="139",reason="Error"} 2`,
			`kubelet_terminated_containers_total{container_type="init_container",exit_code="0",reason="Completed"} 1`,
			"kubelet_pod_start_duration_seconds_sum 1.5", "kubelet_pod_start_duration_seconds_count 1",
			`kubelet_pod_start_duration_seconds_bucket{le="2"} 1`, "kubelet_pod_start_total_duration_seconds_count 1",
		)
		if text := w.text(t); strings.Contains(text, `exit_code="1"`) {
			t.Error("an end of before counts")
		}
		w.status.Forget("u1")
		w.status.Forget("u2")
		if len(w.pods) != 0 {
			t.Errorf("remembered: %v", w.pods)
		}
	})
}

// Calls of the runtime are counted and timed by operation, failed ones too.
func TestCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.took = time.Second
		_, _ = w.runtime.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{RuntimeHandler: "vm"})
		w.err = errors.New("no")
		if _, err := w.runtime.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{}); !errors.Is(err, w.err) {
			t.Errorf("the error became %v", err)
		}
		_, _ = w.runtime.RemoveImage(t.Context(), &cri.RemoveImageRequest{})
		w.expect(t,
			`kubelet_runtime_operations_total{operation_type="run_podsandbox"} 2`,
			`kubelet_runtime_operations_errors_total{operation_type="run_podsandbox"} 1`,
			`kubelet_runtime_operations_duration_seconds_sum{operation_type="run_podsandbox"} 2`,
			`kubelet_run_podsandbox_duration_seconds_count{runtime_handler="vm"} 1`,
			`kubelet_run_podsandbox_errors_total{runtime_handler=""} 1`,
			`kubelet_runtime_operations_errors_total{operation_type="remove_image"} 1`,
		)
	})
}

// holder is a runtime that holds output for clients that attach late.
type holder struct{ stub }

func (h holder) LogShown(_ context.Context, id string) error { return errors.New("asked of " + id) }

// What a runtime offers beyond CRI is still there when its calls are counted.
func TestLogShown(t *testing.T) {
	w := newWorld()
	if err := w.Runtime(holder{}).(runtime.OutputHolder).LogShown(t.Context(), "id1"); err == nil ||
		err.Error() != "asked of id1" {
		t.Error(err)
	}
	if err := w.runtime.(runtime.OutputHolder).LogShown(t.Context(), "id1"); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("a runtime that holds nothing: %v", err)
	}
}

// The metrics that are computed when they are read.
func TestFacts(t *testing.T) {
	w := newWorld()
	running, static := pod(), pod()
	running.Spec.EphemeralContainers = []corev1.EphemeralContainer{{}}
	claimed := corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}
	running.Spec.Volumes = append(running.Spec.Volumes, corev1.Volume{Name: "claimed", VolumeSource: claimed},
		corev1.Volume{Name: "nfs", VolumeSource: corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{}}})
	static.Name, static.Annotations = "static", map[string]string{"kubernetes.io/config.source": "file"}
	w.views = []pods.View{
		{Pod: running, Status: corev1.PodStatus{
			Phase: corev1.PodRunning,
			Conditions: []corev1.PodCondition{
				{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionTrue},
				{Type: corev1.PodResizeInProgress, Status: corev1.ConditionTrue},
			},
			ContainerStatuses: []corev1.ContainerStatus{
				{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}},
			InitContainerStatuses: []corev1.ContainerStatus{
				{State: corev1.ContainerState{Terminated: ended("x", "", 0)}}},
		}},
		{Pod: static, Status: corev1.PodStatus{Phase: corev1.PodPending}},
		{Pod: pod(), Status: corev1.PodStatus{Phase: corev1.PodFailed}},
	}
	w.expect(t,
		`kubelet_node_name{node="n1"} 1`, "kubelet_cgroup_version 1", "kubelet_running_pods 1",
		`kubelet_running_containers{container_state="running"} 1`,
		`kubelet_running_containers{container_state="exited"} 1`,
		`kubelet_desired_pods{static=""} 2`, `kubelet_desired_pods{static="true"} 1`,
		`kubelet_active_pods{static=""} 1`,
		"kubelet_mirror_pods 2", "kubelet_memory_qos_node_memory_min_bytes 7",
		"kubelet_memory_qos_node_memory_low_bytes 9", "kubelet_managed_ephemeral_containers 1", "kubelet_pod_in_progress_resizes 1",
		"kubelet_pleg_last_seen_seconds 1000.5",
		`volume_manager_total_volumes{plugin_name="kubernetes.io/empty-dir",state="desired_state_of_world"} 2`,
		`volume_manager_total_volumes{plugin_name="kubernetes.io/empty-dir",state="actual_state_of_world"} 1`,
		`volume_manager_total_volumes{plugin_name="kubernetes.io/csi:disk.example.com",state="actual_state_of_world"} 1`,
		`volume_manager_total_volumes{plugin_name="kubernetes.io/nfs",state="desired_state_of_world"} 1`,
		`dra_resource_claims_in_use{driver_name="gpu.example.com"} 2`,
		`dra_resource_claims_in_use{driver_name="nic.example.com"} 1`,
		`dra_resource_claims_in_use{driver_name="<any>"} 2`,
		`kubelet_credential_provider_config_info{hash="sha256:00"} 1`,
	)
}

func TestSizeBucket(t *testing.T) {
	for size, want := range map[int64]string{0: "N/A", 1: "0-10MB", 10 << 20: "0-10MB", 10<<20 + 1: "10MB-100MB",
		2 << 30: "1GB-5GB", 200 << 30: "GT100GB"} {
		if got := sizeBucket(size); got != want {
			t.Errorf("%d: %s, want %s", size, got, want)
		}
	}
}

// The list of the kubelet's families: each one is served under its name, or has a
// reason not to be. None is served that is not in the list.
func TestFamilies(t *testing.T) {
	list, err := os.ReadFile("testdata/families.txt")
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for line := range strings.Lines(string(list)) {
		line = strings.TrimSpace(line)
		if name, reason, not := strings.Cut(line, ": "); !strings.HasPrefix(line, "#") && !not {
			want = append(want, name)
		} else if not && !strings.HasPrefix(line, "#") && reason == "" {
			t.Errorf("%s has no reason", name)
		}
	}
	slices.Sort(want)
	synctest.Test(t, func(t *testing.T) {
		w, p := newWorld(), pod()
		w.err, w.result = errors.New("no"), pods.Result{Err: &podlife.Failure{Reason: "x"}}
		_, _ = w.runtime.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{})
		w.run.Do(t.Context(), p, podlife.StartContainer{Container: "c"})
		w.err, w.result = nil, pods.Result{Pulled: &podlife.Pulled{Took: 1}, Verdict: podlife.ProbeSuccess}
		w.Collected("space")
		w.run.Do(t.Context(), p, podlife.PullImage{})
		w.run.Do(t.Context(), p, podlife.RunProbe{Container: "c"})
		_ = w.Cgroups(stub{w: w}).Ensure(p)
		w.Relisted(time.Now(), 0)
		w.Evicted("memory.available")
		w.Refused("OutOfcpu")
		w.PinningAdmitted(true, true, true, "x", time.Millisecond)
		w.ShowPinning(func() pinning.Usage { return pinning.Usage{Shared: 1, Own: 1, ByNode: map[int]int{0: 1}} })
		w.Preempted("cpu", 1)
		w.Registered("example.com/gpu")
		w.Allocated("example.com/gpu", 0)
		w.DriverCalled("gpu.example.com", "/x/y", "OK", 0)
		w.ClaimsHandled("PrepareResources", nil, 0)
		for _, method := range []string{"List", "Get", "GetAllocatableResources"} {
			w.PodResourcesServed(method, errors.New("no"))
		}
		w.PluginRun("p", 0, true)
		w.views = []pods.View{{Pod: p}}
		w.status.Set(p, &corev1.PodStatus{Phase: corev1.PodFailed,
			ContainerStatuses: []corev1.ContainerStatus{{Name: "c",
				State: corev1.ContainerState{Terminated: ended("x://1", "Error", 1)}}}})
		var got []string
		for line := range strings.Lines(w.text(t)) {
			if rest, ok := strings.CutPrefix(line, "# TYPE "); ok {
				name, _, _ := strings.Cut(rest, " ")
				got = append(got, name)
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			for _, name := range want {
				if !slices.Contains(got, name) {
					t.Errorf("%s is not served", name)
				}
			}
			for _, name := range got {
				if !slices.Contains(want, name) {
					t.Errorf("%s is not in the list", name)
				}
			}
			t.Log(fmt.Sprint(len(got), len(want)))
		}
	})
}

// checkpointer is a runtime that has checkpoints.
type checkpointer struct{ runtime.Runtime }

func (checkpointer) CheckpointContainer(_ context.Context, req *cri.CheckpointContainerRequest) (
	*cri.CheckpointContainerResponse, error) {
	return nil, errors.New("checkpoint of " + req.ContainerId)
}

// A counted runtime has checkpoints if the runtime behind it has them (S12.33).
func TestCheckpointsPassThrough(t *testing.T) {
	w := newWorld()
	req := &cri.CheckpointContainerRequest{ContainerId: "id1"}
	if _, err := runtime.Checkpoint(t.Context(), w.Runtime(checkpointer{}), req); err == nil ||
		err.Error() != "checkpoint of id1" {
		t.Error(err)
	}
	if _, err := runtime.Checkpoint(t.Context(), w.runtime, req); status.Code(err) != codes.Unimplemented {
		t.Errorf("a runtime without checkpoints: %v", err)
	}
}

// The families of volumes that are found at a start, and of SELinux labels.
func TestVolumeFamilies(t *testing.T) {
	w := newWorld()
	w.Reconstructed(nil)
	w.Reconstructed(errors.New("no"))
	w.ForceCleaned(errors.New("no"))
	w.Labelled("kubernetes.io/csi:x", "RWO", false)
	w.Labelled("kubernetes.io/csi:x", "RWOP", true)
	w.NotLabelled("RWX", true)
	w.NotLabelled("ROX", false)
	text := w.text(t)
	for _, line := range []string{"reconstruct_volume_operations_total 2", "reconstruct_volume_operations_errors_total 1",
		"force_cleaned_failed_volume_operations_total 1", "force_cleaned_failed_volume_operation_errors_total 1",
		`volume_manager_selinux_volumes_admitted_total{access_mode="RWO",volume_plugin="kubernetes.io/csi:x"} 1`,
		`volume_manager_selinux_volume_context_mismatch_errors_total{access_mode="RWOP",` +
			`volume_plugin="kubernetes.io/csi:x"} 1`,
		`volume_manager_selinux_pod_context_mismatch_errors_total{access_mode="RWX"} 1`,
		`volume_manager_selinux_container_errors_total{access_mode="ROX"} 1`} {
		if !strings.Contains(text, "\n"+line+"\n") {
			t.Errorf("%s is not served", line)
		}
	}
}
