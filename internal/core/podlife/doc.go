// Package podlife decides what must happen to one pod.
//
// It is one pure function, Step, and the State that it hands from one call to the next.
// It reads no clock, does no I/O, starts no goroutine, keeps no package variable, and
// ranges over no map. The node agent (internal/node/pods) and the simulator
// (internal/sim) drive it in the same way. Step must not depend on how an action is
// carried out; a driver must not decide whether to begin one.
//
// # The loop of a driver
//
// A driver owns one State for each pod and calls Step from one goroutine at a time:
//
//	state := podlife.Recover(pod, observed) // once, when the agent starts to manage the pod
//	for {
//		in := podlife.Input{
//			Now: time.Now(), Pod: newest version, Node: facts of the machine,
//			Observed: the runtime as a whole, Done: outcomes since the last call, Probes: likewise,
//		}
//		var out podlife.Output
//		state, out = podlife.Step(state, in)
//		publish(out.Status)          // first: DeletePod relies on it
//		record(out.Events)           // each once
//		for key := range out.Cancel  { cancel(key) }
//		for a := range out.Begin     { go do(a) } // ends in an Outcome, or in a ProbeResult
//		if out.Life == podlife.Finished { forget the pod }
//		wait for: another version of the pod, an outcome, an event of the runtime,
//			the time out.Wake, and a new snapshot by out.Look
//	}
//
// A driver guarantees:
//
//  1. Every action that was begun reports exactly one Outcome (a probe that ran, one
//     ProbeResult), also one that was cancelled. A success may come late if the driver
//     calls Step when the next run is due or before (RunProbe.Steady), but not that of
//     a probe that was cancelled.
//  2. Observed is never older than the newest outcome in the same Input: take the
//     snapshot after an action has ended, and before its end is reported.
//  3. Actions are carried out with Output.Allocated of the Step that began them, not with
//     the newest spec: a resize may not be granted yet.
//  4. Now never runs backwards. Its monotonic reading counts; wall times from
//     elsewhere are converted to it when Step first reads them (machine.stepTime).
//
// Step may be called late, twice, or without a change: that is harmless.
//
// State ends with the agent. Recover makes a new one from the status in the API server and
// the snapshot of the runtime. An action may then run again, and none is lost.
//
// # The phases of a pod
//
// Life is the phase of a pod's life on its node, and never goes back:
//
//	Syncing      work towards the spec                                sync
//	   │  delete, Stop, Reject, deadline, terminal phase (lookForEnd)
//	   │  nothing runs any more and nothing will       (nothingLeft)
//	   ▼
//	Terminating  abort what is in flight, wait for the data plane,    terminate, awaitDrain
//	   │         stop containers, sandboxes
//	   │  all sandboxes are stopped
//	   ▼
//	Terminated   remove volumes, then containers and the API object   cleanUp
//	   │  the object is gone, and so is everything else
//	   ▼
//	Finished     the driver may forget the pod
//
// # One Step
//
// Step makes its own copy of the State, a machine, and goes through this once:
//
//	open              index containers, find the sandbox in use
//	compareResources  does the spec request other resources than granted?
//	applyResults      outcomes first, then probe results: their effects on the State
//	lookForEnd        a request to end the pod; nothingLeft: no request, but no container will run again
//	sync | terminate | cleanUp, by Life
//	runProbes         the probes that are due
//	collectGarbage    dead containers and sandboxes that are no longer needed
//	status            the status to publish
//
// Step decides whether the pod ends before it begins any action. Predicates (due, over, crashWait,
// imageBackoff, resting, …) change nothing; functions that change the State or the Output have
// names that show it (report…, note…, grant…, forget…, apply…, do, try).
//
// In Syncing, containers progress independently, and start checks for each: is it due, is it in
// back-off after a crash or a failed start, is its image present, is it its turn? The first check
// that fails ends start, and adds the event that it waits for to Output.Waits.
//
// # Actions
//
// An action has a Key, its name for the driver and for the timeline. do begins it, unless one of
// its kind and object is in flight (State.InFlight) or rests after a failure (State.Retries): 1, 2,
// 4, 8, then every 10 seconds. Cancel aborts an action that is no longer needed; its Outcome is
// then Aborted, or the result if it ended before.
//
// # Time
//
// Step never waits. What comes later is Output.Wake (call again), Output.Look (take a new snapshot,
// because nothing reports that an image has arrived), or an event. An Output with neither a Wait
// nor a Wake means that nothing will happen until the Input changes.
//
// # Subpackages
//
// Each holds one calculation and its values in the State: allocation (requested, allocated, and
// actual resources), probes (results against thresholds), restart (restart rules and the crash
// back-off), and pull (back-off of images). They do not depend on the machine.
//
// Contract: docs/spec/pod-lifecycle.md.
package podlife
