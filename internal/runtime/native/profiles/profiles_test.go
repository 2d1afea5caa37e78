package profiles

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/runtime/native/plan"
)

const (
	allowAll = `{"defaultAction": "SCMP_ACT_ALLOW"}`
	noMkdir  = `{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["mkdirat"], "action": "SCMP_ACT_ERRNO"}]}`
	notified = `{"defaultAction": "SCMP_ACT_ALLOW", "listenerPath": %,
		"syscalls": [{"names": ["mkdirat"], "action": "SCMP_ACT_NOTIFY"}]}`
)

func localhost(name string) *cri.LinuxContainerSecurityContext {
	return &cri.LinuxContainerSecurityContext{
		Seccomp: &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Localhost, LocalhostRef: name}}
}

func filterOf(t *testing.T, ps *Profiles, sc *cri.LinuxContainerSecurityContext, caps uint64) *plan.Filter {
	t.Helper()
	f, err := ps.Filter(sc, caps)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// Both forms of a profile lead to the same filter, and none to no filter.
func TestForms(t *testing.T) {
	ps := New(t.TempDir())
	for _, text := range []string{"", "unconfined"} {
		if f := filterOf(t, ps, &cri.LinuxContainerSecurityContext{SeccompProfilePath: text}, 0); f != nil {
			t.Errorf("%q has a filter", text)
		}
	}
	want := filterOf(t, ps, &cri.LinuxContainerSecurityContext{Seccomp: &cri.SecurityProfile{}}, 0)
	if f := filterOf(t, ps, &cri.LinuxContainerSecurityContext{SeccompProfilePath: "runtime/default"}, 0); f != want {
		t.Error("the default profile is compiled for each form")
	}
	if f := filterOf(t, ps, &cri.LinuxContainerSecurityContext{Seccomp: &cri.SecurityProfile{}}, 1<<21); f == want {
		t.Error("SYS_ADMIN does not change the default profile")
	}
}

// A filter of a file is compiled once, and again when the file has changed.
func TestFileChanges(t *testing.T) {
	ps := New(t.TempDir())
	path := filepath.Join(ps.root, "p.json")
	write := func(s string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(allowAll)
	first := filterOf(t, ps, localhost("p.json"), 0)
	for _, name := range []string{"localhost/p.json", path} {
		if filterOf(t, ps, localhost(name), 0) != first {
			t.Errorf("%s is compiled again", name)
		}
	}
	write(noMkdir)
	if f := filterOf(t, ps, localhost("p.json"), 0); f == first || len(f.BPF) <= len(first.BPF) {
		t.Error("the old profile is used")
	}
}

// A profile that cannot be used fails the request, with its name.
func TestRefused(t *testing.T) {
	for what, content := range map[string]string{
		"no JSON":           "{",
		"an unknown action": `{"defaultAction": "SCMP_ACT_MAYBE"}`,
		"an agent nowhere":  strings.Replace(notified, "%", `""`, 1),
		"a relative agent":  strings.Replace(notified, "%", `"a.sock"`, 1),
	} {
		ps := New(t.TempDir())
		if err := os.WriteFile(filepath.Join(ps.root, "p.json"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ps.Filter(localhost("p.json"), 0); status.Code(err) != codes.InvalidArgument ||
			!strings.Contains(err.Error(), "p.json") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := New(t.TempDir()).Filter(localhost("p.json"), 0); status.Code(err) != codes.InvalidArgument ||
		!strings.Contains(err.Error(), "p.json: no such file") {
		t.Error("missing:", err)
	}
	ps := New(t.TempDir())
	text := strings.Replace(notified, "%", `"/run/agent.sock"`, 1)
	if err := os.WriteFile(filepath.Join(ps.root, "p.json"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if f := filterOf(t, ps, localhost("p.json"), 0); f.Agent == nil || f.Agent.Path != "/run/agent.sock" {
		t.Errorf("agent %+v", f.Agent)
	}
}
