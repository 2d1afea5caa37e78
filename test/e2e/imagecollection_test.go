package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"carob/internal/base/testwait"
)

// imageCluster is a cluster on a small disk of its own whose KubeletConfiguration says when images are removed.
func imageCluster(t *testing.T, values string) (*cluster, *disk) {
	t.Helper()
	d := newDisk(t, 900<<20)
	config := filepath.Join(tempDir(t), "kubelet.yaml")
	writeFile(t, config, "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"+
		"evictionHard: {memory.available: 0%}\n"+values)
	c, err := newCluster(filepath.Join(d.dir, "data"), "--registry-config", mirrors.dir, "--kubelet-config", config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			c.dumpLog(t)
		}
		_ = os.Remove(filepath.Join(d.dir, "filler"))
		if err := c.end(); err != nil {
			t.Error(err)
		}
	})
	if err := c.up(); err != nil {
		t.Fatal(err)
	}
	return c, d
}

// collected is how many images were removed for a reason.
func (c *cluster) collected(t *testing.T, reason string) string {
	t.Helper()
	all := c.kubectl(t, "get", "--raw", "/api/v1/nodes/e2e-node/proxy/metrics")
	for line := range strings.Lines(all) {
		if n, ok := strings.CutPrefix(line, fmt.Sprintf("kubelet_image_garbage_collected_total{reason=%q} ", reason)); ok {
			return strings.TrimSpace(n)
		}
	}
	return "0"
}

// hasImages waits until the node has the images with these names, and none with the others.
func (c *cluster) hasImages(t *testing.T, has, not []string) {
	t.Helper()
	testwait.Until(t, "the images", func() error {
		all, err := run(carobBin, "--data-dir", c.DataDir, "image", "ls")
		for _, name := range has {
			if !strings.Contains(all, name) {
				err = errors.Join(err, fmt.Errorf("%s is missing", name))
			}
		}
		for _, name := range not {
			if strings.Contains(all, name) {
				err = errors.Join(err, fmt.Errorf("%s is there", name))
			}
		}
		return err
	})
}

// used runs a pod of an image, and deletes it.
func (c *cluster) used(t *testing.T, image string) {
	t.Helper()
	c.kubectl(t, "run", "user", "--image="+image, "--", "sleep", "3600")
	c.wait(t, "pod/user", "condition=Ready")
	c.kubectl(t, "delete", "pod", "user", "--grace-period=1")
}

// TestImagesAreRemovedForSpace: above imageGCHighThresholdPercent images go that no container uses, the one that was
// not used for longest first, until imageGCLowThresholdPercent is reached. Used and imported images stay; if that is
// not enough, events say so; a pod whose image has gone pulls it again (L7.133).
func TestImagesAreRemovedForSpace(t *testing.T) {
	t.Parallel()
	nativeOnly(t, "images are on the disk")
	c, d := imageCluster(t, "imageMinimumGCAge: 1s\nimageGCHighThresholdPercent: 60\nimageGCLowThresholdPercent: 55\n")
	c.carob(t, "image", "import", filepath.Join(imageDir, "echo.tar"))
	c.kubectl(t, "run", "stays", "--image=busybox:1.32.0", "--", "sleep", "3600")
	c.wait(t, "pod/stays", "condition=Ready")
	c.used(t, "nginx:1.26")
	c.hasImages(t, []string{"busybox", "echo", "nginx"}, nil)
	if n := c.collected(t, "space"); n != "0" {
		t.Errorf("%s images were removed although there is room", n)
	}

	d.leave(t, 320<<20) // above the threshold, and less can be freed than is wanted
	c.hasImages(t, []string{"busybox", "echo"}, []string{"nginx"})
	c.hasEvents(t, "e2e-node", "Warning FreeDiskSpaceFailed Insufficient free disk space on the node's image filesystem (",
		"Failed to free sufficient space by deleting unused images (freed ")
	if n := c.collected(t, "space"); n != "1" {
		t.Errorf("%s images were removed, want 1", n)
	}
	c.kubectl(t, "run", "again", "--image=nginx:1.26")
	c.wait(t, "pod/again", "condition=Ready")
	c.kill(t)
	if err := c.up(); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "it has looked since its start, too", func() error {
		out, err := c.tryKubectl("", "get", "events", "--field-selector", "reason=FreeDiskSpaceFailed", "-o", "name")
		if n := strings.Count(out, "\n"); err == nil && n < 2 {
			err = fmt.Errorf("%d events", n)
		}
		return err
	})
	c.hasImages(t, []string{"busybox", "echo", "nginx"}, nil)
	for _, name := range []string{"stays", "again"} {
		if s := c.pod(t, name).Status; s.Phase != corev1.PodRunning || s.ContainerStatuses[0].RestartCount != 0 {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

// TestImagesAreRemovedForAge: images go that no container has used for imageMaximumGCAge, although there is room. As
// upstream, the agent looks every five minutes, and its start is when it saw images first.
func TestImagesAreRemovedForAge(t *testing.T) {
	t.Parallel()
	nativeOnly(t, "images are pinned by an import")
	if os.Getenv("IMAGE_AGE") == "" {
		t.Skip("IMAGE_AGE is not set: `make nightly` does; it takes five minutes")
	}
	c, _ := imageCluster(t, "imageMinimumGCAge: 1s\nimageMaximumGCAge: 1m\n")
	c.carob(t, "image", "import", filepath.Join(imageDir, "echo.tar"))
	c.kubectl(t, "run", "stays", "--image=busybox:1.32.0", "--", "sleep", "3600")
	c.wait(t, "pod/stays", "condition=Ready")
	c.used(t, "nginx:1.26")
	c.kill(t)
	if err := c.up(); err != nil {
		t.Fatal(err)
	}
	c.hasImages(t, []string{"busybox", "echo", "nginx"}, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 4*patience)
	defer cancel()
	watch := c.command(ctx, "get", "node", "e2e-node", "--watch", "-o", `jsonpath={.status.images[*].names}{"\n"}`)
	shown, err := watch.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := watch.Start(); err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(shown); lines.Scan() && strings.Contains(lines.Text(), "nginx:1.26"); {
	}
	cancel()
	_ = watch.Wait()
	c.hasImages(t, []string{"busybox", "echo"}, []string{"nginx"})
	if n, m := c.collected(t, "age"), c.collected(t, "space"); n != "1" || m != "0" {
		t.Errorf("%s images were removed for their age, %s for space", n, m)
	}
	c.used(t, "nginx:1.26")
}
