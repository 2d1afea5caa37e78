package native

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/mount"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/base/netns"
	"carob/internal/base/testwait"
	"carob/internal/network"
	contract "carob/internal/runtime"
	"carob/internal/runtime/native/detached"
)

// dirImages provides one image, from a directory.
type dirImages struct {
	contract.Images
	dir   string // layers
	root  string
	image imagespec.ImageConfig

	mu      sync.Mutex
	late    bool                // nothing is mounted ahead
	instead func() *os.File     // of what was mounted ahead; nil for that
	ahead   map[string]*os.File // mounts that were not taken yet
}

func (d *dirImages) Resolve(_ context.Context, ref string) (Image, error) {
	if ref != "busybox" && ref != "sha256:busybox" {
		return Image{}, status.Errorf(codes.NotFound, "image %q not found", ref)
	}
	return Image{ID: "sha256:busybox", Ref: "busybox@sha256:feed", Config: imagespec.Image{Config: d.image}}, nil
}

func (d *dirImages) ImageStatus(context.Context, *cri.ImageStatusRequest) (*cri.ImageStatusResponse, error) {
	return &cri.ImageStatusResponse{Image: &cri.Image{Id: "sha256:busybox",
		RepoTags: []string{"docker.io/library/busybox:1"}}}, nil
}

func (d *dirImages) Prepare(_ context.Context, key, _ string, ids IDMap, points []string) ([]mount.Mount, error) {
	if _, err := os.Stat(filepath.Join(d.dir, key)); err == nil {
		points = nil // only a new layer is mounted ahead
	}
	for _, n := range []string{"u", "w"} {
		if err := os.MkdirAll(filepath.Join(d.dir, key, n), 0o755); err != nil {
			return nil, err
		}
	}
	o := []string{"volatile", "lowerdir=" + d.root, "upperdir=" + filepath.Join(d.dir, key, "u"),
		"workdir=" + filepath.Join(d.dir, key, "w")}
	if !ids.Empty() {
		if err := os.Chown(filepath.Join(d.dir, key, "u"), int(ids.UIDs[0].HostId),
			int(ids.GIDs[0].HostId)); err != nil {
			return nil, err
		}
		o = append(o, "uidmap=x", "gidmap=x")
		points = nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if points != nil && !d.late && d.ahead[key] == nil {
		f, err := detached.Mount(detached.Overlay{Lower: []string{d.root}, Upper: filepath.Join(d.dir, key, "u"),
			Work: filepath.Join(d.dir, key, "w"), Points: points})
		if err != nil {
			return nil, err
		}
		if d.ahead == nil {
			d.ahead = map[string]*os.File{}
		}
		d.ahead[key] = f
	}
	return []mount.Mount{{Type: "overlay", Source: "overlay", Options: o}}, nil
}

// mountAhead says whether the roots of the next containers are mounted ahead.
func (d *dirImages) mountAhead(yes bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.late = !yes
}

func (d *dirImages) Mounted(key string) *os.File {
	d.mu.Lock()
	defer d.mu.Unlock()
	f := d.ahead[key]
	delete(d.ahead, key)
	if f != nil && d.instead != nil {
		f.Close()
		return d.instead()
	}
	return f
}

func (d *dirImages) Unmounted(key string) error {
	d.Mounted(key).Close() // nil for none; Close accepts that
	return os.RemoveAll(filepath.Join(d.dir, key, "w", "work", "incompat"))
}

func (d *dirImages) View(_ context.Context, key, _ string) ([]mount.Mount, error) {
	return []mount.Mount{{Type: "bind", Source: d.root, Options: []string{"rbind", "ro"}}}, nil
}

func (d *dirImages) Release(_ context.Context, key string) error {
	d.Mounted(key).Close() // nil for none; Close accepts that
	return os.RemoveAll(filepath.Join(d.dir, key))
}

func (d *dirImages) Usage(context.Context, string) (Usage, error) {
	return Usage{Bytes: 4096, Inodes: 2}, nil
}

// bareNetwork gives each sandbox a network namespace with only a loopback interface.
type bareNetwork struct {
	dir string
	mu  sync.Mutex
	n   int
}

func (b *bareNetwork) Attach(_ context.Context, p network.Pod) (network.Attachment, error) {
	path := filepath.Join(b.dir, p.SandboxID)
	settle := func() error {
		if err := netns.Pin(netns.Current, path); err != nil {
			return err
		}
		return loopbackUp()
	}
	var err error
	if p.NetNS == "" {
		err = netns.DoNew(settle)
	} else {
		err = netns.Do(p.NetNS, settle)
	}
	if err != nil {
		return network.Attachment{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.n++
	return network.Attachment{NetNS: path,
		IPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 9, byte(b.n >> 8), byte(b.n)})}}, nil
}

func loopbackUp() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, ifr)
}

