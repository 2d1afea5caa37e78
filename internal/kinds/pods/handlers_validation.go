package pods

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"carob/internal/kinds/rules"
)

// lifecycle validates hooks and stop signal (L1.48, L1.49).
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
		errs = append(errs, field.Forbidden(at.Child("stopSignal"),
			"may not be set for containers with empty `spec.os.name`"))
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
			errs = append(errs,
				field.Invalid(at.Child("sleep"), h.Sleep.Seconds,
					fmt.Sprintf("must be non-negative and less than terminationGracePeriodSeconds (%d)", grace)))
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

// validateProbe validates one probe (L1.47).
func validateProbe(p *corev1.Probe, kind probeKind, at *field.Path) field.ErrorList {
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
		{"initialDelaySeconds", p.InitialDelaySeconds}, {"timeoutSeconds", p.TimeoutSeconds},
		{"periodSeconds", p.PeriodSeconds},
		{"successThreshold", p.SuccessThreshold}, {"failureThreshold", p.FailureThreshold},
	} {
		if f.value < 0 {
			errs = append(errs, field.Invalid(at.Child(f.name), f.value, "must be greater than or equal to 0"))
		}
	}
	if g := p.TerminationGracePeriodSeconds; g != nil {
		if kind == readiness {
			errs = append(errs,
				field.Invalid(at.Child("terminationGracePeriodSeconds"), *g, "must not be set for readinessProbes"))
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

// handler is the common part of hooks and probes.
type handler struct {
	exec    *corev1.ExecAction
	httpGet *corev1.HTTPGetAction
	tcp     *corev1.TCPSocketAction
	grpc    *corev1.GRPCAction
}

// check returns the number of handlers that are set, and the errors of the first.
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
		take("tcpSocket",
			func(at *field.Path) field.ErrorList { return rules.PortNumberOrName(h.tcp.Port, at.Child("port")) })
	}
	if h.grpc != nil {
		take("grpc", func(at *field.Path) field.ErrorList {
			return rules.Messages(at.Child("port"), h.grpc.Port, validation.IsValidPortNum(int(h.grpc.Port)))
		})
	}
	return n, errs
}

func (h handler) checkHTTP(at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if h.httpGet.Path == "" {
		errs = append(errs, field.Required(at.Child("path"), ""))
	}
	errs = append(errs, rules.PortNumberOrName(h.httpGet.Port, at.Child("port"))...)
	errs = append(errs, rules.OneOf(string(h.httpGet.Scheme), at.Child("scheme"), string(corev1.URISchemeHTTP),
		string(corev1.URISchemeHTTPS))...)
	for _, header := range h.httpGet.HTTPHeaders {
		errs = append(errs, rules.Messages(at.Child("httpHeaders"), header.Name,
			validation.IsHTTPHeaderName(header.Name))...)
	}
	return errs
}
