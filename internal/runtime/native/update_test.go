package native

import (
	"testing"

	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A change replaces what it names, also limits of huge pages; everything else stays.
func TestMergedResources(t *testing.T) {
	pages := func(n uint64) []*cri.HugepageLimit { return []*cri.HugepageLimit{{PageSize: "2MB", Limit: n}} }
	old := &cri.LinuxContainerResources{CpuShares: 2, MemoryLimitInBytes: 4096, HugepageLimits: pages(1),
		Unified: map[string]string{"a": "1", "b": "1"}}
	for _, tc := range []struct{ change, want *cri.LinuxContainerResources }{
		{nil, old},
		{&cri.LinuxContainerResources{MemoryLimitInBytes: 8192, Unified: map[string]string{"b": "2"}},
			&cri.LinuxContainerResources{CpuShares: 2, MemoryLimitInBytes: 8192, HugepageLimits: pages(1),
				Unified: map[string]string{"a": "1", "b": "2"}}},
		{&cri.LinuxContainerResources{CpuShares: 3, HugepageLimits: pages(2)},
			&cri.LinuxContainerResources{CpuShares: 3, MemoryLimitInBytes: 4096, HugepageLimits: pages(2),
				Unified: map[string]string{"a": "1", "b": "1"}}},
	} {
		if got := merge(old, tc.change); !proto.Equal(got, tc.want) {
			t.Errorf("with %v: %v, want %v", tc.change, got, tc.want)
		}
	}
}
