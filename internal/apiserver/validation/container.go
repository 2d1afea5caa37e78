package validation

import (
	"fmt"
	"net"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"carob/internal/core/resources"
)

// role is what kind of container is being checked.
type role int

const (
	regular role = iota
	initial
	ephemeral
)

func (k *podChecker) checkContainers(spec *field.Path) field.ErrorList {
	s := k.spec
	var errs field.ErrorList
	names := sets.New[string]()
	if len(s.Containers) == 0 {
		errs = append(errs, field.Required(spec.Child("containers"), ""))
	}
	hostPorts := sets.New[string]()
	for i := range s.Containers {
		at := spec.Child("containers").Index(i)
		errs = append(errs, k.container(&s.Containers[i], regular, names, at)...)
		errs = append(errs, hostPortConflicts(s.Containers[i].Ports, hostPorts, at.Child("ports"))...)
	}
	for i := range s.InitContainers {
		c, at := &s.InitContainers[i], spec.Child("initContainers").Index(i)
		errs = append(errs, k.container(c, initial, names, at)...)
		// A sidecar runs beside the others; the other init containers only one at a time.
		if resources.IsSidecar(c) {
			errs = append(errs, hostPortConflicts(c.Ports, hostPorts, at.Child("ports"))...)
		} else {
			errs = append(errs, hostPortConflicts(c.Ports, sets.New[string](), at.Child("ports"))...)
		}
	}
	for i := range s.EphemeralContainers {
		errs = append(errs, k.ephemeralContainer(&s.EphemeralContainers[i], names, spec.Child("ephemeralContainers").Index(i))...)
	}
	return errs
}

func (k *podChecker) container(c *corev1.Container, r role, names sets.Set[string], at *field.Path) field.ErrorList {
	var errs field.ErrorList
	add := func(more field.ErrorList) { errs = append(errs, more...) }

	if c.Name == "" {
		errs = append(errs, field.Required(at.Child("name"), ""))
	} else {
		add(messages(at.Child("name"), c.Name, validation.IsDNS1123Label(c.Name)))
	}
	if names.Has(c.Name) {
		errs = append(errs, field.Duplicate(at.Child("name"), c.Name))
	}
	names.Insert(c.Name)
	switch {
	case c.Image == "":
		errs = append(errs, field.Required(at.Child("image"), ""))
	case k.pod && c.Image != strings.TrimSpace(c.Image):
		errs = append(errs, field.Invalid(at.Child("image"), c.Image, "must not have leading or trailing whitespace"))
	}
	add(terminationMessagePolicy(c.TerminationMessagePolicy, at.Child("terminationMessagePolicy")))
	add(oneOf(string(c.ImagePullPolicy), at.Child("imagePullPolicy"), string(corev1.PullAlways), string(corev1.PullIfNotPresent), string(corev1.PullNever)))
	add(k.ports(c.Ports, at.Child("ports")))
	add(k.env(c.Env, at.Child("env")))
	add(envFrom(c.EnvFrom, at.Child("envFrom")))
	add(k.mounts(c, at.Child("volumeMounts")))
	add(k.devices(c, at.Child("volumeDevices")))
	add(resourceRequirements(&c.Resources, at.Child("resources")))
	add(k.claims(c.Resources.Claims, at.Child("resources", "claims")))
	add(k.resizePolicy(c, r, at.Child("resizePolicy")))
	add(containerSecurityContext(k.spec, c.SecurityContext, at.Child("securityContext")))
	add(k.restartRules(c, r, at))

	longRunning := r == regular || resources.IsSidecar(c)
	if r == initial && !longRunning {
		const text = "may not be set for init containers without restartPolicy=Always" // L1.45
		forbid := func(set bool, name string) {
			if set {
				errs = append(errs, field.Forbidden(at.Child(name), text))
			}
		}
		forbid(c.Lifecycle != nil, "lifecycle")
		forbid(c.LivenessProbe != nil, "livenessProbe")
		forbid(c.ReadinessProbe != nil, "readinessProbe")
		forbid(c.StartupProbe != nil, "startupProbe")
	}
	if longRunning {
		add(k.lifecycle(c.Lifecycle, at.Child("lifecycle")))
		add(probe(c.LivenessProbe, liveness, at.Child("livenessProbe")))
		add(probe(c.ReadinessProbe, readiness, at.Child("readinessProbe")))
		add(probe(c.StartupProbe, startup, at.Child("startupProbe")))
	}
	return errs
}

