package build

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"time"
)

// tree is one layer of an image: clean paths without a leading slash to what
// stands there. It lives in memory, so building needs neither root nor a
// file system that keeps owners and modes.
type tree map[string]node

type node struct {
	kind     byte // a tar type flag: TypeReg, TypeDir, TypeSymlink, TypeLink
	mode     int64
	uid, gid int
	body     []byte
	link     string
}

// clean maps a path to its place in a merged-/usr system: Debian's packages
// still ship some files under /bin and /lib, and a layer that carried them there
// would replace the links of the layer below by directories.
func clean(p string) string {
	p = strings.TrimPrefix(path.Clean("/"+p), "/")
	top, rest, found := strings.Cut(p, "/")
	switch top {
	case "bin", "sbin", "lib", "lib64":
		if found {
			return "usr/" + top + "/" + rest
		}
	}
	return p
}

func (t tree) dir(p string, mode int64) {
	t[clean(p)] = node{kind: tar.TypeDir, mode: mode}
}

func (t tree) file(p string, mode int64, body []byte) {
	t[clean(p)] = node{kind: tar.TypeReg, mode: mode, body: body}
}

func (t tree) text(p string, lines ...string) {
	t.file(p, 0o644, []byte(strings.Join(lines, "\n")+"\n"))
}

func (t tree) symlink(p, target string) {
	t[clean(p)] = node{kind: tar.TypeSymlink, mode: 0o777, link: target}
}

// hardlink makes p a second name of an already present file.
func (t tree) hardlink(p, target string) {
	t[clean(p)] = node{kind: tar.TypeLink, mode: t[clean(target)].mode, link: clean(target)}
}

func (t tree) own(p string, uid, gid int) {
	n := t[clean(p)]
	n.uid, n.gid = uid, gid
	t[clean(p)] = n
}

// embed copies a folder of this program's own files; scripts become executable.
func (t tree) embed(src fs.FS, dir, to string) error {
	return fs.WalkDir(src, dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		body, err := fs.ReadFile(src, p)
		if err != nil {
			return err
		}
		mode := int64(0o644)
		if bytes.HasPrefix(body, []byte("#!")) {
			mode = 0o755
		}
		t.file(path.Join(to, strings.TrimPrefix(p, dir)), mode, body)
		return nil
	})
}

// addTar copies a tar stream, leaving out what no container reads.
func (t tree) addTar(r io.Reader) error {
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		p := clean(h.Name)
		if p == "" || documentation(p) {
			continue
		}
		n := node{kind: h.Typeflag, mode: h.Mode & 0o7777, uid: h.Uid, gid: h.Gid}
		switch h.Typeflag {
		case tar.TypeDir:
			if _, merged := usrLinks[p]; merged {
				continue
			}
		case tar.TypeReg:
			if n.body, err = io.ReadAll(tr); err != nil {
				return err
			}
		case tar.TypeSymlink:
			n.link = h.Linkname
		case tar.TypeLink:
			n.link = clean(h.Linkname)
		default:
			return fmt.Errorf("%s: unexpected tar entry of type %q", h.Name, h.Typeflag)
		}
		t[p] = n
	}
}

func documentation(p string) bool {
	for _, dir := range []string{"usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info",
		"usr/share/lintian", "usr/share/bug"} {
		if p == dir || strings.HasPrefix(p, dir+"/") {
			return true
		}
	}
	return false
}

// pack writes the layer as a tar stream that depends on nothing but its content.
func (t tree) pack(w io.Writer) error {
	t.fillParents()
	tw := tar.NewWriter(w)
	for _, p := range t.order() {
		n := t[p]
		h := &tar.Header{Typeflag: n.kind, Name: p, Mode: n.mode, Uid: n.uid, Gid: n.gid, Linkname: n.link,
			Size: int64(len(n.body)), ModTime: time.Unix(0, 0)}
		if n.kind == tar.TypeDir {
			h.Name += "/"
		}
		if err := tw.WriteHeader(h); err != nil {
			return err
		}
		if _, err := tw.Write(n.body); err != nil {
			return err
		}
	}
	return tw.Close()
}

// order puts hard links last, so that what they name is there before them.
func (t tree) order() []string {
	return slices.SortedFunc(maps.Keys(t), func(a, b string) int {
		if la, lb := t[a].kind == tar.TypeLink, t[b].kind == tar.TypeLink; la != lb {
			if la {
				return 1
			}
			return -1
		}
		return strings.Compare(a, b)
	})
}

func (t tree) fillParents() {
	for _, p := range slices.Collect(maps.Keys(t)) {
		for d := path.Dir(p); d != "."; d = path.Dir(d) {
			if _, ok := t[d]; !ok {
				t.dir(d, 0o755)
			}
		}
	}
}
