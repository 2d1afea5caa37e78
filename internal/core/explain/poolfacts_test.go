package explain

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPoolFacts(t *testing.T) {
	const status = `"status":{"parents":[{"parentRef":{"name":"gw"}}],` +
		`"parent":[{"parentRef":{"kind":"Status","name":"default"}}]}`
	want := Pool{Selector: map[string]string{"app": "vllm"}, Parents: []Parent{{Name: "gw"}}}
	for group, selector := range map[string]string{PoolGroup: `{"matchLabels":{"app":"vllm"}}`,
		"inference.networking.x-k8s.io": `{"app":"vllm"}`} {
		got, err := PoolFacts([]byte(`{"spec":{"selector":`+selector+`},`+status+`}`), group)
		if err != nil || cmp.Diff(want, got) != "" {
			t.Errorf("%s: %v %s", group, err, cmp.Diff(want, got))
		}
	}
	for _, text := range []string{``, `{}`, `{"spec":{"selector":7}}`, `[]`} {
		if _, err := PoolFacts([]byte(text), PoolGroup); err == nil {
			t.Errorf("%q is read", text)
		}
	}
}
