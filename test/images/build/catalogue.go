package build

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// image is one entry of the catalogue.
type image struct {
	name string
	refs []string // every name and tag that manifests use for it
	make func(context.Context, *Builder, *ocispec.ImageConfig) ([]*layer, error)
}

func tags(repository string, tags ...string) []string {
	var refs []string
	for _, t := range tags {
		refs = append(refs, repository+":"+t)
	}
	return refs
}

func join(lists ...[]string) []string {
	var all []string
	for _, l := range lists {
		all = append(all, l...)
	}
	return all
}

// documents is the registry that the pod documents pull from.
const documents = "harbor.l00n9.icu/public"

var catalogue = []image{
	{name: "demo", refs: []string{"carob.local/demo:1"}, make: demo},
	{name: "echo", refs: []string{"localhost/echo:1"}, make: echo},
	{name: "extension", refs: []string{"localhost/extension:1"}, make: extension},
	{name: "modelserver", refs: []string{"localhost/modelserver:1"}, make: modelServer},
	{name: "pause", refs: tags("registry.k8s.io/pause", "3.10.2", "3.10.1", "3.10", "3.9", "3.6"), make: pause},
	{name: "busybox",
		refs: join(tags("docker.io/library/busybox", "latest", "1.37", "1.36", "1.35", "1.32.0", "1.30", "1.28"),
			tags(documents+"/busybox", "unstable-uclibc")), make: busybox},
	{name: "bench", refs: []string{"localhost/bench:1"}, make: bench},
	{name: "nginx", refs: join(tags("docker.io/library/nginx", "latest", "stable", "stable-perl", "1.26", "1.22"),
		tags(documents+"/nginx", "stable-perl")), make: nginx},
	{name: "myapp", refs: join(tags(documents+"/myapp", "v1.0"), tags("docker.io/ikubernetes/myapp", "v1")),
		make: myapp},
	{name: "pod-test", refs: tags(documents+"/pod-test", "v0.1"), make: podTest},
	{name: "mysql", refs: join(tags(documents+"/mysql", "8.0.41-debian"), tags("docker.io/library/mysql", "8.0")),
		make: mysql},
	{name: "postgres", refs: tags("docker.io/library/postgres", "15", "15-bookworm"), make: postgres},
	{name: "wordpress", refs: join(tags(documents+"/wordpress", "php8.1-apache"),
		tags("docker.io/library/wordpress", "php8.1-apache", "latest")), make: wordpress},
	{name: "netshoot", refs: tags("docker.io/nicolaka/netshoot", "latest"), make: netshoot},
}

// usrLinks are the merged-/usr links of the base layers.
var usrLinks = map[string]string{"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"}

// skeleton is an empty system: mount points, temporary folders, merged /usr.
func skeleton() tree {
	t := tree{}
	for link, target := range usrLinks {
		t.dir(target, 0o755)
		t.symlink(link, target)
	}
	for _, d := range []string{"dev", "etc", "home", "proc", "sys", "run", "var/log", "usr/local/bin"} {
		t.dir(d, 0o755)
	}
	t.dir("root", 0o700)
	t.dir("tmp", 0o1777)
	t.dir("var/tmp", 0o1777)
	t.symlink("var/run", "/run")
	return t
}

func demo(ctx context.Context, b *Builder, c *ocispec.ImageConfig) ([]*layer, error) {
	program, err := b.compileGo(ctx, "carob/test/images/build/demo")
	if err != nil {
		return nil, err
	}
	t := tree{}
	t.file("demo", 0o755, program)
	t.dir("tmp", 0o1777)
	t.text("etc/passwd", "root:x:0:0:root:/:/sbin/nologin", "demo:x:65532:65532:demo:/:/sbin/nologin")
	t.text("etc/group", "root:x:0:", "demo:x:65532:")
	c.Entrypoint, c.Cmd, c.User = []string{"/demo"}, []string{"serve"}, "65532:65532"
	c.ExposedPorts = map[string]struct{}{"8080/tcp": {}}
	return []*layer{{tree: t}}, nil
}

func echo(ctx context.Context, b *Builder, c *ocispec.ImageConfig) ([]*layer, error) {
	program, err := b.compileGo(ctx, "carob/test/images/build/echo")
	if err != nil {
		return nil, err
	}
	t := tree{}
	t.file("echo", 0o755, program)
	c.Entrypoint, c.User = []string{"/echo"}, "65532:65532"
	return []*layer{{tree: t}}, nil
}