// ephemeralContainer checks a debug container: none of what a container of the pod's own life has (L1.115).
func (k *podChecker) ephemeralContainer(e *corev1.EphemeralContainer, names sets.Set[string], at *field.Path) field.ErrorList {
	c := (*corev1.Container)(&e.EphemeralContainerCommon)
	errs := k.container(c, ephemeral, names, at)
	if e.TargetContainerName != "" && containerNamed(k.spec, e.TargetContainerName) == nil {
		errs = append(errs, field.NotFound(at.Child("targetContainerName"), e.TargetContainerName))
	}
	forbid := func(set bool, name string) {
		if set {
			errs = append(errs, field.Forbidden(at.Child(name), "cannot be set for an Ephemeral Container"))
		}
	}
	forbid(c.Ports != nil, "ports")
	forbid(c.LivenessProbe != nil, "livenessProbe")
	forbid(c.ReadinessProbe != nil, "readinessProbe")
	forbid(c.StartupProbe != nil, "startupProbe")
	forbid(c.Lifecycle != nil, "lifecycle")
	forbid(len(c.Resources.Limits)+len(c.Resources.Requests)+len(c.Resources.Claims) > 0, "resources")
	forbid(c.ResizePolicy != nil, "resizePolicy")
	forbid(c.RestartPolicy != nil, "restartPolicy")
	forbid(c.RestartPolicyRules != nil, "restartPolicyRules")
	for i, m := range c.VolumeMounts {
		if m.SubPath != "" {
			errs = append(errs, field.Forbidden(at.Child("volumeMounts").Index(i).Child("subPath"), "cannot be set for an Ephemeral Container"))
		}
		if m.SubPathExpr != "" {
			errs = append(errs, field.Forbidden(at.Child("volumeMounts").Index(i).Child("subPathExpr"), "cannot be set for an Ephemeral Container"))
		}
	}
	return errs
}

func (k *podChecker) ports(ports []corev1.ContainerPort, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	names := sets.New[string]()
	for i, p := range ports {
		at := at.Index(i)
		if p.Name != "" {
			if msgs := validation.IsValidPortName(p.Name); len(msgs) > 0 {
				errs = append(errs, messages(at.Child("name"), p.Name, msgs)...)
			} else if names.Has(p.Name) {
				errs = append(errs, field.Duplicate(at.Child("name"), p.Name))
			} else {
				names.Insert(p.Name)
			}
		}
		if p.ContainerPort == 0 {
			errs = append(errs, field.Required(at.Child("containerPort"), ""))
		} else {
			errs = append(errs, messages(at.Child("containerPort"), p.ContainerPort, validation.IsValidPortNum(int(p.ContainerPort)))...)
		}
		if p.HostPort != 0 {
			errs = append(errs, messages(at.Child("hostPort"), p.HostPort, validation.IsValidPortNum(int(p.HostPort)))...)
			if k.spec.HostNetwork && p.HostPort != p.ContainerPort {
				errs = append(errs, field.Invalid(at.Child("hostPort"), p.HostPort, "must match `containerPort` when `hostNetwork` is true"))
			}
		}
		errs = append(errs, protocol(p.Protocol, at.Child("protocol"))...)
	}
	return errs
}

func protocol(p corev1.Protocol, at *field.Path) field.ErrorList {
	return oneOf(string(p), at, string(corev1.ProtocolSCTP), string(corev1.ProtocolTCP), string(corev1.ProtocolUDP))
}

func hostPortConflicts(ports []corev1.ContainerPort, seen sets.Set[string], at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, p := range ports {
		if p.HostPort == 0 {
			continue
		}
		key := fmt.Sprintf("%s/%s/%d", p.Protocol, p.HostIP, p.HostPort)
		if seen.Has(key) {
			errs = append(errs, field.Duplicate(at.Index(i).Child("hostPort"), key))
		}
		seen.Insert(key)
	}
	return errs
}

