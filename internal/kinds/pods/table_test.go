package pods

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"
)

// STATUS, READY, and RESTARTS by the algorithm of L1.121–L1.124.
func TestSummary(t *testing.T) {
	now := time.Date(2026, 1, 1, 1, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		name          string
		pod           string // spec and status
		ready, status string
		restarts      string
	}{
		{"fresh", `{spec: {containers: [{name: a}]}, status: {phase: Pending}}`, "0/1", "Pending", "0"},
		{"step 1: reason of the pod", `{spec: {containers: [{name: a}]}, status: {phase: Failed, reason: Evicted}}`,
			"0/1", "Evicted", "0"},
		{"step 2: gated",
			`{spec: {containers: [{name: a}]}, status: {phase: Pending, conditions: [{type: PodScheduled, status: "False", reason: SchedulingGated}]}}`, "0/1", "SchedulingGated", "0"},
		{"step 3: first of two init containers runs",
			`{spec: {initContainers: [{name: i}, {name: j}], containers: [{name: a}]}, status: {phase: Pending, initContainerStatuses: [{name: i, state: {running: {}}}, {name: j, state: {waiting: {reason: PodInitializing}}}], containerStatuses: [{name: a, state: {waiting: {reason: PodInitializing}}}]}}`, "0/1", "Init:0/2", "0"},
		{"step 3: init crash loop",
			`{spec: {initContainers: [{name: i}], containers: [{name: a}]}, status: {phase: Pending, initContainerStatuses: [{name: i, restartCount: 2, state: {waiting: {reason: CrashLoopBackOff}}}]}}`, "0/1", "Init:CrashLoopBackOff", "2"},
		{"step 3: init ended badly",
			`{spec: {initContainers: [{name: i}], containers: [{name: a}]}, status: {phase: Pending, initContainerStatuses: [{name: i, state: {terminated: {exitCode: 3}}}]}}`, "0/1", "Init:ExitCode:3", "0"},
		{"step 3: init killed by a signal",
			`{spec: {initContainers: [{name: i}], containers: [{name: a}]}, status: {phase: Pending, initContainerStatuses: [{name: i, state: {terminated: {exitCode: 3, signal: 9}}}]}}`, "0/1", "Init:Signal:9", "0"},
		{"step 3: init ended with a reason",
			`{spec: {initContainers: [{name: i}], containers: [{name: a}]}, status: {phase: Pending, initContainerStatuses: [{name: i, state: {terminated: {exitCode: 1, reason: Error}}}]}}`, "0/1", "Init:Error", "0"},
		{"L1.124: init complete, container not yet",
			`{spec: {initContainers: [{name: i}], containers: [{name: a}]}, status: {phase: Pending, initContainerStatuses: [{name: i, state: {terminated: {exitCode: 0}}}], containerStatuses: [{name: a, state: {waiting: {reason: PodInitializing}}}]}}`, "0/1", "PodInitializing", "0"},
		{"L1.124: creating",
			`{spec: {containers: [{name: a}]}, status: {phase: Pending, containerStatuses: [{name: a, state: {waiting: {reason: ContainerCreating}}}]}}`, "0/1", "ContainerCreating", "0"},
		{"running", `{spec: {containers: [{name: a}]}, status: {phase: Running, containerStatuses: [{name: a, ready: true, state: {running: {}}}]}}`, "1/1", "Running", "0"},
		{"step 4: the first container has the last word",
			`{spec: {containers: [{name: a}, {name: b}]}, status: {phase: Running, containerStatuses: [{name: a, state: {waiting: {reason: ImagePullBackOff}}}, {name: b, state: {waiting: {reason: CrashLoopBackOff}}}]}}`, "0/2", "ImagePullBackOff", "0"},
		{"step 4: completed beside running and ready",
			`{spec: {containers: [{name: a}, {name: b}]}, status: {phase: Running, conditions: [{type: Ready, status: "True"}], containerStatuses: [{name: a, state: {terminated: {exitCode: 0, reason: Completed}}}, {name: b, ready: true, state: {running: {}}}]}}`, "1/2", "Running", "0"},
		{"step 4: completed beside running, pod not ready",
			`{spec: {containers: [{name: a}, {name: b}]}, status: {phase: Running, containerStatuses: [{name: a, state: {terminated: {exitCode: 0, reason: Completed}}}, {name: b, ready: true, state: {running: {}}}]}}`, "1/2", "NotReady", "0"},
		{"step 4: completed beside an error",
			`{spec: {containers: [{name: a}, {name: b}]}, status: {phase: Failed, containerStatuses: [{name: a, state: {terminated: {exitCode: 0, reason: Completed}}}, {name: b, state: {terminated: {exitCode: 1, reason: Error}}}]}}`, "0/2", "Error", "0"},
		{"step 5: terminating",
			`{metadata: {deletionTimestamp: "2026-01-01T00:00:00Z"}, spec: {containers: [{name: a}]}, status: {phase: Running, containerStatuses: [{name: a, ready: true, state: {running: {}}}]}}`, "1/1", "Terminating", "0"},
		{"step 5: node lost",
			`{metadata: {deletionTimestamp: "2026-01-01T00:00:00Z"}, spec: {containers: [{name: a}]}, status: {phase: Running, reason: NodeLost}}`, "0/1", "Unknown", "0"},
		{"step 5: finished pods don't terminate",
			`{metadata: {deletionTimestamp: "2026-01-01T00:00:00Z"}, spec: {containers: [{name: a}]}, status: {phase: Succeeded, containerStatuses: [{name: a, state: {terminated: {exitCode: 0, reason: Completed}}}]}}`, "0/1", "Completed", "0"},
		{"L1.122: a started sidecar counts",
			`{spec: {initContainers: [{name: s, restartPolicy: Always}], containers: [{name: a}]}, status: {phase: Running, initContainerStatuses: [{name: s, ready: true, started: true, restartCount: 1, state: {running: {}}}], containerStatuses: [{name: a, ready: true, restartCount: 2, state: {running: {}}}]}}`, "2/2", "Running", "3"},
		{"L1.123: init restarts are forgotten once containers run",
			`{spec: {initContainers: [{name: i}], containers: [{name: a}]}, status: {phase: Running, initContainerStatuses: [{name: i, restartCount: 5, state: {terminated: {exitCode: 0}}}], containerStatuses: [{name: a, ready: true, restartCount: 3, state: {running: {}}, lastState: {terminated: {finishedAt: "2026-01-01T00:54:48Z"}}}]}}`, "1/1", "Running", "3 (5m12s ago)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var p corev1.Pod
			if err := yaml.UnmarshalStrict([]byte(c.pod), &p); err != nil {
				t.Fatal(err)
			}
			r := row(&p, now)
			if r.Cells[1] != c.ready || r.Cells[2] != c.status || r.Cells[3] != c.restarts {
				t.Errorf("%v, want %s %s %s", r.Cells[1:4], c.ready, c.status, c.restarts)
			}
		})
	}
}

