package build

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

const (
	e2eImages = "registry.k8s.io/e2e-test-images"
	// suite is the module that upstream's programs are built from.
	suite = "test/conformance"
)

// upstream are the images that Kubernetes' conformance suite pulls, under its
// names. They need the sources of that suite, so only its runner makes them.
var upstream = []image{
	{name: "upstream-busybox", refs: tags(e2eImages+"/busybox", "1.37.0-2", "1.36.1-1", "1.29-4"), make: plainBusybox},
	{name: "agnhost", refs: tags(e2eImages+"/agnhost", "2.66.1"), make: agnhost("", nil)},
	{name: "agnhost-previous", refs: tags(e2eImages+"/agnhost", "2.55"),
		make: agnhost("", tree{"etc/agnhost-previous": {kind: '0', mode: 0o644}})},
	{name: "nautilus", refs: tags(e2eImages+"/nautilus", "1.8"), make: agnhost("nautilus", nil)},
	{name: "kitten", refs: tags(e2eImages+"/kitten", "1.8"), make: agnhost("kitten", nil)},
	{name: "nonewprivs", refs: tags(e2eImages+"/nonewprivs", "1.4"), make: noNewPrivs},
	{name: "nonroot", refs: tags(e2eImages+"/nonroot", "1.5"), make: nonRoot},
	{name: "glibc-dns-testing", refs: tags(e2eImages+"/glibc-dns-testing", "2.1.1"), make: glibcDNS},
	{name: "upstream-nginx", refs: tags(e2eImages+"/nginx", "1.27.0-2"), make: nginxAged("old")},
	{name: "upstream-nginx-new", refs: tags(e2eImages+"/nginx", "1.28.0-2"), make: nginxAged("new")},
	{name: "resource-consumer", refs: tags(e2eImages+"/resource-consumer", "1.14"), make: resourceConsumer},
	{name: "etcd", refs: tags("registry.k8s.io/etcd", "3.7.0-0"), make: etcd},
	{name: "sample-apiserver", refs: tags(e2eImages+"/sample-apiserver", "1.29.2"), make: sampleAPIServer},
	{name: "sample-device-plugin", refs: tags(e2eImages+"/sample-device-plugin", "1.8.0"), make: sampleDevicePlugin},
}

// UpstreamNames lists the images of Kubernetes' conformance suite that are not
// among Names.
func UpstreamNames() []string {
	var names []string
	for _, im := range upstream {
		names = append(names, im.name)
	}
	return names
}

// plainBusybox is built from source: Debian's static one runs its own applets
// whatever the path holds and drops environment variables that are not names of
// a shell's, which tests of the suite see.
func plainBusybox(ctx context.Context, b *Builder, c *ocispec.ImageConfig) ([]*layer, error) {
	l, err := b.plainBusyboxLayer(ctx)
	c.Cmd = []string{"sh"}
	return []*layer{l}, err
}

func (b *Builder) plainBusyboxLayer(ctx context.Context) (*layer, error) {
	return b.shared("plain busybox", func() (tree, error) {
		debians, err := b.busyboxLayer(ctx)
		if err != nil {
			return nil, err
		}
		program, err := b.debian().build(ctx, "busybox", "usr/bin/busybox", "make defconfig",
			`sed -i 's/^CONFIG_TC=y/# CONFIG_TC is not set/; s/# CONFIG_STATIC is not set/CONFIG_STATIC=y/' .config`,
			"make -j2", "install -D busybox usr/bin/busybox")
		if err != nil {
			return nil, err
		}
		t := skeleton()
		t.file("usr/bin/busybox", 0o755, program)
		applets, err := b.listApplets(ctx, program)
		if err != nil {
			return nil, err
		}
		for _, a := range applets {
			if a != "busybox" {
				t.hardlink("usr/bin/"+a, "usr/bin/busybox")
			}
		}
		for p, n := range debians.tree {
			if strings.HasPrefix(p, "etc/") || strings.HasPrefix(p, "var/") {
				t[p] = n
			}
		}
		return t, nil
	})
}

// toolPackages are what upstream's test image carries beside busybox.
var toolPackages = []string{"bash", "bind9-dnsutils", "bind9-host", "curl", "hostname", "iperf", "iproute2", "libc-bin",
	"netcat-openbsd", "socat", "util-linux"}

func (b *Builder) toolsLayers(ctx context.Context) ([]*layer, error) {
	base, err := b.plainBusyboxLayer(ctx)
	if err != nil {
		return nil, err
	}
	tools, err := b.shared("tools", func() (tree, error) {
		t, err := b.debian().layer(ctx, nil, toolPackages...)
		if err != nil {
			return nil, err
		}
		for p := range t { // accounts and shell stay busybox's
			if p == "etc/passwd" || p == "etc/group" || p == "usr/bin/sh" {
				delete(t, p)
			}
		}
		t.symlink("usr/bin/ip", "../sbin/ip")
		t.symlink("usr/bin/nc", "nc.openbsd") // which the package's scripts do, and tests give options of it
		t.symlink("usr/local/bin/iperf", "/usr/bin/iperf")
		return t, nil
	})
	return []*layer{base, tools}, err
}

