package apiserver

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
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/discovery"
	restclient "k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"carob/internal/base/testwait"
)

// dryUser sends the dry runs, so that webhooks can distinguish them from the server's own requests.
const dryUser = "dry-runner"

// dryObjects are of the kinds that are not in the corpus of validation.
const dryObjects = `
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.dry.example.org}
spec: {group: dry.example.org, version: v1, groupPriorityMinimum: 100, versionPriority: 10, insecureSkipTLSVerify: true, service: {namespace: default, name: nobody, port: 443}}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: drops.dry2.example.org}
spec: {group: dry2.example.org, scope: Namespaced, names: {plural: drops, kind: Drop}, versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]}
---
apiVersion: example.org/v1
kind: Gadget
metadata: {name: base-gadget}
spec: {color: red}
---
apiVersion: dry2.example.org/v1
kind: Drop
metadata: {name: base-drop}
---
apiVersion: certificates.k8s.io/v1
kind: CertificateSigningRequest
metadata: {name: base-request}
spec: {signerName: a.example/b, usages: [client auth], request: REQUEST}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: jane-is-admin}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: jane}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: refuses-all}
webhooks: [{name: all.example.org, sideEffects: None, admissionReviewVersions: [v1], clientConfig: {url: "https://127.0.0.1:1/none"},
  rules: [{operations: ["*"], apiGroups: ["*"], apiVersions: ["*"], resources: ["*/*"]}]}]
---
apiVersion: v1
kind: Service
metadata: {name: dry-ports}
spec: {type: NodePort, clusterIP: 10.96.0.78, ports: [{port: 1, nodePort: 30078}]}
`

// dryRuns knows the served kinds and sends requests about them.
type dryRuns struct {
	*running
	http  *http.Client
	kinds []dryKind
	sent  map[int]int // by status
}

// dryKind is one served resource, and objects of it.
type dryKind struct {
	metav1.APIResource
	path    string // of the collection
	subs    []metav1.APIResource
	objects []*unstructured.Unstructured
}

func newDryRuns(t *testing.T, r *running) *dryRuns {
	t.Helper()
	cfg := r.ClientConfig(dryUser, user.SystemPrivilegedGroup)
	c, err := restclient.HTTPClientFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return &dryRuns{running: r, http: c, sent: map[int]int{}}
}

// discover finds the kinds that can be created, and their objects. Kinds that are never stored,
// such as reviews, have none.
func (d *dryRuns) discover(t *testing.T, bases []*unstructured.Unstructured) {
	t.Helper()
	_, lists, err := d.admin(t).Discovery().ServerGroupsAndResources()
	if err != nil && !discovery.IsGroupDiscoveryFailedError(err) { // of the server that is not running
		t.Fatal(err)
	}
	d.kinds = nil
	for _, list := range lists {
		subs := map[string][]metav1.APIResource{}
		for _, res := range list.APIResources {
			if name, _, ok := strings.Cut(res.Name, "/"); ok {
				subs[name] = append(subs[name], res)
			}
		}
		for _, res := range list.APIResources {
			if strings.Contains(res.Name, "/") || !slices.Contains(res.Verbs, "create") ||
				!slices.Contains(res.Verbs, "get") {
				continue
			}
			path := "/apis/" + list.GroupVersion
			if list.GroupVersion == "v1" {
				path = "/api/v1"
			}
			if res.Namespaced {
				path += "/namespaces/default"
			}
			k := dryKind{APIResource: res, path: path + "/" + res.Name, subs: subs[res.Name]}
			for _, o := range bases {
				if o.GetAPIVersion() == list.GroupVersion && o.GetKind() == res.Kind {
					k.objects = append(k.objects, o)
				}
			}
			// Some groups serve a kind in a second version, with the objects of the first.
			if len(k.objects) == 0 && list.GroupVersion != "autoscaling/v1" && list.GroupVersion != "events.k8s.io/v1" {
				t.Errorf("no object of %s %s: add one to dryObjects", list.GroupVersion, res.Kind)
			}
			d.kinds = append(d.kinds, k)
		}
	}
}

