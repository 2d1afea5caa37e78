package cluster

import (
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"carob/internal/core/workload/autoscaler"
	"carob/internal/core/workload/cronjob"
	"carob/internal/core/workload/daemonset"
	"carob/internal/core/workload/deployment"
	"carob/internal/core/workload/job"
	"carob/internal/core/workload/statefulset"
	"carob/internal/sim/autoscalers"
	"carob/internal/sim/cronjobs"
	"carob/internal/sim/daemonsets"
	"carob/internal/sim/deployments"
	"carob/internal/sim/devices"
	"carob/internal/sim/jobs"
	"carob/internal/sim/quotas"
	"carob/internal/sim/statefulsets"
	"carob/internal/sim/storage"
)

// Sabotage breaks a part of the cluster; the zero value breaks nothing.
type Sabotage struct {
	Rollout     deployments.Sabotage
	Sets        statefulsets.Hooks
	Jobs        jobs.Sabotage
	Daemons     daemonsets.Sabotage
	CronJobs    cronjobs.Sabotage
	Storage     storage.Sabotage
	Autoscalers autoscalers.Sabotage
	Devices     devices.Sabotage
	Quotas      quotas.Sabotage
	// Pods names an invariant of the pod lifecycle to break on each node.
	Pods string
	// Overcommit makes the scheduler assume smaller requests of pods than they have. Nodes do not check them either.
	Overcommit bool
	Rebind     bool // a pod can be bound again
	Forget     bool // the scheduler loses some pods
	Force      bool // pods of unreachable nodes are removed before the node confirms their end
	Unfair     bool // a pod preempts others of the same priority
	Hasty      bool // evictions ignore PodDisruptionBudgets
	NoGarbage  bool // the garbage collector does nothing
}

// Invariants returns the invariants, each with a way to break it.
func Invariants() []Named {
	bounds := func(surge, unavailable int) deployments.Sabotage {
		return deployments.Sabotage{In: func(in *deployment.Input) {
			if r := in.Deployment.Spec.Strategy.RollingUpdate; r != nil {
				in.Deployment = in.Deployment.DeepCopy()
				in.Deployment.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{
					MaxSurge:       new(intstr.FromInt(r.MaxSurge.IntValue() + surge)),
					MaxUnavailable: new(intstr.FromInt(r.MaxUnavailable.IntValue() + unavailable))}
			}
		}}
	}
	retention := func(policy appsv1.PersistentVolumeClaimRetentionPolicyType) statefulsets.Hooks {
		return statefulsets.Hooks{In: func(in *statefulset.Input) {
			in.Set.Spec.PersistentVolumeClaimRetentionPolicy =
				&appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{WhenDeleted: policy, WhenScaled: policy}
		}}
	}
	all := []Named{
		{"fits", Fits, Sabotage{Overcommit: true}},
		{"bound", Bound, Sabotage{Overcommit: true}},
		{"one-node", OneNode, Sabotage{Rebind: true}},
		{"surge", Surge, Sabotage{Rollout: bounds(3, 0)}},
		{"minimum", Minimum, Sabotage{Rollout: bounds(0, 5)}},
		{"budget", Budget, Sabotage{Hasty: true}},
		{"ordinal", Ordinal, Sabotage{Force: true}},
		{"index", Index, Sabotage{Jobs: jobs.Sabotage{In: func(in *job.Input) {
			if !job.Finished(in.Job) {
				in.Job.Status.CompletedIndexes = ""
			}
		}}}},
		{"daemon", Daemon, Sabotage{Daemons: daemonsets.Sabotage{In: func(in *daemonset.Input) {
			in.Pods = slices.DeleteFunc(slices.Clone(in.Pods),
				func(p *corev1.Pod) bool { return p.DeletionTimestamp != nil })
		}}}},
		{"scheduled", Scheduled, Sabotage{CronJobs: cronjobs.Sabotage{In: func(in *cronjob.Input) {
			in.CronJob.Spec.ConcurrencyPolicy = batchv1.AllowConcurrent
		}}}},
		{"preempted", Preempted, Sabotage{Unfair: true}},
		{"one-volume", storage.One, Sabotage{Storage: storage.Sabotage{IgnoresBindings: true}}},
		{"volume-in-use", storage.Used, Sabotage{Storage: storage.Sabotage{Unprotected: true}}},
		{"data", storage.Data, Sabotage{Storage: storage.Sabotage{Eager: true}}},
		{"place-of-data", storage.Place, Sabotage{Storage: storage.Sabotage{Anywhere: true}}},
		{"retained", storage.Retained,
			Sabotage{Sets: retention(appsv1.DeletePersistentVolumeClaimRetentionPolicyType)}},
		{"deleted", storage.Deleted,
			Sabotage{Sets: retention(appsv1.RetainPersistentVolumeClaimRetentionPolicyType)}},
		{"claim-once", devices.Once, Sabotage{Devices: devices.Sabotage{Twice: true}}},
		{"claim-own", devices.Own, Sabotage{Devices: devices.Sabotage{WrongPod: true}}},
		{"device-single", devices.Single, Sabotage{Devices: devices.Sabotage{IgnoresAllocations: true}}},
		{"device-used", devices.Used, Sabotage{Devices: devices.Sabotage{Eager: true}}},
		{"quota-within", quotas.Within, Sabotage{Quotas: quotas.Sabotage{Unlimited: true}}},
		{"quota-charged", quotas.Charged, Sabotage{Quotas: quotas.Sabotage{Overwrite: true}}},
		{"quota-released", quotas.Released, Sabotage{Quotas: quotas.Sabotage{Keep: true}}},
		{"orphans", Orphans, Sabotage{NoGarbage: true}},
		{"ends", Ends, Sabotage{Forget: true}},
	}
	for _, p := range autoscalers.Invariants() {
		if p.Invariant == autoscalers.Rates { // a shorter way than to lose the history
			p.Sabotage = autoscalers.Sabotage{Out: func(in *autoscaler.Input, out *autoscaler.Output) {
				if out.Rescale != nil && *out.Rescale > in.Scale.Wanted {
					out.Rescale = &in.HPA.Spec.MaxReplicas
				}
			}}
		}
		all = append(all, Named{"size-" + p.Name, p.Invariant, Sabotage{Autoscalers: p.Sabotage}})
	}
	return all
}
