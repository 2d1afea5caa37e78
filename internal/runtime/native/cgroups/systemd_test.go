package cgroups

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestScopeLimits(t *testing.T) {
	r := &cri.LinuxContainerResources{MemoryLimitInBytes: 1 << 20, MemorySwapLimitInBytes: 3 << 20, CpuShares: 1024,
		CpuQuota: -1, CpusetCpus: "0,2-3", CpusetMems: "0", Unified: map[string]string{"pids.max": "12"}}
	text := func(v2 bool) string {
		list, err := scopeProperties(r, v2)
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, p := range list {
			out = append(out, fmt.Sprint(p.Name, "=", p.Value.Value()))
		}
		slices.Sort(out)
		return strings.Join(out, " ")
	}
	if got, want := text(true),
		"AllowedCPUs=[13] AllowedMemoryNodes=[1] CPUQuotaPerSecUSec=18446744073709551615 CPUQuotaPeriodUSec=100000 CPUWeight=39 MemoryMax=1048576 MemorySwapMax=2097152 TasksMax=12"; got != want {
		t.Errorf("v2: %s\nwant %s", got, want)
	}
	if got, want := text(false),
		"CPUQuotaPerSecUSec=18446744073709551615 CPUQuotaPeriodUSec=100000 CPUShares=1024 MemoryLimit=1048576"; got != want {
		t.Errorf("v1: %s\nwant %s", got, want)
	}
	for _, bad := range []*cri.LinuxContainerResources{{CpusetCpus: "x"},
		{Unified: map[string]string{"pids.max": "x"}}} {
		if _, err := scopeProperties(bad, true); err == nil {
			t.Errorf("%v is accepted", bad)
		}
	}
}

func TestSlices(t *testing.T) {
	for slice, want := range map[string]string{
		"kubepods.slice":                  "/kubepods.slice",
		"kubepods-burstable-pod1_2.slice": "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice",
		"-.slice":                         "", "a--b.slice": "error", "a/b.slice": "error", "plain": "error",
		"-a.slice": "error",
	} {
		got, err := SlicePath(slice)
		if err != nil {
			got = "error"
		}
		if got != want {
			t.Errorf("%s: %q, want %q", slice, got, want)
		}
	}
}
