package native

import (
	"path/filepath"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/runtime/native/wire"
)

// sysctlsOf returns the files to write below /proc/sys, as relative paths. In a pod's own network,
// every process may use ports below 1024 and ping, as with other CRI runtimes.
func sysctlsOf(s *sandbox) (map[string]string, error) {
	out := map[string]string{}
	if !s.hostNetwork() {
		out["net/ipv4/ip_unprivileged_port_start"] = "0"
		out["net/ipv4/ping_group_range"] = "0 2147483647"
	}
	for name, value := range s.config.GetLinux().GetSysctls() {
		path := name
		if i := strings.IndexAny(name, "./"); i >= 0 && name[i] == '.' {
			// net.ipv4.conf.eth0/1.forwarding: the first separator decides which form it is
			path = strings.Map(func(r rune) rune {
				switch r {
				case '.':
					return '/'
				case '/':
					return '.'
				}
				return r
			}, name)
		}
		if !filepath.IsLocal(path) || filepath.Clean(path) != path || strings.Contains(path, "..") ||
			strings.IndexByte(path, 0) >= 0 {
			return nil, status.Errorf(codes.InvalidArgument, "sysctl %q is not a name", name)
		}
		if strings.IndexByte(value, 0) >= 0 {
			return nil, status.Errorf(codes.InvalidArgument, "sysctl %q: its value: %v", name, wire.ErrNUL)
		}
		if why := sysctlRefused(s, path); why != "" {
			return nil, status.Errorf(codes.InvalidArgument, "sysctl %q: %s", name, why)
		}
		out[path] = value
	}
	return out, nil
}

// sysctlRefused returns why a pod may not have a value of its own for a file below /proc/sys; "" if
// the file belongs to one of the pod's own namespaces.
func sysctlRefused(s *sandbox, path string) string {
	switch path {
	case "kernel/msgmax", "kernel/msgmnb", "kernel/msgmni", "kernel/sem", "kernel/shmall", "kernel/shmmax",
		"kernel/shmmni", "kernel/shm_rmid_forced":
		if s.options().GetIpc() == cri.NamespaceMode_NODE {
			return "not allowed in the host's IPC namespace"
		}
		return ""
	case "kernel/domainname":
		if s.hostNetwork() {
			return "not allowed in the host's UTS namespace"
		}
		return ""
	}
	switch {
	case strings.HasPrefix(path, "fs/mqueue/"):
		if s.options().GetIpc() == cri.NamespaceMode_NODE {
			return "not allowed in the host's IPC namespace"
		}
		return ""
	case strings.HasPrefix(path, "net/"):
		if s.hostNetwork() {
			return "not allowed in the host's network namespace"
		}
		return ""
	}
	return "it is not in a separate kernel namespace, so it would change the host"
}
