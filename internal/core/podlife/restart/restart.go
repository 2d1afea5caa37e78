// Package restart decides whether a container that exited may run again, and after which
// back-off.
//
// It is pure; core/podlife calls it for each container that is not running.
//
// Contract: docs/spec/pod-lifecycle.md, L3.68–L3.80.
package restart

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// The crash back-off starts with the first value and doubles up to the second, unless the
// node's configuration has another limit (L3.75, L0.37).
const (
	initialDelay = 10 * time.Second
	defaultLimit = 300 * time.Second
)

// Rule returns the first of a container's restart rules that matches an exit code, or nil.
func Rule(c *corev1.Container, code int32) *corev1.ContainerRestartRule {
	for i := range c.RestartPolicyRules {
		if r := &c.RestartPolicyRules[i]; matches(r, code) {
			return r
		}
	}
	return nil
}

func matches(r *corev1.ContainerRestartRule, code int32) bool {
	if r.ExitCodes == nil {
		return false
	}
	listed := slices.Contains(r.ExitCodes.Values, code)
	if r.ExitCodes.Operator == corev1.ContainerRestartRuleOnExitCodesOpNotIn {
		return !listed
	}
	return listed
}

// Allowed reports whether a regular or init container that exited with code may run again:
// by its own rules and policy, or by the policy of its pod (L3.70).
func Allowed(c *corev1.Container, pod corev1.RestartPolicy, code int32) bool {
	if c.RestartPolicy == nil {
		return byPolicy(string(pod), code)
	}
	if r := Rule(c, code); r != nil {
		return r.Action == corev1.ContainerRestartRuleActionRestart ||
			r.Action == corev1.ContainerRestartRuleActionRestartAllContainers
	}
	return byPolicy(string(*c.RestartPolicy), code)
}

func byPolicy(policy string, code int32) bool {
	switch policy {
	case string(corev1.RestartPolicyNever):
		return false
	case string(corev1.RestartPolicyOnFailure):
		return code != 0
	}
	return true
}

// AfterProbe reports whether a container that a failed probe killed may run again: by its
// policy alone, not by its rules (L3.68).
func AfterProbe(c *corev1.Container, pod corev1.RestartPolicy) bool {
	if p := c.RestartPolicy; p != nil {
		return *p != corev1.ContainerRestartPolicyNever
	}
	return pod != corev1.RestartPolicyNever
}

// Backoff is the crash back-off of a container.
type Backoff struct {
	Delay      time.Duration // wait after the next exit; zero: none
	At         time.Time     // the last decision to restart
	Granted    string        // ID of the instance whose exit the decision was about
	Reported   string        // ID of the instance whose back-off was reported in status and events
	Definition string        // image and resources that it applies to; it starts over when they change
}

// Limit is the longest delay: the configured one, or the default if that is zero (L3.75, L3.78).
func Limit(configured time.Duration) time.Duration {
	if configured > 0 {
		return configured
	}
	return defaultLimit
}

// After returns how long a container waits after an exit: not at all if it ran for long before.
func (b *Backoff) After(exit time.Time, limit time.Duration) time.Duration {
	if exit.Sub(b.At) <= 2*limit {
		return b.Delay
	}
	return 0
}

// Grant records at now that the container may run again after an exit of instance id.
func (b *Backoff) Grant(id string, exit, now time.Time, limit time.Duration) {
	if delay := b.After(exit, limit); delay == 0 {
		b.Delay = min(initialDelay, limit)
	} else {
		b.Delay = min(2*delay, limit)
	}
	b.Granted, b.At = id, now
}

// Definition returns a string that depends on the image and the resources of a container: a
// back-off applies to one definition (L3.75).
func Definition(c *corev1.Container) string {
	if len(c.Resources.Limits) == 0 && len(c.Resources.Requests) == 0 {
		return c.Image
	}
	b := append([]byte(c.Image), 0)
	b = appendResources(b, c.Resources.Limits)
	b = append(b, 0)
	b = appendResources(b, c.Resources.Requests)
	return string(b)
}

// appendResources writes a resource list in the order of its names.
func appendResources(b []byte, l corev1.ResourceList) []byte {
	for _, n := range slices.Sorted(maps.Keys(l)) {
		q := l[n]
		b = append(b, n...)
		b = append(b, '=')
		b = append(b, q.String()...)
		b = append(b, ' ')
	}
	return b
}
