package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
)

// cluster is a carob of our own that pulls the suite's images from here.
type cluster struct {
	carob, dir, kubeconfig string
	images                 *registry
}

func startCluster(ctx context.Context, o options) (*cluster, error) {
	images, err := buildImages(ctx, o)
	if err != nil {
		return nil, err
	}
	served, err := startRegistry(images)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "carob-conformance-")
	if err != nil {
		return nil, errors.Join(err, served.Close())
	}
	c := &cluster{carob: o.carob, dir: dir, kubeconfig: filepath.Join(dir, "admin.kubeconfig"), images: served}
	port, err := freePort()
	if err != nil {
		return nil, errors.Join(err, c.remove())
	}
	fmt.Println("starting a cluster in", dir)
	// The API server listens where pods reach it, as in a cluster of several nodes.
	args := append([]string{"up", "--detach", "--data-dir", dir, "--listen", "0.0.0.0:" + port,
		"--registry-config", served.dir}, strings.Fields(o.up)...)
	if _, err := output(ctx, "", c.carob, args...); err != nil {
		return nil, errors.Join(err, c.remove())
	}
	for _, name := range strings.Fields(o.addons) {
		if _, err := output(ctx, "", c.carob, "addon", "enable", name, "--kubeconfig", c.kubeconfig); err != nil {
			return nil, errors.Join(err, c.stop())
		}
	}
	return c, nil
}

// freePort is a port that is currently free.
func freePort() (string, error) {
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		return "", err
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, errors.Join(err, l.Close())
}

// stop ends the cluster with its pods. The log stays beside the results only
// when something goes wrong here.
func (c *cluster) stop() error {
	if _, err := output(context.Background(), "", c.carob, "down", "--pods", "--data-dir", c.dir); err != nil {
		return fmt.Errorf("end the cluster in %s: %w", c.dir, err)
	}
	return c.remove()
}

func (c *cluster) remove() error { return errors.Join(c.images.Close(), os.RemoveAll(c.dir)) }

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
