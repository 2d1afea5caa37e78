package archtest

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"
)

// rule says what the packages under From may import of this module.
type rule struct {
	From string
	May  []string
	Why  string
}

// rules go from the most special to the most general; the first that fits a package holds.
var rules = []rule{
	{"carob/cmd", []string{"carob/internal/app", "carob/internal/cli"}, "a main parses and runs; it composes nothing"},
	{"carob/internal/app", []string{"carob/internal"}, "only here parts meet"},
	{"carob/internal/cli", []string{"carob/internal/cli", "carob/internal/base", "carob/internal/core/explain",
		"carob/internal/core/podclaims", "carob/internal/webui"},
		"a command uses only the public API; core/explain describes the objects, core/podclaims matches pods and " +
			"claims, webui is the page of `carob dashboard`, a client, too"},
	{"carob/internal/core",
		[]string{"carob/internal/core", "carob/internal/base/errkind", "carob/internal/base/seconds"},
		"decisions depend on their arguments only"},
	{"carob/internal/base", []string{"carob/internal/base"}, "leaves"},
	{"carob/internal/runtime/sim", []string{"carob/internal/runtime", "carob/internal/core", "carob/internal/base"},
		"the simulated runtime runs without root"},
	{"carob/internal/runtime/native/cgroups", []string{"carob/internal/runtime/native/openfiles"},
		"it knows groups and processes, not containers"},
	{"carob/internal/runtime/native/openfiles", []string{"carob/internal/base/filelimit"}, "it knows files, not what is in them"},
	{"carob/internal/runtime/native/output", nil, "it knows pipes, not commands"},
	{"carob/internal/runtime/native/stdio", []string{"carob/internal/runtime/native/monitor",
		"carob/internal/runtime/native/output"}, "it knows streams, not containers"},
	{"carob/internal/runtime/native/wire", nil, "it knows messages, not what they are for"},
	{"carob/internal/runtime/native/detached", nil, "it knows overlays and mount points, not containers"},
	{"carob/internal/runtime/native/criu", []string{"carob/internal/base/keylock"},
		"it knows processes and files, not containers"},
	{"carob/internal/runtime/native/netdev", []string{"carob/internal/base/netns", "carob/internal/runtime",
		"carob/internal/runtime/native/openfiles"}, "it knows namespaces, not pods"},
	{"carob/internal/runtime/native/selinux", nil, "it knows files and labels, not containers"},
	{"carob/internal/runtime/native/devices", []string{"carob/internal/runtime/native/plan"},
		"it finds devices, and creates none"},
	{"carob/internal/runtime/native/plan",
		[]string{"carob/internal/base/selinuxlabel", "carob/internal/runtime/native/cgroups",
			"carob/internal/runtime/native/seccomp", "carob/internal/runtime/native/wire"},
		"planning is pure: whoever drives it looks at the host"},
	{"carob/internal/runtime/native/profiles",
		[]string{"carob/internal/runtime/native/plan", "carob/internal/runtime/native/seccomp"},
		"it finds filters, and loads none"},
	{"carob/internal/runtime/native/monitor",
		[]string{"carob/internal/base/openfile", "carob/internal/runtime/native/monitor",
			"carob/internal/runtime/native/cgroups",
			"carob/internal/runtime/native/plan", "carob/internal/runtime/native/wire"},
		"it speaks to the C programs and decides nothing"},
	{"carob/internal/runtime/native/state", []string{"carob/internal/runtime/native/plan", "carob/internal/base"},
		"it knows what is kept, not what is done with it"},
	{"carob/internal/runtime", []string{"carob/internal/runtime", "carob/internal/network", "carob/internal/base",
		"carob/internal/core/resources"}, "a runtime knows CRI and the contract of the pod network, not pods"},
	{"carob/internal/network", []string{"carob/internal/network", "carob/internal/base", "carob/internal/core/netplan"},
		"the network knows namespaces, not containers"},
	{"carob/internal/sim", []string{"carob/internal/sim", "carob/internal/core", "carob/internal/runtime/sim",
		"carob/internal/runtime", "carob/internal/base", "carob/internal/scheduler/devices"},
		"the simulator drives decisions and a simulated runtime, never a real machine"},
	{"carob/internal/kinds", []string{"carob/internal/kinds", "carob/internal/core", "carob/internal/base/errkind",
		"carob/internal/base/certrequest", "carob/internal/base/keysize"},
		"what a kind means does not depend on how a server works"},
	part("apiserver", "carob/internal/kinds"), part("scheduler"), part("controllers"), part("node"), part("gateway", "carob/internal/inference"), part("inference"),
	part("timeline"),
	{"carob/internal/webui", []string{"carob/internal/core/explain", "carob/internal/base"},
		"the page is a client of the API, and no part of the engine"},
}

// exact contract packages that a prefix rule must not widen to their implementations.
var exact = map[string]string{
	"carob/internal/runtime": "carob/internal/runtime/native and carob/internal/runtime/remote are implementations",
	"carob/internal/network": "carob/internal/network/bridge and carob/internal/network/cni are implementations",
}

// part is the rule of one part of carob; more are further packages that it may import.
func part(name string, more ...string) rule {
	own := "carob/internal/" + name
	may := append(more, own, "carob/internal/core", "carob/internal/runtime", "carob/internal/network",
		"carob/internal/base")
	return rule{own, may, "parts talk through the API or an interface they declare"}
}

// banned packages and why; the key is a prefix.
var banned = map[string]string{
	"k8s.io/kubernetes/": "unsupported as a library, and the design that carob replaces",
	"github.com/valyala": "no HTTP/2",
}

type pkg struct {
	ImportPath   string
	Imports      []string
	TestImports  []string
	XTestImports []string
	Doc          string
	Dir          string
	GoFiles      []string
}