func (d *dryRuns) send(t *testing.T, method, path, content string, body any) (int, string) {
	t.Helper()
	var text []byte
	switch b := body.(type) {
	case nil:
	case string:
		text = []byte(b)
	default:
		var err error
		if text, err = json.Marshal(b); err != nil {
			t.Fatal(err)
		}
	}
	req, err := http.NewRequestWithContext(t.Context(), method, "http://carob.invalid"+path, bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", content)
	resp, err := d.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(answer)
}

// dry sends a dry run, which must not fail with a server error.
func (d *dryRuns) dry(t *testing.T, method, path, content string, body any) int {
	t.Helper()
	query := "?dryRun=All"
	if strings.Contains(content, "apply") {
		query += "&fieldManager=dry&force=true"
	}
	status, answer := d.send(t, method, path+query, content, body)
	d.sent[status]++
	if status >= 500 {
		t.Errorf("%s %s %s: %d %.300s", method, path, content, status, answer)
	}
	return status
}

const (
	jsonType, mergeType, applyType = "application/json", "application/merge-patch+json", "application/apply-patch+yaml"
	labelPatch                     = `{"metadata":{"labels":{"dry":"run"}}}`
)

// all sends each verb of each kind as a dry run.
func (d *dryRuns) all(t *testing.T) {
	t.Helper()
	for _, k := range d.kinds {
		created := 0
		for _, o := range k.objects {
			if status := d.dry(t, http.MethodPost, k.path, jsonType, o.Object); status < 300 ||
				status == http.StatusConflict && fixedNames[k.Kind] {
				created++
			}
			other := o.DeepCopy()
			other.SetLabels(map[string]string{"dry": "run"})
			if !fixedNames[k.Kind] {
				other.SetName("dry-" + o.GetName())
			}
			if d.dry(t, http.MethodPost, k.path, jsonType, other.Object) < 300 {
				created++
			}
			for _, to := range []*unstructured.Unstructured{o, other} {
				at := k.path + "/" + to.GetName()
				changed := to.DeepCopy()
				changed.SetLabels(map[string]string{"dry": "changed"})
				d.dry(t, http.MethodPut, at, jsonType, changed.Object)
				d.dry(t, http.MethodPatch, at, mergeType, labelPatch)
				d.dry(t, http.MethodPatch, at, applyType, changed.Object)
				for _, sub := range k.subs {
					_, name, _ := strings.Cut(sub.Name, "/")
					d.sub(t, at, name, sub.Verbs, changed)
				}
				d.dry(t, http.MethodDelete, at, jsonType, nil)
				d.dry(t, http.MethodDelete, at, jsonType,
					`{"kind":"DeleteOptions","apiVersion":"v1","gracePeriodSeconds":0,"propagationPolicy":"Orphan","dryRun":["All"]}`)
			}
		}
		if created == 0 && len(k.objects) > 0 {
			t.Errorf("no %s could be created as a dry run", k.path)
		}
		if slices.Contains(k.Verbs, "deletecollection") {
			d.dry(t, http.MethodDelete, k.path, jsonType, nil)
		}
	}
}

// sub sends the writes of a subresource.
func (d *dryRuns) sub(t *testing.T, at, name string, verbs []string, o *unstructured.Unstructured) {
	t.Helper()
	if name == "proxy" || name == "exec" || name == "attach" || name == "portforward" || name == "log" {
		return // no writes of objects: they reach another server
	}
	at += "/" + name
	if slices.Contains(verbs, "update") {
		d.dry(t, http.MethodPut, at, jsonType, o.Object)
	}
	if slices.Contains(verbs, "patch") {
		patch := labelPatch
		switch name {
		case "status":
			patch = `{"metadata":{"labels":{"dry":"run"}},"status":{"replicas":7,"conditions":[]}}`
		case "scale":
			patch = `{"spec":{"replicas":7}}`
		}
		d.dry(t, http.MethodPatch, at, mergeType, patch)
	}
	if slices.Contains(verbs, "create") {
		body := map[string]any{"metadata": map[string]any{"name": o.GetName()}}
		if name == "binding" {
			body["target"] = map[string]any{"kind": "Node", "name": "base-node"}
		}
		if name == "eviction" {
			body["apiVersion"], body["kind"] = "policy/v1", "Eviction"
		}
		d.dry(t, http.MethodPost, at, jsonType, body)
	}
}

// fixedNames are kinds whose names are prescribed.
var fixedNames = map[string]bool{"APIService": true, "CustomResourceDefinition": true, "IPAddress": true,
	"ClusterTrustBundle": true}

// observed is everything that a client can see of the server: stored objects, served resources,
// permissions.
func (d *dryRuns) observed(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	got, err := d.engine.Client.KV.Get(t.Context(), "/registry/", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range got.Kvs {
		out[string(kv.Key)] = fmt.Sprintf("%d %q", kv.ModRevision, kv.Value)
	}
	paths := []string{"/api", "/apis", "/openapi/v2", "/openapi/v3"}
	var index struct{ Paths map[string]any }
	_, text := d.get(t, "/openapi/v3", jsonType)
	if err := json.Unmarshal(text, &index); err != nil {
		t.Fatal(err)
	}
	for p := range index.Paths {
		paths = append(paths, "/openapi/v3/"+p, "/"+p)
	}
	for _, p := range paths {
		for _, accept := range []string{jsonType,
			"application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"} {
			code, body := d.get(t, p, accept)
			out["GET "+p+" "+accept] = fmt.Sprint(code, " ", string(body))
		}
	}
	for _, name := range []string{"jane", "system:serviceaccount:default:base-account", "u"} {
		u := &user.DefaultInfo{Name: name, Groups: []string{user.AllAuthenticated}}
		for _, verb := range []string{"get", "create", "delete", "bind"} {
			for _, resource := range []string{"pods", "secrets", "clusterroles"} {
				decision, _, err := d.authorizer.Authorize(t.Context(),
					authorizer.AttributesRecord{User: u, Verb: verb, Namespace: "default", Resource: resource,
						APIVersion: "v1", ResourceRequest: true})
				out[fmt.Sprint("may ", name, " ", verb, " ", resource)] = fmt.Sprint(decision, err)
			}
		}
	}
	return out
}

func compareObserved(t *testing.T, when string, before, after map[string]string) {
	t.Helper()
	for _, key := range slices.Sorted(maps.Keys(after)) {
		switch was, ok := before[key]; {
		case !ok:
			t.Errorf("%s: dry runs made %s", when, key)
		case was != after[key]:
			t.Errorf("%s: dry runs changed %s: %s", when, key, firstDifference(was, after[key]))
		}
	}
	for key := range before {
		if _, ok := after[key]; !ok {
			t.Errorf("%s: dry runs removed %s", when, key)
		}
	}
}

// firstDifference shows where two texts differ.
func firstDifference(a, b string) string {
	i := 0
	for i < min(len(a), len(b)) && a[i] == b[i] {
		i++
	}
	part := func(s string) string { return s[max(0, i-40):min(len(s), i+80)] }
	return fmt.Sprintf("%q is %q", part(a), part(b))
}

// listener is a webhook that allows everything and records the requests of dryUser.
type listener struct {
	mu           sync.Mutex
	dry, wet     int
	leases       int
	wetResources []string
}

func (l *listener) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(q.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	l.mu.Lock()
	switch r := review.Request; {
	case q.URL.Path == "/leases":
		l.leases++
	case r.UserInfo.Username != dryUser:
	case r.DryRun != nil && *r.DryRun:
		l.dry++
	default:
		l.wet++
		l.wetResources = append(l.wetResources, r.Resource.Resource)
	}
	l.mu.Unlock()
	review.Response, review.Request = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}, nil
	_ = json.NewEncoder(w).Encode(review)
}

// A dry run has no effect: for every kind, nothing that can be observed changes, and webhooks see that it is a dry
// run.
func TestDryRunsOfEveryKind(t *testing.T) {
	r := start(t, t.TempDir())
	ctx, c := t.Context(), r.admin(t)
	if _, err := c.CoreV1().ServiceAccounts("default").Create(ctx,
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	d := newDryRuns(t, r)
	bases := dryBases(t, r)
	d.settled(t)
	d.discover(t, bases)
	before := d.observed(t)
	d.all(t)
	compareObserved(t, "nothing stored", before, d.observed(t))
	// What only dry runs allocated is free; what only dry runs deleted is not.
	services, wet := c.CoreV1().Services("default"), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "wet"},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, ClusterIP: "10.96.0.78",
			Ports: []corev1.ServicePort{{Port: 1, NodePort: 30078}}}}
	if err := errOf(services.Create(ctx, wet, metav1.CreateOptions{})); err != nil {
		t.Errorf("an address and a port that only dry runs took: %v", err)
	}
	if err := services.Delete(ctx, "wet", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}

	// Again with an object of each kind, with a webhook for everything and an aggregated API
	// server.
	received := &listener{}
	hook := httptest.NewTLSServer(received)
	t.Cleanup(hook.Close)
	r.establish(t, gadgets())
	d.store(t, bases, hook)
	d.settled(t)
	d.discover(t, bases)
	before = d.observed(t)
	if !strings.Contains(before["GET /apis application/json"], "dry.example.org") {
		t.Fatal("the group of the stored APIService is not listed")
	}
	d.all(t)
	compareObserved(t, "objects stored", before, d.observed(t))
	t.Logf("answers by status: %v", d.sent)
	received.mu.Lock()
	if received.dry == 0 || received.wet > 0 {
		t.Errorf("the webhook received %d dry runs, and of %d that were not called so: %v", received.dry, received.wet,
			received.wetResources)
	}
	received.mu.Unlock()
	for _, spec := range []corev1.ServiceSpec{{ClusterIP: "10.96.0.78", Ports: wet.Spec.Ports[:1]},
		{Type: corev1.ServiceTypeNodePort, Ports: wet.Spec.Ports}} {
		if err := errOf(services.Create(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "wet"}, Spec: spec},
			metav1.CreateOptions{})); !apierrors.IsInvalid(err) {
			t.Errorf("an address or a port whose service only dry runs deleted: %v", err)
		}
	}
	d.sideEffects(t, received, hook)
}

