package csi

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	storagev1 "k8s.io/api/storage/v1"

	"carob/test/csidriver"
)

const (
	red  = "system_u:object_r:container_file_t:s0:c1,c2"
	blue = "system_u:object_r:container_file_t:s0:c3,c4"
)

func labelled(t *testing.T) *world {
	t.Helper()
	return newWorld(t, csidriver.Config{},
		unattached(func(s *storagev1.CSIDriverSpec) { s.SELinuxMount = new(true) }))
}

// requestWith is a pod's request for the volume "pv" with a label.
func (w *world) requestWith(uid, label string) Request {
	w.t.Helper()
	r := w.request(uid, "pv", false)
	r.SELinux = label
	return r
}

// flags are the mount flags of the driver's latest call of a method.
func (w *world) flags(method string) []string {
	w.t.Helper()
	calls := w.driver.Calls(method)
	if len(calls) == 0 {
		w.t.Fatal("no call of " + method)
	}
	if r, ok := calls[len(calls)-1].Request.(*csiapi.NodeStageVolumeRequest); ok {
		return r.VolumeCapability.GetMount().MountFlags
	}
	return calls[len(calls)-1].Request.(*csiapi.NodePublishVolumeRequest).VolumeCapability.GetMount().MountFlags
}

// A driver with seLinuxMount gets the label as an option of stage and publish, and the runtime does not label the
// files; records have the label (S4.66, S4.67, S4.74).
func TestSELinuxMount(t *testing.T) {
	w := labelled(t)
	r := w.requestWith("u1", red)
	ready, err := w.SetUp(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"noatime", `context="` + red + `"`}
	for _, method := range []string{"NodeStageVolume", "NodePublishVolume"} {
		if got := w.flags(method); !slices.Equal(got, want) {
			t.Errorf("%s: flags %q", method, got)
		}
	}
	if ready.Relabel {
		t.Error("the files would be labelled one by one")
	}
	if !slices.Equal(r.PV.Spec.MountOptions, []string{"noatime"}) {
		t.Errorf("the volume of the API was changed: %q", r.PV.Spec.MountOptions)
	}
	w.mu.Lock()
	target := w.targets[targetKey{"u1", "pv"}]
	stage := w.volumes[target.handle]
	w.mu.Unlock()
	for _, dir := range []string{w.stageDir(stage), w.targetDir(target)} {
		if data, _, err := readRecord(dir); err != nil || data[keySELinux] != red {
			t.Errorf("%s: %v, %v", dir, data, err)
		}
	}
	// The same pod again, after the agent was killed: nothing is unstaged.
	w.kill()
	if _, err := w.SetUp(t.Context(), w.requestWith("u1", red)); err != nil {
		t.Fatal(err)
	}
	if got := w.driver.Names("NodeUnstageVolume"); got != "" {
		t.Error(got)
	}
	if err := w.Release(t.Context(), "u1"); err != nil {
		t.Fatal(err)
	}
	w.nothingLeft()
}

// Without seLinuxMount, without a label, and for ephemeral volumes there is no option.
func TestSELinuxMountOmitted(t *testing.T) {
	w := newWorld(t, csidriver.Config{}, unattached(nil))
	ready, err := w.SetUp(t.Context(), w.requestWith("u1", red))
	if err != nil {
		t.Fatal(err)
	}
	if got := w.flags("NodePublishVolume"); !slices.Equal(got, []string{"noatime"}) || !ready.Relabel {
		t.Errorf("driver without seLinuxMount: %q, %+v", got, ready)
	}
	w = labelled(t)
	if ready, err = w.SetUp(t.Context(), w.requestWith("u1", "")); err != nil {
		t.Fatal(err)
	}
	if got := w.flags("NodeStageVolume"); !slices.Equal(got, []string{"noatime"}) || !ready.Relabel {
		t.Errorf("no label: %q, %+v", got, ready)
	}
}

