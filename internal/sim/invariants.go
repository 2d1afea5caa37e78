package sim

import "fmt"

// Invariant is an invariant of the pod lifecycle that every run checks.
type Invariant struct {
	Name   string
	Text   string
	Clause string // clauses of the specification, or the section of the design
}

func (i Invariant) String() string { return fmt.Sprintf("%s: %s (%s)", i.Name, i.Text, i.Clause) }

// Invariants about time hold only in runs without faults.
var (
	singleInstance = Invariant{"single-instance", "never two running containers of one name", "L3.70"}
	initFirst      = Invariant{"init-first", "a container starts after the init containers before it are done",
		"L3.72–L3.74"}
	initOnce = Invariant{"init-once", "an init container that is done does not run again in its sandbox",
		"L3.74"}
	postStartFirst = Invariant{"post-start-first", "a container starts after the postStart hooks before it",
		"L3.56, L6.1"}
	volumesMounted  = Invariant{"volumes-mounted", "containers start after the volumes are mounted", "L3.50"}
	pullPolicyKept  = Invariant{"pull-policy-kept", "Always pulls before each start, Never does not pull", "L3.100"}
	policyKept      = Invariant{"policy-kept", "the restart policy and rules decide whether a container restarts", "L3.70"}
	ephemeralOnce   = Invariant{"ephemeral-once", "an ephemeral container runs once", "L3.71"}
	backoffKept     = Invariant{"back-off-kept", "a container restarts only after its back-off", "L3.75"}
	restartedInTime = Invariant{"restarted-in-time", "a container restarts when its back-off is over", "L3.75"}
	retryWaits      = Invariant{"retry-waits", "a failed action is not begun again at once", "L0.34"}
	probedInTime    = Invariant{"probed-in-time", "a probe runs every period", "L5.11"}
	livenessKills   = Invariant{"liveness-kills", "a failing liveness probe stops a container", "L5.32"}
	trafficFirst    = Invariant{"traffic-first",
		"no hook and no signal ends a container of a deleted pod while new connections are sent to it", "N8.13, N8.14"}
	preStopFirst    = Invariant{"pre-stop-first", "SIGTERM comes after preStop, or after the grace period", "L6.5, L6.8"}
	preStopOnce     = Invariant{"pre-stop-once", "preStop runs once for an instance", "L6.5"}
	sidecarsLast    = Invariant{"sidecars-last", "sidecars stop after the regular containers, in reverse order", "L7.61"}
	leastGrace      = Invariant{"least-grace", "the grace period given to the runtime is at least 2 s", "L0.39, L12.3"}
	graceKept       = Invariant{"grace-kept", "the grace period given to the runtime is at most the pod's", "L7.15"}
	killedInTime    = Invariant{"killed-in-time", "nothing runs after the grace period", "L6.14"}
	deadlineKept    = Invariant{"deadline-kept", "a pod ends at its active deadline", "L4.6"}
	noStartWhenOver = Invariant{"no-start-when-over", "nothing is started for a pod that ends", "L7.28, L12.14"}
	abortedAtOnce   = Invariant{"aborted-at-once", "actions that would start something are aborted when the pod ends",
		"design 7, L12.25"}
	volumesLast     = Invariant{"volumes-last", "volumes and sandboxes are removed after the containers", "L7.36"}
	runningIsKept   = Invariant{"running-is-kept", "no running container is removed", "L7.130"}
	deadIsCollected = Invariant{"dead-is-collected", "at most one exited instance of a container is kept", "L7.130"}
	deletedIsEnded  = Invariant{"deleted-is-ended", "the object is deleted after a terminal phase and all cleanup", "L7.40"}
	deletedEnds     = Invariant{"deleted-ends", "a deleted pod always ends", "L1.98"}
	stoppedEnds     = Invariant{"stopped-ends", "a pod that the node ends gets a terminal phase", "L7.150, L7.156"}
	stopKept        = Invariant{"stop-kept", "a pod that the node ended is Failed for that reason", "L7.150, L7.156"}
	rejectedIsOver  = Invariant{"rejected-is-over", "a pod that the node rejected never runs, and its status has the reason", "L3.12"}
	nothingLeft     = Invariant{"nothing-left", "a finished pod leaves nothing behind", "L7.35"}
	phaseLatched    = Invariant{"phase-latched", "a terminal phase is never left", "L4.4, L4.7"}
	terminalIsStill = Invariant{"terminal-is-still", "no terminal phase while a container runs", "L4.59"}
	succeededMeans  = Invariant{"succeeded-means", "a pod is Succeeded when every container exited with 0", "L4.18"}
	staticLives     = Invariant{"static-lives", "a static pod that is removed gets no terminal phase", "L7.115"}
	countsRise      = Invariant{"counts-rise", "restartCount never falls", "L3.88, L12.13"}
	countsGoOn      = Invariant{"counts-go-on", "restartCount continues after the newest log file", "L3.88"}
	imageUsed       = Invariant{"image-used",
		"a container starts when its image is present, whoever pulled it", "L3.103, L3.104, L3.113"}
	heldWaits     = Invariant{"held-waits", "no action begins for a pod that waits for room", "L3.10, L3.40"}
	statusAllowed = Invariant{"status-allowed", "a status is valid (core/podstatus)",
		"L4, L12"}
	changeAllowed = Invariant{"change-allowed", "a status may follow the one before (core/podstatus)",
		"L1.74, L4, L12.13"}
	generationRises = Invariant{"generation-rises", "observedGeneration never falls", "L0.6"}
	readyRuns       = Invariant{"ready-runs", "a container that is ready runs", "L4.40, L4.41"}
	readyMeans      = Invariant{"ready-means", "a pod is Ready when all containers and gates are", "L4.53, L4.54"}
	endedNotReady   = Invariant{"ended-not-ready", "an ended pod is not ready", "L4.58"}
	othersKept      = Invariant{"others-kept", "conditions of other writers are kept", "L1.73, L4.8"}
	conditionTime   = Invariant{"condition-time", "lastTransitionTime changes only with the status", "L1.74, L12.24"}
	startTimeFixed  = Invariant{"start-time-fixed", "startTime is set once", "L1.75"}
	addressesKept   = Invariant{"addresses-kept", "the addresses of a pod are kept in its status", "L7.27"}
	resizeGranted   = Invariant{"resize-granted", "a container gets exactly what the node allocated", "L3.120"}
	groupFirst      = Invariant{"group-first", "a container never gets more than its pod's cgroup", "L3.125"}
	resizeEnds      = Invariant{"resize-ends", "a resize takes effect, or the status has the reason why not", "L3.121, L3.122"}
	resizeOver      = Invariant{"resize-over", "an ended pod has no resize conditions", "L4.56"}
	resetEnds       = Invariant{"reset-ends", "a restart of all containers is completed", "L3.80"}
	lifeForward     = Invariant{"life-forward", "Life never goes back", "L7.1"}
	waitHasWake     = Invariant{"wait-has-wake", "an action in flight or a Wake ends every wait", "design 4"}
	neverSilent     = Invariant{"never-silent", "a pod that waits says for what", "design 1.4"}
	wakeAhead       = Invariant{"wake-ahead", "Wake is after now", "design 4"}
	idleIsQuiet     = Invariant{"idle-is-quiet", "a pod that waits for nothing has no Wake", "design 1.2"}
	deterministic   = Invariant{"deterministic", "Step with the same input returns the same, also with a restored state", "design 4"}
	quiescent       = Invariant{"quiescent", "Step again at once decides nothing", "design 4"}
	oneKey          = Invariant{"one-key", "no action is begun while its key is in flight", "design 4"}
	noPanic         = Invariant{"no-panic", "nothing panics", "style"}
	recovers        = Invariant{"recovers",
		"after the last fault, every pod recovers or says what it waits for", "design 1.4"}
	statusTrue = Invariant{"status-true", "after the last fault, the status is correct",
		"L4.28, L8.30"}
	oneSandbox = Invariant{"one-sandbox", "after the last fault, a pod has one sandbox", "L3.57"}
)

