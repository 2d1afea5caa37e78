package native

// Step is one step in the life of a pod in the runtime, named call/what.
type Step string

// The steps, in the order of a pod's life. A step is complete when it has taken effect.
const (
	StepSandboxDirs    Step = "run/directories"
	StepSandboxUserNS  Step = "run/userns"
	StepSandboxNetwork Step = "run/network"
	StepSandboxFiles   Step = "run/files"
	StepSandboxMonitor Step = "run/monitor"
	StepSandboxSetup   Step = "run/namespaces"
	StepSandboxRecord  Step = "run/record"

	StepCreateImage   Step = "create/image"
	StepCreateDirs    Step = "create/directories"
	StepCreateLayer   Step = "create/layer"
	StepCreateProgram Step = "create/program"
	StepCreateRecord  Step = "create/record"

	StepStartProgram Step = "start/program"
	StepStartCgroup  Step = "start/cgroup"
	StepStartLimits  Step = "start/limits"
	StepStartDevices Step = "start/devices"
	StepStartClone   Step = "start/clone"
	StepStartLaunch  Step = "start/launch"
	StepStartHelper  Step = "start/helper"
	StepStartRecord  Step = "start/record"

	StepStopKill    Step = "stop/kill"
	StepEndCgroup   Step = "end/cgroup"
	StepEndRecord   Step = "end/record"
	StepHaltMonitor Step = "halt/monitor"
	StepHaltNetwork Step = "halt/network"
	StepHaltMounts  Step = "halt/mounts"
	StepHaltRecord  Step = "halt/record"

	StepRemoveLayer  Step = "remove/layer"
	StepRemoveCgroup Step = "remove/cgroup"
	StepRemoveDir    Step = "remove/directory"
	StepRemovePod    Step = "remove/sandbox"
)

// Steps lists all of them.
var Steps = []Step{
	StepSandboxDirs, StepSandboxUserNS, StepSandboxNetwork, StepSandboxFiles, StepSandboxMonitor, StepSandboxSetup,
	StepSandboxRecord,
	StepCreateImage, StepCreateDirs, StepCreateLayer, StepCreateProgram, StepCreateRecord,
	StepStartProgram, StepStartCgroup, StepStartLimits, StepStartDevices, StepStartClone, StepStartLaunch,
	StepStartHelper, StepStartRecord,
	StepStopKill, StepEndCgroup, StepEndRecord, StepHaltMonitor, StepHaltNetwork, StepHaltMounts, StepHaltRecord,
	StepRemoveLayer, StepRemoveCgroup, StepRemoveDir, StepRemovePod,
}

// reached calls the checkpoint for a completed step of the sandbox or container id.
func (r *Runtime) reached(s Step, id string) error {
	if r.cfg.Checkpoint == nil {
		return nil
	}
	return r.cfg.Checkpoint(s, id)
}
