package cniinstall

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"carob/internal/base/instance"
	"carob/internal/cli/cniplugin"
)

// Two clusters share the link of the plugin: it goes with the last of them. What carob did not make stays.
func TestInstall(t *testing.T) {
	d := Dirs{Conf: t.TempDir(), Bin: t.TempDir()}
	one, two := instance.Instance{ID: "carob", SocketCNI: "/run/carob/cni.sock"}, instance.Instance{ID: "carob-123456"}
	other := filepath.Join(d.Conf, "00-other.conflist")
	if err := os.WriteFile(other, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, errOut bytes.Buffer
	for _, in := range []instance.Instance{one, two, one} { // twice: as after an update
		if err := d.Install(in, &out, &errOut); err != nil {
			t.Fatal(err)
		}
	}
	if !strings.Contains(errOut.String(), "00-other.conflist") {
		t.Errorf("no warning of the configuration that comes first: %q", errOut.String())
	}
	text, err := os.ReadFile(filepath.Join(d.Conf, "10-carob.conflist"))
	if err != nil || !bytes.Contains(text, []byte(`"socket": "/run/carob/cni.sock"`)) {
		t.Errorf("%s %v", text, err)
	}
	link := filepath.Join(d.Bin, cniplugin.Type)
	for i, in := range []instance.Instance{one, two, two} { // twice: nothing is left to remove
		if err := d.Uninstall(in); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Lstat(link); (err == nil) != (i == 0) {
			t.Errorf("after %d removals: %v", i+1, err)
		}
	}
	if left, err := os.ReadDir(d.Conf); err != nil || len(left) != 1 {
		t.Errorf("left: %v %v", left, err)
	}
}

// A file that is no link is somebody else's, and a directory that the user chose must exist.
func TestInstallRefuses(t *testing.T) {
	d := Dirs{Conf: t.TempDir(), Bin: t.TempDir()}
	file := filepath.Join(d.Bin, cniplugin.Type)
	if err := os.WriteFile(file, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	in := instance.Instance{ID: "carob"}
	err := d.Install(in, &bytes.Buffer{}, &bytes.Buffer{})
	if err == nil || !strings.Contains(err.Error(), "not a link") {
		t.Errorf("a program in its place: %v", err)
	}
	d.Conf = filepath.Join(d.Conf, "none")
	for what, err := range map[string]error{"install": d.Install(in, &bytes.Buffer{}, &bytes.Buffer{}),
		"uninstall": d.Uninstall(in)} {
		if err == nil || !strings.Contains(err.Error(), "--conf-dir") {
			t.Errorf("%s without the directory: %v", what, err)
		}
	}
}
