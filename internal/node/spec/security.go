package spec

import (
	"fmt"
	"iter"
	"math"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Paths of /proc and /sys that a container must not read, or not write, unless procMount is Unmasked (L3.161).
var (
	maskedPaths = []string{
		"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi",
		"/sys/firmware", "/sys/devices/virtual/powercap",
	}
	readonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

func usesUserNS(pod *corev1.Pod) bool { return pod.Spec.HostUsers != nil && !*pod.Spec.HostUsers }

// namespaces of pod and container (L3.162). Without a container it is the sandbox's.
func namespaces(pod *corev1.Pod, targetID string, userNS *cri.UserNamespace) *cri.NamespaceOption {
	o := &cri.NamespaceOption{
		Network: cri.NamespaceMode_POD,
		Ipc:     cri.NamespaceMode_POD,
		Pid:     cri.NamespaceMode_CONTAINER,
	}
	if pod.Spec.HostNetwork {
		o.Network = cri.NamespaceMode_NODE
	}
	if pod.Spec.HostIPC {
		o.Ipc = cri.NamespaceMode_NODE
	}
	switch {
	case pod.Spec.HostPID:
		o.Pid = cri.NamespaceMode_NODE
	case pod.Spec.ShareProcessNamespace != nil && *pod.Spec.ShareProcessNamespace:
		o.Pid = cri.NamespaceMode_POD
	case targetID != "":
		o.Pid, o.TargetId = cri.NamespaceMode_TARGET, targetID
	}
	if usesUserNS(pod) {
		o.UsernsOptions = userNS
	}
	return o
}

// CheckIDs refuses invalid user and group IDs of a pod. The API server does so, too; the kernel uses only 32 bits of
// each number and would choose another user: root, for 4294967296.
func CheckIDs(pod *corev1.Pod) error {
	if p := pod.Spec.SecurityContext; p != nil {
		ids := []*int64{p.RunAsUser, p.RunAsGroup, p.FSGroup}
		for i := range p.SupplementalGroups {
			ids = append(ids, &p.SupplementalGroups[i])
		}
		if err := checkIDs(ids...); err != nil {
			return err
		}
	}
	for c := range eachContainer(pod) {
		if own := c.SecurityContext; own != nil {
			if err := checkIDs(own.RunAsUser, own.RunAsGroup); err != nil {
				return fmt.Errorf("container %q: %w", c.Name, err)
			}
		}
	}
	return nil
}

func checkIDs(ids ...*int64) error {
	for _, id := range ids {
		if id != nil && (*id < 0 || *id > math.MaxInt32) {
			return fmt.Errorf("user or group %d: ids are numbers from 0 to %d", *id, math.MaxInt32)
		}
	}
	return nil
}

// eachContainer are the containers of a pod of all kinds.
func eachContainer(pod *corev1.Pod) iter.Seq[*corev1.Container] {
	return func(yield func(*corev1.Container) bool) {
		for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
			for i := range list {
				if !yield(&list[i]) {
					return
				}
			}
		}
		for i := range pod.Spec.EphemeralContainers {
			c := corev1.Container(pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
			if !yield(&c) {
				return
			}
		}
	}
}

func sandboxSecurity(pod *corev1.Pod, userNS *cri.UserNamespace) *cri.LinuxSandboxSecurityContext {
	sc := &cri.LinuxSandboxSecurityContext{
		NamespaceOptions: namespaces(pod, "", userNS),
		Privileged:       anyPrivileged(pod),
		Seccomp:          &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault},
	}
	if p := pod.Spec.SecurityContext; p != nil {
		sc.RunAsUser = optional(p.RunAsUser)
		if p.RunAsUser != nil { // a group without a user is an invalid sandbox for CRI
			sc.RunAsGroup = optional(p.RunAsGroup)
		}
		sc.SelinuxOptions = selinux(p.SELinuxOptions)
		sc.SupplementalGroups, sc.SupplementalGroupsPolicy = groups(pod)
	}
	return sc
}

// anyPrivileged reports whether a container of the pod is privileged. A runtime may refuse such
// a container in a sandbox that is not; ephemeral containers count from their creation.
func anyPrivileged(pod *corev1.Pod) bool {
	for c := range eachContainer(pod) {
		if c.SecurityContext != nil && isTrue(c.SecurityContext.Privileged) {
			return true
		}
	}
	return false
}

// containerSecurity merges the security contexts of pod and container; the container's wins.
func containerSecurity(in *ContainerInput) (*cri.LinuxContainerSecurityContext, error) {
	pod, c := in.Pod, in.Container
	own := c.SecurityContext
	if own == nil {
		own = &corev1.SecurityContext{}
	}
	shared := pod.Spec.SecurityContext
	if shared == nil {
		shared = &corev1.PodSecurityContext{}
	}
	user := first(own.RunAsUser, shared.RunAsUser)
	if err := CheckIDs(pod); err != nil {
		return nil, err
	}
	if err := checkIDs(in.Image.UID); err != nil && user == nil {
		return nil, fmt.Errorf("image of container %q: %w", c.Name, err)
	}
	if err := checkNonRoot(in, first(own.RunAsNonRoot, shared.RunAsNonRoot), user); err != nil {
		return nil, err
	}
	seccomp, err := seccompProfile(in, first(own.SeccompProfile, shared.SeccompProfile))
	if err != nil {
		return nil, err
	}
	profile := apparmor(pod, c, first(own.AppArmorProfile, shared.AppArmorProfile))
	if err := checkProfile(profile); err != nil {
		return nil, fmt.Errorf("container %q: %w", c.Name, err)
	}
	all, err := unmasked(pod, c)
	if err != nil {
		return nil, err
	}
	sc := &cri.LinuxContainerSecurityContext{
		NamespaceOptions: namespaces(pod, in.TargetID, in.UserNS),
		Privileged:       own.Privileged != nil && *own.Privileged,
		RunAsUser:        optional(user),
		RunAsGroup:       optional(first(own.RunAsGroup, shared.RunAsGroup)),
		ReadonlyRootfs:   own.ReadOnlyRootFilesystem != nil && *own.ReadOnlyRootFilesystem,
		NoNewPrivs:       own.AllowPrivilegeEscalation != nil && !*own.AllowPrivilegeEscalation,
		SelinuxOptions:   selinux(first(own.SELinuxOptions, shared.SELinuxOptions)),
		Seccomp:          seccomp,
		Apparmor:         profile,
		Capabilities:     &cri.Capability{},
	}
	sc.SupplementalGroups, sc.SupplementalGroupsPolicy = groups(pod)
	switch {
	case user != nil:
	case in.Image.runsAsRoot():
		sc.RunAsUser = &cri.Int64Value{Value: 0}
	case in.Image.UID != nil:
		sc.RunAsUser = optional(in.Image.UID)
	default:
		sc.RunAsUsername = in.Image.Username
	}
	if own.Capabilities != nil {
		for _, name := range own.Capabilities.Add {
			sc.Capabilities.AddCapabilities = append(sc.Capabilities.AddCapabilities, string(name))
		}
		for _, name := range own.Capabilities.Drop {
			sc.Capabilities.DropCapabilities = append(sc.Capabilities.DropCapabilities, string(name))
		}
	}
	if !in.Node.NetRaw && !sc.Privileged && !capabilityIn(sc.Capabilities.AddCapabilities, netRaw) &&
		!capabilityIn(sc.Capabilities.DropCapabilities, netRaw) {
		sc.Capabilities.DropCapabilities = append(sc.Capabilities.DropCapabilities, netRaw)
	}
	if !sc.Privileged && !all {
		sc.MaskedPaths = slices.Concat(maskedPaths, in.Node.ThermalEvents)
		sc.ReadonlyPaths = slices.Clone(readonlyPaths)
	}
	return sc, nil
}

// netRaw is the capability that --allow-net-raw=false drops unless a container requests it: it allows a process to send
// any frame, and to use packet sockets. Some versions of ping need it (decision 12).
const netRaw = "NET_RAW"

// capabilityIn reports whether a list of capabilities has this one, or all of them.
func capabilityIn(list []string, name string) bool {
	return slices.ContainsFunc(list, func(c string) bool {
		c = strings.TrimPrefix(strings.ToUpper(c), "CAP_")
		return c == name || c == "ALL"
	})
}

// checkNonRoot refuses containers with runAsNonRoot that would run as root (L3.160).
func checkNonRoot(in *ContainerInput, nonRoot *bool, user *int64) error {
	if nonRoot == nil || !*nonRoot {
		return nil
	}
	ref, name := podRef(in.Pod), in.Container.Name
	switch {
	case user != nil && *user == 0:
		return fmt.Errorf("container's runAsUser breaks non-root policy (pod: %q, container: %s)", ref, name)
	case user != nil:
		return nil
	case in.Image.runsAsRoot():
		return fmt.Errorf("container has runAsNonRoot and image will run as root (pod: %q, container: %s)", ref, name)
	case in.Image.UID == nil && in.Image.Username != "":
		return fmt.Errorf(
			"container has runAsNonRoot and image has non-numeric user (%s), cannot verify user is non-root (pod: %q, container: %s)",
			in.Image.Username, ref, name)
	default:
		return nil
	}
}

// runsAsRoot reports whether the image's user is root: explicitly, or because it names no user.
func (i Image) runsAsRoot() bool {
	return i.UID != nil && *i.UID == 0 || i.UID == nil && i.Username == ""
}

func groups(pod *corev1.Pod) ([]int64, cri.SupplementalGroupsPolicy) {
	p := pod.Spec.SecurityContext
	if p == nil {
		return nil, cri.SupplementalGroupsPolicy_Merge
	}
	list := slices.Clone(p.SupplementalGroups)
	if p.FSGroup != nil && !slices.Contains(list, *p.FSGroup) {
		list = append(list, *p.FSGroup)
	}
	if p.SupplementalGroupsPolicy != nil && *p.SupplementalGroupsPolicy == corev1.SupplementalGroupsPolicyStrict {
		return list, cri.SupplementalGroupsPolicy_Strict
	}
	return list, cri.SupplementalGroupsPolicy_Merge
}

// seccompProfile chooses the container's profile, else the pod's, else the node's default; the default does not apply
// to privileged containers (L3.161).
func seccompProfile(in *ContainerInput, p *corev1.SeccompProfile) (*cri.SecurityProfile, error) {
	kind := corev1.SeccompProfileTypeUnconfined
	if own := in.Container.SecurityContext; in.Node.SeccompDefault && (own == nil || !isTrue(own.Privileged)) {
		kind = corev1.SeccompProfileTypeRuntimeDefault
	}
	if p != nil {
		kind = p.Type
	}
	switch kind {
	case corev1.SeccompProfileTypeRuntimeDefault:
		return &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault}, nil
	case corev1.SeccompProfileTypeLocalhost:
		if p.LocalhostProfile == nil || *p.LocalhostProfile == "" {
			return nil, fmt.Errorf("localhostProfile must be set if seccompProfile type is Localhost")
		}
		if !filepath.IsLocal(*p.LocalhostProfile) {
			return nil, fmt.Errorf("localhostProfile %q of container %q leaves the seccomp directory of the node",
				*p.LocalhostProfile, in.Container.Name)
		}
		return &cri.SecurityProfile{
			ProfileType:  cri.SecurityProfile_Localhost,
			LocalhostRef: filepath.Join(in.Node.SeccompRoot, *p.LocalhostProfile),
		}, nil
	default:
		return &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Unconfined}, nil
	}
}

