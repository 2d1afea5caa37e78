package static

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// FuzzManifest reads arbitrary manifests: each accepted pod has a name, a UID, and its node, and the same text makes
// the same pod.
func FuzzManifest(f *testing.F) {
	for _, text := range []string{
		"apiVersion: v1\nkind: Pod\nmetadata: {name: a, namespace: b, labels: {c: d}}\nspec:\n  containers: [{name: c, image: i, command: [x], ports: [{containerPort: 80, hostPort: 1}]}]\n",
		`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","uid":"u","deletionTimestamp":"2026-11-21T00:00:00Z"},"spec":{"nodeName":"other","priority":5}}`,
		"apiVersion: v1\nkind: Pod\nkind: Pod\n", "a: &a [*a]", "apiVersion: v1\nkind: List\nitems: []\n", "---\n---\n",
		"{}", "\xff\xfe", "spec: {containers: [{name: c, unknown: 1}]}",
	} {
		f.Add([]byte(text))
	}
	now := time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)
	complete := func(*corev1.Pod) error { return nil }
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := decode(text, "/m/p.yaml", "node", complete, now)
		if err != nil {
			return
		}
		if p.Name == "" || p.Namespace == "" || p.UID == "" || p.Spec.NodeName != "node" || p.DeletionTimestamp != nil {
			t.Fatalf("%q: %+v", text, p)
		}
		if q, err := decode(text, "/m/p.yaml", "node", complete, now); err != nil || q.UID != p.UID {
			t.Fatalf("%q: %v after %v, %v", text, q, p.UID, err)
		}
	})
}