// Invariants lists all of them, in reading order.
var Invariants = []Invariant{
	singleInstance, initFirst, initOnce, postStartFirst, volumesMounted, pullPolicyKept, policyKept, ephemeralOnce,
	backoffKept, restartedInTime,
	retryWaits, probedInTime, livenessKills, trafficFirst, preStopFirst, preStopOnce, sidecarsLast, leastGrace,
	graceKept, killedInTime, deadlineKept,
	noStartWhenOver, abortedAtOnce, volumesLast, runningIsKept, deadIsCollected, deletedIsEnded, deletedEnds,
	stoppedEnds, stopKept, rejectedIsOver,
	nothingLeft, phaseLatched, terminalIsStill, succeededMeans, staticLives, countsRise, countsGoOn, imageUsed,
	heldWaits, statusAllowed, changeAllowed, generationRises, readyRuns, readyMeans, endedNotReady,
	othersKept, conditionTime, startTimeFixed, addressesKept, resizeGranted, groupFirst, resizeEnds, resizeOver,
	resetEnds, lifeForward,
	waitHasWake, neverSilent, wakeAhead, idleIsQuiet, deterministic, quiescent, oneKey, noPanic, recovers, statusTrue,
	oneSandbox,
}

// broken ends the run, unless the run checks only another invariant.
func (w *world) broken(i Invariant, pod, format string, args ...any) {
	if w.only != nil && *w.only != i {
		return
	}
	panic(&Violation{Options: w.opts, At: w.loop.now.Sub(epoch), Invariant: i, Pod: pod,
		Detail: fmt.Sprintf(format, args...)})
}
