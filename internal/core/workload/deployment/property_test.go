package deployment

import (
	"strconv"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"pgregory.net/rapid"

	"carob/internal/core/workload"
)

// With random actions of users, replica sets, pods and crashes: never more pods than allowed, no
// decision leaves fewer available pods than allowed, Recreate never mixes templates, and at the end
// the deployment matches its spec.
func TestRandomHistories(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld()
		w.slow = rapid.Bool().Draw(t, "slow deletions")
		size := rapid.IntRange(0, 12).Draw(t, "size")
		do(t, w.set("size", strconv.Itoa(size)))
		if rapid.Bool().Draw(t, "recreate") {
			do(t, w.set("strategy", "Recreate"))
		} else {
			do(t, w.set("surge", rapid.SampledFrom([]string{"0", "1", "3", "25%", "100%"}).Draw(t, "surge")))
			do(t, w.set("unavailable", rapid.SampledFrom([]string{"1", "3", "25%", "100%"}).Draw(t, "unavailable")))
		}
		do(t, w.set("history", rapid.SampledFrom([]string{"0", "1", "10"}).Draw(t, "history")))
		w.broken["v3"] = true
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 9).Draw(t, "step") {
			case 0:
				do(t, w.set("image", "v"+strconv.Itoa(rapid.IntRange(1, 4).Draw(t, "image"))))
			case 1:
				do(t, w.set("size", strconv.Itoa(rapid.IntRange(0, 12).Draw(t, "size"))))
			case 2:
				do(t, w.set("paused", strconv.FormatBool(rapid.Bool().Draw(t, "paused"))))
			case 3:
				do(t, w.set("rollback", strconv.Itoa(rapid.IntRange(0, 5).Draw(t, "rollback"))))
			case 4:
				clear(w.ending)
			case 5:
				w.ready(int32(rapid.IntRange(1, 3).Draw(t, "ready"))) //nolint:gosec // small
			case 6, 7:
				w.replicaSets()
			case 8:
				w.now = w.now.Add(time.Duration(rapid.IntRange(1, 700).Draw(t, "seconds")) * time.Second)
			}
			w.judged(t, rapid.SampledFrom([]int{0, 1, 2, all}).Draw(t, "writes before the crash"))
		}
		do(t, w.set("paused", "false"))
		do(t, w.set("image", "v1"))
		delete(w.broken, "v3")
		for i := 0; ; i++ {
			clear(w.ending)
			quiet := len(writes(w.judged(t, all))) == 0
			if !w.replicaSets() && !w.ready(all) && quiet {
				break
			}
			if i > 300 {
				t.Fatalf("it does not converge: %q", w.pass(all))
			}
		}
		if !complete(w.d, &w.d.Status) {
			t.Fatalf("converged, but not complete: %s", w.statusText())
		}
		current := 0
		for _, s := range w.sets {
			if same := workload.SameTemplate(&s.Spec.Template, &w.d.Spec.Template); same &&
				*s.Spec.Replicas == *w.d.Spec.Replicas {
				current++
			} else if *s.Spec.Replicas != 0 {
				t.Fatalf("set %s of size %d is left", w.text(s), *s.Spec.Replicas)
			}
		}
		if current == 0 {
			t.Fatal("no set has the template")
		}
		if limit := int(*w.d.Spec.RevisionHistoryLimit); len(w.sets) > limit+1 {
			t.Fatalf("%d sets, the limit of history is %d", len(w.sets), limit)
		}
	})
}

func do(t *rapid.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func writes(pass []string) []string {
	var out []string
	for _, line := range pass {
		if line != "killed" && line[:min(4, len(line))] != "next" {
			out = append(out, line)
		}
	}
	return out
}

func (w *world) count(of func(*appsv1.ReplicaSet) int32) int32 { return sum(w.sets, of) }

// judged makes a pass and checks its decisions.
func (w *world) judged(t *rapid.T, writes int) []string {
	t.Helper()
	before, d := append([]*appsv1.ReplicaSet{}, w.sets...), w.d.DeepCopy()
	surge, unavailable := Bounds(d)
	total, ready := w.count(workload.Replicas), w.count(available)
	running := false
	for _, s := range w.sets {
		running = running || !workload.SameTemplate(&s.Spec.Template, &d.Spec.Template) &&
			(w.left[s.UID][0] > 0 || w.ending[s.UID] > 0)
	}
	scaled := false // the size has changed since the sets were sized
	for _, s := range before {
		n, ok := count(s, DesiredReplicas)
		scaled = scaled || ok && n != *d.Spec.Replicas && *s.Spec.Replicas > 0
	}
	out := w.pass(writes)
	again := Decide(w.input())
	_ = again // must not change its input: the next comparison would notice
	recreates := d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType
	if now, most := w.count(workload.Replicas), *d.Spec.Replicas+surge; now > total && now > most {
		t.Fatalf("%d replicas in all, %d are allowed: %q", now, most, out)
	}
	if now, least := w.count(available), *d.Spec.Replicas-unavailable; !recreates && !scaled && !d.Spec.Paused &&
		now < ready && now < least {
		t.Fatalf("%d pods stay available of %d, %d must: %q", now, ready, least, out)
	}
	for _, s := range w.sets {
		old := int32(0)
		for _, b := range before {
			if b.UID == s.UID {
				old = *b.Spec.Replicas
			}
		}
		if recreates && running && !scaled && !d.Spec.Paused && *s.Spec.Replicas > old {
			t.Fatalf("Recreate creates pods while old ones exist: %q", out)
		}
	}
	return out
}
