package plan

import (
	"bytes"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/mount"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/runtime/native/cgroups"
	"carob/internal/runtime/native/wire"
)

func TestSelinuxLabels(t *testing.T) {
	for _, tc := range []struct {
		o              *cri.SELinuxOption
		process, files string
	}{
		{nil, "", ""},
		{&cri.SELinuxOption{User: "u"}, "", ""},
		{&cri.SELinuxOption{Level: "s0:c1,c2"}, "system_u:system_r:container_t:s0:c1,c2",
			"system_u:object_r:container_file_t:s0:c1,c2"},
		{&cri.SELinuxOption{User: "u", Role: "r", Type: "spc_t"}, "u:r:spc_t:s0",
			"u:object_r:container_file_t:s0"},
	} {
		if p, f, err := SELinuxLabels(tc.o); p != tc.process || f != tc.files || err != nil {
			t.Errorf("%v: %q, %q, %v", tc.o, p, f, err)
		}
	}
}

// hostileLevels contain more than a level: another mount option, another part of the label, a NUL,
// or a newline.
var hostileLevels = []string{
	`s0",upperdir=/etc,x="`, `s0"`, `s0,rootcontext="a`, "s0\x00,suid", "s0\n", "s0 c1", "s0:", "s0:c1,", "s0:c1-",
	"-s0", ":s0", "s0:c1:c2", "s0-s1-s2",
	"s0'", "s0\\", "s0=c", "s0/../x", "ſ0", strings.Repeat("s", 513),
}

func TestSelinuxGrammar(t *testing.T) {
	for _, level := range []string{"s0", "s15:c0,c1023", "s0:c0.c1023", "s0-s15:c0.c1023", "s0:c1-s1:c1,c3.c5",
		"SystemLow", "s0:c1,c2"} {
		if _, _, err := SELinuxLabels(&cri.SELinuxOption{Level: level}); err != nil {
			t.Errorf("level %q: %v", level, err)
		}
	}
	for _, o := range []*cri.SELinuxOption{{Level: "s0", User: "a:b"}, {Level: "s0", Role: `r"`}, {Type: "t,x"},
		{Type: "t:s0"}, {User: "u\x00"}, {Role: " "}, {Type: strings.Repeat("t", 256)}, {Type: "1"}} {
		if p, _, err := SELinuxLabels(o); err == nil {
			t.Errorf("%v makes %q", o, p)
		}
	}
	for _, level := range hostileLevels {
		if p, f, err := SELinuxLabels(&cri.SELinuxOption{Level: level}); err == nil {
			t.Errorf("level %q makes %q, %q", level, p, f)
		}
	}
}

// FuzzSelinuxLabels: for any options, labels have four parts and are a single mount option.
func FuzzSelinuxLabels(f *testing.F) {
	for _, level := range append(hostileLevels, "s0:c1,c2", "s0-s1:c0.c9") {
		f.Add("u", "r", "t", level)
	}
	f.Add("u:x", "r\x00", `t"`, "s0")
	f.Fuzz(func(t *testing.T, user, role, kind, level string) {
		process, files, err := SELinuxLabels(&cri.SELinuxOption{User: user, Role: role, Type: kind, Level: level})
		if err != nil || process == "" {
			return
		}
		for _, label := range []string{process, files} {
			if parts := strings.SplitN(label, ":", 4); len(parts) != 4 || strings.Contains(label, "::") {
				t.Fatalf("%q", label)
			}
			if strings.Trim(label, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.,:-") != "" ||
				len(label) > 2000 {
				t.Fatalf("%q", label)
			}
			if strings.ContainsAny(label, "\"\x00\n \\=") {
				t.Fatalf("%q can end a mount option", label)
			}
		}
	})
}

// The container's own mounts have its label: image, image volume, /dev, and the directory of
// cgroups. A bind mount cannot have one.
func TestSelinuxMounts(t *testing.T) {
	pl := &Container{
		ID: "x", Groups: &cgroups.Hierarchies{Tree: []cgroups.Hierarchy{{Name: "cpu", Mount: "/cg/cpu",
			Controllers: []string{"cpu"}}}}, Cgroup: "/c", RootDir: "/r", FileLabel: "u:r:t:s0:c1,c2",
		Images: map[string]ImageMount{
			"/img": {Mounts: []mount.Mount{{Type: "overlay", Options: []string{"lowerdir=/3:/4"}}}, Staging: "/s"}},
		RootFS: []mount.Mount{{Type: "overlay", Options: []string{"lowerdir=/1:/2", "upperdir=/u"}}},
		Config: &cri.ContainerConfig{Command: []string{"true"},
			Mounts: []*cri.Mount{{ContainerPath: "/img", Image: &cri.ImageSpec{Image: "i"}}},
			Linux:  &cri.LinuxContainerConfig{SecurityContext: &cri.LinuxContainerSecurityContext{}}},
	}
	for want, label := range map[int]string{4: "u:r:t:s0:c1,c2", 0: ""} {
		pl.FileLabel = label
		p, err := pl.Program()
		if err != nil {
			t.Fatal(err)
		}
		if got := bytes.Count(wire.Encode(p.Ops), []byte(`context="u:r:t:s0:c1,c2"`)); got != want {
			t.Errorf("label %q: %d mounts with it, want %d", label, got, want)
		}
	}
}
