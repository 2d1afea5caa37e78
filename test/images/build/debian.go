package build

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// debian takes files out of Debian packages without installing them. Downloads
// are kept in dir; apt checks their hashes against the signed lists.
type debian struct {
	dir string
}

// unneeded are packages that only maintainer scripts need, or that Debian's
// dependencies bring in for no use inside a container.
var unneeded = []string{
	"apache2", "apache2-data", "apache2-utils", "debconf", "default-mysql-client", "dpkg", "gcc-12-base",
	"init-system-helpers", "libconfig-inifiles-perl",
	"libdav1d6", "libde265-0", "libfile-find-rule-perl", "libgav1-1", "libgd3", "libgdbm-compat4", "libgdbm6",
	"libheif1", "libjson-perl", "libllvm14", "libnumber-compare-perl", "libperl5.36",
	"librav1e0", "libsvtav1enc1", "libtext-glob-perl", "libx265-199", "libz3-4", "lsb-base", "mariadb-client", "mysql-common",
	"perl", "perl-base", "perl-modules-5.36",
	"php-gd", "php8.2-gd", "php8.2-readline", "postgresql-client-common",
	"postgresql-common", "sensible-utils", "sysvinit-utils", "tar", "ucf", "usrmerge",
}

var instLine = regexp.MustCompile(`(?m)^Inst (\S+) \((\S+)`)

// closure names the packages ("name=version") that an empty system would need.
func (d debian) closure(ctx context.Context, want []string) ([]string, error) {
	out, err := d.apt(ctx,
		append([]string{"-s", "-o", "Dir::State::status=/dev/null", "-o", "APT::Install-Recommends=false",
			"-o", "Debug::NoLocking=true", "install"}, want...)...)
	if err != nil {
		// A fresh machine has no package lists yet.
		if _, uerr := d.apt(ctx, "-q", "update"); uerr != nil {
			return nil, errors.Join(err, uerr)
		}
		if out, err = d.apt(ctx,
			append([]string{"-s", "-o", "Dir::State::status=/dev/null", "-o", "APT::Install-Recommends=false",
				"-o", "Debug::NoLocking=true", "install"}, want...)...); err != nil {
			return nil, err
		}
	}
	var pkgs []string
	for _, m := range instLine.FindAllSubmatch(out, -1) {
		if name := string(m[1]); !slices.Contains(unneeded, name) || slices.Contains(want, name) {
			pkgs = append(pkgs, name+"="+string(m[2]))
		}
	}
	return pkgs, nil
}

// layer is the content of the named packages and of all they depend on, except
// for the packages that base already holds.
func (d debian) layer(ctx context.Context, base []string, want ...string) (tree, error) {
	pkgs, err := d.closure(ctx, want)
	if err != nil {
		return nil, fmt.Errorf("find the packages for %s: %w", strings.Join(want, " "), err)
	}
	if len(base) > 0 {
		have, err := d.closure(ctx, base)
		if err != nil {
			return nil, err
		}
		pkgs = slices.DeleteFunc(pkgs, func(p string) bool { return slices.Contains(have, p) })
	}
	if err := d.download(ctx, pkgs); err != nil {
		return nil, err
	}
	t := tree{}
	for _, p := range pkgs {
		if err := t.addPackage(ctx, d.file(p)); err != nil {
			return nil, fmt.Errorf("unpack %s: %w", p, err)
		}
	}
	return t, nil
}

// file finds the downloaded archive of "name=version", or answers "".
func (d debian) file(pkg string) string {
	name, version, _ := strings.Cut(pkg, "=")
	// apt writes an epoch's colon as %3a.
	found, _ := filepath.Glob(filepath.Join(d.dir, name+"_"+strings.ReplaceAll(version, ":", "%3a")+"_*.deb"))
	if len(found) == 0 {
		return ""
	}
	return found[0]
}

func (d debian) download(ctx context.Context, pkgs []string) error {
	missing := slices.DeleteFunc(slices.Clone(pkgs), func(p string) bool { return d.file(p) != "" })
	if len(missing) == 0 {
		return nil
	}
	if _, err := d.apt(ctx, append([]string{"-q", "-o", "APT::Sandbox::User=root", "download"},
		missing...)...); err != nil {
		return fmt.Errorf("download %d packages: %w", len(missing), err)
	}
	for _, p := range missing {
		if d.file(p) == "" {
			return fmt.Errorf("apt-get download left no file for %s in %s", p, d.dir)
		}
	}
	return nil
}

// build makes one file from a source package by shell commands run in the
// unpacked source.
func (d debian) build(ctx context.Context, pkg, file string, commands ...string) ([]byte, error) {
	tmp, err := os.MkdirTemp(d.dir, ".source-*")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp)
	// The machine's own package sources, read as sources of source packages.
	script := `set -e
mkdir -p sources lists/partial
sed -n 's/^deb /deb-src /p' /etc/apt/sources.list > list 2>/dev/null || true
for f in /etc/apt/sources.list.d/*.sources; do [ ! -f "$f" ] || sed 's/^Types:.*/Types: deb-src/' "$f" > sources/$(basename "$f"); done
apt="apt-get -qq -o Dir::Etc::sourcelist=$PWD/list -o Dir::Etc::sourceparts=$PWD/sources -o Dir::State::Lists=$PWD/lists -o APT::Sandbox::User=root"
$apt update
$apt source --download-only ` + pkg + `
mkdir tree
tar xf ` + pkg + `_*.orig.tar.* -C tree --strip-components=1
cd tree
` + strings.Join(commands, "\n")
	if _, err := run(ctx, tmp, "bash", "-c", script); err != nil {
		return nil, fmt.Errorf("build %s from source: %w", pkg, err)
	}
	return os.ReadFile(filepath.Join(tmp, "tree", file))
}

func (d debian) apt(ctx context.Context, args ...string) ([]byte, error) {
	if err := os.MkdirAll(d.dir, 0o755); err != nil {
		return nil, err
	}
	return run(ctx, d.dir, "apt-get", args...)
}

func (t tree) addPackage(ctx context.Context, deb string) error {
	cmd := exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", deb)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	addErr := t.addTar(out)
	_, _ = io.Copy(io.Discard, out)
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("%w: %s", err, bytes.TrimSpace(errs.Bytes()))
	}
	return addErr
}

// run answers the standard output; a failure carries the standard error.
func run(ctx context.Context, dir, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C", "CGO_ENABLED=0")
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w: %s", name, args[len(args)-1], err, bytes.TrimSpace(errs.Bytes()))
	}
	return out, nil
}
