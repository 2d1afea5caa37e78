package suites

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/runtime"
)

// BenchmarkCreateToRunning measures RunPodSandbox, CreateContainer, and StartContainer at the CRI,
// one pod after another, with real images and network. The teardown is not included.
func BenchmarkCreateToRunning(b *testing.B) {
	b.Run("native", func(b *testing.B) {
		o := startCarob(b)
		createToRunning(b, o.rt, o.dir, o.cfg.CgroupRoot)
	})
	b.Run("containerd", func(b *testing.B) {
		c := startContainerd(b)
		createToRunning(b, c.dial(b), c.dir, "")
	})
}

func createToRunning(b *testing.B, rt runtime.Runtime, dir, group string) {
	ctx := context.Background()
	for i := range b.N {
		uid := fmt.Sprintf("bench-%d-%d", serial.Add(1), i)
		sb := &cri.PodSandboxConfig{
			Metadata: &cri.PodSandboxMetadata{Name: uid, Namespace: "bench", Uid: uid}, Hostname: "bench",
			LogDirectory: filepath.Join(dir, "bench", uid),
			Linux: &cri.LinuxPodSandboxConfig{SecurityContext: &cri.LinuxSandboxSecurityContext{
				NamespaceOptions: &cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER},
				Seccomp:          &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault}}},
		}
		if group != "" {
			sb.Linux.CgroupParent = group + "/pods/" + uid
		}
		run, err := rt.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: sb})
		if err != nil {
			b.Fatal(err)
		}
		c, err := rt.CreateContainer(ctx,
			&cri.CreateContainerRequest{PodSandboxId: run.PodSandboxId, SandboxConfig: sb, Config: &cri.ContainerConfig{
				Metadata: &cri.ContainerMetadata{Name: "c"}, Image: &cri.ImageSpec{Image: busybox},
				Command: []string{"sleep", "1000"}, LogPath: "c.log",
				Linux: &cri.LinuxContainerConfig{
					Resources: &cri.LinuxContainerResources{CpuPeriod: 100000, CpuQuota: 50000,
						MemoryLimitInBytes: 64 << 20},
					SecurityContext: &cri.LinuxContainerSecurityContext{
						NamespaceOptions: sb.Linux.SecurityContext.NamespaceOptions,
						Seccomp:          &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault}}},
			}})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := rt.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: c.ContainerId}); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if _, err := rt.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: run.PodSandboxId}); err != nil {
			b.Fatal(err)
		}
		if _, err := rt.RemovePodSandbox(ctx,
			&cri.RemovePodSandboxRequest{PodSandboxId: run.PodSandboxId}); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}
