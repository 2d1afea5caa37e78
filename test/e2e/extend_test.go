package e2e

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"strings"
	"testing"
	"time"

	"carob/internal/base/testwait"
)

// A pod extends the API: its webhooks admit objects, convert custom ones, and it serves a group of its own.

const extensionNamespace = "extended"

// extender is the pod with what points to it.
type extender struct {
	*cluster
	crt, key, proxy string // base64 of PEM
}

func newExtender(t *testing.T) *extender {
	c := shared
	e := &extender{cluster: c}
	c.kubectl(t, "wait", "configmap/extension-apiserver-authentication", "--namespace=kube-system", "--for=create",
		"--timeout="+patience.String())
	e.crt, e.key = servingPair(t, "extension."+extensionNamespace+".svc", "notes."+extensionNamespace+".svc")
	e.proxy = base64.StdEncoding.EncodeToString([]byte(c.kubectl(t, "get", "configmap",
		"extension-apiserver-authentication", "--namespace=kube-system", "-o",
		`jsonpath={.data.requestheader-client-ca-file}`)))
	c.kubectl(t, "create", "namespace", extensionNamespace)
	t.Cleanup(func() {
		if t.Failed() {
			out, _ := c.tryKubectl("", "describe", "pods", "--namespace="+extensionNamespace)
			t.Log(out)
			c.dumpLog(t)
		}
		c.kubectl(t, "delete", "namespace", extensionNamespace)
	})
	e.apply(t, `
{apiVersion: v1, kind: Secret, metadata: {name: files}, data: {tls.crt: CRT, tls.key: KEY, proxy.crt: PROXY}}
---
{apiVersion: v1, kind: Service, metadata: {name: extension}, spec: {selector: {app: extension}, ports: [{port: 443, targetPort: tls}]}}`)
	e.start(t)
	return e
}

func (e *extender) start(t *testing.T) {
	t.Helper()
	e.apply(t, `
apiVersion: v1
kind: Pod
metadata: {name: extension, labels: {app: extension}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: serve
    image: localhost/extension:1
    args: [/files]
    ports: [{name: tls, containerPort: 8443}]
    readinessProbe: {httpGet: {path: /healthz, port: tls, scheme: HTTPS}, periodSeconds: 1}
    volumeMounts: [{name: files, mountPath: /files}]
  volumes: [{name: files, secret: {secretName: files}}]`)
	e.wait(t, "pod/extension", "condition=Ready", "--namespace="+extensionNamespace)
}

func (e *extender) stop(t *testing.T) {
	t.Helper()
	e.in(t, "delete", "pod", "extension")
}

// apply fills in certificates.
func (e *extender) apply(t *testing.T, manifest string) string {
	t.Helper()
	return e.kubectlIn(t, strings.NewReplacer("CRT", e.crt, "KEY", e.key, "PROXY", e.proxy).Replace("---\n"+manifest),
		"apply", "--namespace="+extensionNamespace, "-f", "-")
}

// in is kubectl in the namespace.
func (e *extender) in(t *testing.T, args ...string) string {
	t.Helper()
	return e.kubectl(t, append([]string{"--namespace=" + extensionNamespace}, args...)...)
}

// until tries again what takes effect a moment after it was stored.
func (e *extender) until(t *testing.T, what string, done func(out string, err error) bool, args ...string) {
	t.Helper()
	testwait.Until(t, what, func() error {
		out, err := e.tryKubectl("", append([]string{"--namespace=" + extensionNamespace}, args...)...)
		if done(out, err) {
			return nil
		}
		return fmt.Errorf("%s %w", out, err)
	})
}

// refused is an answer of kubectl with this error.
func refused(why string) func(string, error) bool {
	return func(_ string, err error) bool { return err != nil && strings.Contains(err.Error(), why) }
}

func accepted(_ string, err error) bool { return err == nil }

// servingPair is a certificate that is its own authority, and its key.
func servingPair(t *testing.T, names ...string) (crt, key string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: names[0]}, DNSNames: names,
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	text := func(kind string, body []byte) string {
		return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: body}))
	}
	return text("CERTIFICATE", der), text("EC PRIVATE KEY", secret)
}

func TestExtensionInAPod(t *testing.T) {
	e := newExtender(t)
	t.Run("webhooks", e.testWebhooks)
	t.Run("conversion", e.testConversion)
	t.Run("API group", e.testGroup)
}

