package pods

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"carob/internal/core/podlife"
)

// parse reads the spec of a pod named p, and defaults it like the server.
func parse(t *testing.T, spec string) *corev1.Pod {
	t.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns"}}
	if err := yaml.UnmarshalStrict([]byte(spec), &p.Spec); err != nil {
		t.Fatalf("%s: %v", spec, err)
	}
	DefaultPod(p)
	return p
}

// oneContainer makes a spec with one container that has these additional fields.
func oneContainer(fields string) string { return "{containers: [{name: c, image: i, " + fields + "}]}" }

func messages(errs field.ErrorList) []string {
	out := make([]string, len(errs))
	for i, e := range errs {
		out[i] = e.Error()
	}
	return out
}

// Each case is a spec and all of its errors.
func TestPodCreate(t *testing.T) {
	for _, c := range []struct {
		clause, spec string
		want         []string
	}{
		{"good", oneContainer(""), nil},
		{"no containers", `{containers: []}`, []string{`spec.containers: Required value`}},
		{"names", `{containers: [{name: A_, image: i}]}`, []string{`spec.containers[0].name: Invalid value: "A_"`}},
		{"duplicate", `{containers: [{name: a, image: i}], initContainers: [{name: a, image: i}]}`,
			[]string{`spec.initContainers[0].name: Duplicate value: "a"`}},
		{"image", `{containers: [{name: a}]}`, []string{`spec.containers[0].image: Required value`}},
		{"image", `{containers: [{name: a, image: " i"}]}`,
			[]string{`spec.containers[0].image: Invalid value: " i": must not have leading or trailing whitespace`}},
		{"restartPolicy", `{restartPolicy: Maybe, containers: [{name: a, image: i}]}`,
			[]string{`spec.restartPolicy: Unsupported value: "Maybe": supported values: "Always", "OnFailure", "Never"`}},
		{"L1.45", `{containers: [{name: a, image: i}], initContainers: [{name: b, image: i, lifecycle: {preStop: {sleep: {seconds: 1}}}, readinessProbe: {tcpSocket: {port: 1}}}]}`, []string{
			`spec.initContainers[0].lifecycle: Forbidden: may not be set for init containers without restartPolicy=Always`,
			`spec.initContainers[0].readinessProbe: Forbidden: may not be set for init containers without restartPolicy=Always`}},
		{"L1.45: a sidecar may",
			`{containers: [{name: a, image: i}], initContainers: [{name: b, image: i, restartPolicy: Always, readinessProbe: {tcpSocket: {port: 1}}}]}`, nil},
		{"L1.46", oneContainer(`restartPolicyRules: [{action: Restart, exitCodes: {operator: In, values: [1]}}]`),
			[]string{`spec.containers[0].restartPolicy: Required value: must specify restartPolicy when restart rules are used`}},
		{"L1.46", oneContainer(`restartPolicy: Never, restartPolicyRules: [{action: Restart}]`),
			[]string{`spec.containers[0].restartPolicyRules[0].exitCodes: Required value: must be specified`}},
		{"L1.46", oneContainer(
			`restartPolicy: Never, restartPolicyRules: [{action: RestartAllContainers, exitCodes: {operator: NotIn, values: [1]}}]`), nil},
		{"L1.46 of a sidecar, as RestartAllContainersOnContainerExits allows",
			`{containers: [{name: a, image: i}], initContainers: [{name: b, image: i, restartPolicy: Always, restartPolicyRules: [{action: RestartAllContainers, exitCodes: {operator: In, values: [1]}}]}]}`, nil},
		{"L1.46 of a sidecar",
			`{containers: [{name: a, image: i}], initContainers: [{name: b, image: i, restartPolicy: Always, restartPolicyRules: [{action: Restart}]}]}`, []string{`spec.initContainers[0].restartPolicyRules[0].exitCodes: Required value: must be specified`}},
		{"L1.47", oneContainer(`livenessProbe: {tcpSocket: {port: 1}, successThreshold: 2, periodSeconds: -1}`),
			[]string{
				`spec.containers[0].livenessProbe.periodSeconds: Invalid value: -1: must be greater than or equal to 0`,
				`spec.containers[0].livenessProbe.successThreshold: Invalid value: 2: must be 1`}},
		{"L1.47", oneContainer(
			`readinessProbe: {terminationGracePeriodSeconds: 1, exec: {command: [a]}, tcpSocket: {port: 1}}`), []string{
			`spec.containers[0].readinessProbe.tcpSocket: Forbidden: may not specify more than 1 handler type`,
			`spec.containers[0].readinessProbe.terminationGracePeriodSeconds: Invalid value: 1: must not be set for readinessProbes`}},
		{"L1.47", oneContainer(`startupProbe: {}`),
			[]string{`spec.containers[0].startupProbe: Required value: must specify a handler type`}},
		{"L1.48: equal is accepted", oneContainer(`lifecycle: {preStop: {sleep: {seconds: 30}}}`), nil},
		{"L1.48: zero is accepted", oneContainer(`lifecycle: {postStart: {sleep: {seconds: 0}}}`), nil},
		{"L1.48", oneContainer(`lifecycle: {preStop: {sleep: {seconds: 31}}}`),
			[]string{`spec.containers[0].lifecycle.preStop.sleep: Invalid value: 31: must be non-negative and less than terminationGracePeriodSeconds (30)`}},
		{"L1.48", oneContainer(`lifecycle: {preStop: {}}`),
			[]string{`spec.containers[0].lifecycle.preStop: Required value: must specify a handler type`}},
		{"L1.49", `{hostUsers: false, hostPID: true, containers: [{name: a, image: i}]}`,
			[]string{`spec.hostPID: Forbidden: when ` + "`hostUsers` is false"}},
		{"L1.49", `{hostnameOverride: h, hostNetwork: true, containers: [{name: a, image: i}]}`,
			[]string{"spec.hostnameOverride: Forbidden: may not be specified when `hostNetwork` is true"}},
		{"L1.49", oneContainer(`lifecycle: {stopSignal: SIGUSR1}`),
			[]string{"spec.containers[0].lifecycle.stopSignal: Forbidden: may not be set for containers with empty `spec.os.name`"}},
		{"L1.50", `{dnsPolicy: None, containers: [{name: a, image: i}]}`,
			[]string{"spec.dnsConfig: Required value: must provide `dnsConfig` when `dnsPolicy` is None"}},
		{"L1.50", `{dnsConfig: {nameservers: [1.1.1.1, 1.1.1.2, 1.1.1.3, 1.1.1.4]}, containers: [{name: a, image: i}]}`,
			[]string{`spec.dnsConfig.nameservers: Invalid value: ["1.1.1.1","1.1.1.2","1.1.1.3","1.1.1.4"]: must not have more than 3 nameservers`}},
		{"L1.51", `{volumes: [{name: v, hostPath: {path: /x}}], containers: [{name: a, image: i, env: [{name: N, valueFrom: {fileKeyRef: {volumeName: v, path: p, key: K}}}]}]}`, []string{`spec.containers[0].env[0].valueFrom.fileKeyRef.volumeName: Invalid value: "v": referenced volume must be of type emptyDir`}},
		{"L1.52", `{activeDeadlineSeconds: 0, containers: [{name: a, image: i}]}`,
			[]string{`spec.activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647, inclusive`}},
		{"ports", oneContainer(
			`ports: [{containerPort: 80, name: a}, {containerPort: 81, name: a}, {containerPort: 0}]`), []string{
			`spec.containers[0].ports[1].name: Duplicate value: "a"`,
			`spec.containers[0].ports[2].containerPort: Required value`}},
		{"host ports",
			`{containers: [{name: a, image: i, ports: [{containerPort: 1, hostPort: 9}]}, {name: b, image: i, ports: [{containerPort: 2, hostPort: 9}]}]}`, []string{`spec.containers[1].ports[0].hostPort: Duplicate value: "TCP//9"`}},
		{"env", oneContainer(
			`env: [{name: N, value: v, valueFrom: {fieldRef: {fieldPath: metadata.name}}}, {name: M, valueFrom: {}}, {name: O, valueFrom: {fieldRef: {fieldPath: spec.foo}}}]`), []string{
			`spec.containers[0].env[0].valueFrom: Invalid value: "": may not be specified when ` +
				"`value` is not empty",
			"spec.containers[0].env[1].valueFrom: Invalid value: \"\": must specify one of",
			`spec.containers[0].env[2].valueFrom.fieldRef.fieldPath: Invalid value: "spec.foo": error converting fieldPath: field label not supported: spec.foo`}},
		{"resources",
			oneContainer(`resources: {requests: {cpu: 2, foo: 1}, limits: {cpu: 1, memory: -1, ex.com/gpu: 1.5}}`),
			[]string{
				`spec.containers[0].resources.limits[ex.com/gpu]: Invalid value: "1500m": must be an integer`,
				`spec.containers[0].resources.limits[memory]: Invalid value: "-1": must be greater than or equal to 0`,
				`spec.containers[0].resources.requests: Invalid value: "2": must be less than or equal to cpu limit of 1`,
				`spec.containers[0].resources.requests[ex.com/gpu]: Invalid value: "1500m": must be an integer`,
				`spec.containers[0].resources.requests[foo]: Invalid value: "foo": must be a standard resource for containers`,
				`spec.containers[0].resources.requests[foo]: Invalid value: "foo": must be a standard resource type or fully qualified`,
				`spec.containers[0].resources.requests[memory]: Invalid value: "-1": must be greater than or equal to 0`}},
		{"extended resource without a limit", oneContainer(`resources: {requests: {ex.com/gpu: 1}}`),
			[]string{`spec.containers[0].resources.limits: Required value: Limit must be set for non overcommitable resources`}},
		{"volumes", `{volumes: [{name: v, secret: {}}, {name: v, emptyDir: {}, hostPath: {path: /a/../b}}], containers: [{name: a, image: i, volumeMounts: [{name: w, mountPath: /x}, {name: v, mountPath: /x, subPath: /abs}]}]}`, []string{
			`spec.containers[0].volumeMounts[0].name: Not found: "w"`,
			`spec.containers[0].volumeMounts[1].mountPath: Invalid value: "/x": must be unique`,
			`spec.containers[0].volumeMounts.subPath: Invalid value: "/abs": must be a relative path`,
			`spec.volumes[0].secret.secretName: Required value`,
			`spec.containers[0].volumeMounts[1].name: Not found: "v"`,
			`spec.volumes[1].hostPath: Forbidden: may not specify more than 1 volume type`}},
		{"volumes of one name",
			`{volumes: [{name: v, emptyDir: {}}, {name: v, emptyDir: {}}], containers: [{name: a, image: i}]}`,
			[]string{`spec.volumes[1].name: Duplicate value: "v"`}},
		{"projected volume",
			`{volumes: [{name: v, projected: {sources: [{serviceAccountToken: {path: t, expirationSeconds: 5}}, {downwardAPI: {items: [{path: t, fieldRef: {fieldPath: metadata.name}}]}}, {}]}}], containers: [{name: a, image: i}]}`, []string{
				`spec.volumes[0].projected.sources[0].serviceAccountToken.expirationSeconds: Invalid value: 5: may not specify a duration less than 10 minutes`,
				`spec.volumes[0].projected.sources[0].serviceAccountToken: Forbidden: must not be specified when serviceAccountName is not set`}},
		{"projected certificates", `{volumes: [{name: v, projected: {sources: [{podCertificate: {signerName: example.com/s, keyType: RSA, maxExpirationSeconds: 60, keyPath: k, certificateChainPath: k}},
			{podCertificate: {signerName: kubernetes.io/s, keyType: ED25519, maxExpirationSeconds: 90000}}, {podCertificate: {signerName: example.com/s, keyType: ED25519, maxExpirationSeconds: 7862400, credentialBundlePath: ../b}},
			{clusterTrustBundle: {path: c}}, {clusterTrustBundle: {path: d, name: "example.com:s:x_y", labelSelector: {}}}, {clusterTrustBundle: {path: e, signerName: s}}, {clusterTrustBundle: {path: f, name: example.com:s:x}}]}}], containers: [{name: a, image: i}]}`, []string{
			`spec.volumes[0].projected.sources[0].podCertificate.keyType: Unsupported value: "RSA": supported values`,
			`spec.volumes[0].projected.sources[0].podCertificate.maxExpirationSeconds: Invalid value: 60: if provided, maxExpirationSeconds must be >= 3600`,
			`spec.volumes[0].projected: Invalid value: "k": conflicting duplicate paths`,
			`spec.volumes[0].projected.sources[1].podCertificate.maxExpirationSeconds: Invalid value: 90000: if provided, maxExpirationSeconds must be <= 86400`,
			`spec.volumes[0].projected.sources[1].podCertificate: Required value: specify at least one of credentialBundlePath, keyPath, and certificateChainPath`,
			`spec.volumes[0].projected.sources[2].podCertificate.credentialBundlePath: Invalid value: "../b"`,
			`spec.volumes[0].projected.sources[3].clusterTrustBundle: Required value: either name or signerName must be specified`,
			`spec.volumes[0].projected.sources[4].clusterTrustBundle.labelSelector: Invalid value: labelSelector must be unset if name is specified`,
			`spec.volumes[0].projected.sources[4].clusterTrustBundle.name: Invalid value: "example.com:s:x_y": not a valid clustertrustbundlename`,
			`spec.volumes[0].projected.sources[5].clusterTrustBundle.signerName: Invalid value: "s": must be a fully qualified domain and path`}},
		{"mount propagation",
			`{volumes: [{name: v}], containers: [{name: a, image: i, volumeMounts: [{name: v, mountPath: /x, mountPropagation: Bidirectional}]}]}`, []string{`spec.containers[0].volumeMounts.mountPropagation: Forbidden: Bidirectional mount propagation is available only to privileged containers`}},
		{"security",
			`{securityContext: {runAsUser: -1, seccompProfile: {type: Localhost}}, containers: [{name: a, image: i, securityContext: {privileged: true, allowPrivilegeEscalation: false}}]}`, []string{
				"spec.containers[0].securityContext: Invalid value",
				`spec.securityContext.runAsUser: Invalid value: -1`,
				`spec.securityContext.seccompProfile.localhostProfile: Required value: must be set when seccomp type is Localhost`}},
		{"tolerations",
			`{tolerations: [{value: x}, {key: a, operator: Exists, value: x}, {key: a, operator: Exists, effect: NoSchedule, tolerationSeconds: 1}], containers: [{name: a, image: i}]}`, []string{
				`spec.tolerations[0].operator: Invalid value: "": operator must be Exists when`,
				`spec.tolerations[1].operator: Invalid value`,
				`spec.tolerations[2].effect: Invalid value: "NoSchedule": effect must be 'NoExecute' when`}},
		{"affinity",
			`{affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: []}}, podAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 0, podAffinityTerm: {topologyKey: k}}]}}, containers: [{name: a, image: i}]}`, []string{
				`spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms: Required value: must have at least one node selector term`,
				`spec.affinity.podAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight: Invalid value: 0: must be in the range 1-100`}},
		{"spread", `{topologySpreadConstraints: [{maxSkew: 0, topologyKey: k, whenUnsatisfiable: Never}], containers: [{name: a, image: i}]}`, []string{
			`spec.topologySpreadConstraints[0].maxSkew: Invalid value: 0: must be greater than zero`,
			`spec.topologySpreadConstraints[0].whenUnsatisfiable: Unsupported value: "Never": supported values: "DoNotSchedule", "ScheduleAnyway"`}},
		{"ephemeral containers",
			`{containers: [{name: a, image: i}], ephemeralContainers: [{name: e, image: i, targetContainerName: z, ports: [{containerPort: 1}]}]}`, []string{
				`spec.ephemeralContainers: Forbidden: cannot be set on create`,
				`spec.ephemeralContainers[0].ports: Forbidden: cannot be set for an Ephemeral Container`,
				`spec.ephemeralContainers[0].targetContainerName: Not found: "z"`}},
	} {
		t.Run(c.clause, func(t *testing.T) { expect(t, ValidatePodCreate(parse(t, c.spec)), c.want) })
	}
}

