package stream

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/node/csi"
)

func asJSON(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The names and forms of the figures of a pod (S12.40, S12.41).
func TestPodStats(t *testing.T) {
	n := func(v uint64) *cri.UInt64Value { return &cri.UInt64Value{Value: v} }
	eth0 := &cri.NetworkInterfaceUsage{Name: "eth0", RxBytes: n(1), RxErrors: n(2), TxBytes: n(3), TxErrors: n(4)}
	net1 := &cri.NetworkInterfaceUsage{Name: "net1", RxBytes: n(5)}
	for name, tc := range map[string]struct {
		got  any
		want string
	}{
		"network": {networkOf(&cri.NetworkUsage{Timestamp: 1e9, DefaultInterface: eth0,
			Interfaces: []*cri.NetworkInterfaceUsage{eth0, net1}}),
			`{"time":"1970-01-01T00:00:01Z","name":"eth0","rxBytes":1,"rxErrors":2,"txBytes":3,"txErrors":4,` +
				`"interfaces":[{"name":"eth0","rxBytes":1,"rxErrors":2,"txBytes":3,"txErrors":4},` +
				`{"name":"net1","rxBytes":5}]}`},
		"processes": {processesOf(&cri.ProcessUsage{ProcessCount: n(3)}), `{"process_count":3}`},
		"nothing":   {podStats{Network: networkOf(nil), Processes: processesOf(nil)}.Network, `null`},
		"block device": {claimOf(csi.Stats{Namespace: "ns", Claim: "b", Capacity: 7, At: time.Unix(1, 0).UTC()}),
			`{"time":"1970-01-01T00:00:01Z","capacityBytes":7,"name":"","pvcRef":{"name":"b","namespace":"ns"}}`},
	} {
		text := asJSON(t, tc.got)
		if network, ok := tc.got.(*networkStats); ok && network != nil {
			network.Time = network.Time.UTC()
			text = asJSON(t, network)
		}
		if text != tc.want {
			t.Errorf("%s: %s", name, cmp.Diff(tc.want, text))
		}
	}
}

// The summary shows the claims of each pod.
func TestClaimsInSummary(t *testing.T) {
	claim := func(uid, volume, name string) csi.Stats {
		s := csi.Stats{Namespace: "ns", Claim: name, Capacity: 10, Used: 4, Available: 6, Inodes: 3, InodesUsed: 1,
			InodesFree: 2, At: time.Unix(1, 0).UTC()}
		s.Pod.UID, s.Pod.Volume = uid, volume
		return s
	}
	w := newWorldWith(t, func(c *Config) {
		c.Claims = func() []csi.Stats {
			return []csi.Stats{claim("u1", "b", "second"), claim("another", "a", "other"), claim("u1", "a", "first")}
		}
	})
	w.run("id1", "")
	code, text := w.get("api", "/stats/summary")
	var got struct {
		Pods []struct {
			Volume json.RawMessage `json:"volume"`
		} `json:"pods"`
	}
	if err := json.Unmarshal([]byte(text), &got); err != nil || code != http.StatusOK || len(got.Pods) != 1 {
		t.Fatal(code, text, err)
	}
	const figures = `"time":"1970-01-01T00:00:01Z","availableBytes":6,"capacityBytes":10,"usedBytes":4,` +
		`"inodesFree":2,"inodes":3,"inodesUsed":1,`
	want := `[{` + figures + `"name":"a","pvcRef":{"name":"first","namespace":"ns"}},` +
		`{` + figures + `"name":"b","pvcRef":{"name":"second","namespace":"ns"}}]`
	if string(got.Pods[0].Volume) != want {
		t.Error(cmp.Diff(want, string(got.Pods[0].Volume)))
	}
}