const webhooks = `
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: e2e-extension}
webhooks:
- name: labels.example.org
  rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps, pods]}]
  matchConditions: [{name: told, expression: "!('skip' in object.metadata.?labels.orValue({}))"}]
  clientConfig: {caBundle: CRT, service: {namespace: extended, name: extension, path: /mutate}}
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: extended}}
  objectSelector: {matchExpressions: [{key: app, operator: NotIn, values: [extension]}]}
  sideEffects: None
  admissionReviewVersions: [v1]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: e2e-extension}
webhooks:
- name: refusals.example.org
  rules:
  - {apiGroups: [""], apiVersions: [v1], operations: [CREATE, UPDATE, DELETE], resources: [configmaps]}
  - {apiGroups: [""], apiVersions: [v1], operations: [CONNECT], resources: [pods/attach]}
  clientConfig: {caBundle: CRT, service: {namespace: extended, name: extension, path: /validate}}
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: extended}}
  failurePolicy: Fail
  sideEffects: None
  admissionReviewVersions: [v1]`

func (e *extender) testWebhooks(t *testing.T) {
	e.apply(t, webhooks)
	removed := false
	remove := func() {
		if !removed {
			e.kubectl(t, "delete", "mutatingwebhookconfiguration,validatingwebhookconfiguration", "e2e-extension")
		}
		removed = true
	}
	defer remove()
	seen := func(out string, err error) bool { return err == nil && strings.Contains(out, "seen-by: extension") }
	e.until(t, "a config map is labelled", seen, "create", "configmap", "try", "--dry-run=server", "-o", "yaml")

	// What a webhook adds is defaulted as if the user had specified it, and runs.
	out := e.apply(t,
		"{apiVersion: v1, kind: Pod, metadata: {name: attached}, spec: {terminationGracePeriodSeconds: 1, containers: [{name: own, image: 'registry.k8s.io/pause:3.10.2'}]}}")
	contains(t, "apply", out, "pod/attached created")
	contains(t, "added", e.in(t, "get", "pod", "attached", "-o", "jsonpath={.spec.containers[1]}"), `"name":"added"`,
		`"terminationMessagePath":"/dev/termination-log"`, "kube-api-access")
	e.wait(t, "pod/attached", "condition=Ready", "--namespace="+extensionNamespace)
	e.until(t, "attaching is refused", refused("nobody attaches to attached"), "attach", "attached", "-c", "own")
	e.in(t, "delete", "pod", "attached")

	e.in(t, "create", "configmap", "made")
	contains(t, "made", e.in(t, "get", "configmap", "made", "-o", "yaml"), "seen-by: extension")
	if out := e.apply(t,
		"{apiVersion: v1, kind: ConfigMap, metadata: {name: skipped, labels: {skip: me}}}"); !strings.Contains(out,
		"created") {
		t.Error(out)
	}
	if out := e.in(t, "get", "configmap", "skipped", "-o", "yaml"); strings.Contains(out, "seen-by") {
		t.Errorf("the match condition did not hold the webhook back:\n%s", out)
	}
	_, err := e.tryKubectl("---\n{apiVersion: v1, kind: ConfigMap, metadata: {name: bad, labels: {refuse: 'yes'}}}",
		"create", "--namespace="+extensionNamespace, "-f", "-")
	if err == nil || !strings.Contains(err.Error(),
		`admission webhook "refusals.example.org" denied the request: the label says so`) {
		t.Errorf("a label that asks for it: %v", err)
	}
	e.in(t, "label", "configmap", "made", "locked=yes")
	contains(t, "changed", e.kubectlFails(t, "--namespace="+extensionNamespace, "annotate", "configmap", "made", "a=b"),
		"it is locked")
	contains(t, "deleted", e.kubectlFails(t, "--namespace="+extensionNamespace, "delete", "configmap", "made"),
		"it is locked")

	// The webhook does not respond: the request fails, unless its failure policy is Ignore.
	e.stop(t)
	contains(t, "nobody answers", e.kubectlFails(t, "--namespace="+extensionNamespace, "create", "configmap", "late"),
		"failed calling webhook")
	for _, kind := range []string{"mutating", "validating"} {
		e.kubectl(t, "patch", kind+"webhookconfiguration", "e2e-extension", "--type=json", "-p",
			`[{"op":"replace","path":"/webhooks/0/failurePolicy","value":"Ignore"}]`)
	}
	e.until(t, "passed over", accepted, "create", "configmap", "late")
	remove()
	e.start(t)
}

