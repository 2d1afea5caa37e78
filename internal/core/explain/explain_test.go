package explain

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var now = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

func before(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }

func text(l Lines) string {
	var b strings.Builder
	for _, o := range l {
		mark := "  "
		if o.Problem {
			mark = "! "
		}
		b.WriteString(mark + o.Text + "\n")
	}
	return b.String()
}

func expectLines(t *testing.T, what string, got Lines, want string) {
	t.Helper()
	if text(got) != strings.TrimPrefix(want, "\n") {
		t.Errorf("%s:\n%swant\n%s", what, text(got), want)
	}
}

// pod returns a running pod.
func pod(change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{NodeName: "n"},
		Status: corev1.PodStatus{Phase: corev1.PodRunning,
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: "True",
				LastTransitionTime: before(time.Hour)}},
			ContainerStatuses: []corev1.ContainerStatus{{Name: "c", Ready: true, Started: new(true), RestartCount: 1,
				State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: before(time.Hour)}}}}}}
	change(p)
	return p
}

func waiting(reason, message string) corev1.ContainerState {
	return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
}

// A long cause from the status is not printed again for each event that wraps it, and events whose message is already
// printed are omitted.
func TestEventsDoNotRepeat(t *testing.T) {
	cause := strings.Repeat("failed to resolve the reference of the image; ", 7)
	cause = cause[:len(cause)-2]
	p := pod(func(p *corev1.Pod) {
		p.Status.ContainerStatuses[0] = corev1.ContainerStatus{Name: "c",
			State: waiting("ImagePullBackOff", `Back-off pulling image "i": ErrImagePull: `+cause)}
	})
	event := func(name, message string) corev1.Event {
		return corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: name}, Type: "Warning", Reason: "Failed",
			Message: message, LastTimestamp: before(time.Minute)}
	}
	expectLines(t, "long", Pod(p, Beside{Events: []corev1.Event{
		event("a", `Failed to pull image "i": `+cause), event("b", "Error: ErrImagePull"), event("c", "Error: ErrImagePull"),
		event("d", cause), event("e", "Error: short cause"),
	}}, now), `
! container c waits: `+cause+` (ImagePullBackOff)
! event 60s ago: short cause (Failed)
`)
}

