package job

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/record"

	"carob/internal/controllers/controllertest"
	"carob/internal/controllers/source"
	"carob/internal/core/workload"
	"carob/internal/core/workload/job"
)

func newJob(change func(*batchv1.JobSpec)) *batchv1.Job {
	j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pi", UID: "job-uid"}}
	j.Spec = batchv1.JobSpec{Completions: new(int32(1)), Parallelism: new(int32(1)), BackoffLimit: new(int32(6)),
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"job": "pi"}}}
	j.Spec.Template.Labels = map[string]string{"job": "pi"}
	j.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
	if change != nil {
		change(&j.Spec)
	}
	return j
}

func start(ctx context.Context, t *testing.T, api *controllertest.API) *controllertest.Running {
	t.Helper()
	events := record.NewFakeRecorder(10_000)
	jobs, pods := source.Jobs(api), source.Pods(api)
	c, err := New(api, events, jobs, pods)
	if err != nil {
		t.Fatal(err)
	}
	return controllertest.Start(ctx, c, events, jobs, pods)
}

// node runs pods, ends deleted ones, and removes those without finalizers.
func node(api *controllertest.API, exit func(*corev1.Pod) (code int32, ends bool)) {
	for _, p := range controllertest.All[*corev1.Pod](api) {
		if p.DeletionTimestamp != nil && len(p.Finalizers) == 0 {
			api.Remove(p)
			continue
		}
		if workload.Terminal(p) {
			continue
		}
		code, ends := exit(p)
		controllertest.Change(api, p.Namespace, p.Name, func(p *corev1.Pod) {
			p.Spec.NodeName = "n"
			p.Status.Phase = corev1.PodRunning
			switch {
			case p.DeletionTimestamp != nil:
				p.Status.Phase = corev1.PodFailed
			case !ends:
				return
			case code == 0:
				p.Status.Phase = corev1.PodSucceeded
			default:
				p.Status.Phase = corev1.PodFailed
			}
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c",
				State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code,
					FinishedAt: metav1.NewTime(time.Now().Truncate(time.Second))}}}}
		})
	}
}

func status(api *controllertest.API) *batchv1.JobStatus {
	return &controllertest.All[*batchv1.Job](api)[0].Status
}

func finished(api *controllertest.API) bool {
	return job.Finished(controllertest.All[*batchv1.Job](api)[0])
}

func TestJobCompletes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := controllertest.New(newJob(nil))
		r := start(t.Context(), t, api)
		defer r.Stop()
		time.Sleep(time.Second)
		pods := controllertest.All[*corev1.Pod](api)
		if len(pods) != 1 || !job.Tracked(pods[0]) || status(api).Active != 1 {
			t.Fatalf("pods %v, status %+v", pods, status(api))
		}
		node(api, func(*corev1.Pod) (int32, bool) { return 0, true })
		time.Sleep(time.Second)
		if s := status(api); !finished(api) || s.Succeeded != 1 || s.Active != 0 {
			t.Errorf("status %+v", s)
		}
		if p := controllertest.All[*corev1.Pod](api)[0]; job.Tracked(p) {
			t.Error("the pod keeps its finalizer")
		}
		want := []string{"Normal SuccessfulCreate Created pod: " + pods[0].Name, "Normal Completed Job completed"}
		if got := r.Events(); !slices.Equal(got, want) {
			t.Errorf("events %q, want %q", got, want)
		}
		api.Log()
		time.Sleep(time.Hour)
		if log := api.Log(); len(log) != 0 {
			t.Errorf("a finished Job is written: %q", log)
		}
	})
}

// A pod that can't be created: upstream's event, growing back-off, no busy loop, and other Jobs
// continue (W0.35, W0.11).
func TestCreationFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := controllertest.New(newJob(nil))
		tries := 0
		api.Before = func(verb string, gvr schema.GroupVersionResource, o metav1.Object) error {
			if verb == "create" && gvr.Resource == "pods" && o.GetLabels()["job"] == "pi" {
				tries++
				return apierrors.NewForbidden(gvr.GroupResource(), "", errors.New("exceeded quota"))
			}
			return nil
		}
		r := start(t.Context(), t, api)
		defer r.Stop()
		time.Sleep(10 * time.Minute)
		if tries < 10 || tries > 30 {
			t.Errorf("%d tries in ten minutes", tries)
		}
		for _, e := range r.Events() {
			if e != "Warning FailedCreate Error creating: pods is forbidden: exceeded quota" {
				t.Errorf("event %q", e)
			}
		}
		if s := status(api); s.StartTime == nil || s.Active != 0 {
			t.Errorf("the status is not updated: %+v", s)
		}
		other := newJob(nil)
		other.Name, other.UID = "other", "other-uid"
		other.Spec.Selector.MatchLabels, other.Spec.Template.Labels = map[string]string{"job": "other"},
			map[string]string{"job": "other"}
		api.Put(other)
		time.Sleep(time.Second)
		if n := len(controllertest.All[*corev1.Pod](api)); n != 1 {
			t.Errorf("a healthy Job has %d pods", n)
		}
	})
}