// expect compares errors with the prefixes of the wanted ones, in any order.
func expect(t *testing.T, errs field.ErrorList, want []string) {
	t.Helper()
	got := messages(errs)
	slices.Sort(got)
	slices.Sort(want)
	ok := len(got) == len(want)
	for i := 0; ok && i < len(want); i++ {
		ok = strings.HasPrefix(got[i], want[i])
	}
	if !ok {
		t.Errorf("errors:\n  %s\nwant:\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

const base = `{nodeName: n, containers: [{name: a, image: i, resources: {requests: {cpu: 1}}}], initContainers: [{name: b, image: i}], tolerations: [{key: t, operator: Exists}]}`

// L1.61–L1.67
func TestPodUpdate(t *testing.T) {
	for _, c := range []struct {
		clause      string
		before, now func(*corev1.Pod)
		want        []string
	}{
		{"nothing", nil, nil, nil},
		{"L1.62", nil, func(p *corev1.Pod) { p.Spec.Containers[0].Image = "j"; p.Spec.InitContainers[0].Image = "j" },
			nil},
		{"L1.62", nil, func(p *corev1.Pod) { p.Spec.Containers[0].Image = "" },
			[]string{"spec.containers[0].image: Required value"}},
		{"L1.61", nil, func(p *corev1.Pod) { p.Spec.Containers[0].Command = []string{"x"} },
			[]string{"spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)\n"}},
		{"L1.61", nil, func(p *corev1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers,
				corev1.Container{Name: "z", Image: "i", ImagePullPolicy: "Always", TerminationMessagePolicy: "File"})
		}, []string{"spec.containers: Forbidden: pod updates may not add or remove containers"}},
		{"L1.63", nil, func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = ptr.To[int64](5) }, nil},
		{"L1.63", func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = ptr.To[int64](5) },
			func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = ptr.To[int64](6) },
			[]string{"spec.activeDeadlineSeconds: Invalid value: 6: must be less than or equal to previous value"}},
		{"L1.63", func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = ptr.To[int64](5) },
			func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = nil },
			[]string{"spec.activeDeadlineSeconds: Invalid value: null: must not update from a positive integer to nil value"}},
		{"L1.64", nil, func(p *corev1.Pod) {
			p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{Key: "u", Operator: "Exists"})
		}, nil},
		{"L1.64", nil, func(p *corev1.Pod) { p.Spec.Tolerations = nil },
			[]string{"spec.tolerations: Forbidden: existing toleration can not be modified except its tolerationSeconds"}},
		{"L1.65", func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = ptr.To[int64](-1) },
			func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = ptr.To[int64](1) }, nil},
		{"L1.65", nil, func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = ptr.To[int64](1) },
			[]string{"spec: Forbidden: pod updates may not change fields"}},
		{"L1.66", func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "a/b"}} },
			func(p *corev1.Pod) { p.Spec.SchedulingGates = nil }, nil},
		{"L1.66", nil, func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "a/b"}} },
			[]string{"spec.schedulingGates[0].name: Forbidden: only deletion is allowed, but found new scheduling gate 'a/b'"}},
		{"L1.67", gate, func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"a": "b", "c": "d"} }, nil},
		{"L1.67", gate, func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"a": "z"} },
			[]string{`spec.nodeSelector: Invalid value: {"a":"z"}: only additions to spec.nodeSelector are allowed (no mutations or deletions)`}},
		{"L1.67: not gated", nil, func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"a": "z"} },
			[]string{"spec: Forbidden: pod updates may not change fields"}},
		{"L1.67: affinity set", gate, func(p *corev1.Pod) { p.Spec.Affinity = nodeNeeds("k") }, nil},
		{"mirror annotation", nil,
			func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} },
			[]string{"metadata.annotations[kubernetes.io/config.mirror]: Forbidden: may not add mirror pod annotation"}},
		{"mirror annotation changed",
			func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} },
			func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "y"} },
			[]string{"metadata.annotations[kubernetes.io/config.mirror]: Forbidden: " +
				"may not remove or update mirror pod annotation"}},
		{"AppArmor annotation added", nil, armor("c", "unconfined"), []string{armored + "may not add AppArmor annotations"}},
		{"AppArmor annotation changed", armor("c", "runtime/default"), armor("c", "unconfined"),
			[]string{armored + "may not remove or update AppArmor annotations"}},
		{"AppArmor annotation removed", armor("c", "runtime/default"), func(p *corev1.Pod) { p.Annotations = nil },
			[]string{armored + "may not remove or update AppArmor annotations"}},
		{"AppArmor annotation kept", armor("c", "runtime/default"),
			func(p *corev1.Pod) { p.Annotations["other"] = "x" }, nil},
	} {
		t.Run(c.clause, func(t *testing.T) {
			old := parse(t, base)
			old.ResourceVersion = "1"
			if c.before != nil {
				c.before(old)
			}
			p := old.DeepCopy()
			if c.now != nil {
				c.now(p)
			}
			expect(t, ValidatePodUpdate(p, old), c.want)
		})
	}
}

