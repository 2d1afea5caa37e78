package native

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/base/testwait"
)

// TestHelperWaitsForItsCgroups: where the helper enters its cgroups by itself it is started while they
// are made. It waits until they have their limits, and ends if they can't be made.
func TestHelperWaitsForItsCgroups(t *testing.T) {
	w, arm := brokenWorld(t)
	if place := w.r.groups.Entry("/"); !place.Later() {
		t.Skip("the kernel creates the helper in its cgroup")
	}
	sb, sbc := w.sandbox("waits")
	s, err := w.r.sandbox(sb)
	if err != nil {
		t.Fatal(err)
	}
	helpers := func() int {
		list, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", s.line().PID()))
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for pid := range strings.FieldsSeq(string(list)) {
			if comm, err := os.ReadFile(filepath.Join("/proc", pid, "comm")); err == nil &&
				strings.HasPrefix(string(comm), "memfd:") {
				n++
			}
		}
		return n
	}
	for _, refused := range []error{nil, errors.New("no more of it")} {
		name := fmt.Sprintf("c-%t", refused == nil)
		id := w.create(sb, sbc, name, shell("echo began; exec sleep 1000"), func(c *cri.ContainerConfig) {
			c.Linux.Resources = &cri.LinuxContainerResources{MemoryLimitInBytes: 64 << 20}
		})
		c, err := w.r.container(id)
		if err != nil {
			t.Fatal(err)
		}
		b := &breaker{at: StepStartDevices, do: func(string) error { // late
			testwait.For(w.tb, "the helper runs already", func() bool { return helpers() == 1 })
			if pids := w.r.groups.PIDs(c.rec.Cgroup); len(pids) > 0 {
				t.Errorf("processes %v are in cgroups without all limits", pids)
			}
			return refused
		}}
		arm(b)
		_, err = w.r.StartContainer(Bg, &cri.StartContainerRequest{ContainerId: id})
		if !b.done.Load() {
			t.Fatal("the cgroups were never made")
		}
		testwait.For(w.tb, "no helper is left", func() bool { return helpers() == 0 })
		if refused != nil { // never
			if st := c.status(); err == nil || st.Reason != "StartError" {
				t.Errorf("%v, %v", err, st)
			}
			if log := w.log(sbc, name); strings.Contains(log, "began") {
				t.Error("it began without its cgroups")
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", w.inside(id)))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(groups)) {
			if line = strings.TrimSpace(line); !strings.HasSuffix(line, id) && !strings.HasPrefix(line, "0::") {
				t.Errorf("it is in %s", line)
			}
		}
		limit, err := os.ReadFile(w.r.groups.Of("memory", c.rec.Cgroup) + "/memory.limit_in_bytes")
		if err != nil || strings.TrimSpace(string(limit)) != fmt.Sprint(64<<20) {
			t.Errorf("its memory is limited to %s, %v", limit, err)
		}
	}
}
