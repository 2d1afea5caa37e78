package remotedisk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const target = "iqn.2026-11.com.example:disks"

// world is a machine as files, and the programs that change it.
type world struct {
	t     *testing.T
	root  string
	calls []string
	// fail is the status with which the program ends whose arguments contain a text.
	fail    map[string]int
	silent  bool // a login makes no device
	devices int
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, root: t.TempDir(), fail: map[string]int{}}
	for _, dir := range []string{"dev/disk/by-path", "dev/disk/by-id", "sys/block", "sys/class/scsi_host"} {
		w.dir(dir)
	}
	return w
}

func (w *world) dir(name string) {
	if err := os.MkdirAll(filepath.Join(w.root, name), 0o755); err != nil {
		w.t.Error(err)
	}
}

func (w *world) file(name, text string) {
	w.dir(filepath.Dir(name))
	if err := os.WriteFile(filepath.Join(w.root, name), []byte(text), 0o600); err != nil {
		w.t.Error(err)
	}
}

func (w *world) read(name string) string {
	text, _ := os.ReadFile(filepath.Join(w.root, name))
	return string(text)
}

// device makes a block device with a link to it.
func (w *world) device(name, link string) {
	w.file("dev/"+name, "")
	w.file("sys/block/"+name+"/device/delete", "")
	w.dir(filepath.Dir("dev/disk/" + link))
	if err := os.Symlink("../../"+name, filepath.Join(w.root, "dev/disk", link)); err != nil {
		w.t.Error(err)
	}
}

// mapper makes a device of the device mapper above others.
func (w *world) mapper(name, uuid string, slaves ...string) {
	w.file("dev/"+name, "")
	w.file("sys/block/"+name+"/dm/uuid", uuid+"\n")
	for _, s := range slaves {
		w.file("sys/block/"+name+"/slaves/"+s, "")
	}
}

// session makes the session of a login, with devices for LUN 0 and 1.
func (w *world) session(portal string) {
	w.devices++
	n := w.devices
	host := fmt.Sprintf("sys/class/iscsi_host/host%d/device/session%d", n, n)
	w.file(fmt.Sprintf("%s/iscsi_session/session%d/targetname", host, n), target+"\n")
	address, port, _ := strings.Cut(portal, ":")
	if i := strings.LastIndex(portal, "]:"); i > 0 {
		address, port = portal[1:i], portal[i+2:]
	}
	c := fmt.Sprintf("%s/connection%d:0/iscsi_connection/connection%d:0/", host, n, n)
	w.file(c+"persistent_address", address+"\n")
	w.file(c+"persistent_port", port+"\n")
	w.file(fmt.Sprintf("sys/class/scsi_host/host%d/scan", n), "")
	if w.silent {
		return
	}
	for lun := range 2 {
		name := fmt.Sprintf("sd%c", 'a'+2*(n-1)+lun)
		w.dir(fmt.Sprintf("%s/target%d:0:0/%d:0:0:%d/block/%s", host, n, n, lun, name))
		w.device(name, fmt.Sprintf("by-path/ip-%s:%s-iscsi-%s-lun-%d", address, port, target, lun))
	}
}

func (w *world) run(_ context.Context, name string, args ...string) (string, error) {
	call := strings.Join(append([]string{name}, args...), " ")
	w.calls = append(w.calls, call)
	for text, status := range w.fail {
		if strings.Contains(call, text) {
			err := exec.Command("sh", "-c", fmt.Sprintf("exit %d", status)).Run()
			return "the reason", err
		}
	}
	if strings.HasSuffix(call, "-o show") {
		return "# BEGIN RECORD 2.1.8\niface.iscsi_ifacename = default\niface.net_ifacename = <empty>\n" +
			"iface.transport_name = tcp\niface.initiatorname = <empty>\niface.mtu = 0\n# END RECORD", nil
	}
	if slices.Contains(args, "--login") {
		w.session(args[3])
	}
	if slices.Contains(args, "--logout") {
		_ = os.RemoveAll(filepath.Join(w.root, "sys/class/iscsi_host"))
	}
	return "", nil
}

