package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// cluster is a carob of our own with the suite's images.
type cluster struct {
	carob, dir, kubeconfig string
}

func startCluster(ctx context.Context, o options) (*cluster, error) {
	images, err := buildImages(ctx, o)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "carob-conformance-")
	if err != nil {
		return nil, err
	}
	c := &cluster{carob: o.carob, dir: dir, kubeconfig: filepath.Join(dir, "admin.kubeconfig")}
	fmt.Println("starting a cluster in", dir)
	// No registry has what a full disk would make it remove.
	if _, err := output(ctx, "", c.carob, "up", "--detach", "--data-dir", dir, "--image-gc-high-threshold=100"); err != nil {
		_ = os.RemoveAll(dir)
		return nil, err
	}
	for _, file := range images {
		if _, err := output(ctx, "", c.carob, "image", "import", "--data-dir", dir, file); err != nil {
			_ = c.stop()
			return nil, err
		}
	}
	return c, nil
}

// stop ends the cluster with its pods. The log stays beside the results only
// when something goes wrong here.
func (c *cluster) stop() error {
	if _, err := output(context.Background(), "", c.carob, "down", "--pods", "--data-dir", c.dir); err != nil {
		return fmt.Errorf("end the cluster in %s: %w", c.dir, err)
	}
	return os.RemoveAll(c.dir)
}

// buildImages makes the archives, unless they are given, and answers their paths.
func buildImages(ctx context.Context, o options) ([]string, error) {
	if o.images != "" {
		return filepath.Glob(filepath.Join(o.images, "*.tar"))
	}
	dir := filepath.Join(o.cache, "images")
	fmt.Println("building images")
	var files []string
	for _, names := range [][]string{{"pause", "busybox"}, {"upstream"}} {
		out, err := output(ctx, "../..", "go", append([]string{"run", "./test/images", "-out", dir}, names...)...)
		if err != nil {
			return nil, err
		}
		for _, l := range strings.Split(strings.TrimSpace(out), "\n") {
			if f := strings.Fields(l); len(f) > 1 {
				files = append(files, f[1])
			}
		}
	}
	return files, nil
}
