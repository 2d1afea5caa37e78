package image

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"carob/internal/node/credentials"
)

// S13.8: the secrets of the pod come first, then the node's file, then the plugins. What the node's credentials open is
// for all pods.
func TestSourcesOfCredentials(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "config.json")
	write := func(name, text string, mode os.FileMode) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("config.json", `{"auths":{"reg.example.com":{"username":"node","password":"node"}}}`, 0o600)
	write("helper", `#!/bin/sh
cat >/dev/null
echo '{"kind":"CredentialProviderResponse","apiVersion":"credentialprovider.kubelet.k8s.io/v1","cacheKeyType":"Registry",
"auth":{"*.example.com":{"username":"plugin","password":"plugin"}}}'
`, 0o700)
	config := write("providers.yaml", `
apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- name: helper
  apiVersion: credentialprovider.kubelet.k8s.io/v1
  matchImages: ["*.example.com"]
  defaultCacheDuration: 1h
`, 0o600)
	plugins, err := credentials.Load(config, dir)
	if err != nil {
		t.Fatal(err)
	}
	const image = "reg.example.com/app:1"
	r := &registry{passwords: map[string]string{image: "plugin"}}
	m, _ := manager(r, secrets{"own": dockerSecret("own", "reg.example.com", "own", "own")}, 5)
	m.cfg.NodeConfig, m.cfg.Plugins = file, plugins
	ran := t.Context()
	if keys, _ := m.keys(ran, podWith("own"), image); len(keys) != 3 { // outside of the bubble: it starts a process
		t.Fatal(keys)
	}
	synctest.Test(t, func(t *testing.T) {
		if _, f := m.Pull(t.Context(), podWith("own"), image, nil); f != nil {
			t.Fatal(f)
		}
		want := image + " own:own, " + image + " node:node, " + image + " plugin:plugin"
		if got := strings.Join(r.pulls, ", "); got != want {
			t.Errorf("%s, want %s", got, want)
		}
		if m.records.pulled(image, "sha256:ref") && !m.records.open(image, "sha256:ref") {
			t.Error("an image that the node's credentials have opened is not for all pods")
		}
		r.pulls, r.passwords[image] = nil, "own"
		if _, f := m.Pull(t.Context(), podWith("own"), image, nil); f != nil {
			t.Fatal(f)
		}
		if !m.records.pulled(image, "sha256:ref") || m.records.open(image, "sha256:ref") {
			t.Error("an image that a pod's secret has opened is for all pods")
		}
	})

	// A file that is broken costs its own credentials only.
	write("config.json", "{", 0o600)
	if keys, _ := m.keys(ran, podWith("own"), image); len(keys) != 2 {
		t.Errorf("%d credentials beside a broken file", len(keys))
	}
}
