package explain

import (
	"errors"
	"testing"
)

// A route that no Gateway has reported a state of is explained by the Gateways that it names.
func TestNamedGateways(t *testing.T) {
	const head = `{"metadata": {"name": "r"}, "spec": {"parentRefs": [`
	for what, c := range map[string]struct {
		object string
		read   []byte
		err    error
		gone   bool
		want   string
	}{
		"missing": {head + `{"name": "g"}]}}`, nil, errors.New("not found"), true,
			": Gateway g, which spec.parentRefs names, does not exist\n"},
		"missing elsewhere": {head + `{"name": "g", "namespace": "infra", "kind": "Gateway"}]}}`, nil,
			errors.New("not found"), true, ": Gateway infra/g, which spec.parentRefs names, does not exist\n"},
		"forbidden": {head + `{"name": "g"}]}}`, nil, errors.New("forbidden"), false,
			": cannot read Gateway g: forbidden\n"},
		"another class": {head + `{"name": "g"}]}}`, []byte(`{"spec": {"gatewayClassName": "istio"}}`), nil, false,
			": Gateway g of class istio has reported no state of it; check that carob serves this class\n"},
		"no JSON": {head + `{"name": "g"}]}}`, []byte("x"), nil, false, ": cannot read Gateway g: invalid " +
			"character 'x' looking for beginning of value\n"},
		"none":          {head + `]}}`, nil, nil, false, ": it names no Gateway in spec.parentRefs\n"},
		"a ListenerSet": {head + `{"name": "l", "kind": "ListenerSet"}]}}`, nil, nil, false, "\n"},
	} {
		facts, err := RouteFacts([]byte(c.object), "HTTPRoute")
		if err != nil {
			t.Fatal(err)
		}
		for i := range facts.Named {
			facts.Named[i].Read(c.read, c.err, c.gone)
		}
		expectLines(t, what, Route(&facts), "! "+NothingServed+c.want)
	}
	facts, err := RouteFacts([]byte(`{"spec": {"parentRefs": [{"name": "g"}]}, "status": {"parents": [{"parentRef": {
		"name": "g"}, "conditions": [{"type": "Accepted", "status": "False", "reason": "NoMatchingParent"}]}]}}`),
		"HTTPRoute")
	if err != nil || facts.Named != nil || len(facts.Parents) != 1 {
		t.Errorf("%+v %v", facts, err)
	}
	if _, err := RouteFacts([]byte("x"), "HTTPRoute"); err == nil {
		t.Error("what is no object was read")
	}
}