func list(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports,TestImports,XTestImports,Doc,Dir,GoFiles", "carob/...")
	out, err := cmd.Output()
	if err != nil {
		if ee, ok := errors.AsType[*exec.ExitError](err); ok {
			t.Fatalf("go list: %v: %s", err, ee.Stderr)
		}
		t.Fatalf("go list: %v", err)
	}
	var all []pkg
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatalf("read go list: %v", err)
		}
		all = append(all, p)
	}
}

func TestImports(t *testing.T) {
	for _, p := range list(t) {
		for _, imp := range p.Imports {
			if why := breaks(p.ImportPath, imp); why != "" {
				t.Errorf("%s must not import %s: %s", p.ImportPath, imp, why)
			}
		}
	}
}

// testOnly are packages that help tests and must not become part of a program. testdata and the
// simulators are programs or tests themselves.
var testOnly = []string{"carob/internal/base/testwait", "carob/internal/runtime/runtimetest",
	"carob/internal/network/nettest", "carob/internal/controllers/controllertest",
	"carob/internal/base/netns/netnstest", "carob/internal/base/transcript",
	"carob/internal/sim/simtest", "carob/internal/archtest"}

// testHelper reports whether a package may import packages of testOnly without being a test itself.
func testHelper(pkg string) bool {
	return strings.HasPrefix(pkg, "carob/test/") || slices.ContainsFunc(testOnly,
		func(t string) bool { return under(pkg, t) })
}

func TestHelpersOfTestsStayInTests(t *testing.T) {
	for _, p := range list(t) {
		for _, imp := range p.Imports {
			if importsTestHelper(p.ImportPath, imp) {
				t.Errorf("%s imports %s outside of its tests", p.ImportPath, imp)
			}
		}
	}
	if !importsTestHelper("carob/internal/node", "carob/internal/base/testwait") ||
		importsTestHelper("carob/internal/node", "carob/internal/base/keylock") {
		t.Error("the rule cannot fail")
	}
}

func importsTestHelper(from, imp string) bool {
	return !testHelper(from) && slices.ContainsFunc(testOnly, func(t string) bool { return under(imp, t) })
}

// breaks says why a package may not import another, or nothing.
func breaks(from, imp string) string {
	for prefix, why := range banned {
		if strings.HasPrefix(imp, prefix) {
			return why
		}
	}
	if !strings.HasPrefix(imp, "carob/") {
		return ""
	}
	for _, r := range rules {
		if !under(from, r.From) {
			continue
		}
		for _, ok := range r.May {
			if !under(imp, ok) {
				continue
			}
			if why, contract := exact[ok]; contract && imp != ok && !under(from, ok) {
				return why
			}
			return ""
		}
		return r.Why
	}
	return ""
}

func under(p, root string) bool { return p == root || strings.HasPrefix(p, root+"/") }

func TestRulesCanFail(t *testing.T) {
	for _, c := range []struct{ from, imp string }{
		{"carob/internal/node/pods", "carob/internal/apiserver"},
		{"carob/internal/node/pods", "carob/internal/runtime/native"},
		{"carob/internal/cli", "carob/internal/app"},
		{"carob/internal/core/podlife", "carob/internal/base/journal"},
		{"carob/internal/runtime/native", "carob/internal/node"},
		{"carob/internal/runtime/native/cgroups", "carob/internal/runtime/native"},
		{"carob/internal/runtime/native/plan", "carob/internal/runtime/native"},
		{"carob/internal/runtime/native/state", "carob/internal/runtime/native/monitor"},
		{"carob/internal/runtime/native/monitor", "carob/internal/runtime/native"},
		{"carob/internal/app", "k8s.io/kubernetes/pkg/apis/core"},
		{"carob/internal/kinds/batch", "carob/internal/apiserver"},
		{"carob/internal/kinds/services", "carob/internal/apiserver/storage"},
		{"carob/internal/kinds/core", "carob/internal/node"},
		{"carob/internal/controllers", "carob/internal/kinds/batch"},
		{"carob/internal/inference", "carob/internal/gateway"},
	} {
		if breaks(c.from, c.imp) == "" {
			t.Errorf("%s → %s is allowed", c.from, c.imp)
		}
	}
	for _, c := range []struct{ from, imp string }{
		{"carob/internal/node/pods", "carob/internal/runtime"},
		{"carob/internal/app", "carob/internal/apiserver"},
		{"carob/internal/apiserver/podstorage", "carob/internal/kinds/pods"},
		{"carob/internal/runtime/native", "carob/internal/network"},
	} {
		if why := breaks(c.from, c.imp); why != "" {
			t.Errorf("%s → %s is refused: %s", c.from, c.imp, why)
		}
	}
}

func TestEveryPackageHasAComment(t *testing.T) {
	for _, p := range list(t) {
		if len(p.GoFiles) == 0 || path.Base(p.ImportPath) == "testdata" {
			continue
		}
		if p.Doc == "" {
			t.Errorf("%s has no package comment", p.ImportPath)
		}
	}
}

// TestNativePlansAreValues: the packages that plan and encode for the native runtime do not touch the host.
func TestNativePlansAreValues(t *testing.T) {
	for _, p := range list(t) {
		if p.ImportPath != "carob/internal/runtime/native/plan" &&
			p.ImportPath != "carob/internal/runtime/native/wire" {
			continue
		}
		for _, imp := range p.Imports {
			switch imp {
			case "os", "os/exec", "io/fs", "path/filepath", "net", "syscall", "time", "context", "sync", "math/rand/v2",
				"crypto/rand", "k8s.io/klog/v2":
				t.Errorf("%s imports %s: whoever drives it does that", p.ImportPath, imp)
			}
		}
	}
}
