package podlife

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	"carob/internal/core/podstatus"
)

// FuzzStep calls Step with impossible input: any containers in any state, outcomes of actions that
// were never begun, results of unknown probes. Step must not panic, and must keep the invariants of
// every call.
func FuzzStep(f *testing.F) { f.Fuzz(rapid.MakeFuzz(anyWorld(false))) }

// FuzzRecover begins with any status and any runtime, as after a lost disk.
func FuzzRecover(f *testing.F) { f.Fuzz(rapid.MakeFuzz(anyWorld(true))) }

func TestArbitraryInput(t *testing.T)            { rapid.Check(t, anyWorld(false)) }
func TestRecoverFromArbitraryInput(t *testing.T) { rapid.Check(t, anyWorld(true)) }

func anyWorld(recovered bool) func(*rapid.T) {
	return func(t *rapid.T) {
		pod := &corev1.Pod{}
		if err := yaml.Unmarshal([]byte(drawPod(t)), pod); err != nil {
			t.Fatal(err)
		}
		pod.Namespace, pod.UID, pod.Generation = "default", "uid-1", 1
		in := Input{Now: begin, Pod: pod,
			Node: Node{Name: "node1", HostIPs: []string{"192.168.0.1"}, RuntimeName: "carob", AgentStarted: begin}}
		var s State
		if recovered {
			pod.Status = drawStatus(t, pod)
			in.Observed = drawObserved(t, pod, in.Now)
			s = Recover(pod, in.Observed)
		}
		flying := map[Key]bool{}
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			in.Now = in.Now.Add(time.Duration(rapid.IntRange(0, 400_000).Draw(t, "ms")) * time.Millisecond)
			in.Observed = drawObserved(t, in.Pod, in.Now)
			drawRequests(t, &in)
			drawEnds(t, &in, &s)
			for _, o := range in.Done {
				delete(flying, o.Key)
			}
			for _, r := range in.Probes {
				delete(flying, r.Key)
			}
			next, out := stepAny(t, s, in)
			for _, b := range out.Begin {
				if flying[b.Action.Key()] {
					t.Fatalf("%s is begun while it is in flight", b.Action.Key())
				}
				flying[b.Action.Key()] = true
			}
			for _, k := range out.Cancel {
				if !flying[k] {
					t.Fatalf("%s is cancelled and not in flight", k)
				}
			}
			s = next
			in.Done, in.Probes = nil, nil
			if rapid.IntRange(0, 3).Draw(t, "stored") > 0 { // else the API server's status is older
				p := in.Pod.DeepCopy()
				p.Status = out.Status
				in.Pod = p
			}
		}
	}
}

// stepAny calls Step and checks the invariants of every call.
func stepAny(t *rapid.T, s State, in Input) (State, Output) {
	before, pod, seen := encode(t, s), encode(t, in.Pod), encode(t, in.Observed)
	next, out := Step(s, in)
	if encode(t, s) != before || encode(t, in.Pod) != pod || encode(t, in.Observed) != seen {
		t.Fatal("Step changed its arguments")
	}
	var restored State
	if err := json.Unmarshal([]byte(before), &restored); err != nil {
		t.Fatal(err)
	}
	if _, again := Step(restored, in); print(again) != print(out) {
		t.Fatalf("a restored state decides differently:\n%s", cmp.Diff(print(out), print(again)))
	}
	if !out.Wake.IsZero() && !out.Wake.After(in.Now) {
		t.Fatalf("wake %v is not after %v", out.Wake, in.Now)
	}
	if lifeOrder(out.Life) < lifeOrder(s.Life) {
		t.Fatalf("life is %s after %s", out.Life, s.Life)
	}
	if p := s.Last.Phase; podstatus.Terminal(p) && out.Status.Phase != p {
		t.Fatalf("phase %s after %s", out.Status.Phase, p)
	}
	for i := range out.Status.Conditions {
		c := &out.Status.Conditions[i]
		if old := podstatus.Condition(s.Last.Conditions, c.Type); podstatus.OwnCondition(c.Type) && old != nil &&
			old.Status == c.Status &&
			!old.LastTransitionTime.Equal(&c.LastTransitionTime) {
			t.Fatalf("the transition time of %s moves from %v to %v, its status stays", c.Type, old.LastTransitionTime,
				c.LastTransitionTime)
		}
	}
	return next, out
}

