package pods

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"carob/internal/core/podlife"
)

// A status is published when it differs from the one before; not while the object is gone,
// and again when it is back.
func TestStatusIsPublishedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		message := "one"
		w.script("a", func(podlife.Input) podlife.Output {
			return podlife.Output{Life: podlife.Syncing,
				Status: corev1.PodStatus{Phase: corev1.PodRunning, Message: message}}
		})
		a := pod("a", 1)
		a.Status = corev1.PodStatus{Phase: corev1.PodRunning, Message: "one"} // as an earlier agent wrote it
		w.Update("api", a)
		expect := func(what string, want ...string) {
			t.Helper()
			if got := w.take(&w.statuses); !slices.Equal(got, want) {
				t.Errorf("%s: %q, want %q", what, got, want)
			}
		}
		expect("first", "a Running one") // the writer needs it to keep the status current
		w.Changed("a")
		expect("the same")
		message = "two"
		w.Changed("a")
		expect("another", "a Running two")
		w.Remove("a")
		message = "three"
		w.Changed("a")
		expect("gone")
		w.Update("api", a)
		expect("back", "a Running three")
		if v, ok := w.Get("ns", "a"); !ok || v.Status.Message != "three" || v.Pod != a {
			t.Errorf("readers see %+v", v)
		}
	})
}

// begins is a Step that begins actions once, and cancels them when the test requests it.
func begins(cancel *bool, actions ...podlife.Action) func(podlife.Input) podlife.Output {
	begun := false
	return func(podlife.Input) podlife.Output {
		out := podlife.Output{Life: podlife.Syncing, Status: corev1.PodStatus{Phase: corev1.PodPending}}
		for _, a := range actions {
			if !begun {
				out.Begin = append(out.Begin, podlife.Begin{Action: a})
			}
			if *cancel {
				out.Cancel = append(out.Cancel, a.Key())
			}
		}
		begun = true
		return out
	}
}

// An outcome arrives with a snapshot that is not older. Cancelled actions return Aborted, unless they had succeeded.
func TestOutcomes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		cancel := false
		prepare, pull, create := podlife.PrepareVolumes{}, podlife.PullImage{Container: "c"}, podlife.CreateSandbox{}
		step := begins(&cancel, prepare, pull, create)
		var done []string
		w.script("a", func(in podlife.Input) podlife.Output {
			for _, o := range in.Done {
				if in.Observed.Taken.Before(o.At) {
					t.Errorf("%s ended at %v, the picture is of %v", o.Key, o.At, in.Observed.Taken)
				}
				text := string(o.Key)
				if o.Err != nil {
					text += " " + o.Err.Reason
				}
				done = append(done, text)
			}
			return step(in)
		})
		w.Update("api", pod("a", 1))
		p, s := w.action(prepare.Key()), w.action(create.Key())
		time.Sleep(time.Second)
		p.end <- Result{Err: &podlife.Failure{Reason: "FailedMount"}}
		synctest.Wait()
		cancel = true
		s.end <- Result{}
		w.Changed("a")
		synctest.Wait()
		slices.Sort(done)
		if want := []string{"pull/c Aborted", "sandbox/create/0", "volumes/prepare FailedMount"}; !slices.Equal(done,
			want) {
			t.Errorf("%q, want %q", done, want)
		}
	})
}

// A pod that is resized before the first look at the runtime has the resources that it was admitted with.
func TestResizedBeforeTheFirstSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		var recovered *corev1.Pod
		w.cfg.Machine.Recover = func(p *corev1.Pod, _ podlife.Observed) podlife.State {
			recovered = p
			return podlife.State{}
		}
		w.lookErr = errors.New("busy")
		a := pod("a", 1)
		w.Update("api", a)
		synctest.Wait()
		resized := a.DeepCopy()
		resized.Generation, resized.Labels["size"] = 2, "2"
		resized.Status.Message = "newer"
		w.Update("api", resized)
		w.mu.Lock()
		w.lookErr = nil
		w.mu.Unlock()
		time.Sleep(time.Minute)
		if recovered == nil || recovered.Labels["size"] != "1" || recovered.Status.Message != "newer" {
			t.Errorf("recovered from %+v", recovered)
		}
	})
}

// A pod that is being deleted decides again when the data plane has released it, also if the release is announced twice
// or before the deletion is seen; other pods are not woken.
func TestReleasedByTheDataPlane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		route := func(on bool) {
			w.mu.Lock()
			w.routed["a"] = on
			w.mu.Unlock()
			w.Released("a")
			w.Released("unknown")
			synctest.Wait()
		}
		var seen []bool
		w.script("a", func(in podlife.Input) podlife.Output {
			seen = append(seen, in.Routed)
			return podlife.Output{Life: podlife.Syncing, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
		})
		expect := func(what string, want ...bool) {
			t.Helper()
			synctest.Wait()
			if !slices.Equal(seen, want) {
				t.Errorf("%s: Steps saw %v, want %v", what, seen, want)
			}
			seen = nil
		}
		w.routed["a"] = true
		a := pod("a", 1)
		w.Update("api", a)
		expect("new", false) // Routed is not called for a pod that is not being deleted
		route(true)
		expect("it goes on")
		deleted := a.DeepCopy()
		deleted.DeletionTimestamp = &metav1.Time{Time: time.Now()}
		w.Update("api", deleted)
		expect("deleted", true)
		route(false)
		expect("let go", false)
		route(false)
		expect("twice", false)
	})
}

