package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// registrar registers a driver with the node.
type registrar struct {
	registration.UnsafeRegistrationServer
	name, endpoint string
	refused        chan error
}

// register serves the registration socket of a driver until the node refuses the driver or ctx ends.
func register(ctx context.Context, flags map[string]string) error {
	conn, err := connect(flags["csi-address"])
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	info, err := csi.NewIdentityClient(conn).GetPluginInfo(ctx, &csi.GetPluginInfoRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return fmt.Errorf("get the driver's name: %w", err)
	}
	if info.Name == "" || strings.ContainsAny(info.Name, "/\x00") {
		return fmt.Errorf("%q is no name of a driver", info.Name)
	}
	dir := flags["plugin-registration-path"]
	if dir == "" {
		dir = "/registration"
	}
	l, err := listenUnix(filepath.Join(dir, info.Name+"-reg.sock"))
	if err != nil {
		return err
	}
	r := &registrar{name: info.Name, endpoint: flags["kubelet-registration-path"], refused: make(chan error, 1)}
	server := grpc.NewServer()
	registration.RegisterRegistrationServer(server, r)
	served := make(chan error, 2)
	go func() { served <- server.Serve(l) }()
	defer server.Stop()
	health := serveHealth(flags["http-endpoint"], served, func(context.Context) error { return nil })
	defer func() { _ = health.Close() }()
	select {
	case <-ctx.Done():
		return nil
	case err := <-r.refused:
		return err
	case err := <-served:
		return err
	}
}

// GetInfo implements the registration.
func (r *registrar) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: registration.CSIPlugin, Name: r.name, Endpoint: r.endpoint,
		SupportedVersions: []string{"1.0.0"}}, nil
}

// NotifyRegistrationStatus implements the registration. A refused driver's registrar ends, as upstream's does.
func (r *registrar) NotifyRegistrationStatus(_ context.Context, s *registration.RegistrationStatus) (
	*registration.RegistrationStatusResponse, error) {
	log.Printf("registered: %v %s", s.PluginRegistered, s.Error)
	if !s.PluginRegistered {
		select {
		case r.refused <- fmt.Errorf("the node refuses the driver: %s", s.Error):
		default:
		}
	}
	return &registration.RegistrationStatusResponse{}, nil
}

// liveness answers health checks with the driver's own.
func liveness(ctx context.Context, flags map[string]string) error {
	conn, err := connect(flags["csi-address"])
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	served := make(chan error, 1)
	health := serveHealth(":"+flags["health-port"], served, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		_, err := csi.NewIdentityClient(conn).Probe(ctx, &csi.ProbeRequest{})
		return err
	})
	defer func() { _ = health.Close() }()
	select {
	case <-ctx.Done():
		return nil
	case err := <-served:
		return err
	}
}

// serveHealth serves /healthz; without an address it does nothing. What ends it goes to served.
func serveHealth(address string, served chan<- error, check func(context.Context) error) *http.Server {
	s := &http.Server{Addr: address, ReadHeaderTimeout: time.Minute,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			if err := check(q.Context()); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
			}
		})}
	if address != "" {
		go func() { served <- s.ListenAndServe() }()
	}
	return s
}

// connect returns a connection to a driver, which need not be there yet.
func connect(address string) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient("unix://"+path(address), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", address, err)
	}
	return conn, nil
}

// path is the file of a socket's address, which may be a URL.
func path(address string) string { return strings.TrimPrefix(address, "unix://") }

func listenUnix(name string) (net.Listener, error) {
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove an old socket: %w", err)
	}
	l, err := net.Listen("unix", name)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", name, err)
	}
	return l, nil
}