func (b *bareNetwork) Detach(_ context.Context, id string) error {
	path := filepath.Join(b.dir, id)
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) &&
		!errors.Is(err, unix.ENOENT) {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

func (b *bareNetwork) Ready(context.Context) error { return nil }

func (b *bareNetwork) Sweep(ctx context.Context, live map[string]bool) error {
	entries, err := os.ReadDir(b.dir)
	for _, e := range entries {
		if !live[e.Name()] {
			err = errors.Join(err, b.Detach(ctx, e.Name()))
		}
	}
	return err
}

// world is a runtime with its own directories, images, and network.
type world struct {
	tb     testing.TB
	dir    string
	cfg    Config
	r      *Runtime
	images *dirImages
}

func newWorld(tb testing.TB) *world {
	tb.Helper()
	w := worldAt(tb, tb.TempDir(), fmt.Sprintf("/carob-native-test-%d-%d", os.Getpid(), time.Now().UnixNano()))
	tb.Cleanup(w.close)
	return w
}

// worldAt opens a world in a directory, which another process may have created.
func worldAt(tb testing.TB, dir, cgroup string) *world {
	tb.Helper()
	w := unopened(tb, dir, cgroup)
	w.open()
	return w
}

// unopened is a world whose runtime is not running yet.
func unopened(tb testing.TB, dir, cgroup string) *world {
	tb.Helper()
	if os.Geteuid() != 0 {
		tb.Skip("containers need root")
	}
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		tb.Skip("no busybox on this host")
	}
	root := filepath.Join(dir, "image")
	for _, d := range []string{"bin", "etc", "tmp", "proc", "sys", "dev", "root", "home/app"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			tb.Fatal(err)
		}
	}
	os.Chmod(filepath.Join(root, "tmp"), 0o777|os.ModeSticky)
	b, err := os.ReadFile(busybox)
	if err != nil {
		tb.Fatal(err)
	}
	files := map[string]string{
		"bin/busybox": string(b),
		"etc/passwd":  "root:x:0:0:root:/root:/bin/sh\napp:x:1000:1001:app:/home/app:/bin/sh\n",
		"etc/group":   "root:x:0:\napp:x:1001:\nextra:x:2000:app\nother:x:3000:root\n",
		"etc/noexec":  "text",
	}
	for n, c := range files {
		if exists(filepath.Join(root, n)) {
			continue
		}
		mode := os.FileMode(0o644)
		if n == "bin/busybox" {
			mode = 0o755
		}
		if err := os.WriteFile(filepath.Join(root, n), []byte(c), mode); err != nil {
			tb.Fatal(err)
		}
	}
	for a := range strings.FieldsSeq(
		"sh cat echo ls sleep id env true false mount hostname ps kill grep head dd nc stat chroot wc yes test mkdir rm touch printf tr seq readlink stty unshare mknod pwd awk sort") {
		os.Symlink("busybox", filepath.Join(root, "bin", a))
	}
	ns := filepath.Join(dir, "netns")
	if err := os.MkdirAll(ns, 0o755); err != nil {
		tb.Fatal(err)
	}
	w := &world{tb: tb, dir: dir, images: &dirImages{dir: filepath.Join(dir, "layers"), root: root,
		image: imagespec.ImageConfig{Cmd: []string{"sh"}, Env: []string{"IMAGE=yes"}}}}
	w.cfg = Config{
		RootDir: filepath.Join(dir, "root"), StateDir: filepath.Join(dir, "state"),
		CgroupRoot: cgroup, SandboxPool: 1,
		Images: w.images, Network: &bareNetwork{dir: ns},
	}
	return w
}

func (w *world) open() {
	w.tb.Helper()
	r, err := New(context.Background(), w.cfg)
	if err != nil {
		w.tb.Fatal(err)
	}
	w.r = r
}

func (w *world) close() {
	ctx := context.Background()
	list, err := w.r.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		w.tb.Error(err)
		return
	}
	for _, s := range list.Items {
		if _, err := w.r.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: s.Id}); err != nil {
			w.tb.Error(err)
		}
	}
	if err := w.r.Close(); err != nil {
		w.tb.Error(err)
	}
	if err := w.r.groups.Whole().Remove(w.cfg.CgroupRoot); err != nil {
		w.tb.Error(err)
	}
}

func (w *world) sandboxConfig(name string, change ...func(*cri.PodSandboxConfig)) *cri.PodSandboxConfig {
	cfg := &cri.PodSandboxConfig{
		Metadata: &cri.PodSandboxMetadata{Name: name, Namespace: "default", Uid: "uid-" + name},
		Hostname: name, LogDirectory: filepath.Join(w.dir, "logs", name),
		Linux: &cri.LinuxPodSandboxConfig{
			CgroupParent: w.cfg.CgroupRoot + "/" + name,
			SecurityContext: &cri.LinuxSandboxSecurityContext{
				NamespaceOptions: &cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER},
			},
		},
		Labels: map[string]string{"app": name},
	}
	for _, f := range change {
		f(cfg)
	}
	return cfg
}