// dryBases returns the objects to use.
func dryBases(t *testing.T, r *running) []*unstructured.Unstructured {
	t.Helper()
	var out []*unstructured.Unstructured
	for _, o := range upstreamBases(t, "bases.yaml") {
		out = append(out, o)
	}
	slices.SortFunc(out, func(a, b *unstructured.Unstructured) int {
		return strings.Compare(a.GetKind()+a.GetName(), b.GetKind()+b.GetName())
	})
	request := signingRequest(t)
	for doc := range strings.SplitSeq(dryObjects, "\n---\n") {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(strings.Replace(doc, "REQUEST", request, 1)), &o.Object); err != nil {
			t.Fatal(err)
		}
		out = append(out, o)
	}
	return out
}

// settled waits for what the server itself writes after its start and about stored objects.
func (d *dryRuns) settled(t *testing.T) {
	t.Helper()
	written := map[string]string{ // what is written late, and where it is visible
		"/apis/rbac.authorization.k8s.io/v1/clusterrolebindings":                                         "",
		"/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas":                                              "conditions",
		"/apis/apiregistration.k8s.io/v1/apiservices":                                                    "conditions",
		"/apis/apiextensions.k8s.io/v1/customresourcedefinitions":                                        "conditions",
		"/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies":                              "observedGeneration",
		"/api/v1/namespaces/kube-system/configmaps/kube-apiserver-legacy-service-account-token-tracking": "",
	}
	last, same := int64(-1), 0
	testwait.Until(t, "nothing is written any more", func() error {
		for path, field := range written {
			var list unstructured.UnstructuredList
			code, text := d.get(t, path, jsonType)
			if code != http.StatusOK {
				return fmt.Errorf("%s: %d", path, code)
			}
			if field == "" {
				continue
			}
			if err := json.Unmarshal(text, &list); err != nil {
				return err
			}
			for _, o := range list.Items {
				if _, ok, _ := unstructured.NestedFieldNoCopy(o.Object, "status", field); !ok {
					return fmt.Errorf("%s %s has no %s yet", o.GetKind(), o.GetName(), field)
				}
			}
		}
		now := revision(t, d.running)
		if same++; now != last {
			last, same = now, 0
		}
		if same < 20 {
			return fmt.Errorf("version %d was just written", now)
		}
		return nil
	})
}

