package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"carob/internal/base/instance"
)

// clusterAt is where the gateway of a whole carob listens.
const clusterAt = "127.94.16.3:8080"

// cluster measures a whole carob: from the begin of the request that creates an HTTPRoute to its first answer, among a
// number of others; after is the part of it that follows the answer of the API server. The routes refer to a Service
// that does not exist: 500 instead of 404 shows that a route is served.
func cluster(ctx context.Context, program, dir string, routes int) (after, served *result, err error) {
	in, err := instance.Derive(instance.Flags{DataDir: filepath.Join(dir, "d")}, "bench-node")
	if err != nil {
		return nil, nil, err
	}
	run := func(args ...string) error {
		cmd := exec.CommandContext(context.WithoutCancel(ctx), program, append(args, "--data-dir", in.DataDir)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("carob %s: %w: %s", args[0], err, out)
		}
		return nil
	}
	if os.Getuid() != 0 {
		return nil, nil, errors.New("carob needs root")
	}
	defer func() { err = errors.Join(err, run("down", "--pods")) }()
	if err := run("up", "--detach", "--node-name", "bench-node", "--gateway-http", clusterAt); err != nil {
		return nil, nil, err
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", in.Kubeconfig)
	if err != nil {
		return nil, nil, err
	}
	cfg.QPS, cfg.WarningHandler = -1, rest.NoWarnings{}
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, nil, err
	}
	create := func(resource, name string, spec map[string]any) error {
		kind := map[string]string{"gateways": "Gateway", "httproutes": "HTTPRoute"}[resource]
		_, err := client.Resource(schema.GroupVersionResource{Group: "gateway.networking.k8s.io", Version: "v1",
			Resource: resource}).Namespace("default").Create(ctx, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "gateway.networking.k8s.io/v1", "kind": kind, "metadata": map[string]any{"name": name},
			"spec": spec}}, metav1.CreateOptions{})
		return err
	}
	route := func(name string) error {
		return create("httproutes", name, map[string]any{"parentRefs": []any{map[string]any{"name": "g"}},
			"hostnames": []any{name + "." + benchHost}, "rules": []any{map[string]any{"backendRefs": []any{
				map[string]any{"name": "none", "port": int64(80)}}}}})
	}
	gateway := func() error {
		return create("gateways", "g", map[string]any{"gatewayClassName": "carob", "listeners": []any{
			map[string]any{"name": "http", "port": int64(8080), "protocol": "HTTP"}}})
	}
	for limit := time.Now().Add(time.Minute); ; { // the kinds come a little after the start
		if err = gateway(); err == nil {
			break
		} else if time.Now().After(limit) || ctx.Err() != nil {
			return nil, nil, err
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
	var writers errgroup.Group
	for part := range 8 {
		writers.Go(func() error {
			for i := part; i < routes; i += 8 {
				if err := route(fmt.Sprint("r", i)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := writers.Wait(); err != nil {
		return nil, nil, err
	}
	after, served = &result{}, &result{}
	for i := range 101 { // the first waits for all others
		name := fmt.Sprint("new", i)
		began := time.Now()
		if err := route(name); err != nil {
			return nil, nil, err
		}
		answered := time.Now()
		for status := 0; status != http.StatusInternalServerError; {
			status, err = statusOf(ctx, clusterAt, name+"."+benchHost)
			if time.Since(began) > 2*time.Minute {
				return nil, nil, fmt.Errorf("the route is not served: %d: %w", status, err)
			}
		}
		if i > 0 {
			after.all, served.all = append(after.all, time.Since(answered)), append(served.all, time.Since(began))
		}
	}
	slices.Sort(after.all)
	slices.Sort(served.all)
	return after, served, nil
}

// statusOf returns the status of a response.
func statusOf(ctx context.Context, at, host string) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at+"/1k", nil)
	if err != nil {
		return 0, err
	}
	req.Host = host
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	_, err = io.Copy(io.Discard, res.Body)
	return res.StatusCode, err
}
