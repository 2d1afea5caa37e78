package app

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"carob/internal/base/instance"
)

func TestOtherCluster(t *testing.T) {
	for _, c := range []struct {
		known       types.UID
		pods, force bool
		refused     bool
	}{
		{"", true, false, false},    // the first start with this check
		{"new", true, false, false}, // unchanged
		{"old", true, false, true},
		{"old", false, false, false}, // nothing to lose
		{"old", true, true, false},
	} {
		if err := otherCluster(c.known, "new", c.pods, c.force); (err != nil) != c.refused {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// TestFlagsOfTheLastStart: the saved flags decide, and `down --pods` removes the restrictions
// caused by pods.
func TestFlagsOfTheLastStart(t *testing.T) {
	dir := t.TempDir()
	derive := func(f instance.Flags) instance.Instance {
		t.Helper()
		f.DataDir = dir
		in, err := instance.Derive(f, "host")
		if err != nil {
			t.Fatal(err)
		}
		return in
	}
	remote := derive(instance.Flags{RuntimeEndpoint: "unix:///c"})
	if err := sameAsBefore(remote); err != nil {
		t.Errorf("the first start: %v", err)
	}
	native := derive(instance.Flags{})
	if err := saveFlags(dir, lastStart{Flags: native.Flags}); err != nil {
		t.Fatal(err)
	}
	if err := sameAsBefore(remote); err != nil {
		t.Errorf("without pods: %v", err)
	}
	if err := os.MkdirAll(filepath.Join(dir, runtimeDir, "sandboxes", "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	var change instance.ChangeError
	if err := sameAsBefore(remote); !errors.As(err, &change) || change[0].Flag != "--runtime-endpoint" ||
		!strings.Contains(err.Error(), "down --pods") {
		t.Errorf("with a pod: %v", err)
	}
	forced := remote
	forced.Force = true
	if err := sameAsBefore(forced); err != nil {
		t.Errorf("forced: %v", err)
	}
	if err := saveFlags(dir, lastStart{Flags: native.Flags, PodsEnded: true}); err != nil {
		t.Fatal(err)
	}
	if err := sameAsBefore(remote); err != nil {
		t.Errorf("after down --pods: %v", err)
	}
	// The file of an older version does not have this field.
	if err := os.WriteFile(filepath.Join(dir, flagsFile),
		[]byte(`{"DataDir":"`+dir+`","NodeName":"other","PodCIDR":"`+native.PodCIDR+`"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := sameAsBefore(native); !errors.As(err, &change) || len(change) != 1 || change[0].Flag != "--node-name" {
		t.Errorf("the file of an older version: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, flagsFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := sameAsBefore(native); err == nil {
		t.Error("a damaged file is accepted")
	}
}

// TestFlagsWhoseFilesAreGone: `down --pods` needs the flags of the last start, not the files they name.
func TestFlagsWhoseFilesAreGone(t *testing.T) {
	dir, lost := t.TempDir(), t.TempDir()
	in, err := instance.Derive(instance.Flags{DataDir: dir, PodManifestDir: lost, ResolvConf: os.DevNull}, "host")
	if err != nil {
		t.Fatal(err)
	}
	in.ResolvConf = filepath.Join(lost, "resolv.conf")
	if err := saveFlags(dir, lastStart{Flags: in.Flags}); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(lost); err != nil {
		t.Fatal(err)
	}
	if got, err := lastFlags(instance.Instance{Flags: instance.Flags{DataDir: dir}}); err != nil ||
		got.PodManifestDir != lost {
		t.Errorf("lastFlags = %q, %v", got.PodManifestDir, err)
	}
	if _, err := instance.Derive(in.Flags, "host"); !errors.Is(err, instance.ErrFlag) {
		t.Errorf("a start with them: %v", err)
	}
	defaults, err := instance.Derive(instance.Flags{DataDir: dir}, "host")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := instance.Derive(defaults.Flags, "host"); err != nil {
		t.Errorf("the default directory is made at the start, yet: %v", err)
	}
}