func (w *world) sandbox(name string, change ...func(*cri.PodSandboxConfig)) (string, *cri.PodSandboxConfig) {
	w.tb.Helper()
	cfg := w.sandboxConfig(name, change...)
	resp, err := w.r.RunPodSandbox(context.Background(), &cri.RunPodSandboxRequest{Config: cfg})
	if err != nil {
		w.tb.Fatal(err)
	}
	return resp.PodSandboxId, cfg
}

func shell(script string) func(*cri.ContainerConfig) {
	return func(c *cri.ContainerConfig) { c.Command = []string{"sh", "-c", script} }
}

func containerConfig(sb *cri.PodSandboxConfig, name string, change ...func(*cri.ContainerConfig)) *cri.ContainerConfig {
	cfg := &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: name},
		Image:    &cri.ImageSpec{Image: "busybox"},
		LogPath:  name + ".log",
		Linux: &cri.LinuxContainerConfig{
			Resources: &cri.LinuxContainerResources{},
			SecurityContext: &cri.LinuxContainerSecurityContext{
				NamespaceOptions: &cri.NamespaceOption{
					Pid: sb.GetLinux().GetSecurityContext().GetNamespaceOptions().GetPid()},
				MaskedPaths: []string{"/proc/kcore", "/proc/keys", "/proc/acpi", "/sys/firmware",
					"/proc/not-there"},
				ReadonlyPaths: []string{"/proc/sys", "/proc/bus", "/proc/not-there"},
			},
		},
	}
	for _, f := range change {
		f(cfg)
	}
	return cfg
}

func (w *world) create(sb string, sbc *cri.PodSandboxConfig, name string, change ...func(*cri.ContainerConfig)) string {
	w.tb.Helper()
	resp, err := w.r.CreateContainer(context.Background(),
		&cri.CreateContainerRequest{PodSandboxId: sb, Config: containerConfig(sbc, name, change...),
			SandboxConfig: sbc})
	if err != nil {
		w.tb.Fatal(err)
	}
	return resp.ContainerId
}

func (w *world) start(id string) {
	w.tb.Helper()
	if _, err := w.r.StartContainer(context.Background(), &cri.StartContainerRequest{ContainerId: id}); err != nil {
		w.tb.Fatal(err)
	}
}

// run creates and starts a container.
func (w *world) run(sb string, sbc *cri.PodSandboxConfig, name string, change ...func(*cri.ContainerConfig)) string {
	w.tb.Helper()
	id := w.create(sb, sbc, name, change...)
	w.start(id)
	return id
}

// wait waits until a container exits and returns its status.
func (w *world) wait(id string) *cri.ContainerStatus {
	w.tb.Helper()
	c, err := w.r.container(id)
	if err != nil {
		w.tb.Fatal(err)
	}
	select {
	case <-c.done:
	case <-time.After(testwait.Limit):
		w.tb.Fatalf("container %s does not end", id)
	}
	return c.status()
}

// log returns what the container wrote, without timestamps.
func (w *world) log(sbc *cri.PodSandboxConfig, name string) string {
	w.tb.Helper()
	b, err := os.ReadFile(filepath.Join(sbc.LogDirectory, name+".log"))
	if err != nil {
		w.tb.Fatal(err)
	}
	var out strings.Builder
	for line := range strings.SplitSeq(strings.TrimSuffix(string(b), "\n"), "\n") {
		stamp, rest, _ := strings.Cut(line, " ")
		if line == "" {
			continue
		}
		if _, err := time.Parse(time.RFC3339Nano, stamp); err != nil {
			w.tb.Errorf("log line %q: %v", line, err)
		}
		out.WriteString(rest + "\n")
	}
	return out.String()
}

// output runs a script to its end and returns what it wrote to stdout.
func (w *world) output(sb string, sbc *cri.PodSandboxConfig, name, script string,
	change ...func(*cri.ContainerConfig)) string {
	w.tb.Helper()
	id := w.run(sb, sbc, name, append([]func(*cri.ContainerConfig){shell(script)}, change...)...)
	st := w.wait(id)
	text := w.log(sbc, name)
	var out strings.Builder
	for line := range strings.SplitSeq(text, "\n") {
		if rest, ok := strings.CutPrefix(line, "stdout F "); ok {
			out.WriteString(rest + "\n")
		} else if line != "" {
			w.tb.Logf("%s (exit %d): %s", name, st.ExitCode, line)
		}
	}
	return strings.TrimSuffix(out.String(), "\n")
}

func (w *world) exec(id string, cmd ...string) (*cri.ExecSyncResponse, error) {
	return w.r.ExecSync(context.Background(), &cri.ExecSyncRequest{ContainerId: id, Cmd: cmd, Timeout: 20})
}

// numberIn returns the number in a file of the kernel; 0 if there is none.
func numberIn(path string) int64 {
	b, _ := os.ReadFile(path)
	n, _ := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	return n
}
