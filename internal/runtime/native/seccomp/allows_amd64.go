package seccomp

import "golang.org/x/sys/unix"

const nativeAudit = unix.AUDIT_ARCH_X86_64
