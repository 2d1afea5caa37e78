package podlife

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"carob/internal/base/transcript"
	"carob/internal/core/podlife/allocation"
	"carob/internal/core/podstatus"
)

// TestTranscripts runs the stories in testdata/transcripts: each command changes the world, calls Step, and
// prints its decisions. Rewrite them with -rewrite, and commit only a diff that you understand.
//
//	pod                      a YAML manifest: creates or updates the pod
//	down                     the same while the agent is down
//	up                       the same, started without output as far as possible, and watched
//	watch                    from here on, also what kubectl get shows: READY, STATUS, RESTARTS
//	again                    another world, for another story
//	node KEY=VALUE…          network, disk-short, backoff-max, image (present on the machine),
//	                         image-error=IMAGE, invalid-image=IMAGE (the body is the error)
//	ok KEY… [code=N] [ignored]  the actions succeed, with their effect; a resize without it when ignored
//	settle [except=KEY,…]    ok for everything in flight but probes, until nothing is
//	fail KEY [reason=R] [created] [permanent]   the body is the message
//	probe NAME TYPE VERDICT  a probe run in flight ends; the body is its output
//	exit NAME CODE [reason]  a container ends by itself; vanish NAME: the runtime loses it
//	sandbox-dies             the newest sandbox is not ready any more
//	advance DURATION         time passes; Step is called at each Wake
//	delete [grace=N], gone, reject, stop   requests to end; reject and stop: reason=R, the body is the message
//	refused, accepted        the next result of the admission
//	crash [clock=D], reboot  the agent starts again with status and runtime only; the clock was set back by D
//	forget                   the same without the pod's status, as for a static pod
//	room                     another pod leaves the node
//	hold [for=F] [object=O], free   the node lacks resources for the pod, the body is the reason; it has them again
//	made KEY                 the container of a start in flight exists, and does not run yet
//	logs NAME N              the newest log that a container left on the disk is N.log
//	condition TYPE STATUS, api [phase=P] [reason=R]   another writer changes the status; the body is the message
//	resources                the allocated and the actual resources in the status
//	status                   the whole status as YAML
func TestTranscripts(t *testing.T) {
	transcript.Run(t, 40, func(t *testing.T) *world { return newWorld(t) },
		func(t *testing.T, w *world, d *datadriven.TestData) string {
			w.t = t
			return w.command(d)
		})
}

var begin = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// tester is a *testing.T or a *rapid.T.
type tester interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}

// world is a runtime, an API server and a clock, moved by hand.
type world struct {
	t       tester
	in      Input
	state   State
	flying  []Action
	shown   []string // summary of the status last printed
	watch   bool     // show what kubectl get shows
	row     string   // as it was last shown
	wake    time.Time
	runs    *corev1.Pod // Output.Allocated
	sb      strings.Builder
	present map[string]bool
	broken  map[string]string // why the lookup of an image fails
	invalid map[string]string // why an image name is not valid
}

func newWorld(t tester) *world {
	return &world{t: t, present: map[string]bool{}, broken: map[string]string{}, invalid: map[string]string{},
		in: Input{Now: begin, Node: Node{
			Name: "node1", HostIPs: []string{"192.168.0.1"}, RuntimeName: "carob",
			AgentStarted: begin.Add(-time.Hour)}}}
}

