package native

import (
	"encoding/binary"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// Operations of csrc/helper.c, in its order.
const (
	opOpen = 1 + iota
	opWrite
	opUnshare
	opSetns
	opJoin
	opPropagate
	opChdir
	opTree
	opTreeIn
	opAttr
	opAttachHost
	opMountHost
	opRoot
	opAttach
	opMount
	opMknod
	opSymlink
	opMkdir
	opAttrPath
	opPivot
	opMask
	opReadonly
	opAsk
	opKeyring
	opTTY
	opStdio
	opSeccomp
	opCwd
	opCreds
	opNoNewPrivs
	opLookup
	opExec
	opGate
	opEnter
	opProc
	opShed
	opFork
)

const flagOptional = 1

// What opAttach does about the file system of /proc (helper.c).
const (
	procNever = iota // the target must not be on it
	procOnly         // only a /proc may be attached
	procFree
)

// maxSlots is how many open files and detached mounts a program can hold (helper.c).
const maxSlots = 256

// program is what the helper executes to become a container's process. Building
// one has no effects. A path "in the root" is resolved inside the container's
// file system before it is the root, whatever symbolic links it holds.
type program struct {
	ops   []record
	slots int
	then  continuation // after opAsk, which is the last operation until it is answered
	err   error        // the first thing that can't be said to the helper
}

// continuation plans the rest of a program by the files that the helper sent.
type continuation func(p *program, files [][]byte) (*identity, error)

func (p *program) add(r record) {
	p.fail(r.check())
	p.ops = append(p.ops, r)
}

func (p *program) fail(err error) {
	if p.err == nil {
		p.err = err
	}
}

// slot adds an operation that opens something and answers where it is held.
func (p *program) slot(r record) int {
	r.n[0] = int64(p.slots)
	p.add(r)
	p.slots++
	return p.slots - 1
}

// optional marks the last operation as one that may fail.
func (p *program) optional() { p.ops[len(p.ops)-1].flags |= flagOptional }

// open opens a file of the host, with O_* flags.
func (p *program) open(path string, flags int) int {
	return p.slot(record{code: opOpen, n: [4]int64{0, int64(flags)}, s: [4]string{path}})
}

func (p *program) write(path, data string) {
	p.add(record{code: opWrite, s: [4]string{path, data}})
}

// writeSlot writes to a file that was opened before.
func (p *program) writeSlot(slot int, data string) {
	p.add(record{code: opWrite, n: [4]int64{int64(slot)}, s: [4]string{"", data}})
}

func (p *program) unshare(flags int) {
	p.add(record{code: opUnshare, n: [4]int64{int64(flags)}})
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

func (p *program) chdir(path string) { p.add(record{code: opChdir, s: [4]string{path}}) }

// tree detaches a copy of the mount tree at a host path.
func (p *program) tree(source string, recursive bool) int {
	return p.slot(record{code: opTree, n: [4]int64{0, b2i(recursive)}, s: [4]string{source}})
}

// treeIn is tree for a path below dir that must not lead out of it.
func (p *program) treeIn(dir, path string) int {
	return p.slot(record{code: opTreeIn, s: [4]string{dir, path}})
}

const noUserNS = -1

// attr sets mount attributes (MOUNT_ATTR_*) and propagation of a slot, and shows
// it with the ids of the user namespace that is open in another one.
func (p *program) attr(slot int, set, propagation uint64, recursive bool, userns int) {
	p.add(record{code: opAttr, n: [4]int64{int64(slot), int64(set), int64(userns), int64(propagation) | b2i(recursive)}})
}

// attachHost puts a slot at an existing path of the host's view.
func (p *program) attachHost(slot int, target string) {
	p.add(record{code: opAttachHost, n: [4]int64{int64(slot)}, s: [4]string{target}})
}

func (p *program) mountHost(source, fstype, target, data string, flags uintptr) {
	p.add(record{code: opMountHost, n: [4]int64{int64(flags)}, s: [4]string{source, fstype, target, data}})
}

// root enters the container's file system; what is made in it later belongs to
// the given ids of the host.
func (p *program) root(path string, uid, gid uint32) {
	p.add(record{code: opRoot, n: [4]int64{int64(uid), int64(gid)}, s: [4]string{path}})
}

// attach puts a slot at a path in the root, which is made when missing.
func (p *program) attach(slot int, target string, proc int64) {
	p.add(record{code: opAttach, n: [4]int64{int64(slot), 0o755, proc}, s: [4]string{target}})
}

// mount mounts a file system in the root, at a place without symbolic links.
func (p *program) mount(source, fstype, target, data string, flags uintptr) {
	p.add(record{code: opMount, n: [4]int64{int64(flags), 0o755}, s: [4]string{source, fstype, target, data}})
}

func (p *program) mknod(path string, mode uint32, major, minor uint32, uid, gid uint32) {
	p.add(record{code: opMknod, n: [4]int64{int64(mode), int64(unix.Mkdev(major, minor)), int64(uid), int64(gid)}, s: [4]string{path}})
}

func (p *program) symlink(to, path string) {
	p.add(record{code: opSymlink, s: [4]string{to, path}})
}

func (p *program) mkdir(path string, mode uint32) {
	p.add(record{code: opMkdir, n: [4]int64{int64(mode)}, s: [4]string{path}})
}

// attrPath sets attributes of the mount at a path in the root.
func (p *program) attrPath(path string, set uint64) {
	p.add(record{code: opAttrPath, n: [4]int64{int64(set)}, s: [4]string{path}})
}

func (p *program) pivot() { p.add(record{code: opPivot}) }

// mask hides a path; null is the slot of what a file reads as.
func (p *program) mask(path string, null int) {
	p.add(record{code: opMask, n: [4]int64{int64(null)}, s: [4]string{path}})
}

func (p *program) readonly(path string) { p.add(record{code: opReadonly, s: [4]string{path}}) }

// ask has the helper send files of the image, as many as four, and go on with
// what then plans by their content (empty for one that is missing).
func (p *program) ask(then continuation, files ...string) {
	r := record{code: opAsk}
	copy(r.s[:], files)
	p.add(r)
	p.then = then
}

// questions are how many files the helper sends before it waits.
func (p *program) questions() int {
	n := 0
	for _, s := range p.ops[len(p.ops)-1].s {
		if s != "" {
			n++
		}
	}
	return n
}

// answer is what the helper gets for the files: the rest of the program with its length.
func (p *program) answer(files [][]byte) ([]byte, *identity, error) {
	asked := len(p.ops)
	id, err := p.then(p, files)
	if err == nil {
		err = p.err
	}
	if err != nil {
		return nil, nil, err
	}
	rest := encode(p.ops[asked:])
	return append(binary.LittleEndian.AppendUint32(nil, uint32(len(rest))), rest...), id, nil
}

func (p *program) keyring(name string) { p.add(record{code: opKeyring, s: [4]string{name}}) }

// tty makes a terminal the process's own and hands its master to the console
// socket; console also shows it as /dev/console.
func (p *program) tty(rows, cols uint32, console bool, uid uint32) {
	p.add(record{code: opTTY, n: [4]int64{int64(rows), int64(cols), b2i(console), int64(uid)}})
}

// stdio makes the standard streams those of a user in the container.
func (p *program) stdio(id *identity) {
	p.add(record{code: opStdio, n: [4]int64{int64(id.UID), int64(id.GID)}})
}

func (p *program) seccomp(filter []byte, flags uint) {
	p.add(record{code: opSeccomp, flags: flagBytes, n: [4]int64{int64(flags)}, s: [4]string{string(filter)}})
}

func (p *program) cwd(path string) { p.add(record{code: opCwd, s: [4]string{path}}) }

func (p *program) creds(id *identity, c capabilities) {
	b := binary.LittleEndian.AppendUint32(nil, id.UID)
	b = binary.LittleEndian.AppendUint32(b, id.GID)
	for _, g := range id.Groups {
		b = binary.LittleEndian.AppendUint32(b, g)
	}
	p.add(record{code: opCreds, flags: flagBytes, n: [4]int64{int64(c.bounding), int64(c.effective), int64(c.inheritable), int64(c.ambient)}, s: [4]string{string(b)}})
}

func (p *program) noNewPrivs() { p.add(record{code: opNoNewPrivs}) }

// lookup finds the program in the $PATH of env; exec becomes it.
func (p *program) lookup(argv, env []string) {
	path := ""
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			path = v
			break
		}
	}
	args, err := packed(argv)
	if err != nil {
		p.fail(fmt.Errorf("argument of the command: %w", err))
	}
	vars, err := packedEnv(env)
	p.fail(err)
	p.add(record{code: opLookup, flags: flagBytes | flagBytes<<1, s: [4]string{args, vars, path}})
}

