package devices

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/runtime/native/plan"
)

// brief is a device in one line.
func brief(d plan.Device) string {
	kind := map[uint32]string{unix.S_IFCHR: "c", unix.S_IFBLK: "b"}[d.Mode&unix.S_IFMT]
	return fmt.Sprintf("%s %s %d:%d %o %d:%d %s", d.Path, kind, d.Major, d.Minor, d.Mode&0o777, d.UID, d.GID, d.Access)
}

// node makes a device node, which needs root.
func node(t *testing.T, path string, mode uint32, major, minor uint32) {
	t.Helper()
	err := unix.Mknod(path, mode, int(unix.Mkdev(major, minor)))
	if errors.Is(err, unix.EPERM) {
		t.Skip("device nodes need root")
	}
	if err == nil {
		err = os.Chmod(path, os.FileMode(mode&0o777)) // whatever the umask
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestHostDevices(t *testing.T) {
	dir := t.TempDir()
	node(t, dir+"/null", unix.S_IFCHR|0o640, 1, 3)
	if err := errors.Join(os.Chown(dir+"/null", 7, 8), os.Symlink("null", dir+"/link"),
		os.WriteFile(dir+"/file", nil, 0o600), os.MkdirAll(dir+"/bus/usb", 0o700),
		os.Mkdir(dir+"/pts", 0o700)); err != nil {
		t.Fatal(err)
	}
	node(t, dir+"/bus/usb/sda", unix.S_IFBLK|0o600, 8, 0)
	node(t, dir+"/pts/0", unix.S_IFCHR|0o600, 136, 0)
	node(t, dir+"/console", unix.S_IFCHR|0o600, 5, 1)
	for _, c := range []struct {
		name string
		d    *cri.Device
		want []string
		err  string
	}{
		{"as it is", &cri.Device{HostPath: dir + "/null"}, []string{dir + "/null c 1:3 640 7:8 rwm"}, ""},
		{"elsewhere, read-only", &cri.Device{HostPath: dir + "/null", ContainerPath: "/dev/x", Permissions: "r"},
			[]string{"/dev/x c 1:3 640 7:8 r"}, ""},
		{"a link", &cri.Device{HostPath: dir + "/link", ContainerPath: "/dev/y"}, []string{"/dev/y c 1:3 640 7:8 rwm"}, ""},
		{"a directory, without terminals", &cri.Device{HostPath: dir, ContainerPath: "/dev/all", Permissions: "rw"},
			[]string{"/dev/all/bus/usb/sda b 8:0 600 0:0 rw", "/dev/all/null c 1:3 640 7:8 rw"}, ""},
		{"a file", &cri.Device{HostPath: dir + "/file"}, nil, "is not a device"},
		{"nothing", &cri.Device{HostPath: dir + "/none"}, nil, "no such file"},
	} {
		devices, err := Host(c.d)
		var got []string
		for _, d := range devices {
			got = append(got, brief(d))
		}
		slices.Sort(got)
		if !slices.Equal(got, c.want) || (err == nil) != (c.err == "") ||
			err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %q, %v", c.name, got, err)
		}
	}
}

const specification = `{"cdiVersion": "0.7.0", "kind": "example.com/gpu", "devices": [
{"name": "one", "containerEdits": {
  "env": ["GPU=one"],
  "deviceNodes": [{"path": "/dev/gpu0", "type": "c", "major": 200, "minor": 1, "fileMode": 416, "permissions": "rw",
    "uid": 3, "gid": 4}],
  "mounts": [{"hostPath": "/usr/lib/gpu", "containerPath": "/gpu", "options": ["ro", "nosuid", "rbind", "rslave"]}],
  "hooks": [{"hookName": "createContainer", "path": "/usr/bin/gpu-hook"}],
  "additionalGids": [44]}},
{"name": "tmpfs", "containerEdits": {"mounts": [{"hostPath": "x", "containerPath": "/x", "type": "tmpfs"}]}},
{"name": "option", "containerEdits": {"mounts": [{"hostPath": "/x", "containerPath": "/x", "options": ["wild"]}]}},
{"name": "hook", "containerEdits": {"hooks": [{"hookName": "prestart", "path": "hook"}]}},
{"name": "late", "containerEdits": {"hooks": [{"hookName": "startContainer", "path": "/hook"}]}},
{"name": "rdt", "containerEdits": {"intelRdt": {"closID": "c"}}}
]}`

func TestInjectCDI(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "gpu.json"), []byte(specification), 0o600); err != nil {
		t.Fatal(err)
	}
	config := &cri.ContainerConfig{Envs: []*cri.KeyValue{{Key: "A", Value: []byte("b")}}}
	c, devices, hooks, err := InjectCDI(config, []string{"example.com/gpu=one"}, []string{dir})
	if err != nil {
		t.Fatal(err)
	}
	if len(devices) != 1 || brief(devices[0]) != "/dev/gpu0 c 200:1 640 3:4 rw" {
		t.Errorf("devices %+v", devices)
	}
	if len(c.Envs) != 2 || c.Envs[1].Key != "GPU" || string(c.Envs[1].Value) != "one" || len(config.Envs) != 1 {
		t.Errorf("variables %v, and the request's %v", c.Envs, config.Envs)
	}
	if m := c.Mounts[0]; m.HostPath != "/usr/lib/gpu" || m.ContainerPath != "/gpu" || !m.Readonly ||
		m.Propagation != cri.MountPropagation_PROPAGATION_HOST_TO_CONTAINER ||
		!slices.Equal(m.MountOptions, []string{"nosuid"}) {
		t.Errorf("mount %v", m)
	}
	if g := c.Linux.SecurityContext.SupplementalGroups; !slices.Equal(g, []int64{44}) {
		t.Errorf("groups %v", g)
	}
	if len(hooks.CreateContainer) != 1 || hooks.CreateContainer[0].Path != "/usr/bin/gpu-hook" {
		t.Errorf("hooks %+v", hooks)
	}
	same, devices, hooks, err := InjectCDI(config, nil, []string{dir})
	if same != config || devices != nil || hooks != nil || err != nil {
		t.Error("a container without CDI devices is changed")
	}
	for device, want := range map[string]struct {
		code codes.Code
		text string
	}{
		"none":   {codes.InvalidArgument, "are in no valid specification below " + dir},
		"tmpfs":  {codes.Unimplemented, `of type "tmpfs": only binds are supported`},
		"option": {codes.Unimplemented, `option "wild" is not supported`},
		"hook":   {codes.InvalidArgument, `a hook whose path "hook" is not absolute`},
		"late":   {codes.Unimplemented, "need a startContainer hook"},
		"rdt":    {codes.Unimplemented, "need Intel RDT"},
	} {
		_, _, _, err := InjectCDI(config, []string{"example.com/gpu=" + device}, []string{dir})
		if status.Code(err) != want.code || !strings.Contains(err.Error(), want.text) {
			t.Errorf("%s: %v", device, err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "bad.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := InjectCDI(config, []string{"example.com/gpu=none"}, []string{dir}); err == nil ||
		!strings.Contains(err.Error(), "bad.json: ") {
		t.Errorf("a broken specification is not named: %v", err)
	}
}

// Names come from CRI's field and from annotations, each once.
func TestCDINames(t *testing.T) {
	c := &cri.ContainerConfig{CDIDevices: []*cri.CDIDevice{{Name: "example.com/gpu=one"}},
		Annotations: map[string]string{"cdi.k8s.io/x": "example.com/gpu=one,example.com/gpu=two", "other": "y"}}
	if got, err := CDINames(c); err != nil || !slices.Equal(got, []string{"example.com/gpu=one", "example.com/gpu=two"}) {
		t.Errorf("%q, %v", got, err)
	}
	c.Annotations["cdi.k8s.io/x"] = "no device"
	if _, err := CDINames(c); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a bad annotation: %v", err)
	}
}
