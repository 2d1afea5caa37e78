package pods

import (
	"context"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"

	"carob/internal/core/podstatus"
	"carob/internal/core/resources"
)

// TableConvertor builds the table of "kubectl get pods" (L1.120).
type TableConvertor struct{}

const (
	none      = "<none>"
	unknown   = "<unknown>"
	completed = "Completed"
)

func columns() []metav1.TableColumnDefinition {
	return []metav1.TableColumnDefinition{
		{Name: "Name", Type: "string", Format: "name", Description: "Name of the pod, unique in its namespace."},
		{Name: "Ready", Type: "string", Description: "Containers ready of those that should be."},
		{Name: "Status", Type: "string",
			Description: "Summary of the phase and of what the containers wait for or ended with."},
		{Name: "Restarts", Type: "string",
			Description: "How often containers were restarted, and when the last one ended."},
		{Name: "Age", Type: "string", Description: "Time since the pod was created."},
		{Name: "IP", Type: "string", Priority: 1, Description: "First address of the pod."},
		{Name: "Node", Type: "string", Priority: 1, Description: "Node the pod is bound to."},
		{Name: "Nominated Node", Type: "string", Priority: 1,
			Description: "Node the pod may get once others have left it."},
		{Name: "Readiness Gates", Type: "string", Priority: 1, Description: "Readiness gates that are true, of all."},
	}
}

// ConvertToTable implements rest.TableConvertor.
func (TableConvertor) ConvertToTable(_ context.Context, obj, options runtime.Object) (*metav1.Table, error) {
	t := &metav1.Table{}
	if o, ok := options.(*metav1.TableOptions); !ok || !o.NoHeaders {
		t.ColumnDefinitions = columns()
	}
	now := time.Now()
	switch o := obj.(type) {
	case *corev1.Pod:
		t.ResourceVersion = o.ResourceVersion
		t.Rows = []metav1.TableRow{row(o, now)}
	case *corev1.PodList:
		t.ListMeta = metav1.ListMeta{ResourceVersion: o.ResourceVersion, Continue: o.Continue,
			RemainingItemCount: o.RemainingItemCount}
		t.Rows = make([]metav1.TableRow, len(o.Items))
		for i := range o.Items {
			t.Rows[i] = row(&o.Items[i], now)
		}
	default:
		return nil, fmt.Errorf("print a table of pods: unexpected %T", obj)
	}
	return t, nil
}

func row(p *corev1.Pod, now time.Time) metav1.TableRow {
	s := summarize(p, now)
	ip := none
	if len(p.Status.PodIPs) > 0 && p.Status.PodIPs[0].IP != "" {
		ip = p.Status.PodIPs[0].IP
	}
	r := metav1.TableRow{
		Object: runtime.RawExtension{Object: p},
		Cells: []any{
			p.Name, fmt.Sprintf("%d/%d", s.ready, s.total), s.status, s.restarts, age(p.CreationTimestamp, now),
			ip, orNone(p.Spec.NodeName), orNone(p.Status.NominatedNodeName), gates(p),
		},
	}
	switch p.Status.Phase {
	case corev1.PodSucceeded:
		r.Conditions = completedRow(p.Status.Phase, "The pod has completed successfully.")
	case corev1.PodFailed:
		r.Conditions = completedRow(p.Status.Phase, "The pod failed.")
	}
	return r
}

func completedRow(phase corev1.PodPhase, message string) []metav1.TableRowCondition {
	return []metav1.TableRowCondition{{Type: metav1.RowCompleted, Status: metav1.ConditionTrue, Reason: string(phase),
		Message: message}}
}

func orNone(s string) string {
	if s == "" {
		return none
	}
	return s
}

func age(t metav1.Time, now time.Time) string {
	if t.IsZero() {
		return unknown
	}
	return duration.HumanDuration(now.Sub(t.Time))
}

// gates returns how many readiness gates are true, and their number.
func gates(p *corev1.Pod) string {
	if len(p.Spec.ReadinessGates) == 0 {
		return none
	}
	met := 0
	for _, g := range p.Spec.ReadinessGates {
		if podstatus.ConditionTrue(p.Status.Conditions, g.ConditionType) {
			met++
		}
	}
	return fmt.Sprintf("%d/%d", met, len(p.Spec.ReadinessGates))
}

// summary is the content of the cells READY, STATUS, and RESTARTS.
type summary struct {
	ready, total     int
	status, restarts string
}

