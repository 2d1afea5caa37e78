package native

import (
	"os"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// scraped returns how many files of the container's cgroups and with the counters of networks are open.
func scraped(t *testing.T, id string) (groups, networks int) {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		to, _ := os.Readlink("/proc/self/fd/" + e.Name()) // one may be closed by now
		switch {
		case strings.HasPrefix(to, "/sys/fs/cgroup/") && strings.Contains(to, id):
			groups++
		case strings.HasSuffix(to, "/net/dev"):
			networks++
		}
	}
	return groups, networks
}

// Scrapes keep the files of running containers and ready sandboxes open; the end of each closes them, so that no
// namespace outlives its pod. What they read is of now.
func TestScrapedFilesAreClosed(t *testing.T) {
	w := newWorld(t)
	sb, sbc := w.sandbox("scraped")
	id := w.run(sb, sbc, "main", shell("trap 'exit 0' TERM; while :; do sleep 0.01; done"))
	var used uint64
	var opened int
	for i := range 3 {
		all := w.r.Counters(Bg)
		if len(all.Stats) != 1 || len(all.Sandboxes) != 1 {
			t.Fatalf("counted %v", all)
		}
		cpu := all.Stats[0].GetCpu().GetUsageCoreNanoSeconds().GetValue()
		if cpu < used || all.Stats[0].GetMemory().GetUsageBytes().GetValue() == 0 {
			t.Errorf("counted %v after %d ns", all.Stats[0], used)
		}
		used = cpu
		groups, networks := scraped(t, id)
		if groups < 4 || networks != 1 || i > 0 && groups != opened {
			t.Errorf("scrape %d: %d files of cgroups and %d of networks are open, before %d", i, groups, networks, opened)
		}
		opened = groups
	}
	if used == 0 {
		t.Error("the container used no processor")
	}
	w.stop(id, 5)
	w.wait(id)
	if groups, networks := scraped(t, id); groups != 0 || networks != 1 {
		t.Errorf("after the container's end, %d files of cgroups and %d of networks are open", groups, networks)
	}
	w.r.Counters(Bg)
	if _, err := w.r.StopPodSandbox(Bg, &cri.StopPodSandboxRequest{PodSandboxId: sb}); err != nil {
		t.Fatal(err)
	}
	if groups, networks := scraped(t, id); groups != 0 || networks != 0 {
		t.Errorf("after the sandbox's end, %d files of cgroups and %d of networks are open", groups, networks)
	}
	if all := w.r.Counters(Bg); len(all.Stats) != 0 || len(all.Interfaces) != 0 {
		t.Errorf("ended ones are counted: %v", all)
	}
}
