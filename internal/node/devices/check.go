package devices

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"tags.cncf.io/container-device-interface/pkg/parser"

	"carob/internal/core/devices"
	"carob/internal/core/resources"
	"carob/internal/node/spec"
)

// Plugins and drivers run as root, but are not part of carob: what they send is validated before it is stored, shown,
// or passed to a runtime.

// Limits for what they send.
const (
	maxDevices = 65536 // of a plugin
	maxID      = 1024  // bytes of an id or a name
	maxEntries = 4096  // of a list in an answer
	maxValue   = 128 << 10
)

// text refuses strings that are too long, not UTF-8, or contain control characters.
func text(what, s string) error {
	switch {
	case s == "":
		return fmt.Errorf("%s is empty", what)
	case len(s) > maxID:
		return fmt.Errorf("%s has %d bytes, at most %d", what, len(s), maxID)
	case !utf8.ValidString(s), strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return fmt.Errorf("%s %q has characters that no name has", what, s)
	}
	return nil
}

// path refuses strings that are not absolute paths, or contain "..".
func path(what, p string) error {
	if err := text(what, p); err != nil {
		return err
	}
	if !filepath.IsAbs(p) || slices.Contains(strings.Split(p, "/"), "..") {
		return fmt.Errorf("%s %q is relative or has a step \"..\"", what, p)
	}
	return nil
}

// resourceName checks the name of a plugin's resource (S8.3).
func resourceName(name string) error {
	if len(name) > maxID || !resources.IsExtended(corev1.ResourceName(name)) ||
		len(validation.IsQualifiedName(name)) > 0 || len(validation.IsQualifiedName("requests."+name)) > 0 {
		return fmt.Errorf("the ResourceName %.256q is invalid", name)
	}
	return nil
}

// endpointName checks the name of a plugin's socket (S8.2).
func endpointName(name string) error {
	if err := text("endpoint", name); err != nil {
		return err
	}
	if name != filepath.Base(name) || name == "." || name == ".." || name == registrySocket {
		return fmt.Errorf("endpoint %q is not a name of a socket of a plugin", name)
	}
	return nil
}

// listed turns a plugin's list into devices (S8.4).
func listed(list []*pluginapi.Device) (map[string]devices.Device, error) {
	if len(list) > maxDevices {
		return nil, fmt.Errorf("%d devices, at most %d", len(list), maxDevices)
	}
	all := map[string]devices.Device{}
	for _, d := range list {
		if err := text("the id of a device", d.GetID()); err != nil {
			return nil, err
		}
		one := devices.Device{Healthy: d.Health == pluginapi.Healthy}
		for _, n := range d.GetTopology().GetNodes() {
			one.NUMA = append(one.NUMA, n.ID)
		}
		all[d.ID] = one
	}
	return all, nil
}

// answer converts a plugin's response to Allocate into what a container gets (S8.7).
func answer(r *pluginapi.ContainerAllocateResponse) (*spec.Devices, error) {
	if len(r.Envs)+len(r.Mounts)+len(r.Devices)+len(r.Annotations)+len(r.CdiDevices) > maxEntries {
		return nil, fmt.Errorf("more than %d entries", maxEntries)
	}
	d := &spec.Devices{Annotations: map[string]string{}}
	for _, name := range slices.Sorted(maps.Keys(r.Envs)) {
		value := r.Envs[name]
		if err := text("the name of a variable", name); err != nil {
			return nil, err
		}
		if strings.Contains(name, "=") || len(value) > maxValue || strings.ContainsRune(value, 0) ||
			!utf8.ValidString(value) {
			return nil, fmt.Errorf("variable %q, or its value, is not one that a process can have", name)
		}
		d.Env = append(d.Env, spec.EnvVar{Name: name, Value: value})
	}
	for _, m := range r.Mounts {
		if err := path("container path of a mount", m.GetContainerPath()); err != nil {
			return nil, err
		}
		if err := path("host path of a mount", m.GetHostPath()); err != nil {
			return nil, err
		}
		d.Mounts = append(d.Mounts, &cri.Mount{ContainerPath: m.ContainerPath, HostPath: m.HostPath,
			Readonly: m.ReadOnly})
	}
	for _, n := range r.Devices {
		if err := path("container path of a device", n.GetContainerPath()); err != nil {
			return nil, err
		}
		if err := path("host path of a device", n.GetHostPath()); err != nil {
			return nil, err
		}
		if n.Permissions == "" || strings.Trim(n.Permissions, "rwm") != "" || len(n.Permissions) > 3 {
			return nil, fmt.Errorf("permissions %.32q of device %s are not among rwm", n.Permissions, n.HostPath)
		}
		d.Nodes = append(d.Nodes, &cri.Device{ContainerPath: n.ContainerPath, HostPath: n.HostPath,
			Permissions: n.Permissions})
	}
	for _, name := range slices.Sorted(maps.Keys(r.Annotations)) {
		value := r.Annotations[name]
		if len(validation.IsQualifiedName(strings.ToLower(name))) > 0 || len(value) > maxValue ||
			!utf8.ValidString(value) {
			return nil, fmt.Errorf("annotation %.256q is not one that an object can have", name)
		}
		d.Annotations[name] = value
	}
	for _, c := range r.CdiDevices {
		if err := cdiName(c.GetName()); err != nil {
			return nil, err
		}
		d.CDI = append(d.CDI, c.Name)
	}
	return d, nil
}

// cdiName checks the name of a CDI device: vendor/class=name.
func cdiName(name string) error {
	if err := text("the name of a CDI device", name); err != nil {
		return err
	}
	if _, _, _, err := parser.ParseQualifiedName(name); err != nil {
		return fmt.Errorf("the name of a CDI device: %w", err)
	}
	return nil
}
