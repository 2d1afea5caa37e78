package webui

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"carob/internal/core/explain"
)

// The classes of rows, the one that needs attention most first.
const (
	classBad  = "bad"  // it fails, or has waited for too long
	classWait = "wait" // it waits, which may be all right
	classOK   = "ok"
	classDone = "done"
)

// patient is how long a pod may wait before it needs attention.
const patient = time.Minute

// longest limits the bytes of a text of a row; the details of an object have the whole text.
const longest = 1000

// row is what all rows have.
type row struct {
	ID        string `json:"id"`
	Namespace string `json:"ns,omitempty"`
	Name      string `json:"name"`
	Kind      string `json:"kind"`
	Class     string `json:"class"`
	Waits     string `json:"says,omitempty"` // the sentence of `carob explain` about what it waits for
	Created   int64  `json:"created"`        // milliseconds
}

type podRow struct {
	row
	Node     string   `json:"node,omitempty"`
	Status   string   `json:"status"`
	Ready    string   `json:"ready"`
	Restarts int32    `json:"restarts,omitempty"`
	Exact    bool     `json:"exact"` // the stages are those of the timeline
	Stages   [][2]any `json:"stages"`
}

type countRow struct {
	row
	Ready  int    `json:"ready"`
	Wanted int    `json:"wanted"`
	Detail string `json:"detail,omitempty"`
}

type poolRow struct {
	row
	State *explain.PoolState `json:"state,omitempty"`
	Lines explain.Lines      `json:"lines"`
}

// rowOf makes what all rows have; the first problem of the lines is what the row says.
func rowOf(kind string, o metav1.Object, lines explain.Lines) row {
	r := row{ID: kind + "/" + o.GetNamespace() + "/" + o.GetName(), Namespace: o.GetNamespace(), Name: o.GetName(),
		Kind: kind, Class: classOK, Created: o.GetCreationTimestamp().UnixMilli()}
	if i := slices.IndexFunc(lines, func(l explain.Line) bool { return l.Problem }); i >= 0 {
		r.Class, r.Waits = classWait, cut(lines[i].Text)
	}
	return r
}

// cut limits a text to longest bytes of whole characters.
func cut(text string) string {
	if len(text) <= longest {
		return text
	}
	return strings.ToValidUTF8(text[:longest], "") + "…"
}

func renderPod(p *corev1.Pod, events []corev1.Event, l *lane, now time.Time) *podRow {
	lines := explain.Pod(p, explain.Beside{Events: events}, now)
	out := &podRow{row: rowOf("pod", p, lines), Node: p.Spec.NodeName}
	out.Waits = cut(withEvent(lines))
	var bad bool
	out.Status, bad = podStatus(p)
	ready, since := 0, p.CreationTimestamp.Time
	for i := range p.Status.ContainerStatuses {
		s := &p.Status.ContainerStatuses[i]
		out.Restarts += s.RestartCount
		if s.Ready {
			ready++
		}
	}
	out.Ready = fmt.Sprintf("%d/%d", ready, len(p.Spec.Containers))
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			since = c.LastTransitionTime.Time
		}
		bad = bad || c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason ==
			corev1.PodReasonUnschedulable
	}
	switch at := p.DeletionTimestamp; {
	case at != nil:
		if now.Sub(at.Time) > patient {
			out.Class = classBad
		}
	case p.Status.Phase == corev1.PodSucceeded:
		out.Class = classDone
	case out.Class == classWait && (bad || now.Sub(since) > patient || p.Status.Phase == corev1.PodFailed):
		out.Class = classBad
	}
	stages, exact := stagesOf(p, l)
	out.Exact = exact
	for _, s := range stages {
		out.Stages = append(out.Stages, [2]any{s.at.UnixMicro(), s.what})
	}
	return out
}

// shortSentence is how long a sentence may be, in bytes, for the newest event to be added to it.
const shortSentence = 160

// withEvent returns the first problem, and the newest event about it: the status of a pod often says only that it
// waits, and the event says why.
func withEvent(lines explain.Lines) string {
	waits := ""
	for _, l := range lines {
		switch {
		case !l.Problem:
		case waits == "":
			waits = l.Text
		case strings.HasPrefix(l.Text, "event ") && len(waits) <= shortSentence:
			if strings.HasSuffix(waits, "ContainerCreating") || strings.HasSuffix(waits, "PodInitializing") {
				return l.Text
			}
			return waits + "; " + l.Text
		}
	}
	return waits
}

// podStatus is kubectl's word for what a pod does, and whether it says that something fails.
func podStatus(p *corev1.Pod) (word string, bad bool) {
	word = cmp.Or(p.Status.Reason, string(p.Status.Phase))
	reason := func(s *corev1.ContainerStatus) string {
		switch {
		case s.State.Waiting != nil && s.State.Waiting.Reason != "":
			return s.State.Waiting.Reason
		case s.State.Terminated != nil && s.State.Terminated.ExitCode != 0:
			return cmp.Or(s.State.Terminated.Reason, fmt.Sprintf("ExitCode:%d", s.State.Terminated.ExitCode))
		}
		return ""
	}
	for i := range p.Status.ContainerStatuses {
		if r := reason(&p.Status.ContainerStatuses[i]); r != "" {
			word = r
			if r != "ContainerCreating" && r != "PodInitializing" {
				bad = true
				break
			}
		}
	}
	for i := range p.Status.InitContainerStatuses {
		if r := reason(&p.Status.InitContainerStatuses[i]); r != "" && r != "PodInitializing" &&
			r != "ContainerCreating" {
			word, bad = "Init:"+r, true
			break
		}
	}
	if p.DeletionTimestamp != nil {
		word = "Terminating"
	}
	return cut(word), bad
}