// When the agent stops, a start gets two seconds more: broken off, it would be the end of a
// container that was not stopped. Others end at once.
func TestStartsOutliveTheAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		never := false
		start, pull := podlife.StartContainer{Container: "c"}, podlife.PullImage{Container: "d"}
		w.script("a", begins(&never, start, pull))
		w.Update("api", pod("a", 1))
		s, p := w.action(start.Key()), w.action(pull.Key())
		began := time.Now()
		ended := make(chan time.Duration)
		go func() { w.stop(); ended <- time.Since(began) }()
		synctest.Wait()
		if p.ctx.Err() == nil || s.ctx.Err() != nil {
			t.Errorf("the pull goes on: %v; the start does not: %v", p.ctx.Err() == nil, s.ctx.Err() != nil)
		}
		if took := <-ended; took != startTime {
			t.Errorf("the agent waited %v", took)
		}
	})
}

// Only pods that wait for an image are woken when images change.
func TestImagesChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		w.script("waits", func(in podlife.Input) podlife.Output {
			return podlife.Output{Life: podlife.Syncing, Look: in.Now.Add(10 * time.Second)}
		})
		w.Update("api", pod("waits", 1))
		w.Update("api", pod("runs", 1))
		synctest.Wait()
		looks, steps := w.looks, w.count["runs"]
		w.ImagesChanged()
		synctest.Wait()
		if w.looks != looks+1 || w.count["runs"] != steps {
			t.Errorf("%d looks more, %d Steps of who does not wait", w.looks-looks, w.count["runs"]-steps)
		}
		time.Sleep(11 * time.Second) // no event comes: the observed state is too old
		if synctest.Wait(); w.looks != looks+2 {
			t.Errorf("%d looks", w.looks-looks)
		}
	})
}

// A runtime that does not answer is called again, with growing pauses; nothing is decided
// meanwhile, and the third failure is reported (L8.33).
func TestFailedSnapshotsAreRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		w.lookErr = errLook
		w.Update("api", pod("a", 1))
		var at []int
		for i := range 60 {
			synctest.Wait()
			if w.looks > len(at) {
				at = append(at, i)
			}
			w.Changed("a") // whatever else comes: no look before its time
			time.Sleep(100 * time.Millisecond)
		}
		if got := fmt.Sprint(at); got != "[0 1 3 7 15 31]" {
			t.Errorf("looked at after %s tenths of a second", got)
		}
		if got := w.take(&w.events); !slices.Equal(got, []string{"a FailedSync"}) || w.count["a"] != 0 {
			t.Errorf("events %q, %d Steps", got, w.count["a"])
		}
		w.mu.Lock()
		w.lookErr = nil
		w.mu.Unlock()
		time.Sleep(10 * time.Second)
		w.are("a runs")
	})
}

// An owner that is held up is named, with for how long.
func TestHealthy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		release := make(chan struct{})
		w.script("a", func(podlife.Input) podlife.Output {
			<-release
			return podlife.Output{Life: podlife.Syncing}
		})
		w.Update("api", pod("a", 1))
		synctest.Wait()
		time.Sleep(time.Minute)
		if err := w.Healthy(time.Now(), time.Minute); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		if err := w.Healthy(time.Now(), time.Minute); err == nil ||
			!strings.Contains(err.Error(), "ns/a has been waiting for 1m1s") {
			t.Error(err)
		}
		close(release)
		synctest.Wait()
		if err := w.Healthy(time.Now().Add(time.Hour), time.Minute); err != nil {
			t.Errorf("an owner that sleeps: %v", err)
		}
	})
}

// A pod at rest has no owner; a deletion and a removal give it one again.
func TestPodAtRestHasNoOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		life := podlife.Finished
		w.script("a", func(in podlife.Input) podlife.Output {
			return podlife.Output{Life: life, Status: corev1.PodStatus{Phase: corev1.PodSucceeded}}
		})
		a := pod("a", 1)
		w.Update("api", a)
		synctest.Wait()
		steps := w.count["a"]
		select {
		case <-w.Next("a"):
		default:
			t.Error("who waits for a pod at rest waits for ever")
		}
		w.Update("api", edited(a, func(*corev1.Pod) {}))
		w.Changed("a")
		synctest.Wait()
		if v, ok := w.Get("ns", "a"); w.count["a"] != steps || !ok || v.Status.Phase != corev1.PodSucceeded ||
			v.Life != podlife.Finished {
			t.Errorf("%d Steps more; readers see %+v", w.count["a"]-steps, v)
		}
		if err := w.Stop("a", podlife.Stop{}); !errors.Is(err, ErrUnknown) {
			t.Errorf("stopped: %v", err)
		}
		w.Update("api", deleted(a))
		synctest.Wait()
		if w.count["a"] <= steps || !w.Known("a") {
			t.Error("a deletion is not worked on")
		}
		w.Remove("a")
		synctest.Wait()
		if w.Known("a") {
			t.Error("it is not forgotten")
		}
	})
}

