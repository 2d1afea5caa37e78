package native

import (
	"os"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestGroupAhead: the first container's cgroup is made with the sandbox, below the
// pod's; one that no container takes goes with the sandbox, also after a restart.
func TestGroupAhead(t *testing.T) {
	w := newWorld(t)
	sb, sbc := w.sandbox("ahead")
	s, err := w.r.sandbox(sb)
	if err != nil {
		t.Fatal(err)
	}
	g := s.ahead
	if !g.ready() || g.cgroup != sbc.Linux.CgroupParent+"/"+g.id {
		t.Fatalf("made ahead: %+v", g)
	}
	if id := w.run(sb, sbc, "first", shell("exec sleep 1000")); id != g.id || len(w.r.groups.pids(g.cgroup)) != 1 {
		t.Errorf("the first container is %s in %v, the group was made for %s", id, w.r.groups.pids(g.cgroup), g.id)
	}
	if id := w.run(sb, sbc, "second", shell("exec sleep 1000")); id == g.id {
		t.Error("two containers have one id")
	}
	here := func(group string) bool { return exists(w.r.groups.tree[0].mount + group) }
	var unused []*groupAhead
	for _, name := range []string{"stopped", "restarted"} {
		id, _ := w.sandbox(name)
		x, err := w.r.sandbox(id)
		if err != nil {
			t.Fatal(err)
		}
		if unused = append(unused, x.ahead); !x.ahead.ready() || !here(x.ahead.cgroup) {
			t.Errorf("no group was made for %s", name)
		}
		if name == "stopped" {
			if _, err := w.r.StopPodSandbox(bg, &cri.StopPodSandboxRequest{PodSandboxId: id}); err != nil {
				t.Error(err)
			}
		}
	}
	if here(unused[0].cgroup) {
		t.Error("the group of a stopped sandbox stays")
	}
	if err := w.r.Close(); err != nil {
		t.Fatal(err)
	}
	w.open()
	if here(unused[1].cgroup) {
		t.Error("after a restart a group stays that nobody knows")
	}
	w.inside(g.id)
	w.emptied()
}

// TestEmptyParentCpuset: the group above was made by somebody else who has not filled it
// yet, as of pods that start at the same moment.
func TestEmptyParentCpuset(t *testing.T) {
	w := newWorld(t)
	parent := w.cfg.CgroupRoot + "/parent"
	for i := range w.r.groups.tree {
		if err := os.Mkdir(w.r.groups.tree[i].mount+parent, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	sb, sbc := w.sandbox("pod", func(c *cri.PodSandboxConfig) { c.Linux.CgroupParent = parent + "/pod" })
	w.inside(w.run(sb, sbc, "c", shell("exec sleep 1000")))
	w.emptied()
}