// Pods whose Job was deleted, or that never had one, lose the finalizer; those of other kinds and
// of Jobs of other controllers do not (W5.34, W5.25).
func TestOrphans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := func(name, kind, owner string) *corev1.Pod {
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name,
				Finalizers: []string{job.Finalizer}}}
			if kind != "" {
				p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: kind, Name: owner,
					UID: "uid-of-" + "x", Controller: new(true)}}
			}
			return p
		}
		foreign := newJob(func(s *batchv1.JobSpec) { s.ManagedBy = new("example.com/other") })
		kept := pod("managed", "Job", "pi")
		kept.OwnerReferences[0].UID = foreign.UID
		api := controllertest.New(foreign, kept, pod("lone", "", ""), pod("left", "Job", "gone"),
			pod("elsewhere", "Workflow", "w"))
		r := start(t.Context(), t, api)
		defer r.Stop()
		time.Sleep(time.Minute)
		var tracked []string
		for _, p := range controllertest.All[*corev1.Pod](api) {
			if job.Tracked(p) {
				tracked = append(tracked, p.Name)
			}
		}
		if want := []string{"elsewhere", "managed"}; !slices.Equal(tracked, want) {
			t.Errorf("the finalizer is on %q, want %q", tracked, want)
		}
		if log := strings.Join(api.Log(), "\n"); strings.Contains(log, "jobs") {
			t.Errorf("the Job of another controller was written to:\n%s", log)
		}
	})
}

func TestAdoption(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lone := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "lone",
			Labels: map[string]string{"job": "pi"}}}
		api := controllertest.New(newJob(nil), lone)
		r := start(t.Context(), t, api)
		defer r.Stop()
		time.Sleep(time.Second)
		pods := controllertest.All[*corev1.Pod](api)
		if len(pods) != 1 || !job.Tracked(pods[0]) || metav1.GetControllerOf(pods[0]) == nil {
			t.Fatalf("not adopted: %+v", pods)
		}
		controllertest.Change(api, "ns", "lone", func(p *corev1.Pod) { p.Labels = nil })
		time.Sleep(time.Second)
		pods = controllertest.All[*corev1.Pod](api)
		if len(pods) != 2 || job.Tracked(pods[0]) || metav1.GetControllerOf(pods[0]) != nil {
			t.Errorf("not released and replaced: %+v", pods)
		}
	})
}

// With late, duplicate and lost events, writes that fail before or after their effect, and crashes
// between writes: each pod counts once, no index runs twice at a time, and the Job ends (W5.31).
func TestConvergesUnderFaults(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { trouble(t, rand.New(rand.NewPCG(seed, 1))) })
		})
	}
}