func extension(ctx context.Context, b *Builder, c *ocispec.ImageConfig) ([]*layer, error) {
	program, err := b.compileGo(ctx, "carob/test/images/build/extension")
	if err != nil {
		return nil, err
	}
	t := tree{}
	t.file("extension", 0o755, program)
	c.Entrypoint, c.User = []string{"/extension"}, "65532:65532"
	return []*layer{{tree: t}}, nil
}

func modelServer(ctx context.Context, b *Builder, c *ocispec.ImageConfig) ([]*layer, error) {
	program, err := b.compileGo(ctx, "carob/test/images/build/modelserver")
	if err != nil {
		return nil, err
	}
	t := tree{}
	t.file("modelserver", 0o755, program)
	c.Entrypoint, c.User = []string{"/modelserver"}, "65532:65532"
	return []*layer{{tree: t}}, nil
}

func pause(ctx context.Context, b *Builder, c *ocispec.ImageConfig) ([]*layer, error) {
	program, err := b.compileC(ctx, "pause.c")
	if err != nil {
		return nil, err
	}
	t := tree{}
	t.file("pause", 0o755, program)
	c.Entrypoint, c.User = []string{"/pause"}, "65535:65535"
	return []*layer{{tree: t}}, nil
}

func (b *Builder) busyboxLayer(ctx context.Context) (*layer, error) {
	return b.shared("busybox", func() (tree, error) {
		pkg, err := b.debian().layer(ctx, nil, "busybox-static")
		if err != nil {
			return nil, err
		}
		program := pkg["usr/bin/busybox"].body
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
		t.text("etc/passwd", "root:x:0:0:root:/root:/bin/sh", "daemon:x:1:1:daemon:/usr/sbin:/bin/false",
			"bin:x:2:2:bin:/bin:/bin/false",
			"sys:x:3:3:sys:/dev:/bin/false", "sync:x:4:100:sync:/bin:/bin/sync",
			"mail:x:8:8:mail:/var/spool/mail:/bin/false",
			"www-data:x:33:33:www-data:/var/www:/bin/false", "operator:x:37:37:Operator:/var:/bin/false",
			"nobody:x:65534:65534:nobody:/home:/bin/false")
		t.text("etc/group", "root:x:0:", "daemon:x:1:", "bin:x:2:", "sys:x:3:", "adm:x:4:", "tty:x:5:", "disk:x:6:",
			"mail:x:8:", "www-data:x:33:",
			"operator:x:37:", "users:x:100:", "nogroup:x:65534:")
		t.text("etc/shadow", "root:*:10933:0:99999:7:::", "nobody:*:10933:0:99999:7:::")
		t["etc/shadow"] = node{kind: tar.TypeReg, mode: 0o600, body: t["etc/shadow"].body}
		t.text("etc/nsswitch.conf", "hosts: files dns")
		t.dir("var/spool/mail", 0o755)
		t.dir("var/www", 0o755)
		return t, nil
	})
}

func busybox(ctx context.Context, b *Builder, c *ocispec.ImageConfig) ([]*layer, error) {
	base, err := b.busyboxLayer(ctx)
	c.Cmd = []string{"sh"}
	return []*layer{base}, err
}

func bench(ctx context.Context, b *Builder, c *ocispec.ImageConfig) ([]*layer, error) {
	base, err := b.busyboxLayer(ctx)
	if err != nil {
		return nil, err
	}
	program, err := b.compileC(ctx, "stamp.c")
	if err != nil {
		return nil, err
	}
	t := tree{}
	t.file("stamp", 0o755, program)
	c.Cmd = []string{"/stamp"}
	return []*layer{base, {tree: t}}, nil
}

// basePackages make the layer below every image of Debian programs.
var basePackages = []string{"base-files", "base-passwd", "bash", "coreutils", "dash", "findutils", "grep", "hostname",
	"libc-bin", "mawk", "media-types",
	"ncurses-base", "netbase", "procps", "sed", "util-linux"}

func (b *Builder) debianLayer(ctx context.Context) (*layer, error) {
	return b.shared("debian", func() (tree, error) {
		t := skeleton()
		pkgs, err := b.debian().layer(ctx, nil, basePackages...)
		if err != nil {
			return nil, err
		}
		maps.Copy(t, pkgs)
		t.symlink("var/run", "/run") // the package has a folder that its script replaces
		for name, master := range map[string]string{"etc/passwd": "usr/share/base-passwd/passwd.master",
			"etc/group": "usr/share/base-passwd/group.master"} {
			t.file(name, 0o644, []byte(strings.ReplaceAll(string(t[master].body), ":*:", ":x:")))
		}
		t.text("etc/nsswitch.conf", "passwd: files", "group: files", "hosts: files dns")
		t.symlink("usr/bin/awk", "mawk")
		return t, nil
	})
}