// agnhost is the suite's own program with its data; with pages, it serves those
// of that folder of upstream's images.
func agnhost(pages string, extra tree) func(context.Context, *Builder, *ocispec.ImageConfig) ([]*layer, error) {
	return func(ctx context.Context, b *Builder, c *ocispec.ImageConfig) ([]*layer, error) {
		layers, err := b.toolsLayers(ctx)
		if err != nil {
			return nil, err
		}
		own, err := b.shared("agnhost", func() (tree, error) { return b.agnhostTree(ctx, layers[0].tree) })
		if err != nil {
			return nil, err
		}
		layers = append(layers, own)
		c.Entrypoint, c.Cmd = []string{"/agnhost"}, []string{"pause"}
		c.ExposedPorts = map[string]struct{}{"80/tcp": {}, "8080/tcp": {}, "8081/tcp": {}, "9376/tcp": {},
			"5000/tcp": {}}
		if pages != "" {
			dir, err := b.upstreamDir(ctx)
			if err != nil {
				return nil, err
			}
			extra = tree{}
			if err := extra.embed(os.DirFS(dir), "test/images/"+pages+"/html", ""); err != nil {
				return nil, err
			}
			c.Cmd = []string{"test-webserver"}
		}
		if extra != nil {
			layers = append(layers, &layer{tree: extra})
		}
		return layers, nil
	}
}

func (b *Builder) agnhostTree(ctx context.Context, base tree) (tree, error) {
	program, err := b.compileUpstream(ctx, "k8s.io/kubernetes/test/images/agnhost")
	if err != nil {
		return nil, err
	}
	dir, err := b.upstreamDir(ctx)
	if err != nil {
		return nil, err
	}
	t := tree{}
	t.file("agnhost", 0o755, program)
	t.symlink("agnhost-2", "agnhost")
	t.dir("uploads", 0o755)
	for _, f := range []string{"localhost.crt", "localhost.key"} {
		body, err := os.ReadFile(filepath.Join(dir, "test/images/agnhost/porter", f))
		if err != nil {
			return nil, err
		}
		t.file(f, 0o644, body)
	}
	t.file("etc/passwd", 0o644,
		fmt.Appendf(nil, "%suser-defined-in-image:x:1000:1000::/home/user-defined-in-image:/bin/sh\n",
			base["etc/passwd"].body))
	t.file("etc/group", 0o644,
		fmt.Appendf(nil, "%suser-defined-in-image:x:1000:\ngroup-defined-in-image:x:50000:user-defined-in-image\n",
			base["etc/group"].body))
	// A test of image volumes looks for this line.
	t.text("etc/os-release", `NAME="Alpine Linux"`, "ID=alpine", "VERSION_ID=3.22.0",
		`PRETTY_NAME="Alpine Linux v3.22 (stand-in)"`)
	return t, b.addRegistry(ctx, t, "var/registry")
}

// addRegistry lays out the pause image as the registry inside agnhost serves it:
// repository "pause", tag "testing", data by digest.
func (b *Builder) addRegistry(ctx context.Context, t tree, root string) error {
	var config ocispec.ImageConfig
	layers, err := pause(ctx, b, &config)
	if err != nil {
		return err
	}
	a, err := newArchive(layers, config)
	if err != nil {
		return err
	}
	put := func(kind string, d digest.Digest, body []byte) {
		t.file(path.Join(root, "pause", kind, d.Algorithm().String(), d.Encoded()[:2], d.Encoded(), "data"), 0o644,
			body)
	}
	for d, body := range a.blobs {
		kind := "blobs"
		if d == a.manifest.Digest {
			kind = "manifests"
		}
		put(kind, d, body)
	}
	index, err := json.Marshal(ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: ocispec.MediaTypeImageIndex, Manifests: []ocispec.Descriptor{a.manifest}})
	if err != nil {
		return err
	}
	d := digest.FromBytes(index)
	put("manifests", d, index)
	t.text(path.Join(root, "pause", "manifests", "testing"), d.String())
	return nil
}

func noNewPrivs(ctx context.Context, b *Builder, c *ocispec.ImageConfig) ([]*layer, error) {
	base, err := b.plainBusyboxLayer(ctx)
	if err != nil {
		return nil, err
	}
	program, err := b.compileUpstream(ctx, "k8s.io/kubernetes/test/images/nonewprivs")
	if err != nil {
		return nil, err
	}
	t := tree{}
	t.file("usr/local/bin/nnp", 0o6755, program)
	c.Cmd = []string{"nnp"}
	return []*layer{base, {tree: t}}, nil
}

