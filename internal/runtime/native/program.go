package native

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// Operations of csrc/helper.c, in its order.
const (
	opWrite = 1 + iota
	opUnshare
	opSetns
	opJoin
	opPropagate
	opTree
	opTreeIn
	opAttr
	opIDMap
	opAttach
	opMount
	opRoot
	opMknod
	opSymlink
	opMkdir
	opPivot
	opMask
	opReadonly
	opAttrPath
	opUser
	opCreds
	opNoNewPrivs
	opSeccomp
	opCwd
	opTTY
	opKeyring
	opLookup
	opExec
	opGate
	opChdir
	opOpen
)

const flagOptional = 1

// maxSlots is how many detached mounts a program can hold (helper.c).
const maxSlots = 256

// program is what the helper executes to become a container's process. Building
// one has no effects. A path "in the root" is resolved inside the container's
// file system before it is the root, whatever symbolic links it holds.
type program struct {
	ops   []record
	slots int
}

func (p *program) add(r record) { p.ops = append(p.ops, r) }

// optional marks the last operation as one that may fail.
func (p *program) optional() { p.ops[len(p.ops)-1].flags |= flagOptional }

func (p *program) write(path, data string) {
	p.add(record{code: opWrite, s: [4]string{path, data}})
}

func (p *program) unshare(flags int) {
	p.add(record{code: opUnshare, n: [4]int64{int64(flags)}})
}

// open opens a file of the host for later and answers its slot.
func (p *program) open(path string) int {
	p.slots++
	p.add(record{code: opOpen, n: [4]int64{int64(p.slots - 1)}, s: [4]string{path}})
	return p.slots - 1
}

// setns enters a namespace that is open in a slot.
func (p *program) setns(slot, kind int) {
	p.add(record{code: opSetns, n: [4]int64{int64(kind), int64(slot)}})
}

// join enters the given namespaces of the container's first process (exec).
func (p *program) join(kinds int) {
	p.add(record{code: opJoin, n: [4]int64{int64(kinds)}})
}

func (p *program) propagate(flags uintptr) {
	p.add(record{code: opPropagate, n: [4]int64{int64(flags)}})
}

// tree detaches a copy of the mount tree at a host path and answers its slot.
func (p *program) tree(source string, recursive bool) int {
	p.slots++
	p.add(record{code: opTree, n: [4]int64{int64(p.slots - 1), b2i(recursive)}, s: [4]string{source}})
	return p.slots - 1
}

// treeIn is tree for a path below dir that must not lead out of it.
func (p *program) treeIn(dir, path string) int {
	p.slots++
	p.add(record{code: opTreeIn, n: [4]int64{int64(p.slots - 1)}, s: [4]string{dir, path}})
	return p.slots - 1
}

// attr sets mount attributes (MOUNT_ATTR_*) and propagation of a slot.
func (p *program) attr(slot int, set, propagation uint64, recursive bool) {
	p.add(record{code: opAttr, n: [4]int64{int64(slot), int64(set), 0, int64(propagation) | b2i(recursive)}})
}

func (p *program) idmap(slot int, userns string) {
	p.add(record{code: opIDMap, n: [4]int64{int64(slot)}, s: [4]string{userns}})
}

// attach puts a slot at a path in the root, which is made when missing.
func (p *program) attach(slot int, target string) {
	p.add(record{code: opAttach, n: [4]int64{int64(slot), 1, 0o755}, s: [4]string{target}})
}

// attachHost puts a slot at an existing path of the host's view.
func (p *program) attachHost(slot int, target string) {
	p.add(record{code: opAttach, n: [4]int64{int64(slot)}, s: [4]string{target}})
}

func (p *program) mountHost(source, fstype, target, data string, flags uintptr) {
	p.add(record{code: opMount, n: [4]int64{int64(flags)}, s: [4]string{source, fstype, target, data}})
}

func (p *program) mount(source, fstype, target, data string, flags uintptr) {
	p.add(record{code: opMount, n: [4]int64{int64(flags), 1, 0o755}, s: [4]string{source, fstype, target, data}})
}

