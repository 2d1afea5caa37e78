package explain

import (
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// pulling returns a pod that waits for an image.
func pulling(name string) *corev1.Pod {
	return pod(func(p *corev1.Pod) {
		p.Name = name
		p.Status.ContainerStatuses[0] = corev1.ContainerStatus{Name: "c",
			State: waiting("ErrImagePull", "no such image")}
	})
}

var quota = Related{Events: []corev1.Event{{Type: "Warning", Reason: "FailedCreate", Message: "exceeded quota",
	LastTimestamp: before(time.Minute)}}}

// A reason that several pods of a Deployment share is printed once; a complete Deployment has one line.
func TestDeployment(t *testing.T) {
	for _, c := range []struct {
		what   string
		change func(*appsv1.Deployment, *Related)
		want   string
	}{
		{"done", func(*appsv1.Deployment, *Related) {}, `
  3 of 3 pods available
`},
		{"pods wait", func(d *appsv1.Deployment, r *Related) {
			d.Status.AvailableReplicas, d.Status.ReadyReplicas = 1, 2
			r.Pods = []*corev1.Pod{pulling("b"), pod(func(*corev1.Pod) {}), pulling("a")}
		}, `
! 1 of 3 pods available: 3 exist, 3 of them up to date, 2 ready
! pods a, b: container c waits: no such image (ErrImagePull)
`},
		{"many wait", func(d *appsv1.Deployment, r *Related) {
			d.Status.AvailableReplicas = 0
			for i := range 5 {
				r.Pods = append(r.Pods, pulling(fmt.Sprint("p", i)))
			}
		}, `
! 0 of 3 pods available: 3 exist, 3 of them up to date, 3 ready
! pods p0, p1, p2 and 2 others: container c waits: no such image (ErrImagePull)
`},
		{"no pod can be made", func(d *appsv1.Deployment, r *Related) {
			d.Status = appsv1.DeploymentStatus{ObservedGeneration: 2, Conditions: []appsv1.DeploymentCondition{
				{Type: "Available", Status: "False", Reason: "MinimumReplicasUnavailable"},
				{Type: "ReplicaFailure", Status: "True", Reason: "FailedCreate", Message: "exceeded quota"}}}
			*r = quota
		}, `
! 0 of 3 pods available: 0 exist, 0 of them up to date, 0 ready
! ReplicaFailure is true: exceeded quota (FailedCreate)
`},
		{"each attempt has another name", func(d *appsv1.Deployment, r *Related) {
			d.Status = appsv1.DeploymentStatus{ObservedGeneration: 2, Conditions: []appsv1.DeploymentCondition{
				{Type: "ReplicaFailure", Status: "True", Reason: "FailedCreate",
					Message: `pods "web-1" is forbidden: exceeded quota: q`}}}
			for _, message := range []string{`Error creating: pods "web-2" is forbidden: exceeded quota: q`,
				`Error creating: pods "web-3" is forbidden: exceeded quota: other`} {
				r.Events = append(r.Events, corev1.Event{Type: "Warning", Reason: "FailedCreate", Message: message,
					LastTimestamp: before(time.Minute)})
			}
		}, `
! 0 of 3 pods available: 0 exist, 0 of them up to date, 0 ready
! ReplicaFailure is true: pods "web-1" is forbidden: exceeded quota: q (FailedCreate)
! event 60s ago: pods "web-3" is forbidden: exceeded quota: other (FailedCreate)
`},
		{"too slow", func(d *appsv1.Deployment, _ *Related) {
			d.Status.UpdatedReplicas = 1
			d.Status.Conditions = []appsv1.DeploymentCondition{{Type: "Progressing", Status: "False",
				Reason: "ProgressDeadlineExceeded"}}
		}, `
! 3 of 3 pods available: 3 exist, 1 of them up to date, 3 ready
! Progressing is false: ProgressDeadlineExceeded
`},
		{"paused", func(d *appsv1.Deployment, _ *Related) { d.Spec.Paused = true }, "\n" +
			"! is paused: a changed template is not rolled out until `kubectl rollout resume`\n" + `  3 of 3 pods available
`},
		{"not seen", func(d *appsv1.Deployment, _ *Related) { d.Generation = 3 }, `
! its controller has not acted on its last change yet
  3 of 3 pods available
`},
		{"nothing wanted", func(d *appsv1.Deployment, _ *Related) {
			d.Spec.Replicas, d.Status = new(int32), appsv1.DeploymentStatus{ObservedGeneration: 2}
		}, `
  needs no pod
`},
		{"deleted", func(d *appsv1.Deployment, _ *Related) {
			d.DeletionTimestamp, d.Finalizers = new(before(time.Minute)), []string{"foregroundDeletion"}
		}, `
! was deleted 60s ago
! stays until its finalizers are removed: foregroundDeletion
  3 of 3 pods available
`},
	} {
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Generation: 2},
			Spec: appsv1.DeploymentSpec{Replicas: new(int32(3))},
			Status: appsv1.DeploymentStatus{ObservedGeneration: 2, Replicas: 3, UpdatedReplicas: 3, ReadyReplicas: 3,
				AvailableReplicas: 3}}
		r := Related{}
		c.change(d, &r)
		expectLines(t, c.what, Deployment(d, r, now), c.want)
	}
}

