package localdisk

import (
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Project quotas, as linux/fs.h, linux/quota.h and linux/dqblk_xfs.h define them.
const (
	getAttributes  = 0x801c581f // FS_IOC_FSGETXATTR
	setAttributes  = 0x401c5820 // FS_IOC_FSSETXATTR
	projectInherit = 0x200      // FS_XFLAG_PROJINHERIT

	projectQuota   = 2 // PRJQUOTA
	setQuota       = 0x800008
	getQuotaState  = 'X'<<8 + 5 // Q_XGETQSTAT
	projectEnabled = 1 << 5     // FS_QUOTA_PDQ_ENFD
	limitOfBlocks  = 1          // QIF_BLIMITS
	blockSize      = 1024       // of the limits
)

// The project IDs of volumes are in this range, away from those of administrators, who usually count from 1.
const (
	firstProject = 0x43000000
	projects     = 0x00ffffff
)

// attributes is struct fsxattr.
type attributes struct {
	flags, extentSize, extents, project, copySize uint32
	_                                             [8]byte
}

// quota is struct if_dqblk.
type quota struct {
	hard, soft, space, inodesHard, inodesSoft, inodes, blockTime, inodeTime uint64
	valid                                                                   uint32
	_                                                                       uint32
}

func isOurs(project uint32) bool { return project >= firstProject && project < firstProject+projects }

// limit keeps a directory to a size, if its file system can.
func (d *Disk) limit(base, dir int, size int64) (string, error) {
	if !enforced(base) {
		return ByNothing, nil
	}
	project := projectOf(dir)
	if !isOurs(project) {
		var err error
		if project, err = freeProject(base, dir); err != nil {
			return "", err
		}
	}
	// The limit first: no file may be counted to a project without one.
	q := quota{hard: uint64(size+blockSize-1) / blockSize, valid: limitOfBlocks}
	if err := quotactl(base, setQuota, project, unsafe.Pointer(&q)); err != nil {
		return "", fmt.Errorf("set project quota: %w", err)
	}
	a, err := attributesOf(dir)
	if err != nil {
		return "", err
	}
	if a.project == project && a.flags&projectInherit != 0 {
		return ByQuota, nil
	}
	a.project, a.flags = project, a.flags|projectInherit
	if err := ioctl(dir, setAttributes, unsafe.Pointer(&a)); err != nil {
		return "", fmt.Errorf("set project: %w", err)
	}
	return ByQuota, nil
}

// enforced reports whether the file system keeps projects to their limits.
func enforced(fd int) bool {
	var state [256]byte // struct fs_quota_stat and more
	if quotactl(fd, getQuotaState, 0, unsafe.Pointer(&state)) != nil {
		return false
	}
	return *(*uint16)(unsafe.Pointer(&state[2]))&projectEnabled != 0
}

// forget removes the limit of a project that has no files any more.
func forget(fd int, project uint32) {
	q := quota{valid: limitOfBlocks}
	_ = quotactl(fd, setQuota, project, unsafe.Pointer(&q)) // a limit of an unused project limits nothing
}

// freeProject finds a project that no other volume of the base has.
func freeProject(base, dir int) (uint32, error) {
	var st unix.Stat_t
	if err := unix.Fstat(dir, &st); err != nil {
		return 0, err
	}
	used := map[uint32]bool{}
	f, err := os.Open("/proc/self/fd/" + strconv.Itoa(base))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return 0, err
	}
	for _, name := range names {
		fd, err := unix.Openat2(base, name, &unix.OpenHow{
			Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: inside})
		if err == nil {
			used[projectOf(fd)] = true
			unix.Close(fd)
		}
	}
	// Other bases may share the file system; their volumes have other inodes.
	h := fnv.New32a()
	_, _ = h.Write([]byte(strconv.FormatUint(st.Ino, 10)))
	start := h.Sum32() % projects
	for i := range uint32(projects) {
		if p := firstProject + (start+i)%projects; !used[p] {
			return p, nil
		}
	}
	return 0, errors.New("no project is free")
}

// projectOf is the project of a directory; 0 for none.
func projectOf(dir int) uint32 {
	a, err := attributesOf(dir)
	if err != nil {
		return 0
	}
	return a.project
}

func attributesOf(fd int) (attributes, error) {
	var a attributes
	err := ioctl(fd, getAttributes, unsafe.Pointer(&a))
	return a, err
}

func ioctl(fd int, request uintptr, arg unsafe.Pointer) error {
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(arg)); e != 0 {
		return e
	}
	return nil
}

// quotactl calls quotactl_fd for the file system of a descriptor (Linux 5.14).
func quotactl(fd int, command uintptr, id uint32, arg unsafe.Pointer) error {
	_, _, e := unix.Syscall6(unix.SYS_QUOTACTL_FD, uintptr(fd), command<<8|projectQuota, uintptr(id), uintptr(arg),
		0, 0)
	if e != 0 {
		return e
	}
	return nil
}