// root enters the container's file system; what is made in it later belongs to
// the given ids of the host.
func (p *program) root(path string, uid, gid uint32) {
	p.add(record{code: opRoot, n: [4]int64{int64(uid), int64(gid)}, s: [4]string{path}})
}

func (p *program) chdir(path string) { p.add(record{code: opChdir, s: [4]string{path}}) }
func (p *program) pivot()            { p.add(record{code: opPivot}) }

func (p *program) mknod(path string, mode uint32, major, minor uint32, uid, gid uint32) {
	p.add(record{code: opMknod, n: [4]int64{int64(mode), int64(unix.Mkdev(major, minor)), int64(uid), int64(gid)}, s: [4]string{path}})
}

func (p *program) symlink(to, path string) {
	p.add(record{code: opSymlink, s: [4]string{to, path}})
}

func (p *program) mkdir(path string, mode uint32) {
	p.add(record{code: opMkdir, n: [4]int64{int64(mode)}, s: [4]string{path}})
}

func (p *program) mask(path string)     { p.add(record{code: opMask, s: [4]string{path}}) }
func (p *program) readonly(path string) { p.add(record{code: opReadonly, s: [4]string{path}}) }

// attrPath changes the attributes of the mount at path: in the root before the
// pivot, in the host's view otherwise.
func (p *program) attrPath(path string, set, clear uint64, inRoot bool) {
	p.add(record{code: opAttrPath, n: [4]int64{int64(set), int64(clear), 0, b2i(inRoot)}, s: [4]string{path}})
}

// user resolves user[:group] against the container's own files. gid < 0 leaves
// the group to them; strict ignores the memberships of /etc/group.
func (p *program) user(spec string, gid int64, extra []int64, strict bool) {
	b := make([]byte, 0, 4*len(extra))
	for _, g := range extra {
		b = binary.LittleEndian.AppendUint32(b, uint32(g))
	}
	p.add(record{code: opUser, n: [4]int64{gid, b2i(strict)}, s: [4]string{spec, string(b)}})
}

func (p *program) creds(c capabilities) {
	p.add(record{code: opCreds, n: [4]int64{int64(c.bounding), int64(c.effective), int64(c.inheritable), int64(c.ambient)}})
}

func (p *program) noNewPrivs() { p.add(record{code: opNoNewPrivs}) }

func (p *program) seccomp(filter []byte, flags uint) {
	p.add(record{code: opSeccomp, n: [4]int64{int64(flags)}, s: [4]string{string(filter)}})
}

func (p *program) cwd(path string) { p.add(record{code: opCwd, s: [4]string{path}}) }

// tty makes a terminal the process's own and hands its master to the console
// socket; console also shows it as /dev/console.
func (p *program) tty(rows, cols uint32, console bool) {
	p.add(record{code: opTTY, n: [4]int64{int64(rows), int64(cols), b2i(console)}})
}

func (p *program) keyring(name string) { p.add(record{code: opKeyring, s: [4]string{name}}) }

// lookup finds the program in the container's $PATH; exec becomes it.
func (p *program) lookup(argv, env []string) {
	p.add(record{code: opLookup, s: [4]string{zeroEnded(argv), zeroEnded(env)}})
}

func (p *program) exec() { p.add(record{code: opExec}) }

func (p *program) encode() []byte {
	n := 0
	for i := range p.ops {
		n += recordHeader + 12
		for _, s := range p.ops[i].s {
			n += len(s)
		}
	}
	b := make([]byte, 0, n)
	for i := range p.ops {
		b = p.ops[i].append(b)
	}
	return b
}

func zeroEnded(list []string) string {
	var b strings.Builder
	for _, s := range list {
		b.WriteString(s)
		b.WriteByte(0)
	}
	return b.String()
}