func lifeOrder(l Life) int {
	return slices.Index([]Life{Syncing, Terminating, Terminated, Finished}, l)
}

func encode(t *rapid.T, v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func containerNames(p *corev1.Pod) (names []string) {
	for _, l := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range l {
			names = append(names, l[i].Name)
		}
	}
	return append(names, "stranger")
}

// drawObserved draws any snapshot of the runtime.
func drawObserved(t *rapid.T, p *corev1.Pod, now time.Time) Observed {
	o := Observed{Taken: now}
	o.Volumes.Mounted = rapid.IntRange(0, 3).Draw(t, "mounted") > 0
	o.Volumes.Present = o.Volumes.Mounted || rapid.Bool().Draw(t, "present")
	for i := range rapid.IntRange(0, 2).Draw(t, "sandboxes") {
		s := Sandbox{ID: fmt.Sprintf("sb%d", 9-i), Attempt: uint32(9 - i),
			Ready: rapid.IntRange(0, 3).Draw(t, "ready") > 0, HostNetwork: rapid.IntRange(0, 9).Draw(t, "host") == 0}
		if rapid.IntRange(0, 5).Draw(t, "address") > 0 {
			s.IPs = []string{"10.0.0.5"}
		}
		o.Sandboxes = append(o.Sandboxes, s)
	}
	past := func(what string) time.Time {
		return now.Add(-time.Duration(rapid.IntRange(-100, 2000).Draw(t, what)) * time.Second)
	}
	names := containerNames(p)
	for i := range rapid.IntRange(0, 5).Draw(t, "instances") {
		c := Container{ID: fmt.Sprintf("id%d", rapid.IntRange(0, 3).Draw(t, "id")*10+i),
			Name: rapid.SampledFrom(names).Draw(t, "name"), Attempt: rapid.IntRange(0, 3).Draw(t, "attempt"),
			SandboxID: rapid.SampledFrom([]string{"sb9", "sb9", "sb8", "gone"}).Draw(t, "of"), Image: "one",
			ImageRef: "sha256:one", CreatedAt: past("created"),
			State: rapid.SampledFrom([]ContainerState{ContainerCreated, ContainerRunning, ContainerRunning,
				ContainerExited, ContainerExited, ContainerUnknown}).Draw(t, "state")}
		if c.State != ContainerCreated {
			c.StartedAt = past("started")
		}
		if c.State == ContainerExited {
			c.FinishedAt = past("finished")
			c.ExitCode = rapid.SampledFrom([]int32{0, 1, 137}).Draw(t, "code")
			c.Reason = rapid.SampledFrom([]string{"Completed", "Error", "OOMKilled", ""}).Draw(t, "reason")
		}
		o.Containers = append(o.Containers, c)
	}
	for _, image := range []string{"one", "two"} {
		i := ImageState{Image: image}
		switch rapid.IntRange(0, 5).Draw(t, "image") {
		case 0:
		case 1:
			i.Err = "broken"
		case 2:
			i.InvalidName = "no name"
		default:
			i.Ref = "sha256:" + image
		}
		o.Images = append(o.Images, i)
	}
	return o
}

// drawRequests draws the present requests of users and of the node.
func drawRequests(t *rapid.T, in *Input) {
	p := in.Pod.DeepCopy()
	in.Pod = p
	switch rapid.IntRange(0, 19).Draw(t, "request") {
	case 0:
		if p.DeletionTimestamp == nil {
			grace := int64(rapid.IntRange(0, 30).Draw(t, "grace"))
			at := metav1.NewTime(in.Now.Add(time.Duration(grace) * time.Second))
			p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &at, &grace
			p.Generation++
		}
	case 1:
		in.Stop = &Stop{Reason: rapid.SampledFrom([]string{"Evicted", "Terminated"}).Draw(t, "stop")}
	case 2:
		in.Gone = true
	case 3:
		in.Reject = &Rejection{Reason: "OutOfcpu", Message: "no"}
	case 4:
		p.Spec.Containers[0].Image = rapid.SampledFrom([]string{"one", "two"}).Draw(t, "new image")
		p.Generation++
	case 5:
		in.Node.NetworkProblem = rapid.SampledFrom([]string{"", "no network"}).Draw(t, "network")
	}
}