// late are the kinds that would block the storing of later ones.
var late = map[string]bool{"ResourceQuota": true, "LimitRange": true}

// store creates the objects, with a webhook for every write in place of the webhooks that no server answers.
// Policies are stored without their bindings.
func (d *dryRuns) store(t *testing.T, bases []*unstructured.Unstructured, hook *httptest.Server) {
	t.Helper()
	var last []*unstructured.Unstructured
	put := func(o *unstructured.Unstructured) {
		for _, k := range d.kinds {
			if k.Kind == o.GetKind() && slices.Contains(k.objects, o) {
				if status, text := d.send(t, http.MethodPost, k.path, jsonType, o.Object); status >= 300 {
					t.Errorf("store %s %s: %d %s", o.GetKind(), o.GetName(), status, text)
				}
				return
			}
		}
	}
	d.discover(t, bases)
	for _, o := range bases {
		switch {
		case late[o.GetKind()]:
			last = append(last, o)
		case strings.HasSuffix(o.GetKind(), "WebhookConfiguration"), strings.HasSuffix(o.GetKind(), "PolicyBinding"):
		default:
			put(o)
		}
	}
	for _, o := range last {
		put(o)
	}
	d.listen(t, "hears-all", hook.URL, hook, "*", "*/*", admissionregistrationv1.SideEffectClassNoneOnDryRun)
	testwait.Until(t, "the webhook", func() error {
		received, _ := hook.Config.Handler.(*listener)
		d.dry(t, http.MethodPost, "/api/v1/namespaces/default/configmaps", jsonType,
			map[string]any{"metadata": map[string]any{"name": "x"}})
		received.mu.Lock()
		defer received.mu.Unlock()
		if received.dry == 0 {
			return errors.New("it hears nothing yet")
		}
		return nil
	})
}