func (w *world) manager() *Manager {
	return New(Config{Root: w.root, Run: w.run, Dirs: func() ([]string, error) {
		return []string{w.pod("a"), w.pod("b"), w.pod("none")}, nil
	}})
}

func (w *world) pod(uid string) string { return filepath.Join(w.root, "pods", uid) }

// programs are the calls since the last time, one in a line.
func (w *world) programs() string {
	text := strings.Join(w.calls, "\n")
	w.calls = nil
	return text
}

func lun(n int32, portals ...string) Disk {
	d, _ := Of(&corev1.ISCSIPersistentVolumeSource{TargetPortal: portals[0], Portals: portals[1:], IQN: target, Lun: n},
		nil, "pv")
	return d
}

// The steps of a login are upstream's, with CHAP for discovery and session. A second LUN of the target uses the
// session, and only the last one ends it.
func TestISCSI(t *testing.T) {
	w := newWorld(t)
	m := w.manager()
	s := Secrets{Discovery: true, Session: true, Values: map[string][]byte{
		"discovery.sendtargets.auth.username": []byte("u"), "node.session.auth.password": []byte("-p word"),
		"unknown": []byte("x")}}
	for range 2 { // the second time nothing is left to do
		device, err := m.Attach(t.Context(), w.pod("a"), "v", lun(0, "10.0.0.1"), s)
		if err != nil || device != filepath.Join(w.root, "dev/sda") {
			t.Fatal(device, err)
		}
	}
	const discovery = "iscsiadm -m discoverydb -t sendtargets -p 10.0.0.1:3260 -I default "
	const node = "iscsiadm -m node -p 10.0.0.1:3260 -T " + target + " -I default "
	want := strings.Join([]string{"iscsiadm -m iface -I default -o show", discovery + "-o new",
		discovery + "-o update -n discovery.sendtargets.auth.authmethod -v CHAP",
		discovery + "-o update -n discovery.sendtargets.auth.username -v u", discovery + "--discover",
		node + "-o update -n node.session.scan -v manual",
		node + "-o update -n node.session.auth.authmethod -v CHAP",
		node + "-o update -n node.session.auth.password -v -p word", node + "--login",
		node + "-o update -n node.startup -v manual", "iscsiadm -m iface -I default -o show"}, "\n")
	if got := w.programs(); got != want {
		t.Errorf("attach:\n%s\nwant\n%s", got, want)
	}
	if got := w.read("sys/class/scsi_host/host1/scan"); got != "0 0 0" {
		t.Errorf("scan: %q", got)
	}
	if device, err := m.Attach(t.Context(), w.pod("b"), "w", lun(1, "10.0.0.1:3260"), Secrets{}); err != nil ||
		device != filepath.Join(w.root, "dev/sdb") {
		t.Fatal(device, err)
	}
	w.programs()
	m = w.manager() // the agent starts again
	for range 2 {
		if err := m.Detach(t.Context(), w.pod("a")); err != nil {
			t.Fatal(err)
		}
	}
	if got := w.programs(); got != "" || w.read("sys/block/sda/device/delete") != "1" ||
		w.read("sys/block/sdb/device/delete") != "" {
		t.Errorf("detach of the first: %s", got)
	}
	if err := m.Detach(t.Context(), w.pod("b")); err != nil {
		t.Fatal(err)
	}
	if got := w.programs(); got != node+"--logout\n"+node+"-o delete" || w.read("sys/block/sdb/device/delete") != "1" {
		t.Errorf("detach of the last: %s", got)
	}
}