func (w *world) command(d *datadriven.TestData) string {
	w.sb.Reset()
	has := func(key string) bool { return d.HasArg(key) }
	arg := func(key string) string {
		return transcript.Arg(d, key)
	}
	switch d.Cmd {
	case "pod":
		w.apply(d.Input)
	case "up":
		return w.up(d.Input)
	case "pools": // of the pod set how long it may wait
		w.in.DrainTimeout = new(w.duration(strings.TrimSpace(d.Input)))
	case "watch":
		w.watch = true
		return ""
	case "again":
		*w = *newWorld(w.t)
		return ""
	case "down":
		w.apply(d.Input)
		w.crash()
	case "node":
		if has("network") {
			w.in.Node.NetworkProblem = d.Input
		}
		if has("disk-short") {
			w.in.Node.DiskShort = true
		}
		if v := arg("addresses"); v != "" {
			w.in.Node.HostIPs = strings.Split(v, ",")
		}
		if v := arg("backoff-max"); v != "" {
			w.in.Node.CrashBackoffMax = w.duration(v)
		}
		if v := arg("drain"); v != "" {
			w.in.Node.DrainTimeout = w.duration(v)
		}
		if v := arg("image"); v != "" {
			w.present[v] = true
		}
		if v := arg("image-error"); v != "" {
			w.broken[v] = d.Input
		}
		if v := arg("invalid-image"); v != "" {
			w.invalid[v] = d.Input
		}
		w.images()
	case "devices": // device health: the container has it
		w.in.Observed.Devices.Held = true
		for _, a := range d.CmdArgs {
			if w.in.Observed.Devices.Status == nil {
				w.in.Observed.Devices.Status = map[string][]corev1.ResourceStatus{}
			}
			w.in.Observed.Devices.Status[a.Key] = []corev1.ResourceStatus{{Name: "example.com/device",
				Resources: []corev1.ResourceHealth{{ResourceID: "d0", Health: corev1.ResourceHealthStatus(a.Vals[0])}}}}
		}
	case "absent":
		delete(w.present, arg("image"))
		w.images()
	case "ok":
		for _, a := range d.CmdArgs {
			if len(a.Vals) == 0 && a.Key != "ignored" {
				w.succeed(Key(a.Key), d)
			}
		}
	case "settle":
		w.settle(strings.Split(arg("except"), ","))
		return w.sb.String()
	case "fail":
		key := Key(d.CmdArgs[0].Key)
		a := w.land(key)
		f := &Failure{Reason: arg("reason"), Message: d.Input, Created: has("created"), Permanent: has("permanent")}
		if s, ok := a.(StartContainer); ok && f.Created {
			c := w.create(s)
			if c.State = ContainerCreated; has("running") { // it failed after the effect
				c.State, c.StartedAt = ContainerRunning, w.in.Now
			}
			if has("exited") {
				c := &w.in.Observed.Containers[len(w.in.Observed.Containers)-1]
				c.State, c.ExitCode, c.Reason, c.Message, c.FinishedAt = ContainerExited, 128, "StartError", d.Input,
					w.in.Now
			}
		}
		w.in.Done = append(w.in.Done, Outcome{Key: key, At: w.in.Now, Err: f})
	case "probe":
		w.probe(d.CmdArgs[0].Key, ProbeType(d.CmdArgs[1].Key), ProbeVerdict(d.CmdArgs[2].Key), d.Input)
	case "exit":
		code, err := strconv.Atoi(d.CmdArgs[1].Key)
		if err != nil {
			w.t.Fatalf("%v", err)
		}
		reason := ""
		if len(d.CmdArgs) > 2 {
			reason = d.CmdArgs[2].Key
		}
		w.exit(w.running(d.CmdArgs[0].Key), int32(code), reason)
	case "vanish":
		w.in.Observed.Containers = slices.DeleteFunc(slices.Clone(w.in.Observed.Containers),
			func(c Container) bool { return c.Name == d.CmdArgs[0].Key })
	case "unknown":
		w.running(d.CmdArgs[0].Key).State = ContainerUnknown
	case "sandbox-dies":
		w.in.Observed.Sandboxes[0].Ready = false
		w.in.Observed.Sandboxes[0].IPs = nil
	case "advance":
		w.advance(w.duration(d.CmdArgs[0].Key))
		return w.sb.String()
	case "delete":
		w.delete(arg("grace"))
	case "gone":
		w.in.Gone = true
	case "reject":
		w.in.Reject = &Rejection{Reason: arg("reason"), Message: d.Input}
	case "refused":
		w.in.Reject = &Rejection{Reason: arg("reason"), Message: d.Input}
		return ""
	case "accepted":
		w.in.Reject = nil
	case "stop":
		s := &Stop{Reason: arg("reason"), Message: d.Input}
		if has("condition") {
			text := d.Input
			if v := arg("condition"); v != "" {
				text = strings.ReplaceAll(v, "_", " ")
			}
			s.Condition = &corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
				Reason: "TerminationByKubelet", Message: text}
		}
		if g := arg("grace"); g != "" {
			v := w.duration(g)
			s.Grace = &v
		}
		w.in.Stop = s
	case "room":
		w.in.Node.Vacated++
	case "hold":
		w.in.Hold = &Hold{For: arg("for"), Object: arg("object"), Why: d.Input}
	case "routed": // the data plane opens new connections to the pod
		w.in.Routed = true
	case "let-go": // it no longer does
		w.in.Routed = false
	case "free":
		w.in.Hold = nil
	case "made":
		key := Key(d.CmdArgs[0].Key)
		for _, a := range w.flying {
			if s, ok := a.(StartContainer); ok && a.Key() == key {
				c := w.create(s)
				if c.State = ContainerCreated; has("running") { // it failed after the effect
					c.State, c.StartedAt = ContainerRunning, w.in.Now
				}
			}
		}
	case "logs":
		attempt, err := strconv.Atoi(d.CmdArgs[1].Key)
		if err != nil {
			w.t.Fatalf("%v", err)
		}
		w.in.Observed.Logs = append(w.in.Observed.Logs, LogFile{Container: d.CmdArgs[0].Key, Attempt: attempt})
		return ""
	case "resources":
		return w.resources()
	case "condition": // another writer sets a condition
		p := w.in.Pod.DeepCopy()
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{
			Type: corev1.PodConditionType(d.CmdArgs[0].Key), Status: corev1.ConditionStatus(d.CmdArgs[1].Key)})
		w.in.Pod = p
	case "api": // another writer sets phase, reason and message
		p := w.in.Pod.DeepCopy()
		if v := arg("phase"); v != "" {
			p.Status.Phase = corev1.PodPhase(v)
		}
		p.Status.Reason, p.Status.Message = arg("reason"), d.Input
		w.in.Pod = p
	case "crash":
		if back := arg("clock"); back != "" {
			w.in.Now = w.in.Now.Add(-w.duration(back))
		}
		w.crash()
	case "forget":
		w.in.Pod = w.in.Pod.DeepCopy()
		w.in.Pod.Status = corev1.PodStatus{}
		w.crash()
	case "reboot":
		for i := range w.in.Observed.Sandboxes {
			w.in.Observed.Sandboxes[i].Ready, w.in.Observed.Sandboxes[i].IPs = false, nil
		}
		for i := range w.in.Observed.Containers {
			if c := &w.in.Observed.Containers[i]; c.State == ContainerRunning {
				w.exit(c, 255, "Unknown")
			}
		}
		w.in.Observed.Volumes.Mounted = false
		w.crash()
	case "status":
		return w.yaml()
	default:
		w.t.Fatalf("unknown command %q", d.Cmd)
	}
	if w.in.Pod != nil {
		w.step("")
	}
	return w.sb.String()
}