// Each reason why a pod waits has its sentence; every pod that is not ready has at least one.
func TestPod(t *testing.T) {
	for _, c := range []struct {
		what   string
		change func(*corev1.Pod)
		want   string
	}{
		{"ready", func(*corev1.Pod) {}, `
  runs on node n, and has been ready for 60m; 1 restart
`},
		{"no node", func(p *corev1.Pod) {
			p.Spec.NodeName = ""
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: "False",
				Reason: "Unschedulable", Message: "0/1 nodes are available: 1 Insufficient cpu."}}
		}, `
! is not scheduled: 0/1 nodes are available: 1 Insufficient cpu. (Unschedulable)
`},
		{"gated", func(p *corev1.Pod) {
			p.Spec.NodeName, p.Spec.SchedulingGates = "", []corev1.PodSchedulingGate{{Name: "quota"}}
		}, `
! is not scheduled until its scheduling gates are removed: quota
`},
		{"another scheduler", func(p *corev1.Pod) { p.Spec.NodeName, p.Spec.SchedulerName = "", "mine" }, `
! is not scheduled: the scheduler "mine" has not chosen a node
`},
		{"not looked at", func(p *corev1.Pod) { p.Spec.NodeName = "" }, `
! is not scheduled: the scheduler has not processed it yet
`},
		{"no agent", func(p *corev1.Pod) { p.Status = corev1.PodStatus{Phase: corev1.PodPending} }, `
! waits for node n: its agent has not reported anything about it
`},
		{"image", func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0] = corev1.ContainerStatus{Name: "c",
				State: waiting("ImagePullBackOff", "no such image")}
		}, `
! container c waits: no such image (ImagePullBackOff)
! event 2m ago: it did not work (Failed)
`},
		{"crash", func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0] = corev1.ContainerStatus{Name: "c",
				State: waiting("CrashLoopBackOff", "back-off 5m"),
				LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137,
					Reason: "OOMKilled", FinishedAt: before(30 * time.Second)}}}
		}, `
! container c waits: back-off 5m (CrashLoopBackOff); it last ended with exit code 137 30s ago: OOMKilled
! event 2m ago: it did not work (Failed)
`},
		{"init", func(p *corev1.Pod) {
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "i",
				State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{
					StartedAt: before(3 * time.Minute)}}}}
		}, `
! init container i has run for 3m; what follows waits for it
! event 2m ago: it did not work (Failed)
`},
		{"not ready", func(p *corev1.Pod) { p.Status.ContainerStatuses[0].Ready = false }, `
! container c runs, and is not ready: its readiness probe does not succeed
! event 2m ago: it did not work (Failed)
`},
		{"a gate", func(p *corev1.Pod) { p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "a/b"}} }, `
! is not ready: its readiness gate a/b is not True
! event 2m ago: it did not work (Failed)
`},
		{"a claim of devices", func(p *corev1.Pod) { p.Spec.NodeName = "" }, `
! is not scheduled: resource claim gpu does not exist
`},
		{"hook", func(p *corev1.Pod) {
			p.Spec.Containers = []corev1.Container{{Name: "c", Lifecycle: &corev1.Lifecycle{
				PostStart: &corev1.LifecycleHandler{}}}}
			p.Status.ContainerStatuses[0].Ready, p.Status.ContainerStatuses[0].Started = false, new(false)
		}, `
! container c has run for 60m, and its postStart hook has not ended yet
`},
		{"hook and probe", func(p *corev1.Pod) {
			p.Spec.Containers = []corev1.Container{{Name: "c", StartupProbe: &corev1.Probe{},
				Lifecycle: &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{}}}}
			p.Status.ContainerStatuses[0].Ready, p.Status.ContainerStatuses[0].Started = false, new(false)
		}, `
! container c has run for 60m, and its postStart hook has not ended yet, or its startup probe has not succeeded yet
`},
		{"startup", func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0].Ready, p.Status.ContainerStatuses[0].Started = false, new(false)
		}, `
! container c has run for 60m, and its startup probe has not succeeded yet
`},
		{"deadline", func(p *corev1.Pod) {
			p.Spec.ActiveDeadlineSeconds, p.Status.StartTime = new(int64(60)), new(before(90*time.Second))
		}, `
! its activeDeadlineSeconds ended 30s ago: its containers are being stopped
`},
		{"deleted", func(p *corev1.Pod) {
			p.DeletionTimestamp, p.Finalizers = new(before(5*time.Minute)), []string{"x/y"}
		}, `
! is being deleted: its grace period ended 5m ago
! stays until its finalizers are removed: x/y
! container c still runs
! event 2m ago: it did not work (Failed)
`},
		{"evicted", func(p *corev1.Pod) {
			p.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: "low on memory"}
		}, `
! has failed: low on memory (Evicted)
! event 2m ago: it did not work (Failed)
`},
	} {
		events := []corev1.Event{{Type: "Normal", Reason: "Pulled"}, {Type: "Warning", Reason: "Failed",
			Message: "it did not work", LastTimestamp: before(2 * time.Minute)}}
		if !strings.Contains(c.want, "event") {
			events = nil
		}
		var missing []string
		if c.what == "a claim of devices" {
			missing = []string{"resource claim gpu"}
		}
		expectLines(t, c.what, Pod(pod(c.change), Beside{Events: events, ResourceClaims: missing}, now), c.want)
	}
}

