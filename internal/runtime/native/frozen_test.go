package native

import (
	"os"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A container that another program has frozen ends when it is stopped: in cgroups of version 1 a process does not end
// before it is thawed (L7.4).
func TestFrozenContainerEnds(t *testing.T) {
	w := newWorld(t)
	sb, sbc := w.sandbox("frozen")
	id := w.run(sb, sbc, "c", shell("sleep 1000"))
	c, err := w.r.container(id)
	if err != nil {
		t.Fatal(err)
	}
	dir := w.r.groups.Of("freezer", c.rec.Cgroup)
	if dir == "" || w.r.groups.V2 {
		t.Skip("no cgroups of version 1 with a freezer")
	}
	if err := os.WriteFile(dir+"/freezer.state", []byte("FROZEN"), 0); err != nil {
		t.Fatal(err)
	}
	defer w.r.groups.Thaw(c.rec.Cgroup)
	w.stop(id, 1)
	if st := w.wait(id); st.State != cri.ContainerState_CONTAINER_EXITED || st.ExitCode != killedExit {
		t.Errorf("%s with code %d", st.State, st.ExitCode)
	}
}