func (w *world) apply(manifest string) {
	var p corev1.Pod
	if err := yaml.UnmarshalStrict([]byte(manifest), &p); err != nil {
		w.t.Fatal(err)
	}
	if p.Namespace == "" {
		p.Namespace = "default"
	}
	p.UID = "uid-1"
	p.Generation = 1
	if p.Spec.RestartPolicy == "" {
		p.Spec.RestartPolicy = corev1.RestartPolicyAlways
	}
	if p.Spec.TerminationGracePeriodSeconds == nil {
		g := int64(30)
		p.Spec.TerminationGracePeriodSeconds = &g
	}
	if w.in.Pod != nil {
		p.Generation = w.in.Pod.Generation + 1
		p.Status = w.in.Pod.Status
	}
	w.in.Pod = &p
	w.images()
}

func (w *world) images() {
	if w.in.Pod == nil {
		return
	}
	var l []ImageState
	add := func(image string) {
		ref := ""
		if w.present[image] {
			ref = "sha256:" + image
		}
		l = append(l, ImageState{Image: image, Ref: ref, Err: w.broken[image], InvalidName: w.invalid[image]})
	}
	for _, c := range w.in.Pod.Spec.InitContainers {
		add(c.Image)
	}
	for _, c := range w.in.Pod.Spec.Containers {
		add(c.Image)
	}
	for _, c := range w.in.Pod.Spec.EphemeralContainers {
		add(c.Image)
	}
	for _, v := range w.in.Pod.Spec.Volumes {
		if v.Image != nil {
			add(v.Image.Reference)
		}
	}
	w.in.Observed.Images = l
}