// armored is how errors about the AppArmor annotation of container c begin.
const armored = "metadata.annotations[container.apparmor.security.beta.kubernetes.io/c]: Forbidden: "

func armor(container, profile string) func(p *corev1.Pod) {
	return func(p *corev1.Pod) {
		key := corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix + container
		p.Annotations = map[string]string{key: profile}
	}
}

// A pod keeps the AppArmor annotations that it was admitted with also through its subresources: the node reads them.
func TestAppArmorAnnotationsOfSubresources(t *testing.T) {
	old := parse(t, base)
	old.ResourceVersion = "1"
	p := old.DeepCopy()
	armor(p.Spec.Containers[0].Name, "unconfined")(p)
	for name, validate := range map[string]func(p, old *corev1.Pod) field.ErrorList{
		"status": ValidatePodStatusUpdate, "ephemeralcontainers": ValidateEphemeralContainersUpdate,
	} {
		if errs := validate(p, old); len(errs) == 0 || !strings.Contains(errs.ToAggregate().Error(),
			"may not add AppArmor annotations") {
			t.Errorf("%s: %v", name, errs)
		}
	}
}

func gate(p *corev1.Pod) {
	p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "a/b"}}
	p.Spec.NodeSelector = map[string]string{"a": "b"}
}

func nodeNeeds(key string) *corev1.Affinity {
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{
				{MatchExpressions: []corev1.NodeSelectorRequirement{{
					Key: key, Operator: corev1.NodeSelectorOpExists}}}}}}}
}