// apparmor chooses the AppArmor profile; nil leaves it to the runtime.
func apparmor(pod *corev1.Pod, c *corev1.Container, p *corev1.AppArmorProfile) *cri.SecurityProfile {
	if p == nil {
		p = annotatedAppArmor(pod.Annotations[corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix+c.Name])
	}
	if p == nil {
		return nil
	}
	switch p.Type {
	case corev1.AppArmorProfileTypeLocalhost:
		ref := ""
		if p.LocalhostProfile != nil {
			ref = *p.LocalhostProfile
		}
		return &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Localhost, LocalhostRef: ref}
	case corev1.AppArmorProfileTypeUnconfined:
		return &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Unconfined}
	default:
		return &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault}
	}
}

// RequestsAppArmor reports whether a container of the pod requests an AppArmor profile.
func RequestsAppArmor(pod *corev1.Pod) bool {
	var shared *corev1.AppArmorProfile
	if pod.Spec.SecurityContext != nil {
		shared = pod.Spec.SecurityContext.AppArmorProfile
	}
	for c := range eachContainer(pod) {
		p := shared
		if own := c.SecurityContext; own != nil && own.AppArmorProfile != nil {
			p = own.AppArmorProfile
		}
		if a := apparmor(pod, c, p); a != nil && a.ProfileType != cri.SecurityProfile_Unconfined {
			return true
		}
	}
	return false
}

// annotatedAppArmor reads the annotation that preceded the field.
func annotatedAppArmor(value string) *corev1.AppArmorProfile {
	switch value {
	case "":
		return nil
	case corev1.DeprecatedAppArmorBetaProfileRuntimeDefault:
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeRuntimeDefault}
	case corev1.DeprecatedAppArmorBetaProfileNameUnconfined:
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeUnconfined}
	}
	if len(value) > len(corev1.DeprecatedAppArmorBetaProfileNamePrefix) {
		name := value[len(corev1.DeprecatedAppArmorBetaProfileNamePrefix):]
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeLocalhost, LocalhostProfile: &name}
	}
	return nil
}

func selinux(o *corev1.SELinuxOptions) *cri.SELinuxOption {
	if o == nil {
		return nil
	}
	return &cri.SELinuxOption{User: o.User, Role: o.Role, Type: o.Type, Level: o.Level}
}

func optional(n *int64) *cri.Int64Value {
	if n == nil {
		return nil
	}
	return &cri.Int64Value{Value: *n}
}

// first returns a, or b when a is nil.
func first[T any](a, b *T) *T {
	if a != nil {
		return a
	}
	return b
}
