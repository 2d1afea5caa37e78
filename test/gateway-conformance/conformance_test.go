// Package gatewayconformance runs the Gateway API's conformance suite against a carob cluster of its own. It is a
// module of its own, because the suite is not part of carob. The flags of the suite work behind -args, for instance
// `go test -v . -args -run-test HTTPRouteMatching`.
package gatewayconformance

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/gateway-api/conformance"
	confv1 "sigs.k8s.io/gateway-api/conformance/apis/v1"
	"sigs.k8s.io/gateway-api/conformance/tests"
	"sigs.k8s.io/gateway-api/conformance/utils/suite"
)

const gatewayClass = "carob"

// given reports whether a flag of the suite was given.
func given(name string) (yes bool) {
	flag.Visit(func(f *flag.Flag) { yes = yes || f.Name == name })
	return yes
}

func TestConformance(t *testing.T) {
	if one := flag.Lookup("run-test").Value.String(); one != "" && !named(tests.ConformanceTests, one) {
		t.Skipf("%s is a test of another suite", one)
	}
	t.Setenv("KUBECONFIG", up(t))
	opts := conformance.DefaultOptions(t)
	if !given("gateway-class") {
		opts.GatewayClassName = gatewayClass
	}
	if !given("conformance-profiles") {
		opts.ConformanceProfiles = []suite.ConformanceProfileName{
			suite.GatewayHTTPConformanceProfileName, suite.GatewayGRPCConformanceProfileName,
			suite.GatewayTLSConformanceProfileName, suite.GatewayTCPConformanceProfileName,
			suite.GatewayUDPConformanceProfileName,
		}
	}
	// Of --gateway-addresses (make conformance-gateway), and one that no host has (RFC 5737).
	usable, unusable := "127.77.0.200", "203.0.113.1"
	ip := gatewayv1.IPAddressType
	opts.UsableNetworkAddresses = []gatewayv1.GatewaySpecAddress{{Type: &ip, Value: usable}}
	opts.UnusableNetworkAddresses = []gatewayv1.GatewaySpecAddress{{Type: &ip, Value: unusable}}
	opts.Implementation = implementation(t)
	conformance.RunConformanceWithOptions(t, opts)
}

func implementation(t *testing.T) confv1.Implementation {
	t.Helper()
	return confv1.Implementation{Organization: "carob", Project: "carob", URL: "https://carob.invalid",
		Version: version(t), Contact: []string{"SECURITY.md"}}
}

func named(all []suite.ConformanceTest, name string) bool {
	return slices.ContainsFunc(all, func(c suite.ConformanceTest) bool { return c.ShortName == name })
}

// up starts a cluster with add-ons that ends with the test and returns its kubeconfig.
func up(t *testing.T, addons ...string) string {
	t.Helper()
	images := os.Getenv("IMAGES")
	if os.Getenv("CAROB") == "" || images == "" || os.Getuid() != 0 {
		t.Fatal("CAROB or IMAGES is not set, or this is not root: use `make conformance-gateway`")
	}
	dir, err := os.MkdirTemp("", "carob-gateway-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			log, _ := os.ReadFile(filepath.Join(dir, "carob.log"))
			t.Logf("carob's log:\n%s", log[max(0, len(log)-16000):])
		}
		carob(t, "down", "--pods", "--data-dir", dir)
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	pods := fmt.Sprintf("10.%d.0.0/16", 225+os.Getpid()%28)
	carob(t, append([]string{"up", "--detach", "--data-dir", dir, "--pod-cidr", pods},
		strings.Fields(os.Getenv("CAROB_FLAGS"))...)...)
	for _, image := range []string{"echo-basic.tar", "lwepp.tar", "coredns.tar"} {
		carob(t, "image", "import", filepath.Join(images, image), "--data-dir", dir)
	}
	for _, w := range [][2]string{{"crd/gatewayclasses.gateway.networking.k8s.io", "condition=Established"},
		{"gatewayclass/" + gatewayClass, "condition=Accepted"}} {
		carob(t, "--data-dir", dir, "kubectl", "wait", "--for=create", "--timeout=60s", w[0])
		carob(t, "--data-dir", dir, "kubectl", "wait", "--for="+w[1], "--timeout=60s", w[0])
	}
	for _, a := range addons {
		carob(t, "addon", "enable", a, "--data-dir", dir)
	}
	return filepath.Join(dir, "admin.kubeconfig")
}

func version(t *testing.T) string {
	t.Helper()
	_, v, _ := strings.Cut(strings.TrimSpace(carob(t, "version")), " ")
	return v
}

func carob(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command(os.Getenv("CAROB"), args...).CombinedOutput()
	if err != nil {
		t.Fatalf("carob %q: %v\n%s", args, err, bytes.TrimSpace(out))
	}
	return string(out)
}
