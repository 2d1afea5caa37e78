//go:build suite

package main

// The suite is built as a test of this package; the tag keeps it out of the
// runner, the import keeps its version in go.mod. Programs stand there as tools.
import _ "k8s.io/kubernetes/test/e2e"
