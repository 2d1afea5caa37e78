package explain

import (
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// wrappers are what the parts of a node put before a cause, from the kubelet's message to the runtime's. They add
// nothing to the object and the reason.
var wrappers = regexp.MustCompile(`^(` + strings.Join([]string{
	`Error: `,
	`Error creating: `,
	`(ErrImagePull|RegistryUnavailable|SignatureValidationFailed): `,
	`[Bb]ack-off pulling image "[^"]*": `,
	`[Ff]ailed to pull image "[^"]*": `,
	`image pull failed for \S+ because (the registry is unavailable|the signature validation failed): `,
	`failed to pull and unpack image "[^"]*": `,
	`failed to resolve (reference|image) "[^"]*": `,
	`failed to copy: `,
	`failed to authorize: `,
	`failed to fetch (anonymous|oauth) token: `,
	`httpReadSeeker: failed open: `,
	`failed to do request: `,
	`(Head|Get) "[^"]*": `,
	`dial (tcp|udp): `,
	`rpc error: code = \w+ desc = `,
	`Failed to create pod sandbox: `,
	`failed to create pod sandbox: `,
	`failed to setup network for sandbox "[0-9a-f]{64}": `,
	`failed to start container "[0-9a-f]{64}": `,
	`unable to start container process: `,
	`error during container init: `,
}, "|") + `)`)

// tails are what a message repeats of the object that it is about.
var tails = regexp.MustCompile(strings.Join([]string{
	` restarting failed container[= ]\S+ (in )?pod[= ]\S+$`,
	` \(pod: "[^"]*", container: [^)]*\)$`,
	`\.? preemption: 0/\d+ nodes are available: .*$`,
}, "|"))

// refused is an object that a controller creates, which has another name at each attempt.
var refused = regexp.MustCompile(`(\w) "[^"]*" is forbidden: `)

// unnamed is a message without the name of the object that was refused.
func unnamed(message string) string { return refused.ReplaceAllString(message, "$1 is forbidden: ") }

// brief is the cause in a message of a status or an event, without what is put around it.
func brief(message string) string {
	for {
		short := wrappers.ReplaceAllString(message, "")
		if short == message || short == "" {
			break
		}
		message = short
	}
	return strings.TrimSpace(tails.ReplaceAllString(message, ""))
}

// pullAdvice is what helps when a pull fails, by a part of its cause. The first that fits counts.
var pullAdvice = []struct{ part, advice string }{
	{"no such image", "check its name and tag"},
	{"not found", "check its name and tag"},
	{"manifest unknown", "check its name and tag"},
	{"x509: ", "put the registry's CA into the directory of --registry-config"},
	{"server gave HTTP response to HTTPS client", "name it with http:// in a hosts.toml of --registry-config"},
	{"401", "check the pod's imagePullSecrets"},
	{"403", "check the pod's imagePullSecrets"},
	{"denied", "check the pod's imagePullSecrets"},
	{"nauthorized", "check the pod's imagePullSecrets"},
	{"no such host", unreachable}, {"connection refused", unreachable}, {"unreachable", unreachable},
	{"no route to host", unreachable}, {"timeout", unreachable}, {"deadline exceeded", unreachable},
	{"server misbehaving", unreachable}, {"temporary failure in name resolution", unreachable},
	{"no space left on device", "free disk space on the node"},
}

const unreachable = "the node cannot reach the registry: import the image with `carob image import`, or name " +
	"a mirror with `carob up --registry-config`"

// always is the advice for a pod that does not use an image that was imported.
const always = unreachable + "; the pull policy Always (default of the tag latest) uses no imported image: set " +
	"imagePullPolicy to IfNotPresent"

// pullProblem returns why an image is missing, and what to do; ok: the container's state is about a pull.
func pullProblem(c *corev1.Container, reason, message string) (text string, ok bool) {
	switch reason {
	case "ErrImagePull", "ImagePullBackOff", "RegistryUnavailable":
	default:
		return "", false
	}
	cause := brief(message)
	if cause == "" || c.Image == "" {
		return "", false
	}
	text = "image " + c.Image + ": " + cause
	for _, a := range pullAdvice {
		if strings.Contains(cause, a.part) {
			if a.advice == unreachable && c.ImagePullPolicy == corev1.PullAlways {
				a.advice = always
			}
			return text + " (" + reason + "); " + a.advice, true
		}
	}
	return because(reason, text), true
}
