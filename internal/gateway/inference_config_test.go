package gateway

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"carob/internal/core/gatewayplan"
	"carob/internal/core/gatewayplan/inferenceapi"
	"carob/internal/core/httproute"
)

// A ConfigMap that a pool names configures its picker, also later and again; one that cannot be used changes nothing.
func TestPickerConfig(t *testing.T) {
	l := newInferenceLab(t)
	l.server(0, answering)
	l.pool.Spec.ExtensionRef = &inferenceapi.OldPicker{Group: gatewayplan.PickerGroup, Kind: gatewayplan.PickerKind,
		Name: "mine"}
	f := &feed{}
	f.configMaps.all = map[name]*corev1.ConfigMap{}
	say := func(text string) {
		t.Helper()
		f.configMaps.all[name{Namespace: "default", Name: "mine"}] = &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "mine"},
			Data:       map[string]string{pickerConfigKey: text}}
		l.world.Inference.Configs = f.pickerConfigs()
		l.serveNow()
		status, body, _ := l.get("POST", "x", "/v1/completions", strings.NewReader(`{"model":"m"}`))
		want(t, "a request", status, body, 200, "")
	}
	pool := func() *served {
		p, _ := l.pools.Get(httproute.Ref{Namespace: "default", Name: "llm", Pool: inferenceapi.OldGroup})
		return p.served.Load()
	}
	const config = `
apiVersion: inference.networking.x-k8s.io/v1alpha1
kind: EndpointPickerConfig
plugins: [{type: queue-scorer}, {type: max-score-picker}]
schedulingProfiles: [{name: default, plugins: [{pluginRef: queue-scorer}, {pluginRef: max-score-picker}]}]
`
	l.serveNow()
	first := pool()
	if first.own == nil || first.config != nil {
		t.Fatalf("before the ConfigMap is there: %+v", first)
	}
	say(config)
	second := pool()
	if second.own != first.own || second.config == nil {
		t.Errorf("the ConfigMap came later: %+v", second)
	}
	say(config)
	if again := pool(); again.config != second.config {
		t.Error("the same text was read again")
	}
	say("kind: Nothing\n")
	if broken := pool(); broken.own != first.own || broken.config != second.config {
		t.Errorf("one that cannot be used: %+v", broken)
	}
	say(strings.Replace(config, "queue-scorer", "kv-cache-utilization-scorer", 2))
	if other := pool(); other.config == nil || other.config == second.config {
		t.Errorf("another one: %+v", other)
	}
	delete(f.configMaps.all, name{Namespace: "default", Name: "mine"})
	l.world.Inference.Configs = f.pickerConfigs()
	l.serveNow()
	if gone := pool(); gone.own != first.own || gone.config != nil {
		t.Errorf("after the ConfigMap is gone: %+v", gone)
	}
}