func trouble(t *testing.T, random *rand.Rand) {
	indexed := random.IntN(2) == 0
	j := newJob(func(s *batchv1.JobSpec) {
		s.Completions, s.Parallelism, s.BackoffLimit = new(int32(random.IntN(8)+1)), new(int32(random.IntN(4)+1)),
			new(int32(1000))
		if indexed {
			s.CompletionMode = new(batchv1.IndexedCompletion)
		}
	})
	api := controllertest.New(j)
	var mu sync.Mutex
	noFaults := false // the final phase without failures
	dying := false
	r := (*controllertest.Running)(nil)
	chance := func(n int) bool {
		mu.Lock()
		defer mu.Unlock()
		return !noFaults && random.IntN(n) == 0
	}
	api.Late = func() time.Duration {
		if chance(3) {
			return time.Duration(100) * time.Millisecond
		}
		return 0
	}
	api.Faults = func() controllertest.Fault {
		switch {
		case chance(10):
			return controllertest.Cut
		case chance(5):
			return controllertest.Twice
		}
		return controllertest.None
	}
	api.Before = func(string, schema.GroupVersionResource, metav1.Object) error {
		mu.Lock()
		gone := dying
		mu.Unlock()
		switch {
		case gone:
			return errors.New("carob has ended")
		case chance(25):
			mu.Lock()
			defer mu.Unlock()
			dying = true
			r.Cancel()
			return errors.New("carob ends")
		case chance(15):
			return apierrors.NewInternalError(errors.New("no"))
		}
		return nil
	}
	api.After = func(verb string, _ schema.GroupVersionResource, _ metav1.Object) error {
		// A pod whose creation had no response is unknown until the watch shows it; there may be an
		// extra one for a moment, as upstream.
		if verb != "create" && chance(15) {
			return apierrors.NewTimeoutError("the answer is lost", 1)
		}
		return nil
	}
	begin := func() {
		// The first write of the new controller waits until r is set to it, so that ending it does not end the old
		// one again.
		mu.Lock()
		defer mu.Unlock()
		dying = false
		r = start(t.Context(), t, api)
	}
	begin()
	good, bad := map[string]bool{}, map[string]bool{}
	exit := func(p *corev1.Pod) (int32, bool) {
		if p.DeletionTimestamp != nil {
			return 1, true
		}
		n := 3
		if noFaults {
			n = 1
		}
		if random.IntN(n) != 0 {
			return 0, false
		}
		if !noFaults && random.IntN(3) == 0 {
			bad[p.Name] = true
			return 1, true
		}
		good[p.Name] = true
		return 0, true
	}
	for i := 0; i < 400 && !finished(api); i++ {
		if i == 100 {
			mu.Lock()
			noFaults = true
			mu.Unlock()
		}
		time.Sleep(time.Duration(random.IntN(30)) * time.Second)
		select {
		case <-r.Ended():
			begin()
		default:
		}
		active := map[string]string{}
		running := 0
		for _, p := range controllertest.All[*corev1.Pod](api) {
			if !workload.Active(p) {
				continue
			}
			running++
			index := p.Annotations[batchv1.JobCompletionIndexAnnotation]
			if indexed && active[index] != "" {
				t.Fatalf("index %s is run by %s and %s", index, p.Name, active[index])
			}
			active[index] = p.Name
		}
		if running > int(*j.Spec.Parallelism) {
			t.Fatalf("%d pods run, parallelism is %d", running, *j.Spec.Parallelism)
		}
		node(api, exit)
	}
	time.Sleep(time.Hour)
	r.Stop()
	s := status(api)
	if !finished(api) || int(s.Succeeded) != len(good) || int(s.Failed) != len(bad) ||
		s.Succeeded != *j.Spec.Completions {
		t.Errorf("%d pods succeeded, %d failed, %d were wanted: %+v", len(good), len(bad), *j.Spec.Completions, s)
	}
	for _, p := range controllertest.All[*corev1.Pod](api) {
		if job.Tracked(p) {
			t.Errorf("%s keeps its finalizer", p.Name)
		}
	}
}

// A conflict without a newer version, or NotFound of an object that exists (both from a webhook), is retried, because
// no event would queue the Job.
func TestConflictsOfOthers(t *testing.T) {
	for name, refusal := range map[string]func(schema.GroupResource, string) error{
		"conflict": func(r schema.GroupResource, name string) error {
			return apierrors.NewConflict(r, name, errors.New("a webhook says so"))
		},
		"not found": func(r schema.GroupResource, name string) error { return apierrors.NewNotFound(r, name) },
	} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { refuseOnce(t, refusal) }) })
	}
}

func refuseOnce(t *testing.T, refusal func(schema.GroupResource, string) error) {
	api := controllertest.New(newJob(nil))
	var refused [2]bool // a status, a patch of a pod
	api.Before = func(verb string, gvr schema.GroupVersionResource, o metav1.Object) error {
		at := 0
		switch {
		case verb == "patch" && gvr.Resource == "pods":
			at = 1
		case verb != "update":
			return nil
		}
		if refused[at] {
			return nil
		}
		refused[at] = true
		return refusal(gvr.GroupResource(), o.GetName())
	}
	r := start(t.Context(), t, api)
	defer r.Stop()
	time.Sleep(time.Second)
	node(api, func(*corev1.Pod) (int32, bool) { return 0, true })
	time.Sleep(time.Minute)
	if p := controllertest.All[*corev1.Pod](api)[0]; !finished(api) || job.Tracked(p) ||
		refused != [2]bool{true, true} {
		t.Errorf("refused %v, finalizer %v, status %+v", refused, job.Tracked(p), status(api))
	}
}

// A pod without a Job loses the finalizer, too, after a webhook refused that as NotFound.
func TestOrphanRefusedAsNotFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := controllertest.New(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "lone",
			Finalizers: []string{job.Finalizer}}})
		refused := false
		api.Before = func(verb string, gvr schema.GroupVersionResource, o metav1.Object) error {
			if verb != "patch" || refused {
				return nil
			}
			refused = true
			return apierrors.NewNotFound(gvr.GroupResource(), o.GetName())
		}
		r := start(t.Context(), t, api)
		defer r.Stop()
		time.Sleep(time.Minute)
		if job.Tracked(controllertest.All[*corev1.Pod](api)[0]) || !refused {
			t.Error("the pod has the finalizer for ever")
		}
	})
}
