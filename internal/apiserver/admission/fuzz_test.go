package admission

import (
	"os"
	"path/filepath"
	"testing"
)

// FuzzConfiguration reads files with an AdmissionConfiguration and creates the configured plugins.
func FuzzConfiguration(f *testing.F) {
	f.Add(
		[]byte(
			"apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n- name: PodSecurity\n  configuration:\n    apiVersion: pod-security.admission.config.k8s.io/v1\n    kind: PodSecurityConfiguration\n    defaults: {enforce: baseline, enforce-version: v1.30, warn: restricted}\n    exemptions: {usernames: [a], runtimeClasses: [b], namespaces: [c]}\n"))
	f.Add(
		[]byte(
			"apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n- name: ResourceQuota\n  configuration:\n    apiVersion: apiserver.config.k8s.io/v1\n    kind: ResourceQuotaConfiguration\n    limitedResources: [{resource: pods, matchContains: [.requests.cpu], matchScopes: [{scopeName: PriorityClass, operator: In, values: [x]}]}]\n"))
	f.Add(
		[]byte(
			`{"apiVersion":"apiserver.config.k8s.io/v1","kind":"AdmissionConfiguration","plugins":[{"name":"PodSecurity","path":"/none"},{"name":"X"}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		file := filepath.Join(t.TempDir(), "config")
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := LoadConfiguration(file)
		if err != nil {
			return
		}
		_, _ = New(Config{Configuration: c})
		stop := make(chan struct{})
		defer close(stop)
		_, _ = NewQuota(nil, nil, c.For("ResourceQuota"), stop)
	})
}