// L1.71
func TestPodStatusUpdate(t *testing.T) {
	ended := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1}}
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	restart := func(state corev1.ContainerState) []corev1.ContainerStatus {
		return []corev1.ContainerStatus{{Name: "a", State: state}}
	}
	for _, c := range []struct {
		name        string
		before, now func(*corev1.Pod)
		want        []string
	}{
		{"node name", nil, func(p *corev1.Pod) { p.Spec.NodeName = "m" },
			[]string{"status.nodeName: Forbidden: may not be changed directly"}},
		{"nominated node of a bound pod", nil, func(p *corev1.Pod) { p.Status.NominatedNodeName = "m" },
			[]string{"status.nominatedNodeName: Forbidden"}},
		{"observed generation", nil, func(p *corev1.Pod) { p.Status.ObservedGeneration = -1 },
			[]string{"status.observedGeneration: Invalid value: -1: must be a non-negative integer"}},
		{"class", func(p *corev1.Pod) { p.Status.QOSClass = corev1.PodQOSBurstable },
			func(p *corev1.Pod) { p.Status.QOSClass = corev1.PodQOSGuaranteed },
			[]string{"status.qosClass: Invalid value"}},
		{"restart under Always", func(p *corev1.Pod) { p.Status.ContainerStatuses = restart(ended) },
			func(p *corev1.Pod) { p.Status.ContainerStatuses = restart(running) }, nil},
		{"restart of a failure under OnFailure",
			func(p *corev1.Pod) { p.Spec.RestartPolicy = "OnFailure"; p.Status.ContainerStatuses = restart(ended) },
			func(p *corev1.Pod) { p.Status.ContainerStatuses = restart(running) }, nil},
		{"restart under Never",
			func(p *corev1.Pod) { p.Spec.RestartPolicy = "Never"; p.Status.ContainerStatuses = restart(ended) },
			func(p *corev1.Pod) { p.Status.ContainerStatuses = restart(running) },
			[]string{"status.containerStatuses[0].state: Forbidden: may not be transitioned to non-terminated state"}},
		{"restart by a rule of the container", func(p *corev1.Pod) {
			p.Spec.RestartPolicy = "Never"
			p.Spec.Containers[0].RestartPolicyRules = []corev1.ContainerRestartRule{
				{Action: corev1.ContainerRestartRuleActionRestart,
					ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{
						Operator: corev1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{1}}}}
			p.Status.ContainerStatuses = restart(ended)
		}, func(p *corev1.Pod) { p.Status.ContainerStatuses = restart(running) }, nil},
		{"ephemeral containers never", func(p *corev1.Pod) { p.Status.EphemeralContainerStatuses = restart(ended) },
			func(p *corev1.Pod) { p.Status.EphemeralContainerStatuses = restart(running) },
			[]string{"status.ephemeralContainerStatuses[0].state: Forbidden"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			old := parse(t, base)
			old.ResourceVersion = "1"
			if c.before != nil {
				c.before(old)
			}
			p := old.DeepCopy()
			c.now(p)
			expect(t, ValidatePodStatusUpdate(p, old), c.want)
		})
	}
}

