package plan

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"carob/internal/runtime/native/wire"
)

// Operations of csrc/helper.c, in its order.
const (
	OpOpen = 1 + iota
	OpWrite
	OpUnshare
	OpSetns
	OpJoin
	OpPropagate
	OpChdir
	OpTree
	OpTreeIn
	OpAttr
	OpAttachHost
	OpMountHost
	OpRoot
	OpAttach
	OpMount
	OpMknod
	OpSymlink
	OpMkdir
	OpAttrPath
	OpPivot
	OpMask
	OpReadonly
	OpFiles
	OpKeyring
	OpTTY
	OpStdio
	OpSeccomp
	OpCwd
	OpCreds
	OpNoNewPrivs
	OpLookup
	OpExec
	OpGate
	OpEnter
	OpProc
	OpShed
	OpFork
	OpTake
)

const flagOptional = 1

// How OpAttach handles the file system of /proc (helper.c).
const (
	ProcNever = iota // the target must not be on it
	ProcOnly         // only a /proc may be attached
	ProcFree
)

// maxHandles is how many open files and detached mounts a program can hold (helper.c).
const maxHandles = 256

// Program is what the helper executes to become a container's process. Building one has no effects.
// A path "in the root" is resolved inside the container's file system before the helper enters it,
// whatever symbolic links it contains.
type Program struct {
	Ops     []wire.Message // changed by tests only
	handles int
	then    continuation // after OpFiles, which is answered after the last operation
	planned bool         // for the content of a file of the image, which may have changed
	err     error        // the first error in building the program
}

// continuation plans the rest of a program from the files that the helper sent.
type continuation func(p *Program, files [][]byte) (*Identity, error)

func (p *Program) add(r wire.Message) {
	p.fail(r.Check())
	p.Ops = append(p.Ops, r)
}

func (p *Program) fail(err error) {
	if p.err == nil {
		p.err = err
	}
}

// handle adds an operation that opens something and returns its handle.
func (p *Program) handle(r wire.Message) int {
	r.N[0] = int64(p.handles)
	p.add(r)
	p.handles++
	return p.handles - 1
}

// optional marks the last operation as one that may fail.
func (p *Program) optional() { p.Ops[len(p.Ops)-1].Flags |= flagOptional }

// open opens a file of the host, with O_* flags.
func (p *Program) open(path string, flags int) int {
	return p.handle(wire.Message{Code: OpOpen, N: [4]int64{0, int64(flags)}, S: [4]string{path}})
}

// Write writes to a file of the host.
func (p *Program) Write(path, data string) {
	p.add(wire.Message{Code: OpWrite, S: [4]string{path, data}})
}

// writeHandle writes to a file that was opened before.
func (p *Program) writeHandle(handle int, data string) {
	p.add(wire.Message{Code: OpWrite, N: [4]int64{int64(handle)}, S: [4]string{"", data}})
}

func (p *Program) unshare(flags int) {
	p.add(wire.Message{Code: OpUnshare, N: [4]int64{int64(flags)}})
}

// setns enters a namespace that is open in a handle.
func (p *Program) setns(handle, kind int) {
	p.add(wire.Message{Code: OpSetns, N: [4]int64{int64(kind), int64(handle)}})
}

// join enters the given namespaces of the container's first process (exec).
func (p *Program) join(kinds int) {
	p.add(wire.Message{Code: OpJoin, N: [4]int64{int64(kinds)}})
}

// JoinFirst makes the program one for a helper that was started before the monitor it belongs to had
// the pod's namespaces: it joins these first.
func (p *Program) JoinFirst(kinds int) {
	p.Ops = slices.Insert(p.Ops, 0, wire.Message{Code: OpJoin, N: [4]int64{int64(kinds)}})
}

func (p *Program) propagate(flags uintptr) {
	p.add(wire.Message{Code: OpPropagate, N: [4]int64{int64(flags)}})
}

// Chdir changes to a directory of the host.
func (p *Program) Chdir(path string) { p.add(wire.Message{Code: OpChdir, S: [4]string{path}}) }

// tree detaches a copy of the mount tree at a host path.
func (p *Program) tree(source string, recursive bool) int {
	return p.handle(wire.Message{Code: OpTree, N: [4]int64{0, b2i(recursive)}, S: [4]string{source}})
}

// treeIn is tree for a path below dir; it must not lead out of dir.
func (p *Program) treeIn(dir, path string) int {
	return p.handle(wire.Message{Code: OpTreeIn, S: [4]string{dir, path}})
}

const noUserNS = -1