// L1.120
func TestTable(t *testing.T) {
	finished := pod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })
	running := pod(func(p *corev1.Pod) {
		p.Status.PodIPs = []corev1.PodIP{{IP: "10.0.0.1"}, {IP: "fd00::1"}}
		p.Status.NominatedNodeName = "n2"
		p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "a/b"}, {ConditionType: "c/d"}}
		p.Status.Conditions = []corev1.PodCondition{{Type: "a/b", Status: corev1.ConditionTrue}}
	})
	list := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "7", Continue: "c",
		RemainingItemCount: ptr.To[int64](3)}, Items: []corev1.Pod{*finished, *running}}
	table, err := TableConvertor{}.ConvertToTable(context.Background(), list, nil)
	if err != nil {
		t.Fatal(err)
	}
	if table.ResourceVersion != "7" || table.Continue != "c" || *table.RemainingItemCount != 3 {
		t.Errorf("list metadata %+v", table.ListMeta)
	}
	wide := 0
	for i, c := range table.ColumnDefinitions {
		if c.Priority > 0 {
			wide++
			if i < 5 {
				t.Errorf("column %s is wide", c.Name)
			}
		}
	}
	if len(table.ColumnDefinitions) != 9 || wide != 4 {
		t.Errorf("%d columns, %d wide; want 9 and 4", len(table.ColumnDefinitions), wide)
	}
	a, b := table.Rows[0], table.Rows[1]
	if len(a.Conditions) != 1 || a.Conditions[0].Type != metav1.RowCompleted || a.Conditions[0].Reason != "Failed" ||
		a.Conditions[0].Message != "The pod failed." {
		t.Errorf("conditions of a failed pod's row: %v", a.Conditions)
	}
	if a.Cells[5] != "<none>" || a.Cells[8] != "<none>" || len(b.Conditions) != 0 {
		t.Errorf("row of a pod without address: %v", a.Cells)
	}
	if b.Cells[5] != "10.0.0.1" || b.Cells[6] != "n1" || b.Cells[7] != "n2" || b.Cells[8] != "1/2" {
		t.Errorf("wide cells %v", b.Cells[5:])
	}
	table, err = TableConvertor{}.ConvertToTable(context.Background(), running, &metav1.TableOptions{NoHeaders: true})
	if err != nil || table.ColumnDefinitions != nil || len(table.Rows) != 1 {
		t.Errorf("without headers: %v, %v", table, err)
	}
}
