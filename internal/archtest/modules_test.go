package archtest

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// required is a line of a go.mod file that names a module and its version.
var required = regexp.MustCompile(`(?m)^(?:require )?\t?([a-z0-9.-]+\.[a-z]+/\S+) (v\S+)`)

// TestModulesShareVersions checks that the modules that CI builds beside carob use its versions. With another version
// of golang.org/x/net, for example, client-go and all above it are compiled a second time.
func TestModulesShareVersions(t *testing.T) {
	own := versions(t, "go.mod")
	if own["k8s.io/client-go"] == "" {
		t.Fatalf("go.mod has no version of client-go: %d modules were read", len(own))
	}
	for _, dir := range []string{"test/helm", "test/operator", "tools"} {
		shared := 0
		for module, version := range versions(t, filepath.Join(dir, "go.mod")) {
			switch own[module] {
			case "":
			case version:
				shared++
			default:
				t.Errorf("%s: %s is %s, in carob's go.mod it is %s", dir, module, version, own[module])
			}
		}
		if shared == 0 {
			t.Errorf("%s shares no module with carob: was its go.mod read?", dir)
		}
	}
}

// versions returns the version of each module that a go.mod file requires.
func versions(t *testing.T, name string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(top, name))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, m := range required.FindAllStringSubmatch(string(text), -1) {
		all[m[1]] = m[2]
	}
	return all
}
