package native

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/runtime/native/state"
)

const secretText = "correct-horse-battery-staple"

// onDisk returns the files below a directory that contain a text, without mounts.
func onDisk(t *testing.T, dir, text string) (found []string) {
	t.Helper()
	var top unix.Stat_t
	if err := unix.Stat(dir, &top); err != nil {
		t.Fatal(err)
	}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		switch {
		case d.IsDir() && (st.Dev != top.Dev || path == filepath.Join(dir, "image")):
			return filepath.SkipDir
		case !d.Type().IsRegular() || st.Dev != top.Dev:
			return nil
		}
		b, err := os.ReadFile(path)
		// A record contains its configuration in base64, in which a text has one of three forms.
		if bytes.Contains(b, []byte(text)) {
			found = append(found, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func secretive(c *cri.ContainerConfig) {
	c.Envs = append(c.Envs, &cri.KeyValue{Key: "PASSWORD", Value: []byte(secretText)})
	c.Command = []string{"sh", "-c", "exec sleep 1000", secretText}
	c.Args = []string{"--token=" + secretText}
}

// No secret of a container is on any disk, from its creation to its removal and across a restart of
// carob; an exec and the hooks of devices still have it.
func TestSecretsStayInMemory(t *testing.T) {
	w := newWorld(t)
	w.cfg.CDIDirs = []string{t.TempDir()}
	w.r.cfg.CDIDirs = w.cfg.CDIDirs
	spec := `{"cdiVersion":"0.7.0","kind":"vendor.com/gpu","devices":[{"name":"0","containerEdits":{"hooks":[{"hookName":"createRuntime","path":"/bin/true"}]}}]}`
	if err := os.WriteFile(filepath.Join(w.r.cfg.CDIDirs[0], "vendor.json"), []byte(spec), 0o644); err != nil {
		t.Fatal(err)
	}
	sb, sbc := w.sandbox("secret")
	id := w.create(sb, sbc, "c", secretive,
		func(c *cri.ContainerConfig) { c.CDIDevices = []*cri.CDIDevice{{Name: "vendor.com/gpu=0"}} })
	var fs unix.Statfs_t
	if err := unix.Statfs(w.r.secretDir(""), &fs); err != nil || fs.Type != unix.TMPFS_MAGIC {
		t.Fatalf("environments lie on a file system of type %#x, %v", fs.Type, err)
	}
	look := func(when string) {
		t.Helper()
		for _, text := range hidden(secretText) {
			if found := onDisk(t, w.dir, text); len(found) > 0 {
				t.Errorf("%s it lies in %q", when, found)
			}
		}
	}
	look("created,")
	w.start(id)
	look("running,")
	for _, when := range []string{"before a restart", "after a restart"} {
		if x, err := w.exec(id, "sh", "-c", "echo $PASSWORD"); err != nil || string(x.Stdout) != secretText+"\n" {
			t.Errorf("exec %s: %q, %v", when, x.GetStdout(), err)
		}
		if when == "before a restart" {
			if err := w.r.Close(); err != nil {
				t.Fatal(err)
			}
			w.open()
			look("after a restart,")
		}
	}
	// A process killed between the two writes leaves nothing.
	if err := w.r.keepSecrets("half", &cri.ContainerConfig{}); err != nil {
		t.Fatal(err)
	}
	if err := w.r.Close(); err != nil {
		t.Fatal(err)
	}
	w.open()
	if exists(w.r.secretDir("half")) || !exists(w.r.secretDir(id)) {
		t.Error("the environment of what is not there stays, or that of what is there is gone")
	}
	w.stop(id, 0)
	if _, err := w.r.RemoveContainer(Bg, &cri.RemoveContainerRequest{ContainerId: id}); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(w.r.secretDir("")); err != nil || len(left) > 0 {
		t.Errorf("a removed container leaves %v, %v", left, err)
	}
	look("removed,")
	if mounted, err := isMount(w.r.secretDir("")); err != nil || mounted {
		t.Errorf("without containers memory stays mounted: %t, %v", mounted, err)
	}
}

// hidden returns the forms that a text can have in a file: plain, and the three of base64.
func hidden(text string) []string {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
	out := []string{text}
	for shift := range 3 {
		var bits, n uint
		var b strings.Builder
		for _, c := range []byte(strings.Repeat("\x00", shift) + text) {
			bits, n = bits<<8|uint(c), n+8
			for n >= 6 {
				n -= 6
				b.WriteByte(alphabet[bits>>n&63])
			}
		}
		out = append(out, b.String()[2*min(shift, 1)+shift:])
	}
	return out
}

// A record of an earlier release has everything on disk: it is read and moved into memory. After a
// reboot, the records exist without their secrets, and all containers have exited.
func TestSecretsOfEarlierReleases(t *testing.T) {
	w := newWorld(t)
	sb, sbc := w.sandbox("old")
	id := w.run(sb, sbc, "c", secretive)
	c, err := w.r.container(id)
	if err != nil {
		t.Fatal(err)
	}
	c.rec.Config = state.Encode(c.config)
	for range 2 {
		if err := w.r.saveContainer(c); err != nil {
			t.Fatal(err)
		}
	}
	if err := removeDir(w.r.secretDir(id)); err != nil {
		t.Fatal(err)
	}
	if len(onDisk(t, w.dir, hidden(secretText)[1]))+len(onDisk(t, w.dir, hidden(secretText)[2]))+
		len(onDisk(t, w.dir, hidden(secretText)[3])) == 0 {
		t.Fatal("the control failed: a record of an earlier release does not show its environment")
	}
	if err := w.r.Close(); err != nil {
		t.Fatal(err)
	}
	w.open()
	for _, text := range hidden(secretText) {
		if found := onDisk(t, w.dir, text); len(found) > 0 {
			t.Errorf("it still lies in %q", found)
		}
	}
	if x, err := w.exec(id, "sh", "-c", "echo $PASSWORD"); err != nil || string(x.Stdout) != secretText+"\n" {
		t.Errorf("exec after the upgrade: %q, %v", x.GetStdout(), err)
	}
	// A reboot: the tmpfs is empty, no process runs.
	w.stop(id, 0)
	if err := w.r.Close(); err != nil {
		t.Fatal(err)
	}
	if err := removeDir(w.r.secretDir(id)); err != nil {
		t.Fatal(err)
	}
	w.open()
	st, err := w.r.ContainerStatus(Bg, &cri.ContainerStatusRequest{ContainerId: id})
	if err != nil || st.Status.State != cri.ContainerState_CONTAINER_EXITED || st.Status.Metadata.Name != "c" {
		t.Errorf("after a reboot: %v, %v", st, err)
	}
	if _, err := w.r.RemoveContainer(Bg, &cri.RemoveContainerRequest{ContainerId: id}); err != nil {
		t.Error(err)
	}
}