// The explanations of the other workloads contain the particulars of their kind.
func TestWorkloads(t *testing.T) {
	expectLines(t, "ReplicaSet", ReplicaSet(&appsv1.ReplicaSet{Status: appsv1.ReplicaSetStatus{
		Conditions: []appsv1.ReplicaSetCondition{{Type: "ReplicaFailure", Status: "True", Message: "no"}}}}, quota, now), `
! 0 of 1 pod available: 0 exist, 0 of them up to date, 0 ready
! ReplicaFailure is true: no
! event 60s ago: exceeded quota (FailedCreate)
`)
	set := &appsv1.StatefulSet{Spec: appsv1.StatefulSetSpec{Replicas: new(int32(3))},
		Status: appsv1.StatefulSetStatus{Replicas: 1, UpdatedReplicas: 1}}
	expectLines(t, "ordered", StatefulSet(set, Related{Pods: []*corev1.Pod{pulling("db-0")}}, now), `
! 0 of 3 pods available: 1 exist, 1 of them up to date, 0 ready
! creates its pods in order: the next one is created when all before it are available
! pod db-0: container c waits: no such image (ErrImagePull)
`)
	set.Status = appsv1.StatefulSetStatus{Replicas: 3, UpdatedReplicas: 1, ReadyReplicas: 3, AvailableReplicas: 3}
	set.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateStatefulSetStrategy{Partition: new(int32(2))}
	expectLines(t, "partition", StatefulSet(set, Related{}, now), `
  updates only pods with the ordinal 2 and above (its partition)
  3 of 3 pods available
`)
	set.Spec.UpdateStrategy = appsv1.StatefulSetUpdateStrategy{Type: appsv1.OnDeleteStatefulSetStrategyType}
	expectLines(t, "on delete", StatefulSet(set, Related{}, now), "  3 of 3 pods available\n")
	expectLines(t, "no node", DaemonSet(&appsv1.DaemonSet{Status: appsv1.DaemonSetStatus{NumberMisscheduled: 1}},
		Related{}, now), `
! no node matches its node selector, its node affinity, and its tolerations
! 1 pod on nodes that should not have one
`)
	expectLines(t, "DaemonSet", DaemonSet(&appsv1.DaemonSet{Status: appsv1.DaemonSetStatus{DesiredNumberScheduled: 1,
		CurrentNumberScheduled: 1, UpdatedNumberScheduled: 1, NumberReady: 1, NumberAvailable: 1}}, Related{}, now),
		"  1 of 1 pod available\n")
}