// packedEnv names a variable that can't be packed, never its value, which may be a secret.
func packedEnv(env []string) (string, error) {
	vars, err := packed(env)
	if err == nil {
		return vars, nil
	}
	for _, kv := range env {
		if strings.IndexByte(kv, 0) >= 0 {
			name, _, _ := strings.Cut(kv, "=")
			return "", fmt.Errorf("environment variable %.100q: %w", name, errHasNUL)
		}
	}
	return "", err
}

func (p *program) exec() { p.add(record{code: opExec}) }

// gate waits until a byte comes, or fails with the other side's end.
func (p *program) gate() { p.add(record{code: opGate}) }

// enter has fork make its process in the PID namespace of the process that the monitor named.
// It comes first.
func (p *program) enter() { p.add(record{code: opEnter}) }

// proc mounts the /proc of the PID namespace that is open in a slot.
func (p *program) proc(target string, pidns int) {
	p.add(record{code: opProc, n: [4]int64{int64(pidns)}, s: [4]string{target}})
}

// shed closes every file that the process made by fork must not show; after it no slot is left.
func (p *program) shed() { p.add(record{code: opShed}) }

// fork goes on as a process that those of the PID namespace see and may trace.
func (p *program) fork() { p.add(record{code: opFork}) }

// encode is the program as the helper reads it.
func (p *program) encode() ([]byte, error) {
	if p.err != nil {
		return nil, p.err
	}
	return encode(p.ops), nil
}

func encode(ops []record) []byte {
	n := 0
	for i := range ops {
		n += recordHeader + 12
		for _, s := range ops[i].s {
			n += len(s)
		}
	}
	b := make([]byte, 0, n)
	for i := range ops {
		b = ops[i].append(b)
	}
	return b
}

func b2i(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