func (k *podChecker) env(list []corev1.EnvVar, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range list {
		e, at := &list[i], at.Index(i)
		if e.Name == "" {
			errs = append(errs, field.Required(at.Child("name"), ""))
		} else {
			errs = append(errs, messages(at.Child("name"), e.Name, validation.IsRelaxedEnvVarName(e.Name))...)
		}
		errs = append(errs, k.envSource(e, at.Child("valueFrom"))...)
	}
	return errs
}

func (k *podChecker) envSource(e *corev1.EnvVar, at *field.Path) field.ErrorList {
	v := e.ValueFrom
	if v == nil {
		return nil
	}
	var errs field.ErrorList
	n := 0
	if v.FieldRef != nil {
		n++
		errs = append(errs, fieldRef(v.FieldRef, envFields, at.Child("fieldRef"))...)
	}
	if v.ResourceFieldRef != nil {
		n++
		errs = append(errs, resourceFieldRef(v.ResourceFieldRef, false, at.Child("resourceFieldRef"))...)
	}
	if r := v.ConfigMapKeyRef; r != nil {
		n++
		errs = append(errs, keyRef(r.Name, r.Key, at.Child("configMapKeyRef"))...)
	}
	if r := v.SecretKeyRef; r != nil {
		n++
		errs = append(errs, keyRef(r.Name, r.Key, at.Child("secretKeyRef"))...)
	}
	if r := v.FileKeyRef; r != nil {
		n++
		errs = append(errs, k.fileKeyRef(r, at.Child("fileKeyRef"))...)
	}
	switch {
	case n == 0:
		errs = append(errs, field.Invalid(at, "", "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"))
	case e.Value != "":
		errs = append(errs, field.Invalid(at, "", "may not be specified when `value` is not empty"))
	case n > 1:
		errs = append(errs, field.Invalid(at, "", "may not have more than one field specified at a time"))
	}
	return errs
}

func keyRef(name, key string, at *field.Path) field.ErrorList {
	errs := messages(at.Child("name"), name, apivalidation.NameIsDNSSubdomain(name, false))
	if key == "" {
		return append(errs, field.Required(at.Child("key"), ""))
	}
	return append(errs, messages(at.Child("key"), key, validation.IsConfigMapKey(key))...)
}

// fileKeyRef names a file of an emptyDir volume of the pod (L1.51).
func (k *podChecker) fileKeyRef(r *corev1.FileKeySelector, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if r.VolumeName == "" {
		errs = append(errs, field.Required(at.Child("volumeName"), ""))
	} else if v, ok := k.volumes[r.VolumeName]; !ok {
		errs = append(errs, messages(at.Child("volumeName"), r.VolumeName, validation.IsDNS1123Label(r.VolumeName))...)
		errs = append(errs, field.NotFound(at.Child("volumeName"), r.VolumeName))
	} else if v.EmptyDir == nil {
		errs = append(errs, field.Invalid(at.Child("volumeName"), r.VolumeName, "referenced volume must be of type emptyDir"))
	}
	if r.Path == "" {
		errs = append(errs, field.Required(at.Child("path"), ""))
	} else {
		errs = append(errs, noBacksteps(r.Path, at.Child("path"))...)
	}
	if r.Key == "" {
		errs = append(errs, field.Required(at.Child("key"), ""))
	} else {
		errs = append(errs, messages(at.Child("key"), r.Key, validation.IsRelaxedEnvVarName(r.Key))...)
	}
	return errs
}

// Fields of a pod the downward API can show: in an environment variable and in a file.
var (
	envFields = []string{
		"metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName",
		"status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs",
	}
	fileFields = []string{"metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"}
)

