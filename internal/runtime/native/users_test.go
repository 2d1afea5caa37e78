package native

import (
	"slices"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// What the status says of the user: the primary group, then the image's groups
// unless strict, then the supplementary ones, each once (L4.32).
func TestStatusOfUser(t *testing.T) {
	w := newWorld(t)
	sb, sbc := w.sandbox("users")
	for name, c := range map[string]struct {
		change func(*cri.LinuxContainerSecurityContext)
		gid    int64
		groups []int64
	}{
		"image": {func(s *cri.LinuxContainerSecurityContext) {}, 1001, []int64{1001, 2000}},
		"merged": {func(s *cri.LinuxContainerSecurityContext) { s.SupplementalGroups = []int64{60000, 5, 2000} },
			1001, []int64{1001, 2000, 60000, 5}},
		"strict": {func(s *cri.LinuxContainerSecurityContext) {
			s.SupplementalGroups, s.SupplementalGroupsPolicy = []int64{60000}, cri.SupplementalGroupsPolicy_Strict
		}, 1001, []int64{1001, 60000}},
		"primary-twice": {func(s *cri.LinuxContainerSecurityContext) {
			s.RunAsGroup, s.SupplementalGroups = &cri.Int64Value{Value: 77}, []int64{9, 77, 8}
		}, 77, []int64{77, 2000, 9, 8}},
		"primary-of-image": {func(s *cri.LinuxContainerSecurityContext) {
			s.RunAsGroup, s.SupplementalGroups = &cri.Int64Value{Value: 2000}, []int64{9}
		}, 2000, []int64{2000, 9}},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{tb: t, dir: w.dir, cfg: w.cfg, r: w.r}
			id := w.run(sb, sbc, name, securityContext(func(s *cri.LinuxContainerSecurityContext) {
				s.RunAsUser = &cri.Int64Value{Value: 1000}
				c.change(s)
			}))
			u := w.wait(id).GetUser().GetLinux()
			if u.GetUid() != 1000 || u.GetGid() != c.gid || !slices.Equal(u.GetSupplementalGroups(), c.groups) {
				t.Errorf("got %v, want gid %d, groups %v", u, c.gid, c.groups)
			}
		})
	}
}