const endpointKind = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: endpoints.far.e2e.example}
spec:
  group: far.e2e.example
  scope: Namespaced
  names: {plural: endpoints, singular: endpoint, kind: Endpoint, listKind: EndpointList}
  conversion: {strategy: Webhook, webhook: {conversionReviewVersions: [v1], clientConfig: {caBundle: CRT, service: {namespace: extended, name: extension, path: /convert}}}}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {host: {type: string}, port: {type: string}}}}}}}
  - {name: v2, served: true, storage: false, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {address: {type: string}}}}}}}`

func (e *extender) testConversion(t *testing.T) {
	e.apply(t, endpointKind)
	defer e.kubectl(t, "delete", "crd", "endpoints.far.e2e.example")
	e.wait(t, "crd/endpoints.far.e2e.example", "condition=Established")
	e.until(t, "created as v1", accepted, "get", "endpoints.v1.far.e2e.example")
	e.apply(t, `
{apiVersion: far.e2e.example/v1, kind: Endpoint, metadata: {name: one}, spec: {host: a.example, port: "80"}}
---
{apiVersion: far.e2e.example/v2, kind: Endpoint, metadata: {name: two}, spec: {address: "b.example:81"}}`)
	for version, want := range map[string]string{"v1": "a.example 80 b.example 81", "v2": "a.example:80 b.example:81"} {
		got := e.in(t, "get", "endpoints."+version+".far.e2e.example", "-o",
			"jsonpath={.items[*].spec['address']}{.items[0].spec.host} {.items[0].spec.port} {.items[1].spec.host} {.items[1].spec.port}")
		if strings.TrimSpace(got) != want {
			t.Errorf("all as %s: %q, not %q", version, got, want)
		}
	}
	e.in(t, "patch", "endpoints.v2.far.e2e.example", "one", "--type=merge", "-p", `{"spec":{"address":"c.example:82"}}`)
	if got := e.in(t, "get", "endpoints.v1.far.e2e.example", "one", "-o",
		"jsonpath={.spec.host} {.spec.port}"); got != "c.example 82" {
		t.Errorf("changed as v2, read as v1: %q", got)
	}
}

// The Service has no selector; its endpoints are written by hand.
const notesGroup = `
{apiVersion: v1, kind: Service, metadata: {name: notes}, spec: {ports: [{name: https, port: 8443}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: notes-1, labels: {kubernetes.io/service-name: notes}}
addressType: IPv4
endpoints: [{addresses: [ADDRESS], conditions: {ready: true}}]
ports: [{name: https, port: 8443, protocol: TCP}]
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.far.example.org}
spec: {group: far.example.org, version: v1, groupPriorityMinimum: 2000, versionPriority: 10, caBundle: CRT, service: {namespace: extended, name: notes, port: 8443}}`

func (e *extender) testGroup(t *testing.T) {
	address := e.in(t, "get", "pod", "extension", "-o", "jsonpath={.status.podIP}")
	e.apply(t, strings.ReplaceAll(notesGroup, "ADDRESS", address))
	removed := false
	remove := func() {
		if !removed {
			e.kubectl(t, "delete", "apiservice", "v1.far.example.org")
		}
		removed = true
	}
	defer remove()
	e.wait(t, "apiservice/v1.far.example.org", "condition=Available")
	contains(t, "api-resources", e.kubectl(t, "api-resources", "--api-group=far.example.org", "--cached=false"),
		"notes", "nt", "Note")
	path := "/apis/far.example.org/v1/namespaces/" + extensionNamespace + "/notes"
	e.kubectlIn(t, `{"apiVersion":"far.example.org/v1","kind":"Note","metadata":{"name":"first"},"text":"hello"}`,
		"create", "--raw="+path, "-f", "-")
	contains(t, "get", e.in(t, "get", "notes"), "NAME", "first")
	contains(t, "get -o", e.in(t, "get", "nt", "first", "-o", "json"), `"author": "kubernetes-admin"`,
		`"text": "hello"`)
	// The aggregated server gets the user's name, and carob's API server authorizes the user.
	e.in(t, "create", "serviceaccount", "reader")
	me := "--as=system:serviceaccount:" + extensionNamespace + ":reader"
	contains(t, "without a right", e.kubectlFails(t, "--namespace="+extensionNamespace, "get", "notes", me),
		"forbidden")
	e.in(t, "create", "role", "writes", "--verb=create", "--resource=notes.far.example.org")
	e.in(t, "create", "rolebinding", "writes", "--role=writes", "--serviceaccount="+extensionNamespace+":reader")
	out := e.kubectlIn(t, `{"apiVersion":"far.example.org/v1","kind":"Note","metadata":{"name":"second"}}`, "create",
		"--raw="+path, me, "-f", "-")
	var made struct{ Author string }
	if err := json.NewDecoder(bytes.NewBufferString(out)).Decode(&made); err != nil ||
		made.Author != "system:serviceaccount:"+extensionNamespace+":reader" {
		t.Errorf("written as %q, %v", made.Author, err)
	}
	e.in(t, "delete", "notes", "--all", "--wait=false")
	contains(t, "deleted", e.kubectlFails(t, "--namespace="+extensionNamespace, "get", "note", "first"), "NotFound")

	// The pod ends: the group is away, the rest is served.
	e.stop(t)
	contains(t, "away", e.kubectlFails(t, "get", "--raw="+path), "ServiceUnavailable")
	contains(t, "the rest", e.kubectl(t, "get", "apiservice", "v1.apps"), "True")
	remove()
	contains(t, "removed", fmt.Sprint(e.kubectlFails(t, "get", "--raw="+path)), "NotFound")
}
