package cgroups

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// setting is one value for one file of a cgroup.
type setting struct {
	controller, file, value string
	optional                bool // the file may be missing
}

// settingsOf converts a container's resources to settings; zero values leave a limit unchanged.
// Apply orders increases and decreases of memory limits.
func settingsOf(r *cri.LinuxContainerResources, v2 bool) []setting {
	if r == nil {
		return nil
	}
	var out []setting
	add := func(controller, file, value string, optional bool) {
		out = append(out, setting{controller, file, value, optional})
	}
	n := func(v int64) string { return strconv.FormatInt(v, 10) }
	if v2 {
		if r.CpuShares != 0 {
			add("cpu", "cpu.weight", n(weightOf(r.CpuShares)), false)
		}
		if r.CpuQuota != 0 || r.CpuPeriod != 0 {
			quota, period := "max", r.CpuPeriod
			if r.CpuQuota > 0 {
				quota = n(r.CpuQuota)
			}
			if period == 0 {
				period = 100000
			}
			add("cpu", "cpu.max", quota+" "+n(period), false)
		}
		if r.MemorySwapLimitInBytes != 0 && r.MemoryLimitInBytes > 0 {
			swap := "max"
			if r.MemorySwapLimitInBytes > 0 {
				swap = n(max(0, r.MemorySwapLimitInBytes-r.MemoryLimitInBytes)) // v2 counts swap alone
			}
			add("memory", "memory.swap.max", swap, true)
		}
		if r.MemoryLimitInBytes != 0 {
			add("memory", "memory.max", limitOf(r.MemoryLimitInBytes), false)
		}
		if r.CpusetCpus != "" {
			add("cpuset", "cpuset.cpus", r.CpusetCpus, false)
		}
		if r.CpusetMems != "" {
			add("cpuset", "cpuset.mems", r.CpusetMems, false)
		}
		for _, h := range r.HugepageLimits {
			add("hugetlb", "hugetlb."+h.PageSize+".max", strconv.FormatUint(h.Limit, 10), true)
		}
		for _, file := range slices.Sorted(maps.Keys(r.Unified)) {
			controller, _, _ := strings.Cut(file, ".")
			add(controller, file, r.Unified[file], file == "memory.swap.max") // a kernel may not count swap
		}
		return out
	}
	if r.CpuShares != 0 {
		add("cpu", "cpu.shares", n(r.CpuShares), false)
	}
	if r.CpuPeriod != 0 {
		add("cpu", "cpu.cfs_period_us", n(r.CpuPeriod), false)
	}
	if r.CpuQuota != 0 {
		add("cpu", "cpu.cfs_quota_us", n(r.CpuQuota), false)
	}
	if r.MemoryLimitInBytes != 0 {
		add("memory", "memory.limit_in_bytes", n(r.MemoryLimitInBytes), false)
	}
	if r.MemorySwapLimitInBytes != 0 {
		add("memory", "memory.memsw.limit_in_bytes", n(r.MemorySwapLimitInBytes), true)
	}
	if r.CpusetCpus != "" {
		add("cpuset", "cpuset.cpus", r.CpusetCpus, false)
	}
	if r.CpusetMems != "" {
		add("cpuset", "cpuset.mems", r.CpusetMems, false)
	}
	for _, h := range r.HugepageLimits {
		add("hugetlb", "hugetlb."+h.PageSize+".limit_in_bytes", strconv.FormatUint(h.Limit, 10), true)
	}
	return out
}

func limitOf(v int64) string {
	if v < 0 {
		return "max"
	}
	return strconv.FormatInt(v, 10)
}

// weightOf converts v1 shares to a v2 weight (L3.117b).
func weightOf(shares int64) int64 {
	shares = min(max(shares, 2), 262144)
	return 1 + (shares-2)*9999/262142
}

// Apply writes resources to the group.
func (c *Hierarchies) Apply(group string, r *cri.LinuxContainerResources) error {
	list := settingsOf(r, c.V2)
	// A limit can neither rise above memory+swap nor fall below what that would leave: if the
	// kernel rejects it, the two are tried in the other order.
	var failed []setting
	for round := range 2 {
		for _, s := range list {
			dir := c.Of(s.controller, group)
			if dir == "" {
				if s.optional || s.value == "0" {
					continue
				}
				return fmt.Errorf("this host has no cgroup controller %q for %s", s.controller, s.file)
			}
			err := writeFile(dir+"/"+s.file, s.value)
			switch {
			case err == nil:
			case s.optional && (errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.EACCES)):
			case round == 0 && s.controller == "memory":
				failed = append(failed, s)
			default:
				return err
			}
		}
		if list = failed; len(list) == 0 {
			return nil
		}
	}
	return nil
}
