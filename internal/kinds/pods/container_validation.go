package pods

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"carob/internal/core/resources"
	"carob/internal/kinds/rules"
)

// role is the type of the validated container.
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
		errs = append(errs, validateHostPortConflicts(s.Containers[i].Ports, hostPorts, at.Child("ports"))...)
	}
	for i := range s.InitContainers {
		c, at := &s.InitContainers[i], spec.Child("initContainers").Index(i)
		errs = append(errs, k.container(c, initial, names, at)...)
		// Sidecars run concurrently with the other containers; the other init containers run one at
		// a time.
		if resources.IsSidecar(c) {
			errs = append(errs, validateHostPortConflicts(c.Ports, hostPorts, at.Child("ports"))...)
		} else {
			errs = append(errs, validateHostPortConflicts(c.Ports, sets.New[string](), at.Child("ports"))...)
		}
	}
	for i := range s.EphemeralContainers {
		errs = append(errs, k.ephemeralContainer(&s.EphemeralContainers[i], names,
			spec.Child("ephemeralContainers").Index(i))...)
	}
	return errs
}

func (k *podChecker) container(c *corev1.Container, r role, names sets.Set[string], at *field.Path) field.ErrorList {
	var errs field.ErrorList
	add := func(more field.ErrorList) { errs = append(errs, more...) }

	if c.Name == "" {
		errs = append(errs, field.Required(at.Child("name"), ""))
	} else {
		add(rules.Messages(at.Child("name"), c.Name, validation.IsDNS1123Label(c.Name)))
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
	add(validateTerminationMessagePolicy(c.TerminationMessagePolicy, at.Child("terminationMessagePolicy")))
	add(rules.OneOf(string(c.ImagePullPolicy), at.Child("imagePullPolicy"), string(corev1.PullAlways),
		string(corev1.PullIfNotPresent), string(corev1.PullNever)))
	add(k.ports(c.Ports, at.Child("ports")))
	add(k.env(c.Env, at.Child("env")))
	add(validateEnvFrom(c.EnvFrom, at.Child("envFrom")))
	add(k.mounts(c, at.Child("volumeMounts")))
	add(k.devices(c, at.Child("volumeDevices")))
	add(rules.ResourceRequirements(&c.Resources, k.kept.hugePages, at.Child("resources")))
	add(k.claims(c.Resources.Claims, at.Child("resources", "claims")))
	add(k.resizePolicy(c, r, at.Child("resizePolicy")))
	add(validateContainerSecurityContext(k.spec, c.SecurityContext, at.Child("securityContext")))
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
		add(validateProbe(c.LivenessProbe, liveness, at.Child("livenessProbe")))
		add(validateProbe(c.ReadinessProbe, readiness, at.Child("readinessProbe")))
		add(validateProbe(c.StartupProbe, startup, at.Child("startupProbe")))
	}
	return errs
}

// ephemeralContainer validates a debug container: it must not have fields of regular containers'
// lifecycle (L1.115).
func (k *podChecker) ephemeralContainer(e *corev1.EphemeralContainer, names sets.Set[string],
	at *field.Path) field.ErrorList {
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
			errs = append(errs,
				field.Forbidden(at.Child("volumeMounts").Index(i).Child("subPath"),
					"cannot be set for an Ephemeral Container"))
		}
		if m.SubPathExpr != "" {
			errs = append(errs,
				field.Forbidden(at.Child("volumeMounts").Index(i).Child("subPathExpr"),
					"cannot be set for an Ephemeral Container"))
		}
	}
	return errs
}

func validateTerminationMessagePolicy(p corev1.TerminationMessagePolicy, at *field.Path) field.ErrorList {
	switch p {
	case corev1.TerminationMessageReadFile, corev1.TerminationMessageFallbackToLogsOnError:
		return nil
	case "":
		return field.ErrorList{field.Required(at, "")}
	}
	return field.ErrorList{field.NotSupported(at, p,
		[]corev1.TerminationMessagePolicy{corev1.TerminationMessageReadFile,
			corev1.TerminationMessageFallbackToLogsOnError})}
}

func privileged(c *corev1.Container) bool {
	return c.SecurityContext != nil && c.SecurityContext.Privileged != nil && *c.SecurityContext.Privileged
}

