package podlife

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"carob/internal/core/podstatus"
)

// TestProperties applies random events in random order. world.step checks the invariants of every
// call: the given State is not changed, a restored State gives the same result, a second Step
// decides nothing, Wake is in the future. Here: restart counts and Life never fall, a terminal
// phase is never left, nothing is started for a pod that ends, and in the end a deleted pod is
// finished.
func TestProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		w.apply(drawPod(t))
		w.step("")
		h := history{}
		for range rapid.IntRange(1, 40).Draw(t, "events") {
			w.happen(t)
			h.check(t, w)
		}
		w.delete("1")
		w.step("")
		for range 300 {
			if w.state.Life == Finished {
				return
			}
			w.settle(nil)
			h.check(t, w)
			if w.state.End.Deleted || w.state.Life == Terminated && w.in.Pod.DeletionTimestamp != nil {
				w.in.Gone = true
				w.step("")
			}
			w.advance(5 * time.Second)
		}
		t.Fatalf("a deleted pod does not end: %s, in flight %v", w.state.Life, w.keys())
	})
}

// steady checks that a success of a steady probe in flight changes nothing, and that there is a Step when its next run
// is due. Without its result, Step decides out.
func (w *world) steady(s State, in Input, out Output) {
	for _, a := range w.flying {
		p, ok := a.(RunProbe)
		if !ok || !p.Steady.After(in.Now) || slices.Contains(out.Cancel, p.Key()) {
			continue
		}
		if s.Life == Syncing && s.flies(p) && (out.Wake.IsZero() || out.Wake.After(p.Steady)) {
			w.t.Fatalf("%s is due at %v, Step at %v", p.Key(), p.Steady, out.Wake)
		}
		in.Probes = []ProbeResult{{Key: p.Key(), Container: p.Container, ContainerID: p.ContainerID, Type: p.Type,
			At: in.Now, Verdict: ProbeSuccess}}
		if _, with := Step(s, in); print(with) != print(out) {
			w.t.Fatalf("a success of %s changes something:\n%s", p.Key(), cmp.Diff(print(out), print(with)))
		}
	}
}

// flies reports whether Step has the probe in flight, and wants its result: that of a container that has ended is not
// waited for.
func (s *State) flies(p RunProbe) bool {
	return slices.ContainsFunc(s.InFlight, func(f flight) bool { return f.Key == p.Key() && !f.Cancelled })
}

func drawPod(t *rapid.T) string {
	var b strings.Builder
	b.WriteString("metadata: {name: web}\nspec:\n")
	fmt.Fprintf(&b, "  restartPolicy: %s\n",
		rapid.SampledFrom([]string{"Always", "OnFailure", "Never"}).Draw(t, "policy"))
	container := func(name string) {
		fmt.Fprintf(&b, "  - name: %s\n    image: %s\n", name,
			rapid.SampledFrom([]string{"one", "two"}).Draw(t, "image"))
		if strings.HasPrefix(name, "s") {
			b.WriteString("    restartPolicy: Always\n")
		}
		if strings.HasPrefix(name, "i") {
			return
		}
		if strings.HasPrefix(name, "c") && rapid.IntRange(0, 3).Draw(t, "rules") == 0 {
			fmt.Fprintf(&b,
				"    restartPolicy: Never\n    restartPolicyRules: [{action: %s, exitCodes: {operator: In, values: [1]}}]\n",
				rapid.SampledFrom([]string{"Restart", "RestartAllContainers"}).Draw(t, "action"))
		}
		for _, p := range []string{"livenessProbe", "readinessProbe", "startupProbe"} {
			if rapid.Bool().Draw(t, p) {
				fmt.Fprintf(&b, "    %s: {exec: {command: [x]}, periodSeconds: 5, failureThreshold: %d}\n", p,
					rapid.IntRange(1, 2).Draw(t, "threshold"))
			}
		}
		if rapid.Bool().Draw(t, "hooks") {
			b.WriteString("    lifecycle: {preStop: {exec: {command: [x]}}, postStart: {exec: {command: [x]}}}\n")
		}
	}
	if n := rapid.IntRange(0, 3).Draw(t, "inits"); n > 0 {
		b.WriteString("  initContainers:\n")
		for i := range n {
			container(rapid.SampledFrom([]string{"i", "s"}).Draw(t, "kind") + fmt.Sprint(i))
		}
	}
	b.WriteString("  containers:\n")
	for i := range rapid.IntRange(1, 3).Draw(t, "containers") {
		container(fmt.Sprintf("c%d", i))
	}
	return b.String()
}