// summarize computes READY, STATUS, and RESTARTS (L1.121–L1.124).
func summarize(p *corev1.Pod, now time.Time) summary {
	w := walk{pod: p, status: string(p.Status.Phase)}
	if p.Status.Reason != "" {
		w.status = p.Status.Reason
	}
	if c := podstatus.Condition(p.Status.Conditions, corev1.PodScheduled); c != nil &&
		c.Reason == corev1.PodReasonSchedulingGated {
		w.status = corev1.PodReasonSchedulingGated
	}
	initializing := w.initContainers()
	if !initializing || podstatus.ConditionTrue(p.Status.Conditions, corev1.PodInitialized) {
		w.containers()
	}
	if p.DeletionTimestamp != nil {
		switch {
		case p.Status.Reason == "NodeLost":
			w.status = unknownStatus
		case p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed:
			w.status = "Terminating"
		}
	}
	return summary{ready: w.ready, total: len(p.Spec.Containers) + w.sidecars(), status: w.status,
		restarts: w.restartsText(now)}
}

const unknownStatus = "Unknown"

// walk iterates over the container statuses of one pod.
type walk struct {
	pod             *corev1.Pod
	status          string
	ready           int
	restarts        int
	sidecarRestarts int
	lastEnd         metav1.Time // latest end of the containers counted in restarts
	sidecarLastEnd  metav1.Time
}

func (w *walk) sidecars() int {
	n := 0
	for i := range w.pod.Spec.InitContainers {
		if resources.IsSidecar(&w.pod.Spec.InitContainers[i]) {
			n++
		}
	}
	return n
}

// initContainers reports whether the pod is still initializing, and in which state.
func (w *walk) initContainers() bool {
	sidecars := map[string]bool{}
	for i := range w.pod.Spec.InitContainers {
		if c := &w.pod.Spec.InitContainers[i]; resources.IsSidecar(c) {
			sidecars[c.Name] = true
		}
	}
	for i := range w.pod.Status.InitContainerStatuses {
		c := &w.pod.Status.InitContainerStatuses[i]
		w.restarts += int(c.RestartCount)
		newest(&w.lastEnd, c)
		if sidecars[c.Name] {
			w.sidecarRestarts += int(c.RestartCount)
			newest(&w.sidecarLastEnd, c)
		}
		switch t := c.State.Terminated; {
		case t != nil && t.ExitCode == 0:
			continue
		case sidecars[c.Name] && c.Started != nil && *c.Started:
			if c.Ready {
				w.ready++
			}
			continue
		case t != nil:
			w.status = "Init:" + terminated(t)
		case c.State.Waiting != nil && c.State.Waiting.Reason != "" && c.State.Waiting.Reason != "PodInitializing":
			w.status = "Init:" + c.State.Waiting.Reason
		default:
			w.status = fmt.Sprintf("Init:%d/%d", i, len(w.pod.Spec.InitContainers))
		}
		return true
	}
	return false
}

// containers iterates backwards, so that the first container decides.
func (w *walk) containers() {
	w.restarts, w.lastEnd = w.sidecarRestarts, w.sidecarLastEnd
	running := false
	errorReason := ""
	for i := len(w.pod.Status.ContainerStatuses) - 1; i >= 0; i-- {
		c := &w.pod.Status.ContainerStatuses[i]
		w.restarts += int(c.RestartCount)
		newest(&w.lastEnd, c)
		switch t := c.State.Terminated; {
		case c.State.Waiting != nil && c.State.Waiting.Reason != "":
			w.status = c.State.Waiting.Reason
		case t != nil:
			w.status = terminated(t)
			if t.ExitCode != 0 {
				errorReason = w.status
			}
		case c.Ready && c.State.Running != nil:
			running = true
			w.ready++
		}
	}
	if w.status != completed {
		return
	}
	switch {
	case running && podstatus.ConditionTrue(w.pod.Status.Conditions, corev1.PodReady):
		w.status = "Running"
	case errorReason != "":
		w.status = errorReason
	case running:
		w.status = "NotReady"
	}
}

// terminated formats how a container terminated.
func terminated(t *corev1.ContainerStateTerminated) string {
	switch {
	case t.Reason != "":
		return t.Reason
	case t.Signal != 0:
		return "Signal:" + strconv.Itoa(int(t.Signal))
	}
	return "ExitCode:" + strconv.Itoa(int(t.ExitCode))
}

// newest sets t to the end of the previous run of c if that is later.
func newest(t *metav1.Time, c *corev1.ContainerStatus) {
	if last := c.LastTerminationState.Terminated; last != nil && t.Before(&last.FinishedAt) {
		*t = last.FinishedAt
	}
}

// restartsText is the number of restarts, with the age of the latest one (L1.123).
func (w *walk) restartsText(now time.Time) string {
	if w.restarts == 0 || w.lastEnd.IsZero() {
		return strconv.Itoa(w.restarts)
	}
	return fmt.Sprintf("%d (%s ago)", w.restarts, age(w.lastEnd, now))
}