func (w *world) delete(grace string) {
	p := w.in.Pod.DeepCopy()
	g := *p.Spec.TerminationGracePeriodSeconds
	if podstatus.Terminal(p.Status.Phase) {
		g = 0 // L1.90
	}
	if grace != "" {
		g, _ = strconv.ParseInt(grace, 10, 64)
	}
	now := metav1.NewTime(w.in.Now.Add(time.Duration(g) * time.Second))
	if p.DeletionTimestamp == nil {
		p.Generation++
	}
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &now, &g
	w.in.Pod = p
}

func (w *world) crash() {
	w.flying, w.in.Done, w.in.Probes = nil, nil, nil
	w.in.Node.AgentStarted = w.in.Now
	w.in.Stop = nil
	w.state = Recover(w.in.Pod, w.in.Observed)
}

// land takes an action out of flight.
func (w *world) land(k Key) Action {
	for i, a := range w.flying {
		if a.Key() == k {
			w.flying = slices.Delete(w.flying, i, i+1)
			return a
		}
	}
	w.t.Fatalf("%s is not in flight: %v", k, w.keys())
	return nil
}

func (w *world) keys() []Key {
	var l []Key
	for _, a := range w.flying {
		l = append(l, a.Key())
	}
	return l
}

func (w *world) running(name string) *Container {
	for i := len(w.in.Observed.Containers) - 1; i >= 0; i-- {
		if c := &w.in.Observed.Containers[i]; c.Name == name && c.State == ContainerRunning {
			return c
		}
	}
	w.t.Fatalf("%s does not run", name)
	return nil
}

func (w *world) exit(c *Container, code int32, reason string) {
	if reason == "" {
		reason = "Completed"
		if code != 0 {
			reason = "Error"
		}
	}
	c.State, c.ExitCode, c.Reason, c.FinishedAt = ContainerExited, code, reason, w.in.Now
}

func (w *world) create(a StartContainer) *Container {
	image := ""
	for _, l := range [][]corev1.Container{w.in.Pod.Spec.InitContainers, w.in.Pod.Spec.Containers} {
		for _, c := range l {
			if c.Name == a.Container {
				image = c.Image
			}
		}
	}
	w.in.Observed.Containers = append(slices.Clone(w.in.Observed.Containers), Container{
		ID: fmt.Sprintf("%s-%d", a.Container, a.Attempt), Name: a.Container, Attempt: a.Attempt, SandboxID: a.SandboxID,
		State: ContainerRunning, CreatedAt: w.in.Now, StartedAt: w.in.Now, Image: image, ImageRef: a.ImageRef,
		Hash: DefinitionHash(a.Container, image), Resources: w.sized(a.Container)})
	return &w.in.Observed.Containers[len(w.in.Observed.Containers)-1]
}

// sized returns the resources that a container is started with.
func (w *world) sized(name string) *corev1.ResourceRequirements {
	if c := findContainer(w.runs, name); c != nil {
		return allocation.Effective(w.runs.Spec.Resources, &c.Resources).DeepCopy()
	}
	return nil
}

