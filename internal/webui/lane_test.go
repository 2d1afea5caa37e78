package webui

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"carob/internal/base/journal"
)

// lived adds entries, one per second, and returns the stages.
func lived(l *lane, entries ...journal.Entry) string {
	for i := range entries {
		entries[i].Time = time.Unix(int64(i), 0)
		l.add(&entries[i])
	}
	return stagesText(l.stages)
}

func stagesText(all []stage) string {
	var out []string
	for _, s := range all {
		out = append(out, fmt.Sprintf("%d:%s", s.at.Unix(), s.what))
	}
	return strings.Join(out, " ")
}

func TestLane(t *testing.T) {
	begin := func(key, object string) journal.Entry {
		return journal.Entry{Kind: journal.ActionBegin, Key: key, Object: object}
	}
	end := func(key string) journal.Entry { return journal.Entry{Kind: journal.ActionEnd, Key: key} }
	failed := func(key string) journal.Entry {
		return journal.Entry{Kind: journal.ActionEnd, Key: key, Error: "no"}
	}
	status := func(key, detail string) journal.Entry {
		return journal.Entry{Kind: journal.Status, Key: key, Detail: detail}
	}
	placed := journal.Entry{Kind: journal.Schedule, Key: "n1"}
	unplaced := journal.Entry{Kind: journal.Schedule}
	backOff := journal.Entry{Kind: journal.Wait, Key: "back-off", Object: "c"}
	start := []journal.Entry{unplaced, placed, begin("sandbox/create/0", ""), begin("pull/c", "c"),
		end("sandbox/create/0"), end("pull/c"), begin("start/c/0", "c"), end("start/c/0"), status("Ready", "True")}
	const started = "0:schedule 1:prepare 3:pull 5:wait 6:create 7:run 8:ready"
	for _, c := range []struct {
		name string
		then []journal.Entry
		want string
	}{
		{"ready", nil, started},
		{"a probe changes nothing", []journal.Entry{end("probe/c/readiness/1")}, started},
		{"not ready", []journal.Entry{status("Ready", "False")}, started + " 9:run"},
		{"crash", []journal.Entry{{Kind: journal.Status, Key: "exit", Object: "c"}, status("Ready", "False"), backOff,
			begin("start/c/1", "c"), failed("start/c/1")}, started + " 10:wait 11:backoff 12:create 13:wait"},
		{"deleted", []journal.Entry{{Kind: journal.Life, Key: "terminating"}, begin("stop/id", "c"), end("stop/id"),
			{Kind: journal.Life, Key: "finished"}}, started + " 9:stop"},
		{"completed", []journal.Entry{status("phase", "Succeeded")}, started + " 9:done"},
		{"failed", []journal.Entry{status("phase", "Failed")}, started + " 9:failed"},
	} {
		if got := lived(newLane(), slices.Concat(start, c.then)...); got != c.want {
			t.Errorf("%s:\n%s\nwant:\n%s", c.name, got, c.want)
		}
	}
	// The beginning is gone from the timeline: what the entries show is not the whole state.
	l := newLane()
	if got := lived(l, status("Ready", "True"), end("probe/c/liveness/9")); got != "" || l.whole {
		t.Errorf("without a beginning: %q", got)
	}
	// A pod that crashes for ever has a bounded lane, with its beginning.
	l = newLane()
	lived(l, start...)
	for i := range 1000 {
		name := fmt.Sprint("c", i)
		l.add(&journal.Entry{Kind: journal.ActionBegin, Key: "start/" + name, Object: name})
		l.add(&journal.Entry{Kind: journal.Status, Key: "Ready", Detail: []string{"True", "False"}[i%2]})
	}
	if len(l.stages) > mostStages || l.stages[0].what != stageSchedule || len(l.open) > mostTracked+1 {
		t.Errorf("%d stages, %d actions", len(l.stages), len(l.open))
	}
}

func TestStagesFromStatus(t *testing.T) {
	at := func(second int64) metav1.Time { return metav1.NewTime(time.Unix(second, 0)) }
	p := pod("web")
	p.CreationTimestamp = at(0)
	want := func(name, stages string) {
		t.Helper()
		got, exact := stagesOf(p, nil)
		if stagesText(got) != stages || exact {
			t.Errorf("%s: %s, exact %v; want %s", name, stagesText(got), exact, stages)
		}
	}
	want("new", "0:schedule")
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue,
		LastTransitionTime: at(1)}}
	want("placed", "0:schedule 1:prepare")
	s := &corev1.ContainerStatus{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: at(3)}}}
	p.Status.ContainerStatuses = []corev1.ContainerStatus{*s}
	want("runs", "0:schedule 1:prepare 3:run")
	p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady,
		Status: corev1.ConditionTrue, LastTransitionTime: at(2)}) // clocks may disagree
	want("ready", "0:schedule 1:prepare 3:run 3:ready")
	grace := int64(30)
	deleted := at(40)
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &deleted, &grace
	want("deleted", "0:schedule 1:prepare 3:run 3:ready 10:stop")
	grace = math.MaxInt64 // any pod may ask for it: the times stay in their order
	want("deleted with a very long grace", "0:schedule 1:prepare 3:run 3:ready 3:stop")
}