// attr sets mount attributes (MOUNT_ATTR_*) and propagation of a handle, and maps its IDs with the
// user namespace that is open in another handle.
func (p *Program) attr(handle int, set, propagation uint64, recursive bool, userns int) {
	p.add(wire.Message{Code: OpAttr,
		N: [4]int64{int64(handle), int64(set), int64(userns), int64(propagation) | b2i(recursive)}})
}

// attachHost attaches a handle at an existing path of the host's view.
func (p *Program) attachHost(handle int, target string) {
	p.add(wire.Message{Code: OpAttachHost, N: [4]int64{int64(handle)}, S: [4]string{target}})
}

func (p *Program) mountHost(source, fstype, target, data string, flags uintptr) {
	p.add(wire.Message{Code: OpMountHost, N: [4]int64{int64(flags)}, S: [4]string{source, fstype, target, data}})
}

// root enters the container's file system; files created in it later belong to the given IDs of the
// host.
func (p *Program) root(path string, uid, gid uint32) {
	p.add(wire.Message{Code: OpRoot, N: [4]int64{int64(uid), int64(gid)}, S: [4]string{path}})
}

// Attach attaches a handle at a path in the root, which is created if it is missing.
func (p *Program) Attach(handle int, target string, proc int64) {
	p.add(wire.Message{Code: OpAttach, N: [4]int64{int64(handle), 0o755, proc}, S: [4]string{target}})
}

// Mount mounts a file system in the root, at a place without symbolic links.
func (p *Program) Mount(source, fstype, target, data string, flags uintptr) {
	p.add(wire.Message{Code: OpMount, N: [4]int64{int64(flags), 0o755}, S: [4]string{source, fstype, target, data}})
}

func (p *Program) mknod(path string, mode uint32, major, minor uint32, uid, gid uint32) {
	p.add(wire.Message{Code: OpMknod, N: [4]int64{int64(mode), int64(unix.Mkdev(major, minor)), int64(uid), int64(gid)},
		S: [4]string{path}})
}

func (p *Program) symlink(to, path string) {
	p.add(wire.Message{Code: OpSymlink, S: [4]string{to, path}})
}

func (p *Program) mkdir(path string, mode uint32) {
	p.add(wire.Message{Code: OpMkdir, N: [4]int64{int64(mode)}, S: [4]string{path}})
}

// attrPath sets attributes of the mount at a path in the root.
func (p *Program) attrPath(path string, set uint64) {
	p.add(wire.Message{Code: OpAttrPath, N: [4]int64{int64(set)}, S: [4]string{path}})
}

func (p *Program) pivot() { p.add(wire.Message{Code: OpPivot}) }

// mask hides a path; null is the handle of what is read from a masked file.
func (p *Program) mask(path string, null int) {
	p.add(wire.Message{Code: OpMask, N: [4]int64{int64(null)}, S: [4]string{path}})
}

func (p *Program) readonly(path string) { p.add(wire.Message{Code: OpReadonly, S: [4]string{path}}) }

// RequestFiles makes the helper send up to four files of the image and continue with what then plans from
// their content (empty for a missing file).
func (p *Program) RequestFiles(then continuation, files ...string) {
	r := wire.Message{Code: OpFiles}
	copy(r.S[:], files)
	p.add(r)
	p.then = then
}

// planFor continues with what then plans from the content that a file of the image had. The helper ends if that has
// changed.
func (p *Program) planFor(then continuation, file string, content []byte) {
	p.add(wire.Message{Code: OpFiles, Flags: wire.Bytes << 1, N: [4]int64{0, 1}, S: [4]string{file, string(content)}})
	p.planned = true
	_, err := then(p, [][]byte{content})
	p.fail(err)
}

// Planned reports whether the helper ends if a file of the image is not what the program was planned for.
func (p *Program) Planned() bool { return p.planned }

// send is RequestFiles for a helper that goes on meanwhile, until await.
func (p *Program) send(then continuation, files ...string) {
	p.RequestFiles(then, files...)
	p.Ops[len(p.Ops)-1].N[0] = 1
}

// await ends a program whose question was sent.
func (p *Program) await() { p.add(wire.Message{Code: OpFiles}) }

// RequestsFiles reports whether the program ends with a request of the helper.
func (p *Program) RequestsFiles() bool { return p.then != nil }

// Questions returns how many files the helper sends before it waits.
func (p *Program) Questions() int {
	n := 0
	for _, op := range slices.Backward(p.Ops) {
		if op.Code != OpFiles || op.S[0] == "" {
			continue
		}
		for n < len(op.S) && op.S[n] != "" {
			n++
		}
		break
	}
	return n
}