func (w *world) resources() string {
	var b strings.Builder
	text := func(l corev1.ResourceList) string {
		return fmt.Sprintf("cpu %s, memory %s", l.Cpu(), l.Memory())
	}
	st := &w.in.Pod.Status
	for _, cs := range [][]corev1.ContainerStatus{st.InitContainerStatuses, st.ContainerStatuses} {
		for _, c := range cs {
			fmt.Fprintf(&b, "%s: allocated %s", c.Name, text(c.AllocatedResources))
			if c.Resources != nil {
				fmt.Fprintf(&b, "; requests %s; limits %s", text(c.Resources.Requests), text(c.Resources.Limits))
			}
			b.WriteByte('\n')
		}
	}
	fmt.Fprintf(&b, "pod: allocated %s", text(st.AllocatedResources))
	if st.Resources != nil {
		fmt.Fprintf(&b, "; requests %s; limits %s", text(st.Resources.Requests), text(st.Resources.Limits))
	}
	return b.String() + "\n"
}

// succeed ends an action successfully.
func (w *world) succeed(k Key, d *datadriven.TestData) {
	o := Outcome{Key: k, At: w.in.Now}
	obs := &w.in.Observed
	switch a := w.land(k).(type) {
	case PrepareVolumes:
		obs.Volumes = VolumeState{Mounted: true, Present: true}
	case CreateSandbox:
		s := Sandbox{ID: fmt.Sprintf("sb%d", a.Attempt), Attempt: a.Attempt, CreatedAt: w.in.Now, Ready: true,
			HostNetwork: w.in.Pod.Spec.HostNetwork}
		if !s.HostNetwork {
			s.IPs = []string{fmt.Sprintf("10.0.0.%d", 5+a.Attempt)}
		}
		obs.Sandboxes = append([]Sandbox{s}, obs.Sandboxes...)
	case PullImage:
		o.Pulled = &Pulled{Ref: "sha256:" + a.Image, Size: 1234567, Took: 1500 * time.Millisecond,
			Waited: 2 * time.Second}
		w.present[a.Image] = true
		w.images()
	case StartContainer:
		obs.Containers = slices.DeleteFunc(slices.Clone(obs.Containers),
			func(c Container) bool { return c.State == ContainerCreated && c.Name == a.Container })
		w.create(a)
	case StopContainer:
		code, _ := strconv.Atoi(transcript.Arg(d, "code"))
		for i := range obs.Containers {
			if c := &obs.Containers[i]; c.ID == a.ContainerID && mayHaveProcess(c) {
				w.exit(c, int32(code), "")
			}
		}
	case Resize:
		for i := range obs.Containers {
			if c := &obs.Containers[i]; c.ID == a.ContainerID && (d == nil || !d.HasArg("ignored")) {
				c.Resources = allocation.Effective(w.runs.Spec.Resources, &a.Resources).DeepCopy()
			}
		}
	case RemoveContainer:
		obs.Containers = slices.DeleteFunc(slices.Clone(obs.Containers),
			func(c Container) bool { return c.ID == a.ContainerID })
	case StopSandbox:
		for i := range obs.Sandboxes {
			if obs.Sandboxes[i].ID == a.SandboxID {
				obs.Sandboxes[i].Ready, obs.Sandboxes[i].IPs = false, nil
			}
		}
	case RemoveSandbox:
		obs.Sandboxes = slices.DeleteFunc(slices.Clone(obs.Sandboxes),
			func(s Sandbox) bool { return s.ID == a.SandboxID })
		obs.Containers = slices.DeleteFunc(slices.Clone(obs.Containers),
			func(c Container) bool { return c.SandboxID == a.SandboxID })
	case ReleaseDevices:
		obs.Devices = DeviceState{}
	case RemoveVolumes:
		obs.Volumes = VolumeState{}
	}
	w.in.Done = append(w.in.Done, o)
}