// L1.115, L1.116
func TestSubresourceUpdates(t *testing.T) {
	debug := func(image string) corev1.EphemeralContainer {
		return corev1.EphemeralContainer{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "e",
			Image: image, ImagePullPolicy: "Always", TerminationMessagePolicy: "File"}}
	}
	mirror := func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} }
	for _, c := range []struct {
		name        string
		check       func(p, old *corev1.Pod) field.ErrorList
		before, now func(*corev1.Pod)
		want        []string
	}{
		{"add a debug container", ValidateEphemeralContainersUpdate, nil,
			func(p *corev1.Pod) { p.Spec.EphemeralContainers = append(p.Spec.EphemeralContainers, debug("i")) }, nil},
		{"remove it", ValidateEphemeralContainersUpdate,
			func(p *corev1.Pod) { p.Spec.EphemeralContainers = []corev1.EphemeralContainer{debug("i")} },
			func(p *corev1.Pod) { p.Spec.EphemeralContainers = nil },
			[]string{`spec.ephemeralContainers: Forbidden: existing ephemeral containers "e" may not be removed`}},
		{"change it", ValidateEphemeralContainersUpdate,
			func(p *corev1.Pod) { p.Spec.EphemeralContainers = []corev1.EphemeralContainer{debug("i")} },
			func(p *corev1.Pod) { p.Spec.EphemeralContainers[0].Image = "j" },
			[]string{`spec.ephemeralContainers: Forbidden: existing ephemeral containers "e" may not be changed`}},
		{"a static pod has none", ValidateEphemeralContainersUpdate, mirror, func(*corev1.Pod) {},
			[]string{`[]: Forbidden: static pods do not support ephemeral containers`}},
		{"resize", ValidatePodResize, nil,
			func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Requests = list("cpu", "2") }, nil},
		{"resize of a static pod", ValidatePodResize, mirror, func(*corev1.Pod) {},
			[]string{`[]: Forbidden: static pods cannot be resized`}},
		{"resize to another class", ValidatePodResize, nil, func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources = corev1.ResourceRequirements{}
		}, []string{"spec.containers[0].resources.requests: Forbidden",
			"spec: Invalid value: \"\": Pod QOS Class may not change as a result of resizing"}},
		{"resize of an init container", ValidatePodResize, initContainer(nil), func(p *corev1.Pod) {
			p.Spec.InitContainers[0].Resources.Requests = list("cpu", "2")
		}, nil},
		{"an init container that would be restarted", ValidatePodResize,
			initContainer([]corev1.ContainerResizePolicy{{ResourceName: "cpu",
				RestartPolicy: corev1.RestartContainer}}),
			func(p *corev1.Pod) { p.Spec.InitContainers[0].Resources.Requests = list("cpu", "2") },
			[]string{"spec.initContainers[0]: Forbidden: non-sidecar init containers with a resize policy of RestartContainer cannot be resized"}},
		{"one that is not resized", ValidatePodResize,
			initContainer([]corev1.ContainerResizePolicy{{ResourceName: "cpu",
				RestartPolicy: corev1.RestartContainer}}),
			func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Requests = list("cpu", "2") }, nil},
		{"an init container without its request", ValidatePodResize, initContainer(nil),
			func(p *corev1.Pod) { p.Spec.InitContainers[0].Resources.Requests = nil },
			[]string{"spec.initContainers[0].resources.requests: Forbidden: resource requests cannot be removed"}},
		{"another image of an init container", ValidatePodResize, initContainer(nil),
			func(p *corev1.Pod) { p.Spec.InitContainers[0].Image = "other" },
			[]string{"spec.initContainers[0]: Forbidden: only cpu and memory resources for init or sidecar containers are mutable"}},
		{"resize of other resources", ValidatePodResize, nil, func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests["ephemeral-storage"] = list("x", "1")["x"]
		}, []string{"spec: Forbidden: only cpu and memory resources are mutable"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			old := parse(t, base)
			old.ResourceVersion = "1"
			if c.before != nil {
				c.before(old)
			}
			p := old.DeepCopy()
			c.now(p)
			expect(t, c.check(p, old), c.want)
		})
	}
}