// Answer returns the helper's answer to the files: the rest of the program with its length.
func (p *Program) Answer(files [][]byte) ([]byte, *Identity, error) {
	planned := len(p.Ops)
	id, err := p.then(p, files)
	if err == nil {
		err = p.err
	}
	if err != nil {
		return nil, nil, err
	}
	rest := wire.Encode(p.Ops[planned:])
	return append(binary.LittleEndian.AppendUint32(nil, uint32(len(rest))), rest...), id, nil
}

func (p *Program) keyring(name string) { p.add(wire.Message{Code: OpKeyring, S: [4]string{name}}) }

// tty creates the process's terminal and sends its master to the console socket; console also
// mounts it as /dev/console.
func (p *Program) tty(rows, cols uint32, console bool, uid uint32) {
	p.add(wire.Message{Code: OpTTY, N: [4]int64{int64(rows), int64(cols), b2i(console), int64(uid)}})
}

// stdio makes a user in the container the owner of the standard streams.
func (p *Program) stdio(id *Identity) {
	p.add(wire.Message{Code: OpStdio, N: [4]int64{int64(id.UID), int64(id.GID)}})
}

func (p *Program) seccomp(filter []byte, flags uint) {
	p.add(wire.Message{Code: OpSeccomp, Flags: wire.Bytes, N: [4]int64{int64(flags)}, S: [4]string{string(filter)}})
}

// Cwd changes to the working directory, which must be inside the root.
func (p *Program) Cwd(path string) { p.add(wire.Message{Code: OpCwd, S: [4]string{path}}) }

func (p *Program) creds(id *Identity, c Capabilities) {
	b := binary.LittleEndian.AppendUint32(nil, id.UID)
	b = binary.LittleEndian.AppendUint32(b, id.GID)
	for _, g := range id.Groups {
		b = binary.LittleEndian.AppendUint32(b, g)
	}
	p.add(wire.Message{Code: OpCreds, Flags: wire.Bytes,
		N: [4]int64{int64(c.Bounding), int64(c.Effective), int64(c.Inheritable), int64(c.Ambient)},
		S: [4]string{string(b)}})
}

func (p *Program) noNewPrivs() { p.add(wire.Message{Code: OpNoNewPrivs}) }

// Lookup finds the program in the $PATH of env; Exec executes it.
func (p *Program) Lookup(argv, env []string) {
	path := ""
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			path = v
			break
		}
	}
	args, err := wire.Pack(argv)
	if err != nil {
		p.fail(fmt.Errorf("argument of the command: %w", err))
	}
	vars, err := packedEnv(env)
	p.fail(err)
	p.add(wire.Message{Code: OpLookup, Flags: wire.Bytes | wire.Bytes<<1, S: [4]string{args, vars, path}})
}

// packedEnv names a variable that cannot be encoded, never its value, which may be secret.
func packedEnv(env []string) (string, error) {
	vars, err := wire.Pack(env)
	if err == nil {
		return vars, nil
	}
	for _, kv := range env {
		if strings.IndexByte(kv, 0) >= 0 {
			name, _, _ := strings.Cut(kv, "=")
			return "", fmt.Errorf("environment variable %.100q: %w", name, wire.ErrNUL)
		}
	}
	return "", err
}

// Exec executes the command that Lookup found.
func (p *Program) Exec() { p.add(wire.Message{Code: OpExec}) }

// Gate waits for one byte, or fails when the other side is closed.
func (p *Program) Gate() { p.add(wire.Message{Code: OpGate}) }

// Gated reports whether the program has a Gate.
func (p *Program) Gated() bool {
	return slices.ContainsFunc(p.Ops, func(m wire.Message) bool { return m.Code == OpGate })
}

// enter has fork make its process in the PID namespace of the process that the monitor named.
// It comes first.
func (p *Program) enter() { p.add(wire.Message{Code: OpEnter}) }

// proc mounts the /proc of the PID namespace that is open in a handle.
func (p *Program) proc(target string, pidns int) {
	p.add(wire.Message{Code: OpProc, N: [4]int64{int64(pidns)}, S: [4]string{target}})
}

// shed closes every file that the process created by fork must not show; afterwards no handle is
// left.
func (p *Program) shed() { p.add(wire.Message{Code: OpShed}) }

// fork continues as a process that the processes of the PID namespace can see and may trace.
func (p *Program) fork() { p.add(wire.Message{Code: OpFork}) }

// take receives a detached mount, which comes with a byte on the helper's line, as a handle.
func (p *Program) take() int { return p.handle(wire.Message{Code: OpTake}) }

// Encode returns the program in the helper's format.
func (p *Program) Encode() ([]byte, error) {
	if p.err != nil {
		return nil, p.err
	}
	return wire.Encode(p.Ops), nil
}

func b2i(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
