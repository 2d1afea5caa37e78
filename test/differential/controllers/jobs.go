package main

import (
	"context"
	"encoding/json"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// job creates a Job of some mode, or changes what may be changed of one.
func (w *writer) job() step {
	name := pick(w, "j0", "j1", "j2", "j3")
	if w.there[name] && w.r.IntN(4) == 0 {
		return w.remove(name, func(ctx context.Context, c api, ns string, o metav1.DeleteOptions) error {
			return c.BatchV1().Jobs(ns).Delete(ctx, name, o)
		})
	}
	spec := w.jobSpec(name)
	text, err := json.Marshal(spec)
	if err != nil {
		panic(err) // a type of the API
	}
	return store(w, name, func(c api, ns string) client[*batchv1.Job] { return c.BatchV1().Jobs(ns) },
		func(j *batchv1.Job) {
			if j.ResourceVersion == "" {
				j.Spec = *spec.DeepCopy()
				return
			}
			j.Spec.Parallelism, j.Spec.Suspend = spec.Parallelism, spec.Suspend
			if indexed := j.Spec.CompletionMode; indexed != nil && *indexed == batchv1.IndexedCompletion &&
				j.Spec.SuccessPolicy == nil && *spec.Parallelism > 0 {
				j.Spec.Completions = spec.Parallelism // the size of an indexed Job may change in this way only
			}
		}, string(text))
}

// jobSpec is a valid one.
func (w *writer) jobSpec(name string) *batchv1.JobSpec {
	s := &batchv1.JobSpec{Template: w.template(name), Completions: new(int32(1 + w.r.IntN(4))),
		Parallelism: new(int32(w.r.IntN(4))), Suspend: new(w.r.IntN(5) == 0)}
	s.Template.Labels = map[string]string{"job": name}
	s.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
	indexed := w.r.IntN(2) == 0
	if indexed {
		s.CompletionMode = new(batchv1.IndexedCompletion)
	}
	if indexed && w.r.IntN(3) == 0 {
		s.SuccessPolicy = pick(w,
			&batchv1.SuccessPolicy{Rules: []batchv1.SuccessPolicyRule{{SucceededCount: new(int32(1))}}},
			&batchv1.SuccessPolicy{Rules: []batchv1.SuccessPolicyRule{{SucceededIndexes: new("0")}}})
	}
	perIndex := indexed && w.r.IntN(3) == 0
	if perIndex {
		s.BackoffLimitPerIndex = new(int32(w.r.IntN(2)))
		s.MaxFailedIndexes = pick(w, nil, new(int32(0)), new(min(1, *s.Completions)))
	} else {
		s.BackoffLimit = new(int32(w.r.IntN(3)))
	}
	policy := w.r.IntN(3) == 0
	if policy {
		actions := []batchv1.PodFailurePolicyAction{batchv1.PodFailurePolicyActionFailJob,
			batchv1.PodFailurePolicyActionIgnore, batchv1.PodFailurePolicyActionCount}
		if perIndex {
			actions = append(actions, batchv1.PodFailurePolicyActionFailIndex)
		}
		s.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{
			Action: pick(w, actions...), OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{
				Operator: batchv1.PodFailurePolicyOnExitCodesOpIn, Values: []int32{1}}}}}
	}
	if policy || w.r.IntN(3) == 0 {
		s.PodReplacementPolicy = new(batchv1.Failed)
	}
	if w.r.IntN(6) == 0 {
		s.TTLSecondsAfterFinished = new(int32(0))
	}
	return s
}
