package job

import (
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"carob/internal/base/seconds"
)

// finish decides whether the Job ends, in the order of W5.80; the first reason applies.
func (p *plan) finish() {
	spec := &p.job.Spec
	if c := p.find(batchv1.JobSuccessCriteriaMet); c != nil && c.Status == corev1.ConditionTrue {
		p.verdict = c.DeepCopy()
		return
	}
	if c := p.find(batchv1.JobFailureTarget); c != nil && c.Status == corev1.ConditionTrue {
		p.verdict = c.DeepCopy()
		return
	}
	fail := func(reason, message string) { p.verdict = p.condition(batchv1.JobFailureTarget, reason, message) }
	if message := p.failJob(); message != "" {
		fail(batchv1.JobReasonPodFailurePolicy, message)
		return
	}
	if p.failed > *spec.BackoffLimit || p.restartedTooOften() {
		fail(batchv1.JobReasonBackoffLimitExceeded, "Job has reached the specified backoff limit")
		return
	}
	if spec.ActiveDeadlineSeconds != nil && !p.suspended() && p.status.StartTime != nil {
		left := p.status.StartTime.Add(seconds.Duration(*spec.ActiveDeadlineSeconds)).Sub(p.in.Now)
		if left <= 0 {
			fail(batchv1.JobReasonDeadlineExceeded, "Job was active longer than specified deadline")
			return
		}
		p.lookIn(left)
	}
	if p.indexed && p.perIndex {
		switch lost := p.lost.total(); {
		case spec.MaxFailedIndexes != nil && lost > int(*spec.MaxFailedIndexes):
			fail(batchv1.JobReasonMaxFailedIndexesExceeded,
				"Job has exceeded the specified maximal number of failed indexes")
			return
		case lost > 0 && lost+p.done.total() >= int(*spec.Completions):
			fail(batchv1.JobReasonFailedIndexes, "Job has failed indexes")
			return
		}
	}
	if rule, met := p.successPolicy(); met {
		p.verdict = p.condition(batchv1.JobSuccessCriteriaMet, batchv1.JobReasonSuccessPolicy,
			fmt.Sprintf("Matched rules at index %d", rule))
	}
}

// restartedTooOften counts restarts where containers are started again in place (W5.61).
func (p *plan) restartedTooOften() bool {
	if p.job.Spec.Template.Spec.RestartPolicy != corev1.RestartPolicyOnFailure {
		return false
	}
	n := int32(0)
	for _, pod := range p.pods {
		if pod.Status.Phase != corev1.PodRunning && pod.Status.Phase != corev1.PodPending {
			continue
		}
		for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
			n += s.RestartCount
		}
	}
	return n > 0 && n >= *p.job.Spec.BackoffLimit
}

// successPolicy returns the first rule of the success policy that is met (W5.73).
func (p *plan) successPolicy() (rule int, met bool) {
	if p.job.Spec.SuccessPolicy == nil || !p.indexed || len(p.done) == 0 {
		return 0, false
	}
	for i, r := range p.job.Spec.SuccessPolicy.Rules {
		switch {
		case r.SucceededIndexes != nil:
			wanted := parseIndexes(*r.SucceededIndexes, int(*p.job.Spec.Completions))
			got := wanted.common(p.done)
			if len(wanted) > 0 && (got == wanted.total() || r.SucceededCount != nil && got >= int(*r.SucceededCount)) {
				return i, true
			}
		case r.SucceededCount != nil && p.done.total() >= int(*r.SucceededCount):
			return i, true
		}
	}
	return 0, false
}

// failJob returns why the pod failure policy ends the Job, or nothing (W5.65).
func (p *plan) failJob() string {
	for _, pod := range p.pods {
		if !p.hasFailed(pod) {
			continue
		}
		if rule, text := p.rule(pod); rule != nil && rule.Action == batchv1.PodFailurePolicyActionFailJob {
			return text
		}
	}
	return ""
}

// policy returns whether a failed pod counts against the limits, and the action of the
// rule that it matches, if any.
func (p *plan) policy(pod *corev1.Pod) (counts bool, action batchv1.PodFailurePolicyAction) {
	rule, _ := p.rule(pod)
	if rule == nil {
		return true, ""
	}
	return rule.Action != batchv1.PodFailurePolicyActionIgnore, rule.Action
}

// rule returns the first rule of the pod failure policy that a pod matches, and the message when it
// ends the Job (W5.64, W5.69).
func (p *plan) rule(pod *corev1.Pod) (*batchv1.PodFailurePolicyRule, string) {
	if p.job.Spec.PodFailurePolicy == nil {
		return nil, ""
	}
	for i := range p.job.Spec.PodFailurePolicy.Rules {
		r := &p.job.Spec.PodFailurePolicy.Rules[i]
		switch r.Action {
		case batchv1.PodFailurePolicyActionFailJob, batchv1.PodFailurePolicyActionFailIndex,
			batchv1.PodFailurePolicyActionIgnore, batchv1.PodFailurePolicyActionCount:
		default:
			continue // an action of a later release
		}
		if r.OnExitCodes != nil {
			if s := exited(pod, r.OnExitCodes); s != nil {
				return r, fmt.Sprintf(
					"Container %s for pod %s/%s failed with exit code %v matching %v rule at index %d",
					s.Name, pod.Namespace, pod.Name, s.State.Terminated.ExitCode, r.Action, i)
			}
			continue
		}
		for _, c := range pod.Status.Conditions {
			if slices.ContainsFunc(r.OnPodConditions, func(want batchv1.PodFailurePolicyOnPodConditionsPattern) bool {
				return c.Type == want.Type && c.Status == want.Status
			}) {
				return r, fmt.Sprintf("Pod %s/%s has condition %v matching %v rule at index %d", pod.Namespace,
					pod.Name, c.Type, r.Action, i)
			}
		}
	}
	return nil, ""
}

// exited returns the first container that ended with a code that the rule matches: containers, then
// init containers. Code 0 never is.
func exited(pod *corev1.Pod, r *batchv1.PodFailurePolicyOnExitCodesRequirement) *corev1.ContainerStatus {
	for _, list := range [][]corev1.ContainerStatus{pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses} {
		for i := range list {
			s := &list[i]
			if s.State.Terminated == nil || s.State.Terminated.ExitCode == 0 || r.ContainerName != nil &&
				*r.ContainerName != s.Name {
				continue
			}
			listed := slices.Contains(r.Values, s.State.Terminated.ExitCode)
			if listed && r.Operator == batchv1.PodFailurePolicyOnExitCodesOpIn || !listed &&
				r.Operator == batchv1.PodFailurePolicyOnExitCodesOpNotIn {
				return s
			}
		}
	}
	return nil
}