// happen applies one random event and calls Step.
func (w *world) happen(t *rapid.T) {
	actions := slices.DeleteFunc(slices.Clone(w.flying), func(a Action) bool { _, probe := a.(RunProbe); return probe })
	var running []*Container
	for i := range w.in.Observed.Containers {
		if c := &w.in.Observed.Containers[i]; c.State == ContainerRunning {
			running = append(running, c)
		}
	}
	switch rapid.SampledFrom([]string{"ok", "ok", "ok", "ok", "fail", "probe", "probe", "exit", "advance", "advance",
		"crash", "sandbox", "vanish", "update", "delete"}).Draw(t, "event") {
	case "ok":
		if len(actions) > 0 {
			w.succeed(rapid.SampledFrom(actions).Draw(t, "action").Key(), nil)
		}
	case "fail":
		if len(actions) > 0 {
			k := rapid.SampledFrom(actions).Draw(t, "action").Key()
			w.land(k)
			w.in.Done = append(w.in.Done, Outcome{Key: k, At: w.in.Now, Err: &Failure{Message: "boom"}})
		}
	case "probe":
		for _, a := range w.flying {
			if p, ok := a.(RunProbe); ok {
				w.probe(p.Container, p.Type,
					rapid.SampledFrom([]ProbeVerdict{ProbeSuccess, ProbeFailure, ProbeFailure, ProbeError}).Draw(t,
						"verdict"), "out")
				break
			}
		}
	case "exit":
		if len(running) > 0 {
			w.exit(rapid.SampledFrom(running).Draw(t, "container"), rapid.Int32Range(0, 1).Draw(t, "code"), "")
		}
	case "advance":
		w.advance(time.Duration(rapid.IntRange(1, 400).Draw(t, "seconds")) * time.Second)
	case "crash":
		w.crash()
	case "sandbox":
		if len(w.in.Observed.Sandboxes) > 0 {
			w.in.Observed.Sandboxes[0].Ready, w.in.Observed.Sandboxes[0].IPs = false, nil
		}
	case "vanish":
		if n := len(w.in.Observed.Containers); n > 0 {
			i := rapid.IntRange(0, n-1).Draw(t, "container")
			w.in.Observed.Containers = slices.Delete(slices.Clone(w.in.Observed.Containers), i, i+1)
		}
	case "update":
		p := w.in.Pod.DeepCopy()
		p.Spec.Containers[0].Image = rapid.SampledFrom([]string{"one", "two", "three"}).Draw(t, "image")
		p.Generation++
		w.in.Pod = p
		w.images()
	case "delete":
		w.delete(fmt.Sprint(rapid.IntRange(1, 30).Draw(t, "grace")))
	}
	w.step("")
}

// history records values that may only increase.
type history struct {
	counts map[string]int32
	phase  corev1.PodPhase
}

func (h *history) check(t *rapid.T, w *world) {
	st := &w.in.Pod.Status
	if h.counts == nil {
		h.counts = map[string]int32{}
	}
	for _, l := range [][]corev1.ContainerStatus{st.InitContainerStatuses, st.ContainerStatuses} {
		for _, c := range l {
			if c.RestartCount < h.counts[c.Name] {
				t.Fatalf("restart count of %s falls from %d to %d", c.Name, h.counts[c.Name], c.RestartCount)
			}
			h.counts[c.Name] = c.RestartCount
		}
	}
	if podstatus.Terminal(h.phase) && st.Phase != h.phase {
		t.Fatalf("phase %s after %s", st.Phase, h.phase)
	}
	h.phase = st.Phase
	seen := map[string]bool{}
	for _, c := range w.in.Observed.Containers {
		if c.State != ContainerRunning {
			continue
		}
		if seen[c.Name] {
			t.Fatalf("two running containers %s", c.Name)
		}
		seen[c.Name] = true
	}
	if w.state.Life != Syncing {
		for _, a := range w.flying {
			switch a.(type) {
			case StartContainer, CreateSandbox, PullImage, PrepareVolumes:
				t.Fatalf("%s is in flight while the pod is %s", a.Key(), w.state.Life)
			}
		}
	}
}