func fieldRef(r *corev1.ObjectFieldSelector, allowed []string, at *field.Path) field.ErrorList {
	if r.APIVersion == "" {
		return field.ErrorList{field.Required(at.Child("apiVersion"), "")}
	}
	if r.FieldPath == "" {
		return field.ErrorList{field.Required(at.Child("fieldPath"), "")}
	}
	if r.APIVersion != "v1" {
		return field.ErrorList{field.Invalid(at.Child("fieldPath"), r.FieldPath, fmt.Sprintf("error converting fieldPath: unsupported pod version: %s", r.APIVersion))}
	}
	if base, sub, ok := strings.Cut(strings.TrimSuffix(r.FieldPath, "']"), "['"); ok && strings.HasSuffix(r.FieldPath, "']") {
		switch base {
		case "metadata.annotations":
			return messages(at, strings.ToLower(sub), validation.IsQualifiedName(strings.ToLower(sub)))
		case "metadata.labels":
			return messages(at, sub, validation.IsQualifiedName(sub))
		}
		return field.ErrorList{field.Invalid(at, base, "does not support subscript")}
	}
	if !slices.Contains(envFields, r.FieldPath) && !slices.Contains(fileFields, r.FieldPath) {
		return field.ErrorList{field.Invalid(at.Child("fieldPath"), r.FieldPath, "error converting fieldPath: field label not supported: "+r.FieldPath)}
	}
	if !slices.Contains(allowed, r.FieldPath) {
		return field.ErrorList{field.NotSupported(at.Child("fieldPath"), r.FieldPath, allowed)}
	}
	return nil
}

var containerFields = []string{
	"limits.cpu", "limits.ephemeral-storage", "limits.memory",
	"requests.cpu", "requests.ephemeral-storage", "requests.memory",
}

func resourceFieldRef(r *corev1.ResourceFieldSelector, file bool, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	name := strings.TrimPrefix(strings.TrimPrefix(r.Resource, "limits."), "requests.")
	switch {
	case file && r.ContainerName == "":
		errs = append(errs, field.Required(at.Child("containerName"), ""))
	case r.Resource == "":
		errs = append(errs, field.Required(at.Child("resource"), ""))
	case !slices.Contains(containerFields, r.Resource) && (name == r.Resource || !strings.HasPrefix(name, corev1.ResourceHugePagesPrefix)):
		errs = append(errs, field.NotSupported(at.Child("resource"), r.Resource, containerFields))
	}
	if name == r.Resource {
		return errs // it has no amount to divide
	}
	divisors := []string{"1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"}
	if name == string(corev1.ResourceCPU) {
		divisors = []string{"1m", "1"}
	}
	if d := r.Divisor.String(); d != "0" && !slices.Contains(divisors, d) {
		kind := "memory"
		if name == string(corev1.ResourceCPU) {
			kind = "cpu"
		}
		errs = append(errs, field.Invalid(at.Child("divisor"), r.Resource, fmt.Sprintf("only divisor's values %s are supported with the %s resource", strings.Join(divisors, ", "), kind)))
	}
	return errs
}

func envFrom(list []corev1.EnvFromSource, whole *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range list {
		e, at := &list[i], whole.Index(i)
		if e.Prefix != "" {
			errs = append(errs, messages(at.Child("prefix"), e.Prefix, validation.IsRelaxedEnvVarName(e.Prefix))...)
		}
		for _, ref := range []struct {
			field string
			set   bool
			name  func() string
		}{{"configMapRef", e.ConfigMapRef != nil, func() string { return e.ConfigMapRef.Name }}, {"secretRef", e.SecretRef != nil, func() string { return e.SecretRef.Name }}} {
			switch at := at.Child(ref.field, "name"); {
			case !ref.set:
			case ref.name() == "":
				errs = append(errs, field.Required(at, ""))
			default:
				errs = append(errs, messages(at, ref.name(), apivalidation.NameIsDNSSubdomain(ref.name(), true))...)
			}
		}
		switch {
		case e.ConfigMapRef == nil && e.SecretRef == nil:
			errs = append(errs, field.Invalid(whole, "", "must specify one of: `configMapRef` or `secretRef`"))
		case e.ConfigMapRef != nil && e.SecretRef != nil:
			errs = append(errs, field.Invalid(whole, "", "may not have more than one field specified at a time"))
		}
	}
	return errs
}