// The explanation of a pool names its servers, what is missing, and how requests are handled.
func TestInferencePool(t *testing.T) {
	seen := now.Add(-time.Second)
	old := now.Add(-time.Minute)
	accepted := []Parent{{Name: "g", Conditions: []metav1.Condition{{Type: "Accepted", Status: "True"}}}}
	for _, c := range []struct {
		what string
		pool Pool
		want string
	}{
		{"served", Pool{Parents: accepted, State: &PoolState{Ready: 2, Requests: 5, Waiting: 2, Models: []string{"a"},
			Servers: []Server{{Name: "x", Running: 3, Waiting: 2, Cache: 0.5, Seen: &seen},
				{Name: "y", Problem: "connection refused", InFlight: 1}, {Name: "z", Seen: &old, Problem: "timeout"}}}}, `
  2 ready servers take requests; 3 requests at work, 2 requests waiting
  server x: 3 running, 2 waiting, 50 % of the cache used
! server y: metrics missing, only its 1 request from this gateway count: connection refused
! server z: metrics are 60s old and ignored: timeout
  models with rules: a
`},
		{"KV events", Pool{State: &PoolState{Ready: 5, TokenProblem: "no /tokenize", Servers: []Server{
			{Name: "a", Seen: &seen, Events: &Events{Received: true, Whole: true, Blocks: 5}},
			{Name: "b", Seen: &seen, Events: &Events{Problem: "connection refused"}},
			{Name: "c", Seen: &seen, Events: &Events{}},
			{Name: "d", Seen: &seen, Events: &Events{Received: true, Wrong: 16}},
			{Name: "e", Seen: &seen, Events: &Events{Received: true, Blocks: 1}}}}}, `
  5 ready servers take requests; 0 requests at work, 0 requests waiting
  server a: 0 running, 0 waiting, 0 % of the cache used
  server b: 0 running, 0 waiting, 0 % of the cache used
  server c: 0 running, 0 waiting, 0 % of the cache used
  server d: 0 running, 0 waiting, 0 % of the cache used
  server e: 0 running, 0 waiting, 0 % of the cache used
! server b: no KV events, its cache is estimated from the requests sent to it: connection refused
  server c: has published no KV event yet, its cache is estimated from the requests sent to it
! server d: its blocks do not have 16 tokens as those of the pool, its cache is estimated from the requests sent to it
  server e: 1 block known from KV events; it may have more, stored before carob subscribed or in events that were lost
! KV events cannot be used, caches are estimated from the requests sent to the servers: no /tokenize
`},
		{"saturated", Pool{Parents: accepted, State: &PoolState{Ready: 1, Saturation: 1.5, Held: 2, HeldBytes: 9}}, `
  1 ready server takes requests; 0 requests at work, 0 requests waiting
! saturated: no server has room; requests with a priority below 0 get 429 (rejected-saturated)
! 2 requests are held until a server has room (9 bytes)
`},
		{"no pod", Pool{Selector: map[string]string{"b": "2", "a": "1"}, State: &PoolState{Saturation: 1}}, `
! no ready server: requests get 503 (rejected-no-endpoints)
! no pod matches its selector a=1,b=2
`},
		{"starting", Pool{State: &PoolState{Starting: true, Held: 3}, Pods: []*corev1.Pod{pod(func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0].State = waiting("ContainerCreating", "")
		})}}, `
! no ready server: requests wait for the first one (3 do), because an autoscaler reads how many wait
! pod p: container c waits: ContainerCreating
`},
		{"no route", Pool{Pods: []*corev1.Pod{pod(func(*corev1.Pod) {})}}, `
! no Gateway of carob serves it: no HTTPRoute that a Gateway has accepted leads to it
  pod p: runs on node n, and has been ready for 60m; 1 restart
`},
		{"bad picker", Pool{Parents: []Parent{{Name: "g", Conditions: []metav1.Condition{{Type: "ResolvedRefs",
			Status: "False", Reason: "InvalidExtensionRef", Message: "no Service epp"}}}}, Unknown: "forbidden",
			Pods: []*corev1.Pod{pod(func(*corev1.Pod) {})}}, `
! Gateway g: ResolvedRefs is false: no Service epp (InvalidExtensionRef)
! cannot read the gateway's state of it: forbidden
  pod p: runs on node n, and has been ready for 60m; 1 restart
`},
		{"another picker", Pool{State: &PoolState{Picker: "d/epp:9002", FailOpen: true}}, `
  the endpoint picker d/epp:9002 chooses its servers; if it does not answer, requests go to any server
`},
		{"another picker, which is not there", Pool{State: &PoolState{Picker: "d/epp:9002", PickerEmpty: true}}, `
! the endpoint picker d/epp:9002 has no ready endpoint: requests get 503
`},
		{"no configuration", Pool{State: &PoolState{Ready: 1, Unconfigured: "c"}}, `
  carob's picker has its default configuration: no ConfigMap c has the key ` + PickerKey + `
  1 ready server takes requests; 0 requests at work, 0 requests waiting
`},
		{"an unknown model", Pool{Model: "m", State: &PoolState{Ready: 1, Shed: true, Models: []string{"a"}}}, `
  1 ready server takes requests; 0 requests at work, 0 requests waiting
! model m: no InferenceModel has this name; its requests are the first to be refused when no server has room
`},
	} {
		if c.pool.State != nil {
			c.pool.Parents = accepted
		}
		expectLines(t, c.what, InferencePool(&c.pool, now), c.want)
	}
	expectLines(t, "no route, but served", InferencePool(&Pool{State: &PoolState{Ready: 1}}, now), `
! no HTTPRoute that a Gateway has accepted leads to it: only gateways that call carob's picker use it
  1 ready server takes requests; 0 requests at work, 0 requests waiting
`)
	many := Pool{Parents: accepted, State: &PoolState{Ready: 20}}
	for i := range 20 {
		many.State.Servers = append(many.State.Servers, Server{Name: fmt.Sprint(i), Seen: &seen})
	}
	if got := text(InferencePool(&many, now)); strings.Count(got, "\n") != mostNamed+2 {
		t.Errorf("%s", got)
	}
}

