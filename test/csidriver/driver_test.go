package csidriver

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// A request without an ID, or with one that is a path, removes nothing else.
func TestHostileRequests(t *testing.T) {
	root, err := os.MkdirTemp("", "csi") // short: sockets are in it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	d, err := Start(Config{Name: "d.example.com", Node: "n1", KubeletDir: root, Data: filepath.Join(root, "data")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Stop)
	if err := d.Make("kept", false, 0); err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("unix://"+d.Socket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	c := csi.NewControllerClient(conn)
	for _, id := range []string{"", ".", "..", "/", "../../" + filepath.Base(root)} {
		_, err := c.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: id})
		if id == "" && status.Code(err) != codes.InvalidArgument {
			t.Errorf("no ID: %v", err)
		}
		if _, err := os.Stat(d.Path("kept")); err != nil {
			t.Fatalf("after the deletion of %q: %v", id, err)
		}
	}
	source := &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
		Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: "none"}}}
	if _, err := c.CreateVolume(t.Context(), &csi.CreateVolumeRequest{Name: "a", VolumeContentSource: source,
		VolumeCapabilities: []*csi.VolumeCapability{{}}}); status.Code(err) != codes.NotFound {
		t.Errorf("a copy of what is not there: %v", err)
	}
}
