package kinds

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"carob/internal/kinds/pods"
)

func newScheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, appsv1.AddToScheme, batchv1.AddToScheme,
		rbacv1.AddToScheme, certificatesv1.AddToScheme, RegisterDefaults} {
		if err := add(s); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// Each case is an object as a client writes it and as it is stored. A second defaulting must not
// change anything.
func TestDefaults(t *testing.T) {
	s := newScheme(t)
	for _, c := range []struct {
		name     string // with the clause
		obj      runtime.Object
		in, want string
	}{
		{"a pod certificate lives a day", &certificatesv1.PodCertificateRequest{}, `
spec: {signerName: example.com/s}`, `
spec: {signerName: example.com/s, maxExpirationSeconds: 86400}`},
		{"L1.8–L1.11, L1.15, L1.16: bare pod", &corev1.Pod{}, `
spec:
  containers: [{name: c, image: nginx}]`, `
spec:
  containers: [{name: c, image: nginx, imagePullPolicy: Always, terminationMessagePath: /dev/termination-log, terminationMessagePolicy: File, resources: {}}]
  restartPolicy: Always
  dnsPolicy: ClusterFirst
  schedulerName: default-scheduler
  terminationGracePeriodSeconds: 30
  securityContext: {}
  enableServiceLinks: true`},
		{"L1.8: negative grace period", &corev1.Pod{}, `
spec: {terminationGracePeriodSeconds: -5, containers: []}`, `
spec: {terminationGracePeriodSeconds: 1, containers: [], restartPolicy: Always, dnsPolicy: ClusterFirst, schedulerName: default-scheduler, securityContext: {}, enableServiceLinks: true}`},
		{"L1.12: deprecated serviceAccount; L1.13: host ports; L1.14: requests from limits; L1.21: protocol",
			&corev1.Pod{}, `
spec:
  serviceAccount: robot
  hostNetwork: true
  containers:
  - name: c
    image: a/b:1
    ports: [{containerPort: 80}]
    resources: {limits: {cpu: 1, memory: 1Gi}, requests: {cpu: 500m}}`, `
spec:
  serviceAccount: robot
  serviceAccountName: robot
  hostNetwork: true
  containers:
  - name: c
    image: a/b:1
    imagePullPolicy: IfNotPresent
    terminationMessagePath: /dev/termination-log
    terminationMessagePolicy: File
    ports: [{containerPort: 80, hostPort: 80, protocol: TCP}]
    resources: {limits: {cpu: 1, memory: 1Gi}, requests: {cpu: 500m, memory: 1Gi}}
  restartPolicy: Always
  dnsPolicy: ClusterFirst
  schedulerName: default-scheduler
  terminationGracePeriodSeconds: 30
  securityContext: {}
  enableServiceLinks: true`},
		{"L1.17, L1.18, L1.20: probes, hooks and env", &corev1.Pod{}, `
spec:
  containers:
  - name: c
    image: a@sha256:0
    env: [{name: N, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
    livenessProbe: {grpc: {port: 1}, periodSeconds: 3}
    readinessProbe: {httpGet: {port: 80}}
    lifecycle: {preStop: {httpGet: {port: 80}}}`, `
spec:
  containers:
  - name: c
    image: a@sha256:0
    imagePullPolicy: IfNotPresent
    terminationMessagePath: /dev/termination-log
    terminationMessagePolicy: File
    resources: {}
    env: [{name: N, valueFrom: {fieldRef: {apiVersion: v1, fieldPath: metadata.name}}}]
    livenessProbe: {grpc: {port: 1, service: ""}, periodSeconds: 3, timeoutSeconds: 1, successThreshold: 1, failureThreshold: 3}
    readinessProbe: {httpGet: {port: 80, path: /, scheme: HTTP}, periodSeconds: 10, timeoutSeconds: 1, successThreshold: 1, failureThreshold: 3}
    lifecycle: {preStop: {httpGet: {port: 80, path: /, scheme: HTTP}}}
  restartPolicy: Always
  dnsPolicy: ClusterFirst
  schedulerName: default-scheduler
  terminationGracePeriodSeconds: 30
  securityContext: {}
  enableServiceLinks: true`},
		{"L1.19: volumes", &corev1.PodTemplate{}, `
template:
  spec:
    containers: []
    volumes:
    - {name: none}
    - {name: secret, secret: {secretName: s}}
    - {name: map, configMap: {name: m}}
    - {name: down, downwardAPI: {items: [{path: p, fieldRef: {fieldPath: metadata.name}}]}}
    - {name: all, projected: {sources: [{serviceAccountToken: {path: t}}]}}
    - {name: host, hostPath: {path: /p}}`, `
template:
  spec:
    containers: []
    volumes:
    - {name: none, emptyDir: {}}
    - {name: secret, secret: {secretName: s, defaultMode: 420}}
    - {name: map, configMap: {name: m, defaultMode: 420}}
    - {name: down, downwardAPI: {defaultMode: 420, items: [{path: p, fieldRef: {apiVersion: v1, fieldPath: metadata.name}}]}}
    - {name: all, projected: {defaultMode: 420, sources: [{serviceAccountToken: {path: t, expirationSeconds: 3600}}]}}
    - {name: host, hostPath: {path: /p, type: ""}}
    restartPolicy: Always
    dnsPolicy: ClusterFirst
    schedulerName: default-scheduler
    terminationGracePeriodSeconds: 30
    securityContext: {}`},
		{"secret: stringData is only a way to write", &corev1.Secret{}, `
data: {a: b2xk, b: b2xk}
stringData: {a: new}`, `
type: Opaque
data: {a: bmV3, b: b2xk}`},
		{"service", &corev1.Service{}, `
spec: {type: NodePort, ports: [{port: 80}], sessionAffinity: ClientIP}`, `
spec:
  type: NodePort
  ports: [{port: 80, targetPort: 80, protocol: TCP}]
  sessionAffinity: ClientIP
  sessionAffinityConfig: {clientIP: {timeoutSeconds: 10800}}
  externalTrafficPolicy: Cluster
  internalTrafficPolicy: Cluster`},
		{"limit range", &corev1.LimitRange{}, `
spec: {limits: [{type: Container, max: {cpu: 2}, min: {memory: 1Mi}}]}`, `
spec: {limits: [{type: Container, max: {cpu: 2}, min: {memory: 1Mi}, default: {cpu: 2}, defaultRequest: {cpu: 2, memory: 1Mi}}]}`},
		{"role binding", &rbacv1.RoleBinding{}, `
roleRef: {kind: Role, name: r}
subjects: [{kind: User, name: u}, {kind: ServiceAccount, name: s}]`, `
roleRef: {kind: Role, name: r, apiGroup: rbac.authorization.k8s.io}
subjects: [{kind: User, name: u, apiGroup: rbac.authorization.k8s.io}, {kind: ServiceAccount, name: s}]`},
		{"job", &batchv1.Job{}, `
spec: {template: {metadata: {labels: {a: b}}, spec: {restartPolicy: Never, containers: []}}}`, `
metadata: {labels: {a: b}}
spec:
  parallelism: 1
  completions: 1
  backoffLimit: 6
  completionMode: NonIndexed
  manualSelector: false
  suspend: false
  podReplacementPolicy: TerminatingOrFailed
  template:
    metadata: {labels: {a: b}}
    spec: {restartPolicy: Never, containers: [], dnsPolicy: ClusterFirst, schedulerName: default-scheduler, terminationGracePeriodSeconds: 30, securityContext: {}}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, want := c.obj.DeepCopyObject(), c.obj.DeepCopyObject()
			for text, into := range map[string]runtime.Object{c.in: got, c.want: want} {
				if err := yaml.UnmarshalStrict([]byte(text), into); err != nil {
					t.Fatal(err)
				}
			}
			s.Default(got)
			a, b := render(t, got), render(t, want)
			if d := cmp.Diff(b, a); d != "" {
				t.Errorf("defaulted object differs (-want +got):\n%s", d)
			}
			s.Default(got)
			if d := cmp.Diff(a, render(t, got)); d != "" {
				t.Errorf("defaulting again changes it:\n%s", d)
			}
		})
	}
}

func render(t *testing.T, o runtime.Object) string {
	t.Helper()
	b, err := yaml.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// L1.15
func TestPullPolicy(t *testing.T) {
	for image, want := range map[string]corev1.PullPolicy{
		"nginx": corev1.PullAlways, "nginx:latest": corev1.PullAlways, "nginx:1": corev1.PullIfNotPresent,
		"host:5000/nginx": corev1.PullAlways, "host:5000/nginx:1": corev1.PullIfNotPresent,
		"host:5000/nginx:latest": corev1.PullAlways,
		"nginx@sha256:aa":        corev1.PullIfNotPresent, "nginx:latest@sha256:aa": corev1.PullIfNotPresent,
		// An invalid image name has no tag.
		"Bad Value!": corev1.PullIfNotPresent, "../a": corev1.PullIfNotPresent, "a:b:c": corev1.PullIfNotPresent,
		"":                                    corev1.PullIfNotPresent,
		"a@sha256:" + strings.Repeat("0", 64): corev1.PullIfNotPresent,
		"a:latest@sha256:" + strings.Repeat("0", 64): corev1.PullAlways,
	} {
		if got := pods.DefaultPullPolicy(image); got != want {
			t.Errorf("%s: %s, want %s", image, got, want)
		}
	}
}

func TestResourcesAreRoundedUp(t *testing.T) {
	p := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{
		Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100u")},
	}}}}}
	pods.DefaultPod(p)
	if q := p.Spec.Containers[0].Resources.Limits[corev1.ResourceCPU]; q.String() != "1m" {
		t.Errorf("100u became %s, want 1m", q.String())
	}
}