// Two pods with one disk: the device stays until both have released it.
func TestSharedDisk(t *testing.T) {
	w := newWorld(t)
	m := w.manager()
	for _, pod := range []string{"a", "b"} {
		if _, err := m.Attach(t.Context(), w.pod(pod), "v", lun(0, "[fd00::1]:3260"), Secrets{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.Detach(t.Context(), w.pod("a")); err != nil || w.read("sys/block/sda/device/delete") != "" {
		t.Errorf("the first pod: %v", err)
	}
	if err := m.Detach(t.Context(), w.pod("b")); err != nil || w.read("sys/block/sda/device/delete") != "1" {
		t.Error(err)
	}
}

// With several portals, the device is that of multipathd, which may come late; a logical volume is none.
func TestMultipath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.mapper("dm-0", "LVM-x", "sda")
		go func() {
			time.Sleep(3 * time.Second)
			w.mapper("dm-1", "mpath-x", "sda", "sdc")
		}()
		m := w.manager()
		disk := lun(0, "10.0.0.1", "10.0.0.2", "10.0.0.1:3260")
		device, err := m.Attach(t.Context(), w.pod("a"), "v", disk, Secrets{})
		if err != nil || device != filepath.Join(w.root, "dev/dm-1") {
			t.Fatal(device, err)
		}
		w.programs()
		if err := m.Detach(t.Context(), w.pod("a")); err != nil {
			t.Fatal(err)
		}
		if got := w.programs(); !strings.HasPrefix(got, "multipath -f "+filepath.Join(w.root, "dev/dm-1")+"\n") ||
			strings.Count(got, "--logout") != 2 || w.read("sys/block/sda/device/delete") != "1" ||
			w.read("sys/block/sdc/device/delete") != "1" {
			t.Errorf("detach: %s", got)
		}
		synctest.Wait()
	})
	synctest.Test(t, func(t *testing.T) { // one path is enough, after five attempts
		w := newWorld(t)
		w.fail["-p 10.0.0.2:3260 -I default --discover"] = 1
		began := time.Now()
		device, err := w.manager().Attach(t.Context(), w.pod("a"), "v", lun(0, "10.0.0.1", "10.0.0.2"), Secrets{})
		if err != nil || device != filepath.Join(w.root, "dev/sda") || time.Since(began) < multipathWait {
			t.Error(device, err, time.Since(began))
		}
		if got := strings.Count(w.programs(), "-p 10.0.0.2:3260 -I default --discover"); got != maxAttempts {
			t.Errorf("%d attempts", got)
		}
	})
}

