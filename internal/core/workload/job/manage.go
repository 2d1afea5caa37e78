package job

import (
	"fmt"
	"slices"
	"strconv"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"carob/internal/core/workload"
)

// manage decides which pods are deleted or created. It reports whether there are any: then the next
// decision updates the status. One decision either deletes or creates (W5.42).
func (p *plan) manage() bool {
	switch {
	case p.verdict != nil:
		if !p.recorded(p.verdict.Type) {
			return false // the reason is stored before pods are deleted for it (W5.89)
		}
		p.remove(p.active, false)
	case p.job.DeletionTimestamp != nil: // W5.44
	case p.suspended():
		p.remove(p.active, true)
	default:
		if p.remove(p.surplus(), true); len(p.out.Delete) == 0 {
			p.create()
		}
	}
	return len(p.out.Delete)+len(p.out.Create) > 0
}

// recorded reports whether the stored status has a condition.
func (p *plan) recorded(kind batchv1.JobConditionType) bool {
	return slices.ContainsFunc(p.stored.Conditions,
		func(c batchv1.JobCondition) bool { return c.Type == kind && c.Status == corev1.ConditionTrue })
}

func (p *plan) remove(pods []*corev1.Pod, untrack bool) {
	for _, pod := range pods[:min(len(pods), limit)] {
		p.out.Delete = append(p.out.Delete, Deletion{Pod: pod, Untrack: untrack && Tracked(pod)})
	}
}

// wanted returns how many pods should be active (W5.40).
func (p *plan) wanted() int {
	spec := &p.job.Spec
	if spec.Completions == nil {
		if p.succeeded > 0 {
			return len(p.active)
		}
		return int(*spec.Parallelism)
	}
	return int(max(0, min(*spec.Parallelism, *spec.Completions-p.succeeded)))
}

// surplus returns the active pods to delete: in Indexed Jobs those that no index needs, then those
// beyond the desired number (W5.41).
func (p *plan) surplus() []*corev1.Pod {
	var out []*corev1.Pod
	left := p.active
	if p.indexed {
		best := map[int]*corev1.Pod{} // the pod to keep
		for _, pod := range workload.RankForDeletion(p.active, workload.Ranking{}) {
			if p.within(pod) {
				best[indexOf(pod)] = pod
			}
		}
		left = nil
		for _, pod := range p.active {
			if best[indexOf(pod)] == pod {
				left = append(left, pod)
			} else {
				out = append(out, pod)
			}
		}
	}
	if more := len(p.active) - p.wanted() - len(out); more > 0 {
		out = append(out, workload.RankForDeletion(left, workload.Ranking{})[:more]...)
	}
	return out
}

// create decides which pods are created, unless the Job is in back-off.
func (p *plan) create() {
	n := p.wanted() - len(p.active)
	if p.onlyFailed() {
		n -= len(p.terminating)
	}
	if n <= 0 {
		return
	}
	n = min(n, limit)
	if !p.perIndex {
		if wait := left(p.out.Backoff.Failures, p.out.Backoff.Last, p.in.Now); wait > 0 {
			p.lookIn(wait)
			return
		}
	}
	if !p.indexed {
		for range n {
			p.add(-1)
		}
		return
	}
	for _, i := range p.pending(n) {
		if w := p.waiting[i]; p.perIndex && w != nil {
			if wait := left(failuresBefore(w)+1, finishedAt(w), p.in.Now); wait > 0 {
				p.lookIn(wait)
				continue
			}
		}
		p.add(i)
	}
}

// add plans a new pod for an index or for none (-1).
func (p *plan) add(index int) {
	pod, err := p.pod(index)
	if err != nil {
		p.out.Problem = err
		return
	}
	p.out.Create = append(p.out.Create, pod)
}

// pod makes a pod from the template, for an index or for none (-1) (W0.30, W0.31, W5.50).
func (p *plan) pod(index int) (*corev1.Pod, error) {
	pod, err := workload.NewPod(workload.Owner{Object: p.job, Kind: batchv1.SchemeGroupVersion.WithKind("Job")},
		&p.job.Spec.Template)
	if err != nil {
		return nil, err
	}
	if !slices.Contains(pod.Finalizers, Finalizer) {
		pod.Finalizers = append(pod.Finalizers, Finalizer)
	}
	if index < 0 {
		return pod, nil
	}
	text := strconv.Itoa(index)
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Labels[batchv1.JobCompletionIndexAnnotation] = text
	pod.Annotations[batchv1.JobCompletionIndexAnnotation] = text
	pod.Spec.Hostname = fmt.Sprintf("%s-%d", p.job.Name, index)
	pod.GenerateName = prefix(p.job.Name, "-"+text+"-")
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			addIndexVariable(&list[i])
		}
	}
	if p.perIndex {
		p.passOn(pod, p.waiting[index])
	}
	return pod, nil
}

// passOn annotates a pod with the number of earlier failures of its index (W5.62).
func (p *plan) passOn(pod, before *corev1.Pod) {
	failures, ignored := int32(0), int32(0)
	if before != nil {
		failures, ignored = counted(before, batchv1.JobIndexFailureCountAnnotation),
			counted(before, batchv1.JobIndexIgnoredFailureCountAnnotation)
		if counts, _ := p.policy(before); counts {
			failures++
		} else {
			ignored++
		}
	}
	pod.Annotations[batchv1.JobIndexFailureCountAnnotation] = strconv.Itoa(int(failures))
	if ignored > 0 {
		pod.Annotations[batchv1.JobIndexIgnoredFailureCountAnnotation] = strconv.Itoa(int(ignored))
	}
}

// nameLimit is the length to which the API server truncates a generateName (W0.31).
const nameLimit = 58

// prefix joins a Job's name and a suffix, and truncates the name so that the suffix is kept.
func prefix(name, ending string) string {
	return name[:min(len(name), max(0, nameLimit-len(ending)))] + ending
}

const indexVariable = "JOB_COMPLETION_INDEX"

func addIndexVariable(c *corev1.Container) {
	if slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == indexVariable }) {
		return
	}
	c.Env = append(c.Env, corev1.EnvVar{Name: indexVariable, ValueFrom: &corev1.EnvVarSource{
		FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels['" + batchv1.JobCompletionIndexAnnotation +
			"']"}}})
}