// initContainer adds an init container that is not a sidecar.
func initContainer(policies []corev1.ContainerResizePolicy) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{{
			Name: "first", Image: "i", ImagePullPolicy: "Always", TerminationMessagePolicy: "File",
			ResizePolicy: policies,
			Resources:    corev1.ResourceRequirements{Requests: list("cpu", "1")},
		}}
	}
}

func list(name, amount string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceName(name): resource.MustParse(amount)}
}

// L1.7
func TestPodWarnings(t *testing.T) {
	p := parse(t, oneContainer(`env: [{name: A, value: a}, {name: A, value: b}]`))
	p.Name = "a.b"
	p.Annotations = map[string]string{podlife.DrainAnnotation: "-5m"}
	got := strings.Join(PodWarnings(p), "\n")
	for _, want := range []string{
		"metadata.name: this is used in the Pod's hostname",
		`spec.containers[0].env[1]: hides previous definition of "A"`,
		`metadata.annotations[carob.dev/deletion-drain-timeout]: the annotation has no effect: "-5m" is negative`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no warning %q in:\n%s", want, got)
		}
	}
	if quiet := PodWarnings(parse(t, oneContainer(""))); len(quiet) > 0 {
		t.Errorf("warnings about a plain pod: %v", quiet)
	}
}
