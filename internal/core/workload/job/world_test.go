package job

import (
	"fmt"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"carob/internal/core/workload"
)

var begin = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// world is an API server with one Job and its pods, and a driver, moved by hand.
type world struct {
	now     time.Time
	job     *batchv1.Job
	pods    []*corev1.Pod
	done    map[types.UID]bool // the node has ended the pod
	backoff Backoff
	next    time.Time
	made    int
	refuse  bool // pods can't be created
	log     []string
	// write is called before each write; false is a crash right before it.
	write func(what string) bool
	// invalid rejects writes of a status that the API server would reject.
	invalid func(old, next *batchv1.Job) error
	removed func(*corev1.Pod) // is called for each deleted pod
}

func newWorld() *world {
	return &world{now: begin, done: map[types.UID]bool{}, write: func(string) bool { return true },
		invalid: func(_, _ *batchv1.Job) error { return nil }, removed: func(*corev1.Pod) {}}
}

// apply reads a manifest and sets the defaults of the API server.
func (w *world) apply(manifest string) error {
	var j batchv1.Job
	if err := yaml.UnmarshalStrict([]byte("spec:\n"+indent(manifest)), &j); err != nil {
		return err
	}
	j.Name, j.Namespace, j.UID = "pi", "ns", "job-uid"
	j.CreationTimestamp = metav1.NewTime(w.now)
	if w.job != nil {
		j.Status, j.DeletionTimestamp = w.job.Status, w.job.DeletionTimestamp
	}
	s := &j.Spec
	if s.Completions == nil && s.Parallelism == nil {
		s.Completions = new(int32(1))
	}
	s.Parallelism = orDefault(s.Parallelism, 1)
	if s.BackoffLimit == nil {
		s.BackoffLimit = new(int32(6))
		if s.BackoffLimitPerIndex != nil {
			s.BackoffLimit = new(int32(2147483647))
		}
	}
	if s.PodReplacementPolicy == nil {
		s.PodReplacementPolicy = new(batchv1.TerminatingOrFailed)
		if s.PodFailurePolicy != nil {
			s.PodReplacementPolicy = new(batchv1.Failed)
		}
	}
	if s.Template.Spec.RestartPolicy == "" {
		s.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
	}
	if len(s.Template.Spec.Containers) == 0 {
		s.Template.Spec.Containers = []corev1.Container{{Name: "c", Image: "i"}}
	}
	if s.Template.Labels == nil {
		s.Template.Labels = map[string]string{"job-name": "pi"}
	}
	w.job = &j
	return nil
}

func orDefault(v *int32, d int32) *int32 {
	if v == nil {
		return new(d)
	}
	return v
}

func indent(s string) string {
	return "  " + strings.ReplaceAll(strings.TrimSpace(s), "\n", "\n  ") + "\n"
}

func (w *world) plan(hold bool) Output {
	out := Plan(Input{Job: w.job.DeepCopy(), Pods: w.copies(), Now: w.now, Backoff: w.backoff, Hold: hold})
	return out
}

func (w *world) copies() []*corev1.Pod {
	var out []*corev1.Pod
	for _, p := range w.pods {
		out = append(out, p.DeepCopy())
	}
	return out
}

// sync acts like the driver. It returns false after a crash.
func (w *world) sync() bool {
	hold := false
	for range 1000 {
		out := w.plan(hold)
		w.backoff = out.Backoff
		for _, pod := range out.Create {
			if w.refuse {
				w.logf("create refused")
				hold = true
				break
			}
			if !w.write("create") {
				return false
			}
			w.create(pod)
		}
		for _, d := range out.Delete {
			if d.Untrack {
				if !w.write("untrack") {
					return false
				}
				w.untrack(d.Pod)
			}
			if !w.write("delete") {
				return false
			}
			w.logf("delete %s", d.Pod.Name)
			w.remove(d.Pod.Name)
		}
		if out.Status != nil {
			if !w.write("status") {
				return false
			}
			next := w.job.DeepCopy()
			next.Status = *out.Status
			if err := w.invalid(w.job, next); err != nil {
				panic(err)
			}
			w.job = next
			w.logf("%s", summary(&next.Status, w.now))
		}
		for _, e := range out.Events {
			w.logf("event %s %s: %s", e.Type, e.Reason, e.Message)
		}
		for _, pod := range out.Untrack {
			if !w.write("untrack") {
				return false
			}
			w.logf("untrack %s", pod.Name)
			w.untrack(pod)
		}
		if out.Done() {
			w.next = time.Time{}
			if out.Look > 0 {
				w.next = w.now.Add(out.Look)
			}
			return true
		}
	}
	panic("the plan has no end: " + strings.Join(w.log[len(w.log)-10:], "\n"))
}