func TestJobs(t *testing.T) {
	finished := func(kind batchv1.JobConditionType, reason string) *batchv1.Job {
		return &batchv1.Job{Spec: batchv1.JobSpec{Completions: new(int32(2)), BackoffLimit: new(int32(6))},
			Status: batchv1.JobStatus{Succeeded: 2, Failed: 1, Conditions: []batchv1.JobCondition{{Type: kind,
				Status: "True", Reason: reason, LastTransitionTime: before(time.Minute)}}}}
	}
	expectLines(t, "complete", Job(finished(batchv1.JobComplete, "CompletionsReached"), Related{}, now), `
  completed 60s ago: 2 pods succeeded
`)
	expectLines(t, "failed", Job(finished(batchv1.JobFailed, "BackoffLimitExceeded"), Related{}, now), `
! Failed is true: BackoffLimitExceeded
  2 of 2 completions; 0 pods active, 0 of them ready, 1 failed
`)
	both := finished(batchv1.JobFailed, "BackoffLimitExceeded")
	both.Status.Conditions = append(both.Status.Conditions, finished(batchv1.JobFailureTarget,
		"BackoffLimitExceeded").Status.Conditions...)
	expectLines(t, "failed, with its reason twice", Job(both, Related{}, now), `
! Failed is true: BackoffLimitExceeded
  2 of 2 completions; 0 pods active, 0 of them ready, 1 failed
`)
	expectLines(t, "working", Job(&batchv1.Job{Spec: batchv1.JobSpec{BackoffLimit: new(int32(6))},
		Status: batchv1.JobStatus{Active: 1, Failed: 2}}, Related{Pods: []*corev1.Pod{pulling("a")}}, now), `
  0 pods succeeded; 1 pod active, 0 of them ready, 2 failed
! 2 failures of 6 allowed (its backoffLimit)
! pod a: container c waits: no such image (ErrImagePull)
`)
	expectLines(t, "suspended", Job(&batchv1.Job{Spec: batchv1.JobSpec{Suspend: new(true)}}, Related{}, now), `
! is suspended: it creates no pods until .spec.suspend is false
  0 pods succeeded; 0 pods active, 0 of them ready, 0 failed
`)
	cron := &batchv1.CronJob{Spec: batchv1.CronJobSpec{Schedule: "0 3 * * *", TimeZone: new("Europe/Berlin")}}
	expectLines(t, "CronJob", CronJob(cron, Related{}, now), `
  has the schedule "0 3 * * *" (Europe/Berlin)
  has not created a Job yet
`)
	cron.Spec.Suspend, cron.Spec.TimeZone, cron.Spec.ConcurrencyPolicy = new(true), nil, batchv1.ForbidConcurrent
	cron.Status.LastScheduleTime, cron.Status.Active = new(before(time.Hour)), []corev1.ObjectReference{{Name: "j"}}
	expectLines(t, "CronJob", CronJob(cron, quota, now), `
! is suspended: it creates no Jobs until .spec.suspend is false
  has the schedule "0 3 * * *" (the time zone of carob)
  was last scheduled 60m ago; 1 Job active
  creates no Job while one is active (its concurrencyPolicy is Forbid)
! event 60s ago: exceeded quota (FailedCreate)
`)
}

func TestAutoscaler(t *testing.T) {
	h := &autoscalingv2.HorizontalPodAutoscaler{Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
		ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{Kind: "Deployment", Name: "web"}}}
	expectLines(t, "new", Autoscaler(h, Related{}, now), `
! its controller has not processed it yet
`)
	h.Status = autoscalingv2.HorizontalPodAutoscalerStatus{CurrentReplicas: 1, DesiredReplicas: 2,
		Conditions: []autoscalingv2.HorizontalPodAutoscalerCondition{{Type: "AbleToScale", Status: "True"},
			{Type: "ScalingActive", Status: "False", Reason: "FailedGetResourceMetric", Message: "no metrics"},
			{Type: "ScalingLimited", Status: "True", Reason: "TooManyReplicas", Message: "more is wanted"}}}
	expectLines(t, "no metrics", Autoscaler(h, Related{}, now), `
! ScalingActive is false: no metrics (FailedGetResourceMetric)
  its size is limited: more is wanted (TooManyReplicas)
  deployment/web has 1 replica, and should have 2
`)
	h.Status.DesiredReplicas = 0
	h.Status.Conditions = h.Status.Conditions[:2]
	expectLines(t, "no metrics since it exists", Autoscaler(h, Related{}, now), `
! ScalingActive is false: no metrics (FailedGetResourceMetric)
  deployment/web has 1 replica
`)
}