// debianImage is the base layer plus a layer of packages plus own files.
func (b *Builder) debianImage(ctx context.Context, own tree, packages ...string) ([]*layer, error) {
	base, err := b.debianLayer(ctx)
	if err != nil {
		return nil, err
	}
	added, err := b.shared("debian+"+strings.Join(packages, "+"), func() (tree, error) {
		return b.debian().layer(ctx, basePackages, packages...)
	})
	if err != nil {
		return nil, err
	}
	return []*layer{base, added, {tree: own}}, nil
}

// addUser appends to the accounts of the base layer, which own must then replace.
func (b *Builder) addUser(ctx context.Context, own tree, name string, id int, home string) error {
	base, err := b.debianLayer(ctx)
	if err != nil {
		return err
	}
	own.file("etc/passwd", 0o644, fmt.Appendf(slices.Clip(base.tree["etc/passwd"].body),
		"%s:x:%d:%d:%s:%s:/usr/sbin/nologin\n", name, id, id, name, home))
	own.file("etc/group", 0o644, fmt.Appendf(slices.Clip(base.tree["etc/group"].body), "%s:x:%d:\n", name, id))
	return nil
}

func (b *Builder) nginxTree(ctx context.Context) (tree, error) {
	t := tree{}
	if err := b.addUser(ctx, t, "nginx", 101, "/var/cache/nginx"); err != nil {
		return nil, err
	}
	if err := t.embed(sources, "files/nginx/docker-entrypoint.d", "docker-entrypoint.d"); err != nil {
		return nil, err
	}
	for from, to := range map[string]string{"nginx.conf": "etc/nginx/nginx.conf",
		"default.conf": "etc/nginx/conf.d/default.conf",
		"index.html":   "usr/share/nginx/html/index.html", "docker-entrypoint.sh": "docker-entrypoint.sh"} {
		body, err := sources.ReadFile("files/nginx/" + from)
		if err != nil {
			return nil, err
		}
		mode := int64(0o644)
		if strings.HasSuffix(from, ".sh") {
			mode = 0o755
		}
		t.file(to, mode, body)
	}
	t.text("etc/nginx/default.conf.sha256",
		fmt.Sprintf("%x  /etc/nginx/conf.d/default.conf", sha256.Sum256(t["etc/nginx/conf.d/default.conf"].body)))
	t.symlink("var/log/nginx/access.log", "/dev/stdout")
	t.symlink("var/log/nginx/error.log", "/dev/stderr")
	for _, d := range []string{"var/cache/nginx", "var/lib/nginx"} {
		t.dir(d, 0o755)
		t.own(d, 101, 101)
	}
	return t, nil
}

func nginxConfig(c *ocispec.ImageConfig) {
	c.Entrypoint, c.Cmd = []string{"/docker-entrypoint.sh"}, []string{"nginx", "-g", "daemon off;"}
	c.ExposedPorts = map[string]struct{}{"80/tcp": {}}
	c.StopSignal = "SIGQUIT"
}

func nginx(ctx context.Context, b *Builder, c *ocispec.ImageConfig) ([]*layer, error) {
	t, err := b.nginxTree(ctx)
	if err != nil {
		return nil, err
	}
	nginxConfig(c)
	return b.debianImage(ctx, t, "nginx-light")
}

// myapp is the web page of the documents' first pod.
func myapp(ctx context.Context, b *Builder, c *ocispec.ImageConfig) ([]*layer, error) {
	t, err := b.nginxTree(ctx)
	if err != nil {
		return nil, err
	}
	t.text("usr/share/nginx/html/index.html", `Hello MyApp | Version: v1 | <a href="hostname.html">Pod Name</a>`)
	t.text("etc/nginx/conf.d/default.conf", "server {", "    listen 80;", "    root /usr/share/nginx/html;",
		"    location = /hostname.html { default_type text/plain; return 200 \"$hostname\\n\"; }", "}")
	nginxConfig(c)
	return b.debianImage(ctx, t, "nginx-light")
}