func (w *world) logf(format string, args ...any) { w.log = append(w.log, fmt.Sprintf(format, args...)) }

func (w *world) create(pod *corev1.Pod) {
	w.made++
	pod.Name = fmt.Sprintf("%s%d", pod.GenerateName, w.made)
	pod.UID = types.UID(fmt.Sprintf("u%d", w.made))
	pod.CreationTimestamp = metav1.NewTime(w.now)
	pod.Status.Phase = corev1.PodPending
	w.pods = append(w.pods, pod)
	var notes []string
	for _, a := range []string{batchv1.JobIndexFailureCountAnnotation, batchv1.JobIndexIgnoredFailureCountAnnotation} {
		if v, ok := pod.Annotations[a]; ok {
			notes = append(notes, " "+strings.TrimPrefix(a, "batch.kubernetes.io/job-index-")+"="+v)
		}
	}
	w.logf("create %s%s", pod.Name, strings.Join(notes, ""))
}

func (w *world) find(name string) *corev1.Pod {
	for _, p := range w.pods {
		if p.Name == name {
			return p
		}
	}
	return nil
}

func (w *world) untrack(pod *corev1.Pod) {
	if p := w.find(pod.Name); p != nil {
		p.Finalizers = slices.DeleteFunc(p.Finalizers, func(f string) bool { return f == Finalizer })
	}
	w.sweep()
}

// remove handles DELETE: a pod that no node runs ends at once.
func (w *world) remove(name string) {
	p := w.find(name)
	if p == nil {
		return
	}
	w.removed(p)
	if p.DeletionTimestamp == nil {
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = new(metav1.NewTime(w.now.Add(30*time.Second))),
			new(int64(30))
	}
	if p.Spec.NodeName == "" || workload.Terminal(p) {
		w.done[p.UID] = true
	}
	w.sweep()
}

func (w *world) sweep() {
	w.pods = slices.DeleteFunc(w.pods, func(p *corev1.Pod) bool {
		return p.DeletionTimestamp != nil && w.done[p.UID] && len(p.Finalizers) == 0
	})
}

func (w *world) run(p *corev1.Pod) {
	p.Spec.NodeName, p.Status.Phase = "n", corev1.PodRunning
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c"}}
	p.Status.Conditions = append(p.Status.Conditions,
		corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue,
			LastTransitionTime: metav1.NewTime(w.now)})
}

func (w *world) exit(p *corev1.Pod, code int32) {
	w.run(p)
	p.Status.Phase = corev1.PodSucceeded
	if code != 0 {
		p.Status.Phase = corev1.PodFailed
	}
	p.Status.Conditions = slices.DeleteFunc(p.Status.Conditions,
		func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady })
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c",
		State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code,
			FinishedAt: metav1.NewTime(w.now)}}}}
	w.done[p.UID] = true
	w.sweep()
}

// gone ends a pod that was being deleted; it is reported as failed (W5.35).
func (w *world) gone(p *corev1.Pod) {
	if !workload.Terminal(p) {
		p.Status.Phase = corev1.PodFailed
	}
	w.done[p.UID] = true
	w.sweep()
}

// summary formats a status on one line.
func summary(s *batchv1.JobStatus, now time.Time) string {
	var b strings.Builder
	fmt.Fprintf(&b, "status active=%d ready=%d terminating=%d succeeded=%d failed=%d", s.Active, *s.Ready,
		*s.Terminating, s.Succeeded, s.Failed)
	if s.CompletedIndexes != "" {
		fmt.Fprintf(&b, " completedIndexes=%s", s.CompletedIndexes)
	}
	if s.FailedIndexes != nil {
		fmt.Fprintf(&b, " failedIndexes=%q", *s.FailedIndexes)
	}
	if u := s.UncountedTerminatedPods; u != nil && len(u.Succeeded)+len(u.Failed) > 0 {
		fmt.Fprintf(&b, " uncounted=%v/%v", u.Succeeded, u.Failed)
	}
	if s.StartTime != nil {
		fmt.Fprintf(&b, " start=%v", s.StartTime.Sub(begin))
	}
	if s.CompletionTime != nil {
		fmt.Fprintf(&b, " completion=%v", s.CompletionTime.Sub(begin))
	}
	for _, c := range s.Conditions {
		fmt.Fprintf(&b, " %s=%s(%s)", c.Type, c.Status, c.Reason)
	}
	return b.String()
}