func (k *podChecker) claims(claims []corev1.ResourceClaim, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	known := sets.New[string]()
	for _, c := range k.spec.ResourceClaims {
		known.Insert(c.Name)
	}
	seen := sets.New[string]()  // whole claims by name, requests of them by name/request
	parts := sets.New[string]() // claims with requests
	list := ""
	if known.Len() > 0 {
		list = strings.Join(sets.List(known), ", ")
	}
	for i, c := range claims {
		at := at.Index(i)
		if c.Name == "" {
			errs = append(errs, field.Required(at, ""))
			continue
		}
		key := c.Name
		if c.Request != "" {
			key += "/" + c.Request
			errs = append(errs, rules.Messages(at.Child("request"), c.Request, validation.IsDNS1123Label(c.Request))...)
		}
		switch {
		case seen.Has(c.Name):
			errs = append(errs, field.Duplicate(at, c.Name))
		case seen.Has(key):
			errs = append(errs, field.Duplicate(at, key))
		case c.Request == "" && parts.Has(c.Name):
			errs = append(errs, field.Duplicate(at, c.Name))
		}
		seen.Insert(key)
		if c.Request != "" {
			parts.Insert(c.Name)
		}
		if !known.Has(c.Name) {
			missing := field.NotFound(at, c.Name)
			missing.Detail = "must be one of the names in pod.spec.resourceClaims which is empty"
			if known.Len() > 0 {
				missing.Detail = "must be one of the names in pod.spec.resourceClaims: " + list
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
		errs = append(errs, rules.OneOf(string(p.ResourceName), at, string(corev1.ResourceCPU),
			string(corev1.ResourceMemory))...)
		errs = append(errs, rules.OneOf(string(p.RestartPolicy), at, string(corev1.NotRequired),
			string(corev1.RestartContainer))...)
		never := k.spec.RestartPolicy == corev1.RestartPolicyNever
		switch {
		case r == initial && !resources.IsSidecar(c):
			if p.RestartPolicy == corev1.RestartContainer && !k.kept.restarts {
				errs = append(errs,
					field.Invalid(at.Index(i).Child("restartPolicy"), p.RestartPolicy,
						"must not be set to 'RestartContainer' for non-sidecar initContainers"))
			}
			if never && p.RestartPolicy != corev1.NotRequired {
				errs = append(errs,
					field.Invalid(at, p.RestartPolicy, "must be 'NotRequired' when pod `restartPolicy` is 'Never'"))
			}
		case never && p.RestartPolicy != corev1.NotRequired:
			errs = append(errs,
				field.Invalid(at, p.RestartPolicy, "must be 'NotRequired' when pod `restartPolicy` is 'Never'"))
		}
	}
	return errs
}

// restartRules validates the restart policy of one container and its rules (L1.46).
func (k *podChecker) restartRules(c *corev1.Container, r role, at *field.Path) field.ErrorList {
	const maxRules, maxExitCodes = 20, 255
	if r == ephemeral {
		return nil // both fields are rejected as a whole
	}
	var errs field.ErrorList
	if c.RestartPolicy != nil {
		errs = append(errs, rules.Supported(string(*c.RestartPolicy), at.Child("restartPolicy"),
			string(corev1.ContainerRestartPolicyAlways), string(corev1.ContainerRestartPolicyNever),
			string(corev1.ContainerRestartPolicyOnFailure))...)
	}
	list := at.Child("restartPolicyRules")
	if len(c.RestartPolicyRules) == 0 {
		return errs
	}
	if c.RestartPolicy == nil {
		errs = append(errs, field.Required(at.Child("restartPolicy"),
			"must specify restartPolicy when restart rules are used"))
	}
	if len(c.RestartPolicyRules) > maxRules {
		errs = append(errs, field.TooMany(list, len(c.RestartPolicyRules), maxRules))
	}
	for i, rule := range c.RestartPolicyRules {
		at := list.Index(i)
		errs = append(errs, rules.Supported(string(rule.Action), at.Child("action"),
			string(corev1.ContainerRestartRuleActionRestart),
			string(corev1.ContainerRestartRuleActionRestartAllContainers))...)
		if rule.ExitCodes == nil {
			errs = append(errs, field.Required(at.Child("exitCodes"), "must be specified"))
			continue
		}
		errs = append(errs, rules.Supported(string(rule.ExitCodes.Operator), at.Child("exitCodes", "operator"),
			string(corev1.ContainerRestartRuleOnExitCodesOpIn),
			string(corev1.ContainerRestartRuleOnExitCodesOpNotIn))...)
		if n := len(rule.ExitCodes.Values); n > maxExitCodes {
			errs = append(errs, field.TooMany(at.Child("exitCodes", "values"), n, maxExitCodes))
		}
	}
	return errs
}