func nonRoot(ctx context.Context, b *Builder, c *ocispec.ImageConfig) ([]*layer, error) {
	c.User, c.Cmd = "1234", []string{"sh"}
	return b.toolsLayers(ctx)
}

func glibcDNS(ctx context.Context, b *Builder, c *ocispec.ImageConfig) ([]*layer, error) {
	c.Cmd = []string{"bash"}
	layers, err := b.toolsLayers(ctx)
	if err != nil {
		return nil, err
	}
	gnu, err := b.shared("coreutils", func() (tree, error) { return b.debian().layer(ctx, nil, "coreutils") })
	return append(layers, gnu), err // tests of volumes give dd options that busybox does not have
}

// nginxAged makes two images of one program that differ in a file.
func nginxAged(age string) func(context.Context, *Builder, *ocispec.ImageConfig) ([]*layer, error) {
	return func(ctx context.Context, b *Builder, c *ocispec.ImageConfig) ([]*layer, error) {
		layers, err := nginx(ctx, b, c)
		if err != nil {
			return nil, err
		}
		t := tree{}
		t.text("etc/nginx/age", age)
		return append(layers, &layer{tree: t}), nil
	}
}

// resourceConsumer uses the CPU time and memory that tests of autoscalers request.
func resourceConsumer(ctx context.Context, b *Builder, c *ocispec.ImageConfig) ([]*layer, error) {
	base, err := b.busyboxLayer(ctx)
	if err != nil {
		return nil, err
	}
	stress, err := b.debian().layer(ctx, nil, "stress")
	if err != nil {
		return nil, err
	}
	server, err := b.compileUpstream(ctx, "k8s.io/kubernetes/test/images/resource-consumer")
	if err != nil {
		return nil, err
	}
	consumes, err := b.compileGo(ctx, "carob/test/images/build/consumecpu")
	if err != nil {
		return nil, err
	}
	t := tree{}
	t.file("consumer", 0o755, server)
	t.file("consume-cpu/consume-cpu", 0o755, consumes)
	c.Entrypoint, c.ExposedPorts = []string{"/consumer"}, map[string]struct{}{"8080/tcp": {}}
	return []*layer{base, {tree: stress}, {tree: t}}, nil
}

func etcd(ctx context.Context, b *Builder, c *ocispec.ImageConfig) ([]*layer, error) {
	return b.upstreamProgram(ctx, "go.etcd.io/etcd/server/v3", "usr/local/bin/etcd")
}

func sampleAPIServer(ctx context.Context, b *Builder, c *ocispec.ImageConfig) ([]*layer, error) {
	c.Entrypoint = []string{"/sample-apiserver"}
	return b.upstreamProgram(ctx, "k8s.io/sample-apiserver", "sample-apiserver")
}

// sampleDevicePlugin keeps files for its devices in its own /tmp.
func sampleDevicePlugin(ctx context.Context, b *Builder, c *ocispec.ImageConfig) ([]*layer, error) {
	program, err := b.compileUpstream(ctx, "k8s.io/kubernetes/test/images/sample-device-plugin")
	if err != nil {
		return nil, err
	}
	t := tree{}
	t.file("sampledeviceplugin", 0o755, program)
	t.dir("tmp", 0o1777)
	c.Entrypoint = []string{"/sampledeviceplugin", "-alsologtostderr"}
	return []*layer{{tree: t}}, nil
}

func (b *Builder) upstreamProgram(ctx context.Context, pkg, file string) ([]*layer, error) {
	base, err := b.plainBusyboxLayer(ctx)
	if err != nil {
		return nil, err
	}
	program, err := b.compileUpstream(ctx, pkg)
	if err != nil {
		return nil, err
	}
	t := tree{}
	t.file(file, 0o755, program)
	return []*layer{base, {tree: t}}, nil
}

// compileUpstream builds a program out of the suite's module.
func (b *Builder) compileUpstream(ctx context.Context, pkg string) ([]byte, error) {
	dir, err := moduleDir(ctx, suite)
	if err != nil {
		return nil, err
	}
	return b.compile(ctx, dir, pkg)
}

// upstreamDir is where Go keeps the sources of Kubernetes that the suite uses.
func (b *Builder) upstreamDir(ctx context.Context) (string, error) {
	dir, err := moduleDir(ctx, suite)
	if err != nil {
		return "", err
	}
	out, err := run(ctx, dir, "go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes")
	return strings.TrimSpace(string(out)), err
}

// moduleDir is the directory of a test module in carob's source tree.
func moduleDir(ctx context.Context, module string) (string, error) {
	out, err := run(ctx, "", "go", "list", "-m", "-f", "{{.Dir}}", "carob")
	return filepath.Join(strings.TrimSpace(string(out)), module), err
}
