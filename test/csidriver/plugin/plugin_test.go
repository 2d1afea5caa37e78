package main

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"carob/internal/base/testwait"
	"carob/test/csidriver"
)

// sockets is a directory with a short path: names of sockets have 107 bytes at most.
func sockets(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "csi")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// The registrar finds out the driver's name, offers its socket to the node, and ends when the node refuses the driver.
func TestRegistrar(t *testing.T) {
	dir := sockets(t)
	driver := filepath.Join(dir, "csi.sock")
	ended := make(chan error, 1)
	go func() { // before the driver is there
		ended <- register(t.Context(), map[string]string{"csi-address": "unix://" + driver,
			"kubelet-registration-path": "/on/the/node.sock", "plugin-registration-path": dir})
	}()
	d, err := csidriver.Serve(csidriver.Config{Name: "a.example.com", Node: "n",
		Data: filepath.Join(dir, "data")}, driver)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Stop)
	conn, err := connect(filepath.Join(dir, "a.example.com-reg.sock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	client := registration.NewRegistrationClient(conn)
	info, err := client.GetInfo(t.Context(), &registration.InfoRequest{})
	if err != nil || info.Name != "a.example.com" || info.Type != registration.CSIPlugin ||
		info.Endpoint != "/on/the/node.sock" {
		t.Errorf("%v, %v", info, err)
	}
	for _, s := range []*registration.RegistrationStatus{{PluginRegistered: true}, {Error: "too old"}} {
		if _, err := client.NotifyRegistrationStatus(t.Context(), s); err != nil && s.PluginRegistered {
			t.Error(err)
		}
	}
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "too old") {
		t.Errorf("it ended with %v", err)
	}
}

// The proxy hands a call to a driver that connects to its port, before or after the call.
func TestProxy(t *testing.T) {
	dir := sockets(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- proxy(ctx, filepath.Join(dir, "p.sock"), "tcp://"+address) }()
	driver := filepath.Join(dir, "d.sock")
	d, err := csidriver.Serve(csidriver.Config{Name: "a.example.com", Node: "n",
		Data: filepath.Join(dir, "data")}, driver)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Stop)
	behind, err := net.Dial("unix", driver)
	if err != nil {
		t.Fatal(err)
	}
	var far net.Conn
	testwait.Until(t, "the proxy listens", func() error {
		far, err = net.Dial("tcp", address)
		return err
	})
	go join(far, behind)
	conn, err := connect(filepath.Join(dir, "p.sock"))
	if err != nil {
		t.Fatal(err)
	}
	info, err := csi.NewIdentityClient(conn).GetPluginInfo(t.Context(), &csi.GetPluginInfoRequest{},
		grpc.WaitForReady(true))
	if err != nil || info.Name != "a.example.com" {
		t.Errorf("%v, %v", info, err)
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// Flags have their value behind an equals sign.
func TestFlags(t *testing.T) {
	flags, err := parse([]string{"-v=5", "--attach-limit", "2", "--endpoint=unix:///csi/csi.sock", "--check"})
	if err != nil || flags["v"] != "5" || flags["attach-limit"] != "2" ||
		flags["endpoint"] != "unix:///csi/csi.sock" || flags["check"] != "true" {
		t.Errorf("%v, %v", flags, err)
	}
	if _, err := parse([]string{"value"}); err == nil {
		t.Error("an argument that is no flag was taken")
	}
}

// Under the name of upstream's driver, the program is that driver.
func TestProgram(t *testing.T) {
	for _, c := range []struct{ args, want []string }{
		{[]string{"/program", "liveness", "--v=5"}, []string{"liveness", "--v=5"}},
		{[]string{"/hostpathplugin", "--v=5"}, []string{"hostpath", "--v=5"}},
		{[]string{"/program"}, []string{}},
	} {
		if got := program(c.args); !slices.Equal(got, c.want) {
			t.Errorf("%q: %q, want %q", c.args, got, c.want)
		}
	}
}
