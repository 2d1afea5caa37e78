package webui

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"carob/internal/base/journal"
	"carob/internal/base/seconds"
)

// The stages of a pod, in the order of a life without failures.
const (
	stageSchedule = "schedule" // it has no node
	stagePrepare  = "prepare"  // its volumes and its sandbox are made, or the node has not begun
	stagePull     = "pull"
	stageCreate   = "create" // a container is created and started, or its hook runs
	stageWait     = "wait"   // it has a sandbox, and waits for something else, such as an image that is missing
	stageRun      = "run"    // a container runs, the pod is not ready
	stageReady    = "ready"
	stageBackOff  = "backoff"
	stageStop     = "stop"
	stageDone     = "done"
	stageFailed   = "failed"
)

// mostStages limits the stages that are kept of a pod: the first, and the newest.
const mostStages = 24

// stage is what a pod did from a time on, until the next stage.
type stage struct {
	at   time.Time
	what string
}

// lane follows the entries of one pod in its node's timeline.
type lane struct {
	whole    bool // it has seen how the pod began; else earlier entries are gone, and the state is not known
	bound    bool
	made     bool // it has a sandbox
	ready    bool
	ended    string // stageDone or stageFailed
	stopping bool
	open     map[string]string // stages of actions that have begun and not ended, by their key
	names    map[string]string // containers of these actions
	running  map[string]bool   // by container
	backOff  map[string]bool   // by container
	stages   []stage
}

func newLane() *lane {
	return &lane{open: map[string]string{}, names: map[string]string{}, running: map[string]bool{},
		backOff: map[string]bool{}}
}

// mostTracked limits the actions and containers that a lane follows at once.
const mostTracked = 256

// add takes the next entry. It reports whether the stages changed.
func (l *lane) add(e *journal.Entry) bool {
	if len(l.open)+len(l.running)+len(l.backOff) > mostTracked {
		clear(l.open)
		clear(l.names)
	}
	kind, _, _ := strings.Cut(e.Key, "/")
	switch e.Kind {
	case journal.Schedule:
		l.whole = true
		l.bound = l.bound || e.Key != ""
	case journal.ActionBegin:
		l.begin(kind, e)
	case journal.ActionEnd:
		l.end(kind, e)
	case journal.Status:
		l.status(e)
	case journal.Wait:
		if e.Key == "back-off" {
			l.backOff[e.Object] = true
			delete(l.running, e.Object)
		}
	case journal.Life:
		switch e.Key {
		case "terminating", "terminated":
			l.stopping = true
		case "finished":
			l.stopping = true
			clear(l.running)
		}
	case journal.API, journal.Event:
	}
	what := l.stage()
	if !l.whole || len(l.stages) > 0 && l.stages[len(l.stages)-1].what == what {
		return false
	}
	if len(l.stages) == mostStages {
		l.stages = slices.Delete(l.stages, 1, 2)
	}
	l.stages = append(l.stages, stage{e.Time, what})
	return true
}

func (l *lane) begin(kind string, e *journal.Entry) {
	l.bound = true
	what := map[string]string{"volumes": stagePrepare, "sandbox": stagePrepare, "pull": stagePull, "start": stageCreate,
		"hook": stageCreate, "stop": stageStop}[kind]
	switch e.Key {
	case "volumes/prepare", "sandbox/create/0":
		l.whole = true
	case "volumes/remove":
		what = stageStop
	}
	if strings.HasPrefix(e.Key, "sandbox/stop/") || strings.HasPrefix(e.Key, "sandbox/remove/") {
		what = stageStop
	}
	if what != "" {
		l.open[e.Key], l.names[e.Key] = what, e.Object
	}
	if kind == "start" || kind == "pull" {
		delete(l.backOff, e.Object)
	}
}