// listen stores the configuration of a webhook without validation, as an old server might have
// stored it.
func (d *dryRuns) listen(t *testing.T, name, url string, hook *httptest.Server, group, resource string,
	effects admissionregistrationv1.SideEffectClass) {
	t.Helper()
	fail, equivalent, all, timeout := admissionregistrationv1.Fail, admissionregistrationv1.Equivalent,
		admissionregistrationv1.AllScopes, int32(10)
	o := &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name,
		UID: types.UID(name)}, Webhooks: []admissionregistrationv1.ValidatingWebhook{{
		Name: "hook.example.org", SideEffects: &effects, AdmissionReviewVersions: []string{"v1"}, FailurePolicy: &fail,
		MatchPolicy: &equivalent, TimeoutSeconds: &timeout,
		NamespaceSelector: &metav1.LabelSelector{}, ObjectSelector: &metav1.LabelSelector{},
		ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: &url,
			CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hook.Certificate().Raw})},
		Rules: []admissionregistrationv1.RuleWithOperations{{Operations: []admissionregistrationv1.OperationType{
			admissionregistrationv1.OperationAll},
			Rule: admissionregistrationv1.Rule{APIGroups: []string{group}, APIVersions: []string{"*"},
				Resources: []string{resource}, Scope: &all}}}}}}
	store := d.stores[admissionregistrationResource("validatingwebhookconfigurations")]
	key, err := store.KeyFunc(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Storage.Create(t.Context(), key, o, &admissionregistrationv1.ValidatingWebhookConfiguration{}, 0,
		false); err != nil {
		t.Fatal(err)
	}
	d.ext.plugins.Activate()
}

// sideEffects requires that a webhook without support for dry runs is not called: they are
// rejected.
func (d *dryRuns) sideEffects(t *testing.T, received *listener, hook *httptest.Server) {
	t.Helper()
	d.listen(t, "acts", hook.URL+"/leases", hook, "coordination.k8s.io", "leases",
		admissionregistrationv1.SideEffectClassSome)
	lease := map[string]any{"metadata": map[string]any{"name": "effects"}}
	testwait.Until(t, "a dry run is refused", func() error {
		status, text := d.send(t, http.MethodPost, "/apis/coordination.k8s.io/v1/namespaces/default/leases?dryRun=All",
			jsonType, lease)
		if status != http.StatusBadRequest || !strings.Contains(text, "does not support dry run") {
			return fmt.Errorf("%d %s", status, text)
		}
		return nil
	})
	received.mu.Lock()
	if received.leases > 0 {
		t.Error("a webhook with side effects heard of a dry run")
	}
	received.mu.Unlock()
	if status, text := d.send(t, http.MethodPost, "/apis/coordination.k8s.io/v1/namespaces/default/leases", jsonType,
		lease); status != http.StatusCreated {
		t.Errorf("a request that is not a dry run: %d %s", status, text)
	}
	received.mu.Lock()
	if received.leases != 1 {
		t.Errorf("the webhook with side effects received %d requests", received.leases)
	}
	received.mu.Unlock()
}

// signingRequest returns a certificate request in the API's form.
func signingRequest(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader,
		&x509.CertificateRequest{Subject: pkix.Name{CommonName: "x"}}, key)
	if err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
}
