package gateway

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"carob/internal/base/testwait"
	"carob/internal/core/gatewayplan/inferenceapi"
	"carob/internal/core/routing"
	"carob/internal/gateway/extproc"
)

// While the servers are full, another gateway gets 429 with its reason for sheddable requests, and a server for
// critical ones; refused requests hold no memory.
func TestOfferedSheds(t *testing.T) {
	l := newInferenceLab(t)
	l.cfg.Picker = netip.MustParseAddrPort("127.0.0.1:1")
	l.server(1, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "vllm:num_requests_waiting 100\nvllm:num_requests_running 9\nvllm:kv_cache_usage_perc 0.9\n")
	})
	l.world.Inference.Models = []*inferenceapi.Model{{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"},
		Spec: inferenceapi.ModelSpec{ModelName: "llama2", Criticality: "Critical",
			PoolRef: inferenceapi.PoolRef{Group: inferenceapi.OldGroup, Kind: "InferencePool", Name: "llm"}}}}
	l.serveNow()
	pick := func(model string) error {
		t.Helper()
		r, ok := l.beginPick("llm.default", "", http.Header{}, nil)
		if !ok {
			t.Fatal("the pool is not offered")
		}
		defer r.End(false)
		if err := r.Body(fmt.Appendf(nil, `{"model":%q}`, model)); err != nil {
			t.Fatal(err)
		}
		_, err := r.Pick(t.Context())
		return err
	}
	testwait.For(t, "the server has said that it is full", func() bool {
		states := l.PoolStates("")
		return len(states) == 1 && len(states[0].Servers) == 1 && states[0].Servers[0].Waiting == 100
	})
	no, ok := errors.AsType[*extproc.Refused](pick("nobody"))
	if !ok || no.Status != http.StatusTooManyRequests || no.Name != routing.ReasonHeader ||
		no.Reason != string(routing.Saturated) {
		t.Errorf("what can be shed: %+v", no)
	}
	if err := pick("llama2"); err != nil {
		t.Errorf("what is critical: %v", err)
	}
	if n := l.bodies.Used(); n != 0 {
		t.Errorf("%d bytes are held", n)
	}
}