// drawEnds draws which actions end, also some that were never begun.
func drawEnds(t *rapid.T, in *Input, s *State) {
	for _, f := range s.InFlight {
		if f.Op == opProbe {
			if c := rapid.IntRange(0, 1).Draw(t, "probe ends"); c == 1 {
				in.Probes = append(in.Probes,
					ProbeResult{Key: f.Key, Container: f.Object,
						ContainerID: rapid.SampledFrom([]string{"id0", "id11", "id22"}).Draw(t, "of"),
						Type:        ProbeType(f.Detail), At: in.Now,
						Verdict: rapid.SampledFrom([]ProbeVerdict{ProbeSuccess, ProbeFailure, ProbeError,
							ProbeWarning}).Draw(t, "verdict")})
			}
			continue
		}
		switch rapid.IntRange(0, 3).Draw(t, "ends") {
		case 0:
			in.Done = append(in.Done, Outcome{Key: f.Key, At: in.Now})
		case 1:
			reason := ""
			if f.Cancelled {
				reason = Aborted
			}
			in.Done = append(in.Done,
				Outcome{Key: f.Key, At: in.Now,
					Err: &Failure{Reason: reason, Message: "boom", Created: rapid.Bool().Draw(t, "created")}})
		}
	}
	if rapid.IntRange(0, 9).Draw(t, "stranger") == 0 {
		in.Done = append(in.Done, Outcome{Key: "start/web/99", At: in.Now})
		in.Probes = append(in.Probes,
			ProbeResult{Key: "probe/web/Liveness/99", Container: "c0", ContainerID: "id0", Type: Liveness, At: in.Now,
				Verdict: ProbeFailure})
	}
}

// drawStatus draws any status of the pod in the API server.
func drawStatus(t *rapid.T, p *corev1.Pod) corev1.PodStatus {
	st := corev1.PodStatus{Phase: rapid.SampledFrom([]corev1.PodPhase{"", corev1.PodPending, corev1.PodRunning,
		corev1.PodRunning, corev1.PodSucceeded, corev1.PodFailed}).Draw(t, "phase")}
	if rapid.Bool().Draw(t, "start time") {
		at := metav1.NewTime(begin.Add(-time.Hour))
		st.StartTime = &at
	}
	entry := func(name string) corev1.ContainerStatus {
		s := corev1.ContainerStatus{Name: name, RestartCount: int32(rapid.IntRange(0, 4).Draw(t, "restarts"))}
		end := &corev1.ContainerStateTerminated{ExitCode: rapid.SampledFrom([]int32{0, 1}).Draw(t, "code"),
			ContainerID: "carob://old", FinishedAt: metav1.NewTime(begin.Add(-time.Minute))}
		switch rapid.IntRange(0, 3).Draw(t, "state") {
		case 0:
			s.State.Waiting = &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}
		case 1:
			s.State.Running,
				s.ContainerID = &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(begin.Add(-time.Minute))},
				"carob://old"
		case 2:
			s.State.Terminated, s.ContainerID = end, "carob://old"
		case 3:
			s.State.Waiting,
				s.LastTerminationState.Terminated = &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}, end
		}
		return s
	}
	for i := range p.Spec.InitContainers {
		st.InitContainerStatuses = append(st.InitContainerStatuses, entry(p.Spec.InitContainers[i].Name))
	}
	for i := range p.Spec.Containers {
		if rapid.IntRange(0, 4).Draw(t, "has entry") > 0 {
			st.ContainerStatuses = append(st.ContainerStatuses, entry(p.Spec.Containers[i].Name))
		}
	}
	return st
}
