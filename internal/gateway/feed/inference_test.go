package feed

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"carob/internal/core/routing"
)

// Without a Gateway of carob's, pools are watched only while other gateways may call the picker, and the API server has
// the kinds.
func TestOfferedKinds(t *testing.T) {
	for _, c := range []struct{ offers, api, pools bool }{{true, true, true}, {false, true, true}, {true, false, true},
		{true, true, false}} {
		f := New(Config{Offers: c.offers})
		f.gatewayAPI = c.api
		f.inference.served = map[string]bool{definitionOf(poolKinds): c.pools}
		f.kinds[poolKinds] = []*kind{{}}
		want := c.offers && c.api && c.pools
		if n := f.needed(); n[poolKinds] != want || n[routeKinds] != want || n[backingKinds] != want {
			t.Errorf("%+v: %v", c, n)
		}
	}
}

// The configuration of a picker is read again only when its text has changed. One that cannot be read has its problem.
func TestPickerConfigsAreReadOnce(t *testing.T) {
	f, mine := New(Config{}), name{Namespace: "default", Name: "mine"}
	f.configMaps.all = map[name]*corev1.ConfigMap{}
	read := func(text string) (*routing.Config, string) {
		f.configMaps.all[mine] = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "mine"},
			Data: map[string]string{pickerConfigKey: text}}
		got := f.pickerConfigs()[mine]
		return got.Config, got.Problem
	}
	const config = `
apiVersion: inference.networking.x-k8s.io/v1alpha1
kind: EndpointPickerConfig
plugins: [{type: queue-scorer}, {type: max-score-picker}]
schedulingProfiles: [{name: default, plugins: [{pluginRef: queue-scorer}, {pluginRef: max-score-picker}]}]
`
	first, problem := read(config)
	if first == nil || problem != "" {
		t.Fatalf("%v, %q", first, problem)
	}
	if again, _ := read(config); again != first {
		t.Error("the same text was read again")
	}
	if broken, problem := read("kind: Nothing\n"); broken != nil || problem == "" {
		t.Errorf("one that cannot be read: %v, %q", broken, problem)
	}
	delete(f.configMaps.all, mine)
	if left := f.pickerConfigs(); len(left) > 0 || len(f.readPicks) > 0 {
		t.Errorf("after it has gone: %v", left)
	}
}
