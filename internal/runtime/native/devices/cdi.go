// Package devices finds the devices of a container: nodes of the host that CRI names, and CDI
// devices with the mounts, variables, and hooks that their specifications define.
//
// The native runtime drives it when a container is created. It reads the host's device nodes and
// specifications, and must never create a node or run a hook.
package devices

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"tags.cncf.io/container-device-interface/pkg/cdi"

	"carob/internal/runtime/native/plan"
)

// CDINames returns the CDI devices that a container requests, in the field of CRI and in the
// annotations of older device plugins.
func CDINames(c *cri.ContainerConfig) ([]string, error) {
	var names []string
	for _, d := range c.CDIDevices {
		names = append(names, d.Name)
	}
	_, annotated, err := cdi.ParseAnnotations(c.Annotations)
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "CDI devices in annotations: %v", err)
	}
	for _, n := range annotated {
		if !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	return names, nil
}

// InjectCDI returns the configuration with what the CDI specifications in dirs define for the
// devices: their nodes and their hooks.
func InjectCDI(c *cri.ContainerConfig, names, dirs []string) (*cri.ContainerConfig, []plan.Device, *specs.Hooks,
	error) {
	if len(names) == 0 {
		return c, nil, nil, nil
	}
	if len(dirs) == 0 {
		dirs = cdi.DefaultSpecDirs
	}
	cache, err := cdi.NewCache(cdi.WithAutoRefresh(false), cdi.WithSpecDirs(dirs...))
	if err != nil {
		return nil, nil, nil, fmt.Errorf("reading CDI specifications: %w", err)
	}
	s := &specs.Spec{Process: &specs.Process{}, Linux: &specs.Linux{}}
	if unknown, err := cache.InjectDevices(s, names...); err != nil {
		if len(unknown) > 0 {
			var broken strings.Builder
			for file, errs := range cache.GetErrors() {
				fmt.Fprintf(&broken, "; %s: %v", file, errors.Join(errs...))
			}
			return nil, nil, nil,
				status.Errorf(codes.InvalidArgument, "CDI devices %s are in no valid specification below %s%s",
					strings.Join(unknown, ", "), strings.Join(dirs, ", "), broken.String())
		}
		return nil, nil, nil, status.Errorf(codes.InvalidArgument, "CDI devices: %v", err)
	}
	hooks, err := usableHooks(s.Hooks, names)
	if err != nil {
		return nil, nil, nil, err
	}
	if s.Linux.IntelRdt != nil {
		return nil, nil, nil, status.Errorf(codes.Unimplemented,
			"CDI devices %s need Intel RDT, which this runtime does not set", strings.Join(names, ", "))
	}
	c = proto.Clone(c).(*cri.ContainerConfig)
	for _, kv := range s.Process.Env {
		k, v, _ := strings.Cut(kv, "=")
		c.Envs = append(c.Envs, &cri.KeyValue{Key: k, Value: []byte(v)})
	}
	for i := range s.Mounts {
		m, err := cdiMount(&s.Mounts[i])
		if err != nil {
			return nil, nil, nil, err
		}
		c.Mounts = append(c.Mounts, m)
	}
	if c.Linux == nil {
		c.Linux = &cri.LinuxContainerConfig{}
	}
	if c.Linux.SecurityContext == nil {
		c.Linux.SecurityContext = &cri.LinuxContainerSecurityContext{}
	}
	for _, g := range s.Process.User.AdditionalGids {
		c.Linux.SecurityContext.SupplementalGroups = append(c.Linux.SecurityContext.SupplementalGroups, int64(g))
	}
	devices, err := cdiDevices(s)
	return c, devices, hooks, err
}

func cdiMount(m *specs.Mount) (*cri.Mount, error) {
	if m.Type != "" && m.Type != "bind" && m.Type != "none" {
		return nil, status.Errorf(codes.Unimplemented, "CDI mount %s of type %q: only binds are supported",
			m.Destination, m.Type)
	}
	out := &cri.Mount{HostPath: m.Source, ContainerPath: m.Destination}
	for _, o := range m.Options {
		switch o {
		case "ro":
			out.Readonly = true
		case "rslave", "slave":
			out.Propagation = cri.MountPropagation_PROPAGATION_HOST_TO_CONTAINER
		case "rshared", "shared":
			out.Propagation = cri.MountPropagation_PROPAGATION_BIDIRECTIONAL
		case "bind", "rbind", "private", "rprivate", "rw":
		default:
			if _, ok := plan.VolumeOptions[o]; !ok {
				return nil, status.Errorf(codes.Unimplemented, "CDI mount %s: option %q is not supported",
					m.Destination, o)
			}
			out.MountOptions = append(out.MountOptions, o)
		}
	}
	return out, nil
}

func cdiDevices(s *specs.Spec) ([]plan.Device, error) {
	var out []plan.Device
	for _, d := range s.Linux.Devices {
		kind := map[string]uint32{"c": unix.S_IFCHR, "u": unix.S_IFCHR, "b": unix.S_IFBLK}[d.Type]
		if kind == 0 {
			return nil, status.Errorf(codes.InvalidArgument, "CDI device %s is of type %q, not c or b", d.Path, d.Type)
		}
		n := plan.Device{Path: d.Path, Mode: kind | 0o666, Major: uint32(d.Major), Minor: uint32(d.Minor),
			Access: "rwm"}
		if d.FileMode != nil {
			n.Mode = kind | uint32(d.FileMode.Perm())
		}
		if d.UID != nil {
			n.UID = *d.UID
		}
		if d.GID != nil {
			n.GID = *d.GID
		}
		if r := s.Linux.Resources; r != nil {
			for _, rule := range r.Devices {
				if rule.Allow && rule.Type == d.Type && rule.Major != nil && *rule.Major == d.Major &&
					rule.Minor != nil && *rule.Minor == d.Minor {
					n.Access = rule.Access
				}
			}
		}
		out = append(out, n)
	}
	return out, nil
}

// usableHooks returns the hooks of devices, nil for none.
func usableHooks(h *specs.Hooks, names []string) (*specs.Hooks, error) {
	if h == nil {
		return nil, nil
	}
	if len(h.StartContainer) > 0 {
		return nil, status.Errorf(codes.Unimplemented,
			"CDI devices %s need a startContainer hook, which this runtime does not run", strings.Join(names, ", "))
	}
	all := [][]specs.Hook{h.Prestart, h.CreateRuntime, h.CreateContainer, //nolint:staticcheck // old, not gone
		h.Poststart, h.Poststop}
	for _, list := range all {
		for _, x := range list {
			if !filepath.IsAbs(x.Path) {
				return nil, status.Errorf(codes.InvalidArgument,
					"CDI devices %s have a hook whose path %q is not absolute", strings.Join(names, ", "), x.Path)
			}
		}
	}
	return h, nil
}
