// Command generate makes every generated file of the API server:
//
//	internal/kinds/openapi/documents   the OpenAPI documents, v2 and v3, compressed
//	internal/kinds/mergeschema/zz_generated.schema.go   the merge schema of server-side apply
//
// Run it in the tools directory: go run ./cmd/generate. It takes the types'
// comments from the k8s.io modules (by openapi-gen, into a package that is not
// kept in the repository) and the routes from the API server itself. The same
// sources give the same bytes.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// types are the packages whose types are described.
var types = []string{
	"k8s.io/api/admissionregistration/v1", "k8s.io/api/apps/v1", "k8s.io/api/authentication/v1",
	"k8s.io/api/authorization/v1", "k8s.io/api/autoscaling/v1", "k8s.io/api/autoscaling/v2",
	"k8s.io/api/batch/v1", "k8s.io/api/certificates/v1", "k8s.io/api/coordination/v1", "k8s.io/api/core/v1",
	"k8s.io/api/discovery/v1", "k8s.io/api/events/v1", "k8s.io/api/flowcontrol/v1", "k8s.io/api/networking/v1",
	"k8s.io/api/node/v1",
	"k8s.io/api/policy/v1", "k8s.io/api/rbac/v1", "k8s.io/api/resource/v1", "k8s.io/api/storage/v1",
	"k8s.io/api/storagemigration/v1", "k8s.io/api/scheduling/v1", "k8s.io/api/scheduling/v1alpha3",
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1", "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1",
	"k8s.io/apimachinery/pkg/api/resource", "k8s.io/apimachinery/pkg/apis/meta/v1", "k8s.io/apimachinery/pkg/runtime",
	"k8s.io/apimachinery/pkg/util/intstr",
	"k8s.io/apimachinery/pkg/version",
}

const definitions = "internal/definitions"

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

func run() error {
	if err := os.MkdirAll(definitions, 0o755); err != nil {
		return err
	}
	report := filepath.Join(os.TempDir(), "carob-openapi-violations.txt")
	defer os.Remove(report)
	args := append([]string{"run", "k8s.io/kube-openapi/cmd/openapi-gen", "--output-dir", definitions, "--output-pkg",
		"carob/tools/" + definitions,
		"--output-file", "zz_generated.openapi.go", "--report-filename", report, "--go-header-file", os.DevNull},
		types...)
	if err := command("go", args...); err != nil {
		return fmt.Errorf("describe the API types: %w", err)
	}
	if err := command("go", "run", "./cmd/openapi", "--documents", "../internal/kinds/openapi/documents", "--schema",
		"../internal/kinds/mergeschema/zz_generated.schema.go"); err != nil {
		return fmt.Errorf("make the documents: %w", err)
	}
	return nil
}

func command(name string, args ...string) error {
	c := exec.Command(name, args...)
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	return c.Run()
}