func (w *world) settle(except []string) {
	for range 100 {
		var next []Key
		for _, a := range w.flying {
			if _, probe := a.(RunProbe); !probe && !slices.Contains(except, string(a.Key())) {
				next = append(next, a.Key())
			}
		}
		if len(next) == 0 {
			return
		}
		fmt.Fprintf(&w.sb, "-- %s ok\n", next[0])
		w.succeed(next[0], nil)
		w.step("")
	}
	w.t.Fatal("never settles")
}

func (w *world) probe(name string, typ ProbeType, v ProbeVerdict, output string) {
	for _, a := range w.flying {
		if p, ok := a.(RunProbe); ok && p.Container == name && p.Type == typ {
			w.land(p.Key())
			w.in.Probes = append(w.in.Probes,
				ProbeResult{Key: p.Key(), Container: name, ContainerID: p.ContainerID, Type: typ, At: w.in.Now,
					Verdict: v, Output: output})
			return
		}
	}
	w.t.Fatalf("no %s probe of %s is in flight: %v", typ, name, w.keys())
}

// advance moves the clock and steps at each Wake on the way.
func (w *world) advance(d time.Duration) {
	end := w.in.Now.Add(d)
	for range 1000 {
		if w.wake.IsZero() || w.wake.After(end) {
			w.in.Now = end
			return
		}
		w.in.Now = w.wake
		w.step(fmt.Sprintf("-- at %s\n", w.at(w.in.Now)))
	}
	w.t.Fatal("wakes without end")
}

// step calls Step, checks the invariants of every call, and prints the decisions.
func (w *world) step(title string) {
	w.t.Helper()
	before, err := json.Marshal(w.state)
	if err != nil {
		w.t.Fatalf("state is not serialisable: %v", err)
	}
	next, out := Step(w.state, w.in)
	if after, _ := json.Marshal(w.state); string(after) != string(before) {
		w.t.Fatalf("Step changed its argument:\n%s", cmp.Diff(string(before), string(after)))
	}
	var restored State
	if err := json.Unmarshal(before, &restored); err != nil {
		w.t.Fatal(err)
	}
	if _, again := Step(restored, w.in); print(again) != print(out) {
		w.t.Fatalf("a restored state decides differently:\n%s", cmp.Diff(print(out), print(again)))
	}
	quiet := w.in
	quiet.Done, quiet.Probes = nil, nil
	_, again := Step(next, quiet)
	if len(again.Begin)+len(again.Cancel)+len(again.Events) > 0 {
		w.t.Fatalf("Step again decides more: %s", print(again))
	}
	w.steady(next, quiet, again)
	if !out.Wake.IsZero() && !out.Wake.After(w.in.Now) {
		w.t.Fatalf("wake %v is not after now", out.Wake)
	}
	w.state = next
	w.in.Done, w.in.Probes = nil, nil
	was := w.in.Pod.Status.Conditions
	p := w.in.Pod.DeepCopy()
	p.Status = out.Status
	w.in.Pod = p
	w.wake = out.Wake
	w.runs = out.Allocated

	var b strings.Builder
	for _, k := range out.Cancel {
		fmt.Fprintf(&b, "cancel %s\n", k)
		w.land(k)
		w.in.Done = append(w.in.Done, Outcome{Key: k, At: w.in.Now, Err: &Failure{Reason: Aborted, Message: "aborted"}})
	}
	for _, x := range out.Begin {
		fmt.Fprintf(&b, "begin %s%s -- %s\n", x.Action.Key(), details(x.Action), x.Cause)
		w.flying = append(w.flying, x.Action)
	}
	for _, e := range out.Events {
		fmt.Fprintf(&b, "event %s %s: %s %s\n", e.Type, e.Reason, e.Message, e.FieldPath)
	}
	now := summary(&out, w.at)
	for _, l := range now {
		if !slices.Contains(w.shown, l) {
			fmt.Fprintf(&b, "  %s\n", l)
		}
	}
	for i := range was {
		if c := &was[i]; podstatus.Condition(out.Status.Conditions, c.Type) == nil {
			fmt.Fprintf(&b, "  %s is gone\n", c.Type)
		}
	}
	w.shown = now
	if row := columns(p); w.watch && row != w.row {
		w.row = row
		fmt.Fprintf(&b, "  kubectl: %s\n", row)
	}
	if b.Len() > 0 {
		w.sb.WriteString(title)
		w.sb.WriteString(b.String())
	}
	if len(out.Cancel) > 0 {
		w.step("-- aborted\n")
	}
}

