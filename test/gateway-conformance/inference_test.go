package gatewayconformance

import (
	"flag"
	"io/fs"
	"testing"
	"testing/fstest"

	"sigs.k8s.io/gateway-api-inference-extension/conformance"
	"sigs.k8s.io/gateway-api-inference-extension/conformance/tests"
	extension "sigs.k8s.io/gateway-api-inference-extension/version"
	"sigs.k8s.io/gateway-api/conformance/utils/suite"
)

var inferenceReport = flag.String("inference-report-output", "", "file for the report of the inference extension's suite")

// The suite of the Gateway API inference extension: pools of model servers, and endpoint pickers called by ext-proc.
func TestInferenceConformance(t *testing.T) {
	if one := flag.Lookup("run-test").Value.String(); one != "" && !named(tests.ConformanceTests, one) {
		t.Skipf("%s is a test of another suite", one)
	}
	t.Setenv("KUBECONFIG", up(t, "inference"))
	opts := conformance.DefaultOptions(t)
	opts.GatewayClassName = gatewayClass
	opts.Implementation = implementation(t)
	opts.BaseManifests = baseWithPod
	opts.ManifestFS = append([]fs.FS{withPod(t)}, opts.ManifestFS...)
	suite.RegisterConformanceProfile(conformance.GatewayLayerProfile)
	s, err := suite.NewConformanceTestSuite(opts)
	if err != nil {
		t.Fatal(err)
	}
	// Not by RunConformanceWithOptions: it requests the report before the run counts as finished.
	t.Run("Suite", func(t *testing.T) {
		conformance.SetupConformanceTestSuite(t.Context(), t, s, opts, tests.ConformanceTests)
		if err := s.Run(t, tests.ConformanceTests); err != nil {
			t.Fatal(err)
		}
	})
	if *inferenceReport == "" {
		return
	}
	report, err := s.Report()
	if err != nil {
		t.Fatal(err)
	}
	whole := conformance.GatewayAPIInferenceExtensionConformanceReport{
		GatewayAPIInferenceExtensionVersion: extension.BundleVersion, ConformanceReport: *report}
	if err := whole.WriteReport(t.Logf, *inferenceReport); err != nil {
		t.Fatal(err)
	}
}

const baseWithPod = "resources/with-pod.yaml"

// withPod has the suite's first manifests and a pod in the namespace of the Gateways, which the suite waits for: other
// implementations run a proxy there, carob's gateway is part of its process.
func withPod(t *testing.T) fs.FS {
	t.Helper()
	all, err := conformance.Manifests.ReadFile("resources/base.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return fstest.MapFS{baseWithPod: {Data: append(all, `
---
apiVersion: v1
kind: Pod
metadata: {name: placeholder, namespace: inference-conformance-infra}
spec:
  containers:
  - name: echo
    image: gcr.io/k8s-staging-gateway-api/echo-basic:v20251106-v1.3.0-263-g47c3435c
    env:
    - {name: POD_NAME, value: placeholder}
    - {name: NAMESPACE, value: inference-conformance-infra}
`...)}}
}