// mounts checks where volumes are mounted. For paths inside of volumes and modes of mounts it is the list that upstream
// blames, not its item.
func (k *podChecker) mounts(c *corev1.Container, list *field.Path) field.ErrorList {
	var errs field.ErrorList
	paths := sets.New[string]()
	devices, deviceNames := sets.New[string](), sets.New[string]()
	for _, d := range c.VolumeDevices {
		devices.Insert(d.DevicePath)
		deviceNames.Insert(d.Name)
	}
	for i := range c.VolumeMounts {
		m, at := &c.VolumeMounts[i], list.Index(i)
		if m.Name == "" {
			errs = append(errs, field.Required(at.Child("name"), ""))
		}
		v, ok := k.volumes[m.Name]
		if !ok {
			errs = append(errs, field.NotFound(at.Child("name"), m.Name))
		}
		if m.MountPath == "" {
			errs = append(errs, field.Required(at.Child("mountPath"), ""))
		}
		if paths.Has(m.MountPath) {
			errs = append(errs, field.Invalid(at.Child("mountPath"), m.MountPath, "must be unique"))
		}
		paths.Insert(m.MountPath)
		if deviceNames.Has(m.Name) {
			errs = append(errs, field.Invalid(at.Child("name"), m.Name, "must not already exist in volumeDevices"))
		}
		if devices.Has(m.MountPath) {
			errs = append(errs, field.Invalid(at.Child("mountPath"), m.MountPath, "must not already exist as a path in volumeDevices"))
		}
		if m.SubPath != "" {
			errs = append(errs, descendingPath(m.SubPath, list.Child("subPath"))...)
		}
		if m.SubPathExpr != "" {
			if m.SubPath != "" {
				errs = append(errs, field.Invalid(at.Child("subPathExpr"), m.SubPathExpr, "subPathExpr and subPath are mutually exclusive"))
			}
			errs = append(errs, descendingPath(m.SubPathExpr, list.Child("subPathExpr"))...)
		}
		if p := m.MountPropagation; p != nil {
			errs = append(errs, supported(string(*p), list.Child("mountPropagation"), string(corev1.MountPropagationBidirectional), string(corev1.MountPropagationHostToContainer), string(corev1.MountPropagationNone))...)
			if *p == corev1.MountPropagationBidirectional && !privileged(c) {
				errs = append(errs, field.Forbidden(list.Child("mountPropagation"), "Bidirectional mount propagation is available only to privileged containers"))
			}
		}
		errs = append(errs, recursiveReadOnly(m, list.Child("recursiveReadOnly"))...)
		if ok && v.Image != nil && m.SubPathExpr != "" {
			errs = append(errs, field.Forbidden(at.Child("subPathExpr"), "may not be used with image volumes"))
		}
	}
	return errs
}

func recursiveReadOnly(m *corev1.VolumeMount, at *field.Path) field.ErrorList {
	if m.RecursiveReadOnly == nil {
		return nil
	}
	var errs field.ErrorList
	switch *m.RecursiveReadOnly {
	case corev1.RecursiveReadOnlyDisabled:
	case corev1.RecursiveReadOnlyEnabled, corev1.RecursiveReadOnlyIfPossible:
		if !m.ReadOnly {
			errs = append(errs, field.Forbidden(at, "may only be specified when readOnly is true"))
		}
		if m.MountPropagation != nil && *m.MountPropagation != corev1.MountPropagationNone {
			errs = append(errs, field.Forbidden(at, "may only be specified when mountPropagation is None or not specified"))
		}
	default:
		errs = append(errs, field.NotSupported(at, *m.RecursiveReadOnly, []corev1.RecursiveReadOnlyMode{corev1.RecursiveReadOnlyDisabled, corev1.RecursiveReadOnlyEnabled, corev1.RecursiveReadOnlyIfPossible}))
	}
	return errs
}

func terminationMessagePolicy(p corev1.TerminationMessagePolicy, at *field.Path) field.ErrorList {
	switch p {
	case corev1.TerminationMessageReadFile, corev1.TerminationMessageFallbackToLogsOnError:
		return nil
	case "":
		return field.ErrorList{field.Required(at, "")}
	}
	return field.ErrorList{field.NotSupported(at, p, []corev1.TerminationMessagePolicy{corev1.TerminationMessageReadFile, corev1.TerminationMessageFallbackToLogsOnError})}
}

func privileged(c *corev1.Container) bool {
	return c.SecurityContext != nil && c.SecurityContext.Privileged != nil && *c.SecurityContext.Privileged
}

// descendingPath checks a path that must stay inside its volume.
func descendingPath(p string, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if path.IsAbs(p) {
		errs = append(errs, field.Invalid(at, p, "must be a relative path"))
	}
	return append(errs, noBacksteps(p, at)...)
}

