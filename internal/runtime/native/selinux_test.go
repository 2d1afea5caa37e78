package native

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// On any host, a container is rejected at creation if its level contains another mount option, a
// NUL, or a newline.
func TestSelinuxRefused(t *testing.T) {
	w := newWorld(t)
	sb, sbc := w.sandbox("labels")
	for _, enabled := range []bool{false, true} {
		w.r.host.selinux = enabled
		for _, level := range []string{"s0\",upperdir=/etc,x=\"", `s0,rootcontext="a`, "s0\x00,suid", "s0\n", "s0 c1",
			strings.Repeat("s", 513)} {
			cfg := containerConfig(sbc, "c", shell("id"), securityContext(func(s *cri.LinuxContainerSecurityContext) {
				s.SelinuxOptions = &cri.SELinuxOption{Level: level}
			}))
			if _, err := w.r.CreateContainer(t.Context(),
				&cri.CreateContainerRequest{PodSandboxId: sb, Config: cfg,
					SandboxConfig: sbc}); status.Code(err) != codes.InvalidArgument {
				t.Errorf("level %q: %v", level, err)
			}
		}
	}
	w.r.host.selinux = false
}