// ownerOf is the workload of a pod, as KIND/NAMESPACE/NAME; the Deployment instead of its ReplicaSet.
func ownerOf(p *corev1.Pod) string {
	ref := metav1.GetControllerOf(p)
	if ref == nil {
		return ""
	}
	kind, name := strings.ToLower(ref.Kind), ref.Name
	if hash := p.Labels[appsv1.DefaultDeploymentUniqueLabelKey]; kind == "replicaset" && hash != "" {
		if deployment, ok := strings.CutSuffix(name, "-"+hash); ok {
			kind, name = "deployment", deployment
		}
	}
	return kind + "/" + p.Namespace + "/" + name
}

func renderWorkload(o metav1.Object, r explain.Related, now time.Time) *countRow {
	var lines explain.Lines
	out := &countRow{}
	kind, failed := "", false
	switch w := o.(type) {
	case *appsv1.Deployment:
		kind, lines = "deployment", explain.Deployment(w, r, now)
		out.Ready, out.Wanted = int(w.Status.ReadyReplicas), replicas(w.Spec.Replicas)
		failed = slices.ContainsFunc(w.Status.Conditions, func(c appsv1.DeploymentCondition) bool {
			return c.Type == appsv1.DeploymentProgressing && c.Status == corev1.ConditionFalse ||
				c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue
		})
	case *appsv1.StatefulSet:
		kind, lines = "statefulset", explain.StatefulSet(w, r, now)
		out.Ready, out.Wanted = int(w.Status.ReadyReplicas), replicas(w.Spec.Replicas)
	case *appsv1.DaemonSet:
		kind, lines = "daemonset", explain.DaemonSet(w, r, now)
		out.Ready, out.Wanted = int(w.Status.NumberReady), int(w.Status.DesiredNumberScheduled)
	case *batchv1.Job:
		kind, lines = "job", explain.Job(w, r, now)
		out.Ready, out.Wanted = int(w.Status.Succeeded), replicas(w.Spec.Completions)
		out.Detail = "completions"
		failed = slices.ContainsFunc(w.Status.Conditions, func(c batchv1.JobCondition) bool {
			return c.Type == batchv1.JobFailed && c.Status == corev1.ConditionTrue
		})
	}
	out.row = rowOf(kind, o, lines)
	podFails := slices.ContainsFunc(r.Pods, func(p *corev1.Pod) bool {
		_, bad := podStatus(p)
		return bad
	})
	if out.Class == classWait && (failed || podFails) {
		out.Class = classBad
	}
	return out
}

func replicas(n *int32) int {
	if n == nil {
		return 1
	}
	return int(*n)
}

func renderNode(n *corev1.Node, events []corev1.Event, pods int, now time.Time) *countRow {
	lines := explain.Node(n, events, now)
	out := &countRow{row: rowOf("node", n, lines), Ready: pods, Wanted: int(n.Status.Allocatable.Pods().Value())}
	if !slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	}) {
		out.Class = classBad
	}
	out.Detail = cut(n.Status.NodeInfo.KubeletVersion + ", " + n.Status.NodeInfo.ContainerRuntimeVersion)
	return out
}

// renderService makes the row of a Service; pods are those of its namespace.
func renderService(s *corev1.Service, slicesOf []*discoveryv1.EndpointSlice, pods func() []*corev1.Pod,
	now time.Time) *countRow {
	ready, all := 0, map[string]bool{}
	for _, slice := range slicesOf {
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			for _, address := range e.Addresses {
				if !all[address] && (e.Conditions.Ready == nil || *e.Conditions.Ready) {
					ready++
					all[address] = true
				} else if !all[address] {
					all[address] = false
				}
			}
		}
	}
	var lines explain.Lines
	if ready == 0 || ready < len(all) {
		lines = explain.Service(s, slicesOf, explain.Related{Pods: pods()}, now)
	}
	out := &countRow{row: rowOf("service", s, lines), Ready: ready, Wanted: len(all)}
	if ready == 0 && out.Class == classWait && now.Sub(s.CreationTimestamp.Time) > patient {
		out.Class = classBad
	}
	words := []string{string(s.Spec.Type), s.Spec.ClusterIP}
	for i, p := range s.Spec.Ports {
		if i == 4 {
			words = append(words, "…")
			break
		}
		words = append(words, fmt.Sprintf("%d/%s", p.Port, p.Protocol))
	}
	out.Detail = cut(strings.Join(words, " "))
	return out
}

func renderPool(o metav1.Object, facts *explain.Pool, now time.Time) *poolRow {
	lines := explain.InferencePool(facts, now)
	out := &poolRow{row: rowOf("inferencepool", o, lines), State: facts.State}
	for i := range lines {
		lines[i].Text = cut(lines[i].Text)
	}
	out.Lines = lines
	if s := facts.State; out.Class == classWait && (s == nil || s.Picker == "" && s.Ready == 0 && !s.Starting) {
		out.Class = classBad
	}
	return out
}