func b2i(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// identity is who a container's process is, as the helper resolved it.
type identity struct {
	UID    uint32   `json:"uid"`
	GID    uint32   `json:"gid"`
	Groups []uint32 `json:"groups,omitempty"`
}

// outcome reads what the helper reported before its exec: who the process is,
// and why it could not become it, or nil. A helper that said neither that it
// failed nor that it was about to exec was killed.
func (p *program) outcome(b []byte) (*identity, error) {
	le := binary.LittleEndian
	var id *identity
	ready := false
	for len(b) >= 20 {
		kind, op, errno, stage, n := le.Uint32(b), le.Uint32(b[4:]), unix.Errno(le.Uint32(b[8:])), le.Uint32(b[12:]), int(le.Uint32(b[16:]))
		b = b[20:]
		if n > len(b) {
			break
		}
		data := b[:n]
		b = b[n:]
		switch {
		case kind == 'U' && n >= 12:
			id = &identity{UID: le.Uint32(data), GID: le.Uint32(data[4:])}
			for g := data[12:]; len(g) >= 4; g = g[4:] {
				id.Groups = append(id.Groups, le.Uint32(g))
			}
		case kind == 'X':
			ready = true
		case kind == 'E':
			return id, p.failure(int(op), stage, errno, string(data))
		}
	}
	if !ready {
		return id, errors.New("it was killed before it was the container's process")
	}
	return id, nil
}

// failure words a failed operation as users of runc know it.
func (p *program) failure(index int, stage uint32, errno unix.Errno, detail string) error {
	if index >= len(p.ops) {
		return fmt.Errorf("container program ended without an exec")
	}
	o := &p.ops[index]
	switch o.code {
	case opLookup, opExec:
		switch {
		case stage == 1:
			return &execError{fmt.Sprintf("exec: %q: executable file not found in $PATH", detail), errno}
		case stage == 2 && errno == unix.ENOENT:
			return &execError{fmt.Sprintf("exec: %q: stat %s: %v", detail, detail, errno), errno}
		case stage == 2:
			return &execError{fmt.Sprintf("exec: %q: %v", detail, errno), errno}
		default:
			return &execError{fmt.Sprintf("exec %s: %v", detail, errno), errno}
		}
	case opUser:
		switch stage {
		case 1:
			return fmt.Errorf("unable to find user %s: no matching entries in passwd file", detail)
		case 2:
			return fmt.Errorf("unable to find group %s: no matching entries in group file", detail)
		}
		return fmt.Errorf("resolving user %q: %w", o.s[0], errno)
	case opTree, opTreeIn:
		return fmt.Errorf("opening mount source %q: %w", strings.TrimSuffix(o.s[0]+"/"+o.s[1], "/"), errno)
	case opAttach:
		return fmt.Errorf("error mounting to rootfs at %q: %w", o.s[0], errno)
	case opMount:
		return fmt.Errorf("error mounting %q to rootfs at %q: %w", o.s[0], o.s[2], errno)
	case opAttr:
		return fmt.Errorf("setting attributes of mount %d (set %#x, clear %#x, propagation %#x): %w", o.n[0], o.n[1], o.n[2], o.n[3], errno)
	case opCwd:
		if errno == unix.EXDEV {
			return fmt.Errorf("working directory %q is outside of the container", o.s[0])
		}
		return fmt.Errorf("chdir to cwd (%q) set in config.json failed: %w", o.s[0], errno)
	case opWrite:
		return fmt.Errorf("write %q to %q: %w", o.s[1], o.s[0], errno)
	case opSeccomp:
		return fmt.Errorf("error loading seccomp filter into kernel: %w", errno)
	case opCreds:
		return fmt.Errorf("setting user and capabilities: %w", errno)
	}
	return fmt.Errorf("container setup, operation %d (%s): %w", o.code, strings.Trim(o.s[0]+" "+o.s[1], " \x00"), errno)
}

// execError says that the user's program could not be executed.
type execError struct {
	text  string
	errno unix.Errno
}

func (e *execError) Error() string { return e.text }

// exitCode is what a shell would answer: 127 not found, 126 not executable.
func (e *execError) exitCode() int32 {
	if e.errno == unix.ENOENT {
		return 127
	}
	return 126
}