// A success that changes nothing does not wake the owner, which gets it when it wakes by itself. A failure does, and so
// does a success of which the owner would hear too late.
func TestSteadyProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		var results, wakes []string
		var probe podlife.RunProbe
		try, wake, begun := 0, time.Second, time.Now()
		w.script("a", func(in podlife.Input) podlife.Output {
			out := podlife.Output{Life: podlife.Syncing, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
			wakes = append(wakes, time.Since(begun).String())
			for _, p := range in.Probes {
				results = append(results, string(p.Key)+" "+time.Since(begun).String())
			}
			if len(in.Probes) > 0 || try == 0 {
				try++
				probe = podlife.RunProbe{Container: "c", Type: podlife.Liveness, Try: try,
					Steady: in.Now.Add(time.Second)}
				out.Begin = []podlife.Begin{{Action: probe}}
				out.Wake = in.Now.Add(wake)
			}
			return out
		})
		w.Update("api", pod("a", 1))
		ends := func(r Result, want string) {
			t.Helper()
			synctest.Wait()
			a := w.action(probe.Key())
			time.Sleep(100 * time.Millisecond)
			a.end <- r
			synctest.Wait()
			if got := strings.Join(results, ", "); got != want {
				t.Errorf("100 ms later: %q, want %q", got, want)
			}
			time.Sleep(900 * time.Millisecond)
			synctest.Wait()
			results = nil
		}
		ends(Result{Verdict: podlife.ProbeSuccess}, "")
		if want := []string{"0s", "1s"}; !slices.Equal(wakes[len(wakes)-2:], want) {
			t.Errorf("Steps at %q, want %q", wakes, want)
		}
		wake = 3 * time.Second // for the third
		ends(Result{Verdict: podlife.ProbeFailure}, "probe/c/Liveness/2 1.1s")
		ends(Result{Verdict: podlife.ProbeSuccess}, "probe/c/Liveness/3 2.1s")
	})
}

// The success of a probe that was cancelled wakes the owner, however steady it is: the pod has ended, and waits for the
// ends of its actions. It may arrive while the Step that cancels it runs, or long after.
func TestCancelledProbesWake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		probe := podlife.RunProbe{Container: "c", Type: podlife.Liveness, Steady: time.Now().Add(time.Minute)}
		steps, begun := 0, time.Now()
		var landed string
		w.script("a", func(in podlife.Input) podlife.Output {
			out := podlife.Output{Life: podlife.Syncing, Status: corev1.PodStatus{Phase: corev1.PodRunning},
				Wake: probe.Steady}
			if steps++; steps == 1 {
				out.Begin = []podlife.Begin{{Action: probe}}
				return out
			}
			out.Life, out.Status.Phase = podlife.Terminated, corev1.PodSucceeded
			if steps == 2 {
				out.Cancel = []podlife.Key{probe.Key()}
			}
			for _, p := range in.Probes {
				landed = string(p.Key) + " " + time.Since(begun).String()
			}
			return out
		})
		w.Update("api", pod("a", 1))
		synctest.Wait()
		run := w.action(probe.Key())
		run.late.Store(true)
		time.Sleep(time.Second)
		w.Changed("a")
		synctest.Wait()
		if run.ctx.Err() == nil {
			t.Fatal("the probe is not cancelled")
		}
		time.Sleep(time.Second)
		run.end <- Result{Verdict: podlife.ProbeSuccess}
		synctest.Wait()
		if want := string(probe.Key()) + " 2s"; landed != want {
			t.Errorf("the Step gets %q, want %q", landed, want)
		}
	})
}

// Alarms are late by less than the grid, never early, and those within it ring together.
func TestAlarmsOnAGrid(t *testing.T) {
	start := time.Date(2026, 11, 29, 8, 0, 0, 0, time.UTC)
	at := func(now, wait time.Duration) time.Duration { return now + untilGrid(start.Add(now), wait) }
	for _, c := range []struct{ now, wait, want time.Duration }{
		{0, time.Second, time.Second},
		{0, time.Second + 1, time.Second + alarmGrid},
		{3 * time.Millisecond, time.Second, time.Second + alarmGrid},
		{0, time.Second - time.Millisecond, time.Second},
		{0, 0, alarmGrid},
		{9 * time.Millisecond, -time.Hour, alarmGrid},
		{9*time.Millisecond + 1, -time.Hour, 2 * alarmGrid},
	} {
		if got := at(c.now, c.wait); got != c.want {
			t.Errorf("at %v for %v: rings at %v, want %v", c.now, c.wait, got, c.want)
		}
	}
}
