package gateway

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"carob/internal/base/testwait"
	"carob/internal/core/explain"
	"carob/internal/core/gatewayplan"
	"carob/internal/core/gatewayplan/inferenceapi"
	"carob/internal/core/routing"
)

// What `carob explain` gets: which servers have returned their metrics, which have not and why, and which models have
// rules.
func TestPoolStates(t *testing.T) {
	l := newInferenceLab(t)
	l.server(1, answering)
	l.server(2, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no metrics here", http.StatusNotFound) })
	l.world.Inference.Models = []*inferenceapi.Model{{Spec: inferenceapi.ModelSpec{ModelName: "a",
		PoolRef: inferenceapi.PoolRef{Group: inferenceapi.OldGroup, Kind: "InferencePool", Name: "llm"}}}}
	l.world.Inference.Models[0].Namespace = "default"
	l.serveNow()
	pools := func(query string) (out []explain.PoolState) {
		t.Helper()
		w := httptest.NewRecorder()
		l.ServePools(w, httptest.NewRequestWithContext(t.Context(), "GET", "/carob/pools"+query, nil))
		if err := json.Unmarshal(w.Body.Bytes(), &out); err != nil || w.Code != 200 {
			t.Fatal(w.Code, w.Body, err)
		}
		return out
	}
	testwait.For(t, "both have been asked", func() bool {
		all := pools("?namespace=default")
		return len(all) == 1 && len(all[0].Servers) == 2 && all[0].Servers[0].Seen != nil &&
			all[0].Servers[1].Problem != ""
	})
	got := pools("")[0]
	if got.Name != "llm" || got.Namespace != "default" || got.Group != inferenceapi.OldGroup || got.Ready != 2 ||
		len(got.Models) != 1 || got.Models[0] != "a" || !got.Shed || got.Picker != "" || got.Servers[1].Seen != nil {
		t.Errorf("%+v", got)
	}
	if other := pools("?namespace=other"); len(other) != 0 {
		t.Errorf("%+v", other)
	}
}

// An external picker without a ready endpoint, and a configuration that is not where the pool says, are reported.
func TestPickersInPoolStates(t *testing.T) {
	l := newInferenceLab(t)
	l.server(1, answering)
	l.service("picker", "kubernetes.io/h2c")
	l.pool.Spec.ExtensionRef.PortNumber = new(int32(80))
	l.serveNow()
	if s := l.PoolStates("")[0]; s.Picker != "default/picker:80" || !s.PickerEmpty {
		t.Errorf("a picker without endpoints: %+v", s)
	}
	l.picker()
	if s := l.PoolStates("")[0]; s.Picker == "" || s.PickerEmpty {
		t.Errorf("a picker: %+v", s)
	}
	l.pool.Spec.ExtensionRef = &inferenceapi.OldPicker{Group: gatewayplan.PickerGroup, Kind: gatewayplan.PickerKind,
		Name: "mine"}
	for of, want := range map[string]string{"mine": "", "other": "mine"} {
		l.world.Inference.Configs = map[name]gatewayplan.PickerConfig{{Namespace: "default", Name: of}: {
			Config: routing.DefaultConfig()}}
		l.serveNow()
		if s := l.PoolStates("")[0]; s.Picker != "" || s.Unconfigured != want {
			t.Errorf("the ConfigMap %s: %+v", of, s)
		}
	}
}
