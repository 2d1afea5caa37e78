package node

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"carob/internal/node/spec"
	"carob/internal/node/summary"
)

// builtIn is the name of the runtime that is a part of this process.
const builtIn = "carob"

// summarySources are the sources of /stats/summary.
func (p *parts) summarySources() summary.Config {
	cfg := p.cfg
	return summary.Config{
		Images: cfg.Runtime.ImageFsInfo, Volumes: p.volumes.Volumes, Claims: p.volumes.Stats,
		Logs: func(pod *corev1.Pod) string { return spec.PodLogDir(cfg.PodLogDir, pod) }, System: p.system,
	}
}

// system are the parts of the system, named as in kubelets (S12.42). The built-in runtime is in the agent's process, so
// that both have the same figures; of another one the processes are not known.
func (p *parts) system() []summary.Container {
	own := summary.OwnProcess("kubelet", p.started)
	list := []summary.Container{own}
	if p.cfg.RuntimeName == builtIn {
		own.Name = "runtime"
		list = append(list, own)
	}
	if st, made, err := p.cgroups.Usage(); err == nil {
		pods := summary.Cgroup("pods", st, time.Now())
		pods.StartTime = made
		list = append(list, pods)
	}
	return list
}