// A second pod with another label waits for the end of the first, also after a restart of the agent; a pod with the
// same label does not (S4.74).
func TestSELinuxConflict(t *testing.T) {
	for _, restart := range []bool{false, true} {
		w := labelled(t)
		for _, uid := range []string{"u1", "u2"} {
			if _, err := w.SetUp(t.Context(), w.requestWith(uid, red)); err != nil {
				t.Fatal(err)
			}
		}
		if restart {
			w.kill()
		}
		for _, label := range []string{blue, ""} {
			_, err := w.SetUp(t.Context(), w.requestWith("u3", label))
			conflict, ok := errors.AsType[*LabelConflictError](err)
			if !ok || conflict.Error() != `conflicting SELinux labels of volume pv: "`+red+`" and "`+label+`"` {
				t.Fatalf("%v", err)
			}
		}
		w.counted("kubernetes.io/csi:"+driverOfTests+" RWO, conflict false", 2)
		w.counted("kubernetes.io/csi:"+driverOfTests+" RWO, conflict true", 2)
		w.counted("reconstructed, failed false", map[bool]int{true: 2}[restart])
		for _, uid := range []string{"u1", "u2"} {
			if err := w.Release(t.Context(), podOf(uid).UID); err != nil {
				t.Fatal(err)
			}
		}
		// The waiting pod keeps the volume from being unstaged; the mount has still the old label.
		if _, err := w.SetUp(t.Context(), w.requestWith("u3", blue)); err != nil {
			t.Fatal(err)
		}
		if got := w.driver.Names("NodeStageVolume", "NodeUnstageVolume"); got !=
			"NodeStageVolume NodeUnstageVolume NodeStageVolume" {
			t.Errorf("restart %t: %s", restart, got)
		}
		if got := w.flags("NodeStageVolume"); !slices.Contains(got, `context="`+blue+`"`) {
			t.Errorf("restart %t: %q", restart, got)
		}
		if err := w.Release(t.Context(), "u3"); err != nil {
			t.Fatal(err)
		}
		w.nothingLeft()
	}
}

// A pod that runs since before its driver supported labels keeps its mount, and no call unstages it.
func TestSELinuxOfRunningPod(t *testing.T) {
	w := labelled(t)
	if _, err := w.SetUp(t.Context(), w.requestWith("u1", "")); err != nil {
		t.Fatal(err)
	}
	w.kill()
	ready, err := w.SetUp(t.Context(), w.requestWith("u1", red))
	if err != nil || !ready.Relabel {
		t.Fatalf("%+v, %v", ready, err)
	}
	if got := w.driver.Names("NodeUnstageVolume", "NodeUnpublishVolume"); got != "" {
		t.Error(got)
	}
}

// An unstage that fails keeps the pod waiting, and is repeated with its next try.
func TestSELinuxUnstageFails(t *testing.T) {
	w := labelled(t)
	if _, err := w.SetUp(t.Context(), w.requestWith("u1", red)); err != nil {
		t.Fatal(err)
	}
	if _, err := w.SetUp(t.Context(), w.requestWith("u2", blue)); err == nil {
		t.Fatal("two labels on one volume")
	}
	if err := w.Release(t.Context(), "u1"); err != nil {
		t.Fatal(err)
	}
	w.driver.Fault(func(_ context.Context, method string, _ any) error {
		if method == "NodeUnstageVolume" {
			return status.Error(codes.Internal, "not now")
		}
		return nil
	})
	if _, err := w.SetUp(t.Context(), w.requestWith("u2", blue)); err == nil {
		t.Fatal("mounted with another label over the old one")
	}
	w.driver.Fault(nil)
	if _, err := w.SetUp(t.Context(), w.requestWith("u2", blue)); err != nil {
		t.Fatal(err)
	}
	if got := w.flags("NodeStageVolume"); !slices.Contains(got, `context="`+blue+`"`) {
		t.Error(got)
	}
}

// A volume whose record is damaged counts as not reconstructed, and as cleaned with its pod (S4.99).
func TestDamagedRecordCounts(t *testing.T) {
	w := newWorld(t, csidriver.Config{}, unattached(nil))
	if _, err := w.SetUp(t.Context(), w.request("u1", "pv", false)); err != nil {
		t.Fatal(err)
	}
	record := filepath.Join(w.root, "pods/u1/volumes/kubernetes.io~csi/pv", recordName)
	if err := os.WriteFile(record, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.kill()
	if err := w.Release(t.Context(), "u1"); err != nil {
		t.Fatal(err)
	}
	w.counted("reconstructed, failed true", 1)
	w.counted("reconstructed, failed false", 0)
	w.counted("cleaned, failed false", 1)
}
