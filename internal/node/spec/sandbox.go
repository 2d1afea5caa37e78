package spec

import cri "k8s.io/cri-api/pkg/apis/runtime/v1"

// SandboxConfig builds the sandbox of a pod (L3.145–147, L3.161–164). Warnings
// are to be recorded on the pod.
func SandboxConfig(in SandboxInput) (*cri.PodSandboxConfig, []Warning, error) { panic("unfinished") }
