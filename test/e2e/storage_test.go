package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"carob/internal/base/testwait"
)

// Persistent volumes of the default class: a StatefulSet's rows survive the pod and kill -9 of carob, a block volume
// and an ephemeral volume work, a claim grows, and what is deleted is gone from the disk.
func TestPersistentVolumes(t *testing.T) {
	t.Parallel()
	nativeOnly(t, "loop devices and users are the same with others")
	c := startCluster(t, "--registry-config", mirrors.dir)
	rows := func(want int) {
		t.Helper()
		testwait.Until(t, "the pod shows its rows", func() error {
			got, err := c.tryKubectl("", "exec", "db-0", "--", "cat", "/data/rows")
			if n := strings.Count(got, "row\n"); err != nil || n != want {
				return fmt.Errorf("%d rows, want %d (%q, %v)", n, want, got, err) //nolint:errorlint // err may be nil
			}
			return nil
		})
	}
	c.kubectl(t, "apply", "-f", manifest("storage"))
	for _, pod := range []string{"db-0", "raw", "scratch"} {
		testwait.Until(t, "pod "+pod+" runs", func() error {
			phase, err := c.tryKubectl("", "get", "pod", pod, "-o", "jsonpath={.status.phase}")
			if phase != "Running" {
				return fmt.Errorf("phase %q: %w", phase, err)
			}
			return nil
		})
	}
	rows(1)
	if got := c.kubectl(t, "exec", "raw", "--", "head", "-c", "4", "/dev/raw"); got != "raw\n" {
		t.Errorf("the block device shows %q", got)
	}
	c.shows(t, []string{"scratch-v", "Bound", "RWOP", "local-path"}, "get", "pvc", "scratch-v")
	c.kubectl(t, "delete", "pod", "db-0")
	rows(2)
	c.kill(t)
	if err := c.up(); err != nil {
		t.Fatal(err)
	}
	rows(2)
	c.kubectl(t, "delete", "pod", "db-0")
	rows(3)

	c.kubectl(t, "patch", "pvc", "data-db-0", "-p", `{"spec":{"resources":{"requests":{"storage":"20Mi"}}}}`)
	testwait.Until(t, "the claim has its new size", func() error {
		size, err := c.tryKubectl("", "get", "pvc", "data-db-0", "-o", "jsonpath={.status.capacity.storage}")
		if size != "20Mi" {
			return fmt.Errorf("%q: %w", size, err)
		}
		return nil
	})

	// A claim in use stays until its pods have gone.
	c.kubectl(t, "delete", "pvc", "raw", "--wait=false")
	c.shows(t, []string{"Terminating"}, "get", "pvc", "raw")
	c.kubectl(t, "delete", "statefulset", "db")
	c.kubectl(t, "delete", "pod", "raw", "scratch")
	c.kubectl(t, "delete", "pvc", "data-db-0")
	testwait.Until(t, "no data is left", func() error {
		left, err := os.ReadDir(filepath.Join(c.DataDir, "storage"))
		if err != nil || len(left) > 0 {
			return fmt.Errorf("%v, %w", left, err)
		}
		names, err := c.tryKubectl("", "get", "pv,pvc", "-o", "name")
		if names != "" || err != nil {
			return fmt.Errorf("%s: %w", names, err)
		}
		return nil
	})
}
