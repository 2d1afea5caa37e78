package explain

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

const hexID = "2def8e6ea1da087ee8a3f8e33fce4c6c4cd360b25983f00dd174e752a3e9f28c"

// A message of the parts of a node is shortened to its cause, with what helps.
func TestBrief(t *testing.T) {
	pull := func(image, cause string) string {
		return `Back-off pulling image "` + image + `": RegistryUnavailable: image pull failed for ` + image +
			` because the registry is unavailable: failed to pull and unpack image "` + image +
			`": failed to resolve reference "` + image + `": failed to do request: Head "https://r.example/v2/a": ` + cause
	}
	for _, c := range []struct{ reason, message, want string }{
		{"ImagePullBackOff", pull("a/b:1", "dial tcp: lookup r.example on 10.0.0.2:53: no such host"),
			"image a/b:1: lookup r.example on 10.0.0.2:53: no such host (ImagePullBackOff); " + unreachable},
		{"RegistryUnavailable", pull("a/b:1", "dial tcp 10.0.0.9:443: connect: connection refused")[len(`Back-off pulling `+
			`image "a/b:1": RegistryUnavailable: `):],
			"image a/b:1: dial tcp 10.0.0.9:443: connect: connection refused (RegistryUnavailable); " + unreachable},
		{"ErrImagePull", `failed to pull and unpack image "a/b:1": failed to resolve reference "a/b:1": a/b:1: not found`,
			"image a/b:1: a/b:1: not found (ErrImagePull); check its name and tag"},
		{"ErrImagePull", pull("a/b:1", "tls: failed to verify certificate: x509: certificate signed by unknown authority"),
			"image a/b:1: tls: failed to verify certificate: x509: certificate signed by unknown authority (ErrImagePull); " +
				"put the registry's CA into the directory of --registry-config"},
		{"ErrImagePull", "something new", "image a/b:1: something new (ErrImagePull)"},
		{"ImagePullBackOff", "", "ImagePullBackOff"},
		{"CrashLoopBackOff", "back-off 20s restarting failed container=a pod=x_default(94de5013-0bc5-48fd)",
			"back-off 20s (CrashLoopBackOff)"},
		{"StartError", `failed to start container "` + hexID + `": unable to start container process: error during ` +
			`container init: exec: "nosuch": executable file not found in $PATH`,
			`exec: "nosuch": executable file not found in $PATH (StartError)`},
		{"FailedCreatePodSandBox", "Failed to create pod sandbox: rpc error: code = Unknown desc = failed to create pod " +
			`sandbox: failed to setup network for sandbox "` + hexID + `": host port 80/tcp is taken`,
			"host port 80/tcp is taken (FailedCreatePodSandBox)"},
		{"CreateContainerConfigError", `image will run as root (pod: "p_default(94de)", container: a)`,
			"image will run as root (CreateContainerConfigError)"},
		{"Unschedulable", "0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: 1 Preemption " +
			"is not helpful for scheduling.", "0/1 nodes are available: 1 Insufficient cpu (Unschedulable)"},
		{"Failed", "Error: " + strings.Repeat("Error: ", 1000) + "x", "x (Failed)"},
	} {
		got, ok := pullProblem(&corev1.Container{Image: "a/b:1"}, c.reason, c.message)
		if !ok {
			got = because(c.reason, brief(c.message))
		}
		if got != c.want {
			t.Errorf("%s, %s:\n%s\nwant\n%s", c.reason, c.message, got, c.want)
		}
	}
	p := pod(func(p *corev1.Pod) {
		p.Spec.Containers = []corev1.Container{{Name: "c", Image: "a/b:1"}}
		p.Status.ContainerStatuses[0] = corev1.ContainerStatus{Name: "c",
			State: waiting("ImagePullBackOff", pull("a/b:1", "dial tcp: lookup r.example: no such host"))}
	})
	event := func(reason, message string) corev1.Event {
		return corev1.Event{Type: corev1.EventTypeWarning, Reason: reason, Message: message, LastTimestamp: before(0)}
	}
	expectLines(t, "one line", Pod(p, Beside{Events: []corev1.Event{event("Failed", "Error: ImagePullBackOff"),
		event("Failed", `Failed to pull image "a/b:1": `+pull("a/b:1", "dial tcp: lookup r.example: no such host")),
		event("Failed", "Error: RegistryUnavailable")}}, now),
		"! container c waits: image a/b:1: lookup r.example: no such host (ImagePullBackOff); "+unreachable+"\n")
	p.Spec.Containers[0].ImagePullPolicy = corev1.PullAlways
	expectLines(t, "an image that was imported is not used", Pod(p, Beside{}, now),
		"! container c waits: image a/b:1: lookup r.example: no such host (ImagePullBackOff); "+always+"\n")
}