func podTest(ctx context.Context, b *Builder, c *ocispec.ImageConfig) ([]*layer, error) {
	t := tree{}
	if err := t.embed(sources, "files/pod-test", "usr/local/bin"); err != nil {
		return nil, err
	}
	c.Cmd = []string{"python3", "/usr/local/bin/demo.py"}
	c.ExposedPorts = map[string]struct{}{"80/tcp": {}}
	return b.debianImage(ctx, t, "python3")
}

// netshoot stands in for the debugging image: the tools that `kubectl debug` users reach for.
func netshoot(ctx context.Context, b *Builder, c *ocispec.ImageConfig) ([]*layer, error) {
	c.Cmd = []string{"bash"}
	return b.debianImage(ctx, tree{}, "curl", "iproute2", "iputils-ping", "bind9-dnsutils", "netcat-openbsd", "tcpdump",
		"strace", "psmisc", "less")
}

// mysql is Debian's MariaDB behind the names, variables and messages of the MySQL image.
func mysql(ctx context.Context, b *Builder, c *ocispec.ImageConfig) ([]*layer, error) {
	t := tree{}
	if err := b.addUser(ctx, t, "mysql", 999, "/var/lib/mysql"); err != nil {
		return nil, err
	}
	if err := t.embed(sources, "files/mysql", ""); err != nil {
		return nil, err
	}
	for _, d := range []string{"var/lib/mysql", "run/mysqld"} {
		t.dir(d, 0o755)
		t.own(d, 999, 999)
	}
	t.symlink("usr/sbin/mysqld", "mariadbd")
	t.symlink("usr/bin/mysql", "mariadb")
	c.Entrypoint, c.Cmd = []string{"/docker-entrypoint.sh"}, []string{"mysqld"}
	c.ExposedPorts = map[string]struct{}{"3306/tcp": {}}
	c.Volumes = map[string]struct{}{"/var/lib/mysql": {}}
	return b.debianImage(ctx, t, "mariadb-server-core", "mariadb-client-core")
}

// postgres is Debian's PostgreSQL behind the names and variables of the PostgreSQL image.
func postgres(ctx context.Context, b *Builder, c *ocispec.ImageConfig) ([]*layer, error) {
	t := tree{}
	if err := b.addUser(ctx, t, "postgres", 999, "/var/lib/postgresql"); err != nil {
		return nil, err
	}
	if err := t.embed(sources, "files/postgres", ""); err != nil {
		return nil, err
	}
	for _, d := range []string{"var/lib/postgresql", "var/lib/postgresql/data", "run/postgresql"} {
		t.dir(d, 0o755)
		t.own(d, 999, 999)
	}
	c.Entrypoint, c.Cmd = []string{"/docker-entrypoint.sh"}, []string{"postgres"}
	c.Env = []string{"PATH=/usr/lib/postgresql/15/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	c.ExposedPorts = map[string]struct{}{"5432/tcp": {}}
	c.Volumes = map[string]struct{}{"/var/lib/postgresql/data": {}}
	c.StopSignal = "SIGINT"
	return b.debianImage(ctx, t, "postgresql-15")
}

// wordpress is Debian's, served by Apache with PHP.
func wordpress(ctx context.Context, b *Builder, c *ocispec.ImageConfig) ([]*layer, error) {
	t := tree{}
	for from, to := range map[string]string{"apache.conf": "etc/wordpress/apache.conf",
		"wp-config.php": "usr/share/wordpress/wp-config.php"} {
		body, err := sources.ReadFile("files/wordpress/" + from)
		if err != nil {
			return nil, err
		}
		t.file(to, 0o644, body)
	}
	t.text("usr/share/wordpress/.htaccess", "RewriteEngine On", "RewriteRule ^index\\.php$ - [L]",
		"RewriteCond %{REQUEST_FILENAME} !-f", "RewriteCond %{REQUEST_FILENAME} !-d", "RewriteRule . /index.php [L]")
	// What Debian's maintainer scripts would switch on.
	t.text("etc/php/8.2/apache2/conf.d/20-modules.ini", "extension=mysqlnd.so", "extension=mysqli.so",
		"extension=ctype.so", "extension=tokenizer.so",
		"extension=fileinfo.so", "extension=iconv.so", "extension=exif.so", "variables_order=EGPCS")
	c.Cmd = []string{"apache2", "-D", "FOREGROUND", "-f", "/etc/wordpress/apache.conf"}
	c.ExposedPorts = map[string]struct{}{"80/tcp": {}}
	c.StopSignal = "SIGWINCH"
	return b.debianImage(ctx, t, "libapache2-mod-php8.2", "php8.2-mysql", "wordpress",
		"wordpress-theme-twentytwentythree")
}