func noBacksteps(p string, at *field.Path) field.ErrorList {
	for part := range strings.SplitSeq(strings.ReplaceAll(p, `\`, "/"), "/") {
		if part == ".." {
			return field.ErrorList{field.Invalid(at, p, "must not contain '..'")}
		}
	}
	return nil
}

func (k *podChecker) devices(c *corev1.Container, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	paths, names, mounted, mountNames := sets.New[string](), sets.New[string](), sets.New[string](), sets.New[string]()
	for _, m := range c.VolumeMounts {
		mounted.Insert(m.MountPath)
		mountNames.Insert(m.Name)
	}
	for i, d := range c.VolumeDevices {
		name, device := at.Index(i).Child("name"), at.Index(i).Child("devicePath")
		if d.Name == "" {
			errs = append(errs, field.Required(name, ""))
		} else if names.Has(d.Name) {
			errs = append(errs, field.Invalid(name, d.Name, "must be unique"))
		}
		names.Insert(d.Name)
		if v, ok := k.volumes[d.Name]; !ok {
			errs = append(errs, field.NotFound(name, d.Name))
		} else if v.PersistentVolumeClaim == nil && v.Ephemeral == nil {
			errs = append(errs, field.Invalid(name, d.Name, "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode"))
		}
		if mountNames.Has(d.Name) {
			errs = append(errs, field.Invalid(name, d.Name, "must not already exist in volumeMounts"))
		}
		if d.DevicePath == "" {
			errs = append(errs, field.Required(device, ""))
		}
		if paths.Has(d.DevicePath) {
			errs = append(errs, field.Invalid(device, d.DevicePath, "must be unique"))
		}
		if len(noBacksteps(d.DevicePath, device)) > 0 {
			errs = append(errs, field.Invalid(device, d.DevicePath, "can not contain backsteps ('..')"))
		} else {
			paths.Insert(d.DevicePath)
		}
		if mounted.Has(d.DevicePath) {
			errs = append(errs, field.Invalid(device, d.DevicePath, "must not already exist as a path in volumeMounts"))
		}
	}
	return errs
}

func (k *podChecker) claims(claims []corev1.ResourceClaim, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	known := sets.New[string]()
	for _, c := range k.spec.ResourceClaims {
		known.Insert(c.Name)
	}
	seen := sets.New[string]() // whole claims by name, parts of them by name/request
	for i, c := range claims {
		at := at.Index(i)
		if c.Name == "" {
			errs = append(errs, field.Required(at, ""))
			continue
		}
		key := c.Name
		if c.Request != "" {
			key += "/" + c.Request
			errs = append(errs, messages(at.Child("request"), c.Request, validation.IsDNS1123Label(c.Request))...)
		}
		switch {
		case seen.Has(c.Name):
			errs = append(errs, field.Duplicate(at, c.Name))
		case seen.Has(key):
			errs = append(errs, field.Duplicate(at, key))
		case c.Request == "" && slices.ContainsFunc(seen.UnsortedList(), func(s string) bool { return strings.HasPrefix(s, c.Name+"/") }):
			errs = append(errs, field.Duplicate(at, c.Name))
		}
		seen.Insert(key)
		if !known.Has(c.Name) {
			missing := field.NotFound(at, c.Name)
			missing.Detail = "must be one of the names in pod.spec.resourceClaims which is empty"
			if known.Len() > 0 {
				missing.Detail = "must be one of the names in pod.spec.resourceClaims: " + strings.Join(sets.List(known), ", ")
			}
			errs = append(errs, missing)
		}
	}
	return errs
}

func (k *podChecker) resizePolicy(c *corev1.Container, r role, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := sets.New[corev1.ResourceName]()
	for i, p := range c.ResizePolicy {
		if seen.Has(p.ResourceName) {
			errs = append(errs, field.Duplicate(at.Index(i), p.ResourceName))
		}
		seen.Insert(p.ResourceName)
		errs = append(errs, oneOf(string(p.ResourceName), at, string(corev1.ResourceCPU), string(corev1.ResourceMemory))...)
		errs = append(errs, oneOf(string(p.RestartPolicy), at, string(corev1.NotRequired), string(corev1.RestartContainer))...)
		never := k.spec.RestartPolicy == corev1.RestartPolicyNever
		switch {
		case r == initial && !resources.IsSidecar(c):
			if p.RestartPolicy == corev1.RestartContainer {
				errs = append(errs, field.Invalid(at, p.RestartPolicy, "must not be set to 'RestartContainer' for non-sidecar initContainers"))
			}
			if never && p.RestartPolicy != corev1.NotRequired {
				errs = append(errs, field.Invalid(at, p.RestartPolicy, "must be 'NotRequired' when pod `restartPolicy` is 'Never'"))
			}
		case never && p.RestartPolicy != corev1.NotRequired:
			errs = append(errs, field.Invalid(at, p.RestartPolicy, "must be 'NotRequired' when pod `restartPolicy` is 'Never'"))
		}
	}
	return errs
}

// restartRules checks the restart policy of one container and its rules (L1.46).
func (k *podChecker) restartRules(c *corev1.Container, r role, at *field.Path) field.ErrorList {
	const maxRules, maxExitCodes = 20, 255
	if r == ephemeral {
		return nil // both fields are refused as a whole
	}
	var errs field.ErrorList
	if c.RestartPolicy != nil {
		errs = append(errs, supported(string(*c.RestartPolicy), at.Child("restartPolicy"),
			string(corev1.ContainerRestartPolicyAlways), string(corev1.ContainerRestartPolicyNever), string(corev1.ContainerRestartPolicyOnFailure))...)
	}
	rules := at.Child("restartPolicyRules")
	if len(c.RestartPolicyRules) == 0 {
		return errs
	}
	if c.RestartPolicy == nil {
		errs = append(errs, field.Required(at.Child("restartPolicy"), "must specify restartPolicy when restart rules are used"))
	}
	if len(c.RestartPolicyRules) > maxRules {
		errs = append(errs, field.TooMany(rules, len(c.RestartPolicyRules), maxRules))
	}
	for i, rule := range c.RestartPolicyRules {
		at := rules.Index(i)
		errs = append(errs, supported(string(rule.Action), at.Child("action"), string(corev1.ContainerRestartRuleActionRestart), string(corev1.ContainerRestartRuleActionRestartAllContainers))...)
		if rule.ExitCodes == nil {
			errs = append(errs, field.Required(at.Child("exitCodes"), "must be specified"))
			continue
		}
		errs = append(errs, supported(string(rule.ExitCodes.Operator), at.Child("exitCodes", "operator"),
			string(corev1.ContainerRestartRuleOnExitCodesOpIn), string(corev1.ContainerRestartRuleOnExitCodesOpNotIn))...)
		if n := len(rule.ExitCodes.Values); n > maxExitCodes {
			errs = append(errs, field.TooMany(at.Child("exitCodes", "values"), n, maxExitCodes))
		}
	}
	return errs
}

// lifecycle checks hooks and stop signal (L1.48, L1.49).
func (k *podChecker) lifecycle(l *corev1.Lifecycle, at *field.Path) field.ErrorList {
	if l == nil {
		return nil
	}
	var errs field.ErrorList
	if l.PostStart != nil {
		errs = append(errs, k.hook(l.PostStart, at.Child("postStart"))...)
	}
	if l.PreStop != nil {
		errs = append(errs, k.hook(l.PreStop, at.Child("preStop"))...)
	}
	if l.StopSignal != nil && k.spec.OS == nil {
		errs = append(errs, field.Forbidden(at.Child("stopSignal"), "may not be set for containers with empty `spec.os.name`"))
	}
	return errs
}

func (k *podChecker) hook(h *corev1.LifecycleHandler, at *field.Path) field.ErrorList {
	hd := handler{exec: h.Exec, httpGet: h.HTTPGet, tcp: h.TCPSocket}
	n, errs := hd.check(at)
	if h.Sleep != nil {
		if n > 0 {
			errs = append(errs, field.Forbidden(at.Child("sleep"), "may not specify more than 1 handler type"))
		}
		n++
		grace := int64(corev1.DefaultTerminationGracePeriodSeconds)
		if k.spec.TerminationGracePeriodSeconds != nil {
			grace = *k.spec.TerminationGracePeriodSeconds
		}
		if h.Sleep.Seconds < 0 || h.Sleep.Seconds > grace {
			errs = append(errs, field.Invalid(at.Child("sleep"), h.Sleep.Seconds, fmt.Sprintf("must be non-negative and less than terminationGracePeriodSeconds (%d)", grace)))
		}
	}
	if n == 0 {
		errs = append(errs, field.Required(at, "must specify a handler type"))
	}
	return errs
}

type probeKind int

const (
	liveness probeKind = iota
	readiness
	startup
)

// probe checks one probe (L1.47).
func probe(p *corev1.Probe, kind probeKind, at *field.Path) field.ErrorList {
	if p == nil {
		return nil
	}
	hd := handler{exec: p.Exec, httpGet: p.HTTPGet, tcp: p.TCPSocket, grpc: p.GRPC}
	n, errs := hd.check(at)
	if n == 0 {
		errs = append(errs, field.Required(at, "must specify a handler type"))
	}
	for _, f := range []struct {
		name  string
		value int32
	}{
		{"initialDelaySeconds", p.InitialDelaySeconds}, {"timeoutSeconds", p.TimeoutSeconds}, {"periodSeconds", p.PeriodSeconds},
		{"successThreshold", p.SuccessThreshold}, {"failureThreshold", p.FailureThreshold},
	} {
		if f.value < 0 {
			errs = append(errs, field.Invalid(at.Child(f.name), f.value, "must be greater than or equal to 0"))
		}
	}
	if g := p.TerminationGracePeriodSeconds; g != nil {
		if kind == readiness {
			errs = append(errs, field.Invalid(at.Child("terminationGracePeriodSeconds"), *g, "must not be set for readinessProbes"))
		}
		if *g <= 0 {
			errs = append(errs, field.Invalid(at.Child("terminationGracePeriodSeconds"), *g, "must be greater than 0"))
		}
	}
	if kind != readiness && p.SuccessThreshold != 1 {
		errs = append(errs, field.Invalid(at.Child("successThreshold"), p.SuccessThreshold, "must be 1"))
	}
	return errs
}

// handler is what hooks and probes have in common.
type handler struct {
	exec    *corev1.ExecAction
	httpGet *corev1.HTTPGetAction
	tcp     *corev1.TCPSocketAction
	grpc    *corev1.GRPCAction
}

// check returns how many handlers are set, and what is wrong with the first.
func (h handler) check(at *field.Path) (int, field.ErrorList) {
	var errs field.ErrorList
	n := 0
	take := func(name string, check func(*field.Path) field.ErrorList) {
		if n++; n > 1 {
			errs = append(errs, field.Forbidden(at.Child(name), "may not specify more than 1 handler type"))
			return
		}
		errs = append(errs, check(at.Child(name))...)
	}
	if h.exec != nil {
		take("exec", func(at *field.Path) field.ErrorList {
			if len(h.exec.Command) == 0 {
				return field.ErrorList{field.Required(at.Child("command"), "")}
			}
			return nil
		})
	}
	if h.httpGet != nil {
		take("httpGet", h.checkHTTP)
	}
	if h.tcp != nil {
		take("tcpSocket", func(at *field.Path) field.ErrorList { return portNumberOrName(h.tcp.Port, at.Child("port")) })
	}
	if h.grpc != nil {
		take("grpc", func(at *field.Path) field.ErrorList {
			return messages(at.Child("port"), h.grpc.Port, validation.IsValidPortNum(int(h.grpc.Port)))
		})
	}
	return n, errs
}

func (h handler) checkHTTP(at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if h.httpGet.Path == "" {
		errs = append(errs, field.Required(at.Child("path"), ""))
	}
	errs = append(errs, portNumberOrName(h.httpGet.Port, at.Child("port"))...)
	errs = append(errs, oneOf(string(h.httpGet.Scheme), at.Child("scheme"), string(corev1.URISchemeHTTP), string(corev1.URISchemeHTTPS))...)
	for _, header := range h.httpGet.HTTPHeaders {
		errs = append(errs, messages(at.Child("httpHeaders"), header.Name, validation.IsHTTPHeaderName(header.Name))...)
	}
	return errs
}

func portNumberOrName(p intstr.IntOrString, at *field.Path) field.ErrorList {
	if p.Type == intstr.String {
		return messages(at, p.StrVal, validation.IsValidPortName(p.StrVal))
	}
	return messages(at, p.IntVal, validation.IsValidPortNum(int(p.IntVal)))
}

func isIP(s string) bool { return net.ParseIP(s) != nil }