func (l *lane) end(kind string, e *journal.Entry) {
	name := e.Object
	if name == "" {
		name = l.names[e.Key]
	}
	delete(l.open, e.Key)
	delete(l.names, e.Key)
	switch {
	case strings.HasPrefix(e.Key, "sandbox/create/"):
		l.made = e.Error == ""
	case kind == "start" && e.Error == "":
		l.running[name] = true
	case kind == "stop":
		delete(l.running, name)
	}
}

func (l *lane) status(e *journal.Entry) {
	switch e.Key {
	case "Ready":
		l.ready = e.Detail == string(corev1.ConditionTrue)
	case "exit":
		delete(l.running, e.Object)
	case "phase":
		switch corev1.PodPhase(e.Detail) {
		case corev1.PodSucceeded:
			l.ended = stageDone
		case corev1.PodFailed:
			l.ended = stageFailed
		case corev1.PodPending, corev1.PodRunning, corev1.PodUnknown:
		}
	}
}

// stage is what the pod does now.
func (l *lane) stage() string {
	has := func(what string) bool {
		for _, o := range l.open { // any order: only whether there is one
			if o == what {
				return true
			}
		}
		return false
	}
	switch {
	case l.ended != "":
		return l.ended
	case l.stopping:
		return stageStop
	case has(stagePull):
		return stagePull
	case has(stagePrepare):
		return stagePrepare
	case has(stageCreate):
		return stageCreate
	case l.ready:
		return stageReady
	case len(l.running) > 0:
		return stageRun
	case len(l.backOff) > 0:
		return stageBackOff
	case l.made:
		return stageWait
	case l.bound:
		return stagePrepare
	}
	return stageSchedule
}

// stagesOf returns the stages of a pod: those of its node's timeline behind its creation, or those that the times in
// its status show, which are whole seconds, if there is no timeline of it.
func stagesOf(p *corev1.Pod, l *lane) (out []stage, exact bool) {
	if l == nil || !l.whole || len(l.stages) == 0 {
		return fromStatus(p), false
	}
	if at := p.CreationTimestamp.Time; at.Before(l.stages[0].at) && l.stages[0].what != stageSchedule {
		out = append(out, stage{at, stageSchedule})
	}
	return append(out, l.stages...), true
}

// fromStatus returns the stages that the times in a status show.
func fromStatus(p *corev1.Pod) []stage {
	out := []stage{{p.CreationTimestamp.Time, stageSchedule}}
	add := func(at time.Time, what string) {
		if last := out[len(out)-1]; last.what != what {
			if at.Before(last.at) {
				at = last.at
			}
			out = append(out, stage{at, what})
		}
	}
	var started, ended time.Time
	waiting := false
	for _, list := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
		for i := range list {
			s := &list[i]
			if r := s.State.Running; r != nil && (started.IsZero() || r.StartedAt.Time.Before(started)) {
				started = r.StartedAt.Time
			}
			last := s.LastTerminationState.Terminated
			for _, t := range []*corev1.ContainerStateTerminated{s.State.Terminated, last} {
				if t != nil && t.FinishedAt.Time.After(ended) {
					ended = t.FinishedAt.Time
				}
			}
			waiting = waiting || s.State.Waiting != nil && s.RestartCount > 0
		}
	}
	ready := time.Time{}
	for _, c := range p.Status.Conditions {
		switch {
		case c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue:
			add(c.LastTransitionTime.Time, stagePrepare)
		case c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue:
			ready = c.LastTransitionTime.Time
		}
	}
	switch {
	case p.Status.Phase == corev1.PodSucceeded:
		add(ended, stageDone)
	case p.Status.Phase == corev1.PodFailed:
		add(ended, stageFailed)
	case waiting && started.IsZero():
		add(ended, stageBackOff)
	case !started.IsZero():
		add(started, stageRun)
	}
	if !ready.IsZero() {
		add(ready, stageReady)
	}
	if p.DeletionTimestamp != nil {
		grace := time.Duration(0)
		if s := p.DeletionGracePeriodSeconds; s != nil {
			grace = seconds.Duration(max(*s, 0))
		}
		add(p.DeletionTimestamp.Add(-grace), stageStop)
	}
	return out
}