// The device comes late, or never; the caller gives up.
func TestLateDevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.silent = true
		go func() {
			time.Sleep(29 * time.Second)
			w.device("sdx", "by-path/ip-10.0.0.1:3260-iscsi-"+target+"-lun-0")
		}()
		if device, err := w.manager().Attach(t.Context(), w.pod("a"), "v", lun(0, "10.0.0.1"), Secrets{}); err != nil ||
			device != filepath.Join(w.root, "dev/sdx") {
			t.Error(device, err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.silent = true
		_, err := w.manager().Attach(t.Context(), w.pod("a"), "v", lun(0, "10.0.0.1"), Secrets{})
		if err == nil || !strings.Contains(err.Error(), "failed to get any path for iscsi disk, last err seen: "+
			"Timed out waiting for device at path /dev/disk/by-path/ip-10.0.0.1:3260-iscsi-"+target+"-lun-0 after 30s") {
			t.Error(err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.silent = true
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		m := w.manager()
		began := time.Now()
		if _, err := m.Attach(ctx, w.pod("a"), "v", lun(0, "10.0.0.1"), Secrets{}); !errors.Is(err, ctx.Err()) ||
			time.Since(began) != time.Second {
			t.Error(err, time.Since(began))
		}
		if err := m.Detach(t.Context(), w.pod("a")); err != nil || !strings.Contains(w.programs(), "--logout") {
			t.Error(err)
		}
	})
}

// Each program fails once: the attempt ends with its reason and without secrets, and the pod's end leaves nothing.
func TestProgramFails(t *testing.T) {
	for _, text := range []string{"-o show", "sendtargets.auth.authmethod", "auth.password", "--discover",
		"session.auth.authmethod", "--login"} {
		w := newWorld(t)
		w.fail[text] = 19
		m := w.manager()
		s := Secrets{Discovery: true, Session: true,
			Values: map[string][]byte{"discovery.sendtargets.auth.password": []byte("geheim")}}
		_, err := m.Attach(t.Context(), w.pod("a"), "v", lun(0, "10.0.0.1"), s)
		if err == nil || !strings.Contains(err.Error(), "exit status 19") || strings.Contains(err.Error(), "geheim") {
			t.Errorf("%s: %v", text, err)
		}
		w.fail = map[string]int{"--logout": nothingFound, "-o delete": nothingFound}
		if err := m.Detach(t.Context(), w.pod("a")); err != nil {
			t.Errorf("%s: %v", text, err)
		}
		if left, err := os.ReadDir(w.pod("a")); err != nil || len(left) > 0 {
			t.Errorf("%s: left %v, %v", text, left, err)
		}
	}
	// A logout that fails is tried again; a program that is not installed is none.
	w := newWorld(t)
	m := w.manager()
	if _, err := m.Attach(t.Context(), w.pod("a"), "v", lun(0, "10.0.0.1"), Secrets{}); err != nil {
		t.Fatal(err)
	}
	w.fail["--logout"] = 1
	if err := m.Detach(t.Context(), w.pod("a")); err == nil {
		t.Error("a logout that fails is no error")
	}
	m.cfg.Run = func(context.Context, string, ...string) (string, error) { return "", exec.ErrNotFound }
	if err := m.Detach(t.Context(), w.pod("a")); err != nil {
		t.Error(err)
	}
	_, err := m.Attach(t.Context(), w.pod("a"), "v", lun(0, "10.0.0.1"), Secrets{})
	if err == nil || !strings.Contains(err.Error(), "the node has no iscsiadm (package open-iscsi)") {
		t.Errorf("the error does not name the package: %v", err)
	}
}

// A session that exists already is one.
func TestSessionExists(t *testing.T) {
	w := newWorld(t)
	w.fail["--login"] = sessionExists
	m := w.manager()
	_, err := m.Attach(t.Context(), w.pod("a"), "v", lun(0, "10.0.0.1"), Secrets{})
	if err == nil || !strings.Contains(err.Error(), "no session with portal 10.0.0.1:3260 after the login") {
		t.Error(err)
	}
	w.session("10.0.0.1:3260")
	if _, err := m.Attach(t.Context(), w.pod("a"), "v", lun(0, "10.0.0.1"), Secrets{}); err != nil {
		t.Error(err)
	}
}

// A volume with its own initiator has its own interface, which goes with the last session.
func TestInitiator(t *testing.T) {
	w := newWorld(t)
	w.fail["-o new"] = sessionExists
	m := w.manager()
	d := lun(0, "10.0.0.1")
	d.ISCSI.Initiator = "iqn.2026-11.com.example:me"
	if _, err := m.Attach(t.Context(), w.pod("a"), "v", d, Secrets{}); err != nil {
		t.Fatal(err)
	}
	const iface = "iscsiadm -m iface -I 10.0.0.1:3260:pv -o "
	if got := w.programs(); !strings.Contains(got, iface+"new\n"+iface+"update -n iface.transport_name -v tcp\n"+
		iface+"update -n iface.mtu -v 0\n"+iface+"update -n iface.initiatorname -v iqn.2026-11.com.example:me\n") ||
		!strings.Contains(got, " -I 10.0.0.1:3260:pv --login") {
		t.Error(got)
	}
	if err := m.Detach(t.Context(), w.pod("a")); err != nil || !strings.HasSuffix(w.programs(), iface+"delete") {
		t.Error(err)
	}
}

// Disks of Fibre Channel by port and LUN, after a look for new disks, or by identifier; all paths go with a disk.
func TestFibreChannel(t *testing.T) {
	w := newWorld(t)
	w.file("sys/class/scsi_host/host3/scan", "")
	m := w.manager()
	d, _ := Of(nil, &corev1.FCVolumeSource{TargetWWNs: []string{"500A0982991B8DC5"}, Lun: new(int32(2))}, "pv")
	if _, err := m.Attach(t.Context(), w.pod("a"), "v", d, Secrets{}); err == nil || err.Error() != "no fc disk found" {
		t.Fatal(err)
	}
	if got := w.read("sys/class/scsi_host/host3/scan"); got != "- - -" {
		t.Errorf("scan: %q", got)
	}
	w.device("sdb", "by-path/pci-0000:41:00.0-fc-0x500a0982991b8dc5-lun-21")
	w.device("sdc", "by-path/pci-0000:41:00.0-fc-0x500a0982991b8dc5-lun-2")
	device, err := m.Attach(t.Context(), w.pod("a"), "v", d, Secrets{})
	if err != nil || device != filepath.Join(w.root, "dev/sdc") {
		t.Fatal(device, err)
	}
	w.mapper("dm-1", "mpath-x", "sdc", "sdd")
	w.file("sys/block/sdd/device/delete", "")
	if device, err := m.Attach(t.Context(), w.pod("a"), "v", d, Secrets{}); err != nil ||
		device != filepath.Join(w.root, "dev/dm-1") {
		t.Fatal(device, err)
	}
	if err := m.Detach(t.Context(), w.pod("a")); err != nil || w.read("sys/block/sdb/device/delete") != "" ||
		w.read("sys/block/sdc/device/delete") != "1" || w.read("sys/block/sdd/device/delete") != "1" {
		t.Error(err)
	}
	by, _ := Of(nil, &corev1.FCVolumeSource{WWIDs: []string{"ACME DISK 7"}}, "pv")
	w.device("sde", "by-id/scsi-ACME_DISK_7")
	if device, err := m.Attach(t.Context(), w.pod("b"), "v", by, Secrets{}); err != nil ||
		device != filepath.Join(w.root, "dev/sde") {
		t.Error(device, err)
	}
	if err := m.Detach(t.Context(), w.pod("b")); err != nil || w.read("sys/block/sde/device/delete") != "1" {
		t.Error(err)
	}
}

// A link that leads out of /dev names no device, and a damaged record does not keep its pod.
func TestHostileFiles(t *testing.T) {
	w := newWorld(t)
	m := w.manager()
	w.file("etc/secret", "")
	if err := os.Symlink("../../../etc/secret", filepath.Join(w.root, "dev/disk/by-id/scsi-x")); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Attach(t.Context(), w.pod("a"), "v", Disk{FC: &FC{WWIDs: []string{"x"}}}, Secrets{}); err == nil ||
		!strings.Contains(err.Error(), "is no link to a device") {
		t.Error(err)
	}
	if err := os.Remove(filepath.Join(w.root, "dev/disk/by-id/scsi-x")); err != nil {
		t.Fatal(err)
	}
	w.file("pods/a/w", `{"iscsi":{"portals":["--help"],"target":"../.."}}`)
	w.file("pods/a/x", "{")
	if err := m.Detach(t.Context(), w.pod("a")); err != nil || w.programs() != "" {
		t.Error(err)
	}
	if left, _ := os.ReadDir(w.pod("a")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestInvalidDisks(t *testing.T) {
	good := func() *ISCSI { return lun(0, "10.0.0.1").ISCSI }
	for name, change := range map[string]func(*ISCSI){
		"option as portal":    func(d *ISCSI) { d.Portals = []string{"--help:1"} },
		"path as portal":      func(d *ISCSI) { d.Portals = []string{"../x:3260"} },
		"no port":             func(d *ISCSI) { d.Portals = []string{"host:"} },
		"port 0":              func(d *ISCSI) { d.Portals = []string{"host:0"} },
		"large port":          func(d *ISCSI) { d.Portals = []string{"host:70000"} },
		"zone":                func(d *ISCSI) { d.Portals = []string{"[fe80::1%../x]:3260"} },
		"no portal":           func(d *ISCSI) { d.Portals = nil },
		"option as target":    func(d *ISCSI) { d.Target = "--logoutall=all" },
		"path in target":      func(d *ISCSI) { d.Target = "iqn.2026-11.com.example:../../x" },
		"glob in target":      func(d *ISCSI) { d.Target = "iqn.2026-11.com.example:*" },
		"space in target":     func(d *ISCSI) { d.Target = "iqn.2026-11.com.example:a b" },
		"newline in target":   func(d *ISCSI) { d.Target = "iqn.2026-11.com.example:a\n" },
		"initiator":           func(d *ISCSI) { d.Initiator = "iqn" },
		"option as interface": func(d *ISCSI) { d.Interface = "-o" },
		"path as interface":   func(d *ISCSI) { d.Interface = "a/b" },
		"dots in interface":   func(d *ISCSI) { d.Interface = "a..b" },
		"LUN":                 func(d *ISCSI) { d.LUN = 256 },
	} {
		d := good()
		change(d)
		if err := (&Disk{ISCSI: d}).Check(); err == nil {
			t.Errorf("%s is accepted: %+v", name, d)
		}
	}
	for _, d := range []FC{{}, {WWNs: []string{"../x"}}, {WWNs: []string{".*"}}, {WWNs: []string{"-1"}},
		{WWIDs: []string{"../../x"}}, {WWIDs: []string{""}}, {WWIDs: []string{"a/b"}}, {WWNs: []string{"1"}, LUN: -1}} {
		if err := (&Disk{FC: &d}).Check(); err == nil {
			t.Errorf("%+v is accepted", d)
		}
	}
	for _, v := range []string{"a\nnode.session.auth.authmethod = None", "a\x00b", strings.Repeat("x", 256)} {
		s := Secrets{Session: true, Values: map[string][]byte{"node.session.auth.password": []byte(v)}}
		if err := s.check(); err == nil || strings.Contains(err.Error(), v) {
			t.Errorf("%.20q: %v", v, err)
		}
	}
	if err := (&Disk{}).Check(); err == nil {
		t.Error("no disk is accepted")
	}
}

// Whatever a volume names: no argument of iscsiadm is an option that it made, and no path leaves its directory.
func FuzzISCSI(f *testing.F) {
	f.Add("10.0.0.1", "iqn.2026-11.com.example:x", "default", "", int32(0))
	f.Add("[fd00::1]:3260", "eui.0123456789abcdef", "a:b", "naa.0123456789abcdef", int32(255))
	f.Add("--help", "iqn.2026-11.com.example:../..", "-o", "x\n", int32(-1))
	f.Fuzz(func(t *testing.T, portal, iqn, iface, initiator string, n int32) {
		d, _ := Of(&corev1.ISCSIPersistentVolumeSource{TargetPortal: portal, IQN: iqn, Lun: n, ISCSIInterface: iface,
			InitiatorName: &initiator}, nil, "pv")
		if d.Check() != nil {
			return
		}
		for _, s := range append(d.ISCSI.Portals, d.ISCSI.Target, d.ISCSI.iface(), d.ISCSI.Interface) {
			if s == "" || s[0] == '-' || strings.ContainsAny(s, "/\n\x00 *?\\") ||
				strings.Contains(s, "..") && !strings.HasPrefix(s, "iqn") {
				t.Errorf("%q", s)
			}
		}
	})
}

// A record that cannot be read now, as when the agent has too many open files, is no damaged one: it stays, and no disk
// is removed that it may name.
func TestUnreadableRecord(t *testing.T) {
	w := newWorld(t)
	m := w.manager()
	w.device("sdc", "by-id/scsi-x")
	disk := Disk{FC: &FC{WWIDs: []string{"x"}}}
	if _, err := m.Attach(t.Context(), w.pod("a"), "v", disk, Secrets{}); err != nil {
		t.Fatal(err)
	}
	w.dir("pods/b/v") // reading it is an error
	if err := m.Detach(t.Context(), w.pod("b")); err == nil {
		t.Error("the record was given up")
	}
	if _, err := os.Lstat(filepath.Join(w.pod("b"), "v")); err != nil {
		t.Error(err)
	}
	if err := m.Detach(t.Context(), w.pod("a")); err == nil || w.read("sys/block/sdc/device/delete") != "" {
		t.Errorf("a disk is removed that another pod may have: %v", err)
	}
	if err := os.Remove(filepath.Join(w.pod("b"), "v")); err != nil {
		t.Fatal(err)
	}
	if err := m.Detach(t.Context(), w.pod("a")); err != nil || w.read("sys/block/sdc/device/delete") != "1" {
		t.Error(err)
	}
}