func print(o Output) string {
	b, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// details are the fields of an action that its key does not show.
func details(a Action) string {
	switch a := a.(type) {
	case PullImage:
		return " image=" + a.Image
	case StartContainer:
		return fmt.Sprintf(" sandbox=%s image=%s ips=%v", a.SandboxID, a.ImageRef, a.PodIPs)
	case Resize:
		return fmt.Sprintf(" cpu=%s memory=%s", a.Resources.Limits.Cpu(), a.Resources.Limits.Memory())
	case RunHook:
		return fmt.Sprintf(" timeout=%v", a.Timeout)
	case StopContainer:
		return fmt.Sprintf(" grace=%v", a.Grace)
	case RemoveContainer:
		return fmt.Sprintf(" logs=%v", a.Logs)
	}
	return ""
}

// summary is an output's status, life, waits and wake, one fact a line.
func summary(o *Output, at func(time.Time) string) []string {
	st := &o.Status
	l := []string{fmt.Sprintf("%s, phase %s%s", o.Life, st.Phase, because(st.Reason, st.Message))}
	for _, c := range st.Conditions {
		l = append(l, fmt.Sprintf("%s=%s%s", c.Type, c.Status, because(c.Reason, c.Message)))
	}
	for _, cs := range [][]corev1.ContainerStatus{st.InitContainerStatuses, st.ContainerStatuses,
		st.EphemeralContainerStatuses} {
		for _, c := range cs {
			text := fmt.Sprintf("%s: %s ready=%v", c.Name, stateText(c.State, at), c.Ready)
			if c.Started != nil {
				text += fmt.Sprintf(" started=%v", *c.Started)
			}
			text += fmt.Sprintf(" restarts=%d", c.RestartCount)
			if c.LastTerminationState.Terminated != nil {
				text += " last: " + stateText(c.LastTerminationState, at)
			}
			l = append(l, text)
		}
	}
	for _, w := range o.Waits {
		text := fmt.Sprintf("waits for %s %s", w.For, w.Object)
		if !w.Until.IsZero() {
			text += " until " + at(w.Until)
		}
		l = append(l, strings.TrimSpace(text)+because("", w.LastErr))
	}
	if !o.Wake.IsZero() {
		l = append(l, "wake "+at(o.Wake))
	}
	return l
}

func stateText(s corev1.ContainerState, at func(time.Time) string) string {
	switch {
	case s.Running != nil:
		return "running since " + at(s.Running.StartedAt.Time)
	case s.Terminated != nil:
		return fmt.Sprintf("terminated %d%s", s.Terminated.ExitCode, because(s.Terminated.Reason, s.Terminated.Message))
	}
	return "waiting" + because(s.Waiting.Reason, s.Waiting.Message)
}

func because(reason, message string) string {
	switch {
	case reason == "" && message == "":
		return ""
	case message == "":
		return " (" + reason + ")"
	case reason == "":
		return " (" + message + ")"
	}
	return " (" + reason + ": " + message + ")"
}

func (w *world) at(t time.Time) string {
	if t.Before(begin) {
		return "never"
	}
	return "+" + t.Sub(begin).String()
}

func (w *world) yaml() string {
	b, err := yaml.Marshal(w.in.Pod.Status)
	if err != nil {
		w.t.Fatal(err)
	}
	return string(b)
}

func (w *world) duration(s string) time.Duration {
	d, err := time.ParseDuration(s)
	if err != nil {
		w.t.Fatal(err)
	}
	return d
}