// The explanation of a route says where it is served, and what does not work.
func TestRoute(t *testing.T) {
	expectLines(t, "served", Route(&Served{Places: []Place{{Where: "http://a:80 /x", Backends: []PlaceBackend{
		{Name: "d/s:80", Ready: 2, Weight: 1}, {Name: "d/t:80", Weight: 1},
		{Name: "d/u:80"}, {Weight: 1, Problem: "no such Service"}}},
		{Where: "http://a:80 /y", Answer: "301"}, {Where: "http://a:80 /z"}}}), `
! http://a:80 /x → d/t:80: no endpoint is ready, requests get 503
! http://a:80 /x → a backend: no such Service
  http://a:80 /x → d/s:80 (2 endpoints), d/u:80 (weight 0: nothing)
  http://a:80 /y answers 301
! http://a:80 /z has no backend: requests get 500
`)
	expectLines(t, "nothing", Route(&Served{Parents: []Parent{{Conditions: []metav1.Condition{{Type: "Accepted",
		Status: "Unknown", Reason: "Pending"}}}}, Problems: []string{"the class is another's"}}), `
! its status: Accepted is unknown: Pending
! the class is another's
! `+NothingServed+`
`)
	expectLines(t, "no class", Route(&Served{Class: new("")}),
		"! "+NothingServed+": it names no IngressClass; set spec.ingressClassName, to carob for the built-in gateway\n")
	expectLines(t, "another class", Route(&Served{Class: new("nginx")}),
		"! "+NothingServed+": check that carob serves its IngressClass \"nginx\"\n")
	expectLines(t, "no gateway", Route(&Served{Class: new(""), Unknown: NoGateway}),
		"! carob does not serve it: "+NoGateway+"\n")
}

// The end of a failed program's log is printed: that of the newest failure, with a line's length bounded.
func TestFailedLog(t *testing.T) {
	ended := func(code int32, reason string, at time.Duration) *corev1.ContainerStateTerminated {
		return &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason, StartedAt: before(at + time.Second),
			FinishedAt: before(at)}
	}
	old := pod(func(p *corev1.Pod) {
		p.Name = "old"
		p.Status.ContainerStatuses[0].LastTerminationState.Terminated = ended(1, "Error", time.Hour)
	})
	failed := pod(func(p *corev1.Pod) {
		p.Status.Phase, p.Status.ContainerStatuses[0].State = corev1.PodFailed,
			corev1.ContainerState{Terminated: ended(7, "Error", time.Minute)}
		p.Status.ContainerStatuses[0].Ready = false
	})
	for _, c := range []struct {
		pods []*corev1.Pod
		want *LogRef
	}{
		{[]*corev1.Pod{pod(func(*corev1.Pod) {})}, nil},
		{[]*corev1.Pod{old}, &LogRef{"old", "c", true}},
		{[]*corev1.Pod{old, failed}, &LogRef{"p", "c", false}},
		{[]*corev1.Pod{failed, old}, &LogRef{"p", "c", false}},
		{[]*corev1.Pod{pod(func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0].LastTerminationState.Terminated = ended(0, "Completed", time.Minute)
		})}, nil},
		{[]*corev1.Pod{pod(func(p *corev1.Pod) { // never ran
			p.Status.ContainerStatuses[0].State.Terminated = ended(128, "StartError", time.Minute)
		})}, nil},
		{[]*corev1.Pod{pod(func(p *corev1.Pod) { // never ran
			p.Status.ContainerStatuses[0].State.Terminated = &corev1.ContainerStateTerminated{ExitCode: 128}
		})}, nil},
		{[]*corev1.Pod{pod(func(p *corev1.Pod) {
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "i",
				State: corev1.ContainerState{Terminated: ended(2, "Error", time.Minute)}}}
		})}, &LogRef{"p", "i", false}},
	} {
		if got := FailedLog(c.pods...); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, not %+v", c.pods[0].Name, got, c.want)
		}
	}
	long := strings.Repeat("ä", 200)
	log := &Log{LogRef{"p", "c", false}, "zero\none\n\n" + long + "\nboom\n"}
	expectLines(t, "log", Pod(failed, Beside{Log: log}, now), `
! has failed
! container c ended with exit code 7 60s ago
  log of container c: `+strings.Repeat("ä", 150)+`…
  log of container c: boom
`)
	expectLines(t, "two pods", Lines{{true, "x"}}.related(Related{Log: log}, now), `
! x
  log of pod p, container c: `+strings.Repeat("ä", 150)+`…
  log of pod p, container c: boom
`)
}

// A pod that is not scheduled because of its claims says what they wait for.
func TestClaimsOfPod(t *testing.T) {
	p := pod(func(p *corev1.Pod) {
		p.Spec.NodeName, p.Status = "", corev1.PodStatus{Phase: corev1.PodPending,
			Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: "False", Reason: "Unschedulable",
				Message: "pod has unbound immediate PersistentVolumeClaims"}}}
	})
	expectLines(t, "claims", Pod(p, Beside{Claims: map[string]Lines{
		"b": {{true, `its StorageClass "x" does not exist`}, {false, "not a problem"}}, "a": nil}}, now), `
! is not scheduled: pod has unbound immediate PersistentVolumeClaims (Unschedulable)
! claim a does not exist
! claim b: its StorageClass "x" does not exist
`)
}
