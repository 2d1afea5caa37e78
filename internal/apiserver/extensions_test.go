package apiserver

import (
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/dynamic"
	restclient "k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	apiregistrationclient "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"

	"carob/internal/apiserver/audit"
	"carob/internal/apiserver/flow"
	"carob/internal/base/errkind"
	"carob/internal/base/testwait"
)

// gadgets is a definition that uses most features of a definition.
func gadgets() *apiextensionsv1.CustomResourceDefinition {
	text := apiextensionsv1.JSONSchemaProps{Type: "string"}
	number := apiextensionsv1.JSONSchemaProps{Type: "integer", Format: "int32"}
	size := number
	size.Default = &apiextensionsv1.JSON{Raw: []byte("3")}
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "gadgets.example.org"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.org", Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "gadgets", Singular: "gadget", Kind: "Gadget",
				ListKind: "GadgetList", ShortNames: []string{"gd"}},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{
						"spec": {Type: "object",
							Properties: map[string]apiextensionsv1.JSONSchemaProps{"color": text, "size": size,
								"limit": number},
							XValidations: apiextensionsv1.ValidationRules{
								{Rule: "!has(self.limit) || self.size <= self.limit",
									Message: "size must not exceed limit"}}},
						"status": {Type: "object",
							Properties: map[string]apiextensionsv1.JSONSchemaProps{"ready": {Type: "boolean"},
								"size": number}},
					}}},
				Subresources: &apiextensionsv1.CustomResourceSubresources{
					Status: &apiextensionsv1.CustomResourceSubresourceStatus{},
					Scale: &apiextensionsv1.CustomResourceSubresourceScale{SpecReplicasPath: ".spec.size",
						StatusReplicasPath: ".status.size"}},
				AdditionalPrinterColumns: []apiextensionsv1.CustomResourceColumnDefinition{{Name: "Color",
					Type: "string", JSONPath: ".spec.color"}},
				SelectableFields: []apiextensionsv1.SelectableField{{JSONPath: ".spec.color"}},
			}},
		},
	}
}

var gadgetResource = schema.GroupVersionResource{Group: "example.org", Version: "v1", Resource: "gadgets"}

func gadget(name string, spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.org/v1", "kind": "Gadget",
		"metadata": map[string]any{"name": name}, "spec": spec}}
}

func (r *running) objects(t *testing.T) dynamic.Interface {
	t.Helper()
	c := r.ClientConfig("admin", user.SystemPrivilegedGroup)
	c.ContentConfig = restclient.ContentConfig{}
	d, err := dynamic.NewForConfig(c)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func (r *running) definitions(t *testing.T) apiextensionsclient.Interface {
	t.Helper()
	c, err := apiextensionsclient.NewForConfig(r.ClientConfig("admin", user.SystemPrivilegedGroup))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// establish stores a definition and returns when it is served.
func (r *running) establish(t *testing.T, d *apiextensionsv1.CustomResourceDefinition) {
	t.Helper()
	c := r.definitions(t).ApiextensionsV1().CustomResourceDefinitions()
	made, err := c.Create(t.Context(), d, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := c.Watch(t.Context(),
		metav1.ListOptions{ResourceVersion: made.ResourceVersion,
			FieldSelector: fields.OneTermEqualSelector("metadata.name", d.Name).String()})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		for _, c := range e.Object.(*apiextensionsv1.CustomResourceDefinition).Status.Conditions {
			if c.Type == apiextensionsv1.Established && c.Status == apiextensionsv1.ConditionTrue {
				return
			}
		}
	}
	t.Fatal("the watch ended before the definition was established")
}

func (r *running) get(t *testing.T, path, accept string) (int, []byte) {
	t.Helper()
	c, err := restclient.HTTPClientFor(r.ClientConfig("admin", user.SystemPrivilegedGroup))
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://carob.invalid"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", accept)
	res, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, b
}

func TestCustomResources(t *testing.T) {
	dir := t.TempDir()
	r := start(t, dir)
	ctx := t.Context()
	if code, _ := r.get(t, "/apis/example.org/v1/gadgets", "application/json"); code != http.StatusNotFound {
		t.Errorf("an undefined kind: %d", code)
	}
	// Clients that wait for a condition, such as `kubectl wait`, need a list from the start.
	fresh, err := runtime.DefaultUnstructuredConverter.ToUnstructured(gadgets())
	if err != nil {
		t.Fatal(err)
	}
	fresh["apiVersion"], fresh["kind"] = apiextensionsv1.SchemeGroupVersion.String(), "CustomResourceDefinition"
	tried, err := r.objects(t).Resource(
		apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions")).Create(ctx,
		&unstructured.Unstructured{Object: fresh}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		t.Fatal(err)
	}
	if c, ok, err := unstructured.NestedSlice(tried.Object, "status", "conditions"); !ok || err != nil || c == nil {
		t.Errorf("a new definition's conditions: %v, %v", c, err)
	}
	r.establish(t, gadgets())
	objects := r.objects(t).Resource(gadgetResource).Namespace("default")
	made, err := objects.Create(ctx, gadget("one", map[string]any{"color": "red", "weight": int64(9)}),
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	spec := made.Object["spec"].(map[string]any)
	if spec["size"] != int64(3) || spec["weight"] != nil {
		t.Errorf("defaulted and pruned: %v", spec)
	}
	if made.GetGeneration() != 1 || made.GetUID() == "" {
		t.Errorf("metadata: %v", made.Object["metadata"])
	}
	_, err = objects.Create(ctx, gadget("big", map[string]any{"size": int64(9), "limit": int64(5)}),
		metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "size must not exceed limit") {
		t.Errorf("the rule: %v", err)
	}
	if _, err := objects.Create(ctx, gadget("two", map[string]any{"color": "blue"}),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	list, err := objects.List(ctx, metav1.ListOptions{FieldSelector: "spec.color=blue"})
	if err != nil || len(list.Items) != 1 || list.Items[0].GetName() != "two" {
		t.Errorf("selected by field: %v, %v", list, err)
	}
	applied, err := objects.Apply(ctx, "one", gadget("one", map[string]any{"color": "green"}),
		metav1.ApplyOptions{FieldManager: "someone", Force: true})
	if err != nil || applied.Object["spec"].(map[string]any)["color"] != "green" {
		t.Errorf("applied: %v, %v", applied, err)
	}
	if _, err = objects.Patch(ctx, "one", "application/merge-patch+json",
		[]byte(`{"status":{"size":2},"spec":{"color":"black"}}`), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	scale, err := objects.Get(ctx, "one", metav1.GetOptions{}, "scale")
	if err != nil || scale.Object["status"].(map[string]any)["replicas"] != int64(2) ||
		scale.Object["spec"].(map[string]any)["replicas"] != int64(3) {
		t.Errorf("scale: %v, %v", scale, err)
	}
	code, body := r.get(t, "/apis/example.org/v1/namespaces/default/gadgets",
		"application/json;as=Table;v=v1;g=meta.k8s.io")
	if code != http.StatusOK || !strings.Contains(string(body), `"green"`) ||
		!strings.Contains(string(body), `"Color"`) {
		t.Errorf("table: %d %s", code, body)
	}

	t.Run("discovery", func(t *testing.T) { testCustomDiscovery(t, r) })
	t.Run("documents", func(t *testing.T) { testCustomDocuments(t, r) })

	r.stop()
	r = start(t, dir)
	got, err := r.objects(t).Resource(gadgetResource).Namespace("default").Get(ctx, "one", metav1.GetOptions{})
	if err != nil || got.Object["spec"].(map[string]any)["color"] != "green" {
		t.Fatalf("after a restart: %v, %v", got, err)
	}
	// Deleting the definition deletes the objects, and then both groups disappear.
	definitions := r.definitions(t).ApiextensionsV1().CustomResourceDefinitions()
	w, err := definitions.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := definitions.Delete(ctx, "gadgets.example.org", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for e := range w.ResultChan() {
		if e.Type == watch.Deleted {
			break
		}
	}
	if _, err := r.objects(t).Resource(gadgetResource).Namespace("default").Get(ctx, "one",
		metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("after the definition: %v", err)
	}
}

func testCustomDiscovery(t *testing.T, r *running) {
	d := r.admin(t).Discovery()
	list, err := d.ServerResourcesForGroupVersion("example.org/v1")
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, x := range list.APIResources {
		names[x.Name] = true
	}
	if !names["gadgets"] || !names["gadgets/status"] || !names["gadgets/scale"] {
		t.Errorf("resources: %v", names)
	}
	for path, want := range map[string]string{"/apis": "example.org", "/apis/example.org": "example.org/v1",
		"/apis/apiextensions.k8s.io/v1": "customresourcedefinitions"} {
		if code, body := r.get(t, path, "application/json"); code != http.StatusOK ||
			!strings.Contains(string(body), want) {
			t.Errorf("%s: %d without %s", path, code, want)
		}
	}
	if _, body := r.get(t, "/apis",
		"application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"); !strings.Contains(string(body),
		`"Gadget"`) {
		t.Error("the aggregated document lacks the custom kind")
	}
}

func testCustomDocuments(t *testing.T, r *running) {
	var index struct {
		Paths map[string]struct{ ServerRelativeURL string }
	}
	_, body := r.get(t, "/openapi/v3", "application/json")
	if err := json.Unmarshal(body, &index); err != nil {
		t.Fatal(err)
	}
	p := index.Paths["apis/example.org/v1"].ServerRelativeURL
	if p == "" || index.Paths["api/v1"].ServerRelativeURL == "" {
		t.Fatalf("index: %v", index.Paths)
	}
	for _, accept := range []string{"application/json", "application/com.github.proto-openapi.spec.v3.v1.0+protobuf"} {
		if code, body := r.get(t, p, accept); code != http.StatusOK ||
			!strings.Contains(string(body), "org.example.v1.Gadget") {
			t.Errorf("v3 as %s: %d", accept, code)
		}
	}
	var v2 struct{ Definitions, Paths map[string]any }
	_, body = r.get(t, "/openapi/v2", "application/json")
	if err := json.Unmarshal(body, &v2); err != nil {
		t.Fatal(err)
	}
	if v2.Definitions["org.example.v1.Gadget"] == nil || v2.Definitions["io.k8s.api.core.v1.Pod"] == nil ||
		v2.Paths["/apis/example.org/v1/namespaces/{namespace}/gadgets"] == nil {
		t.Errorf("v2: %d definitions, %d paths", len(v2.Definitions), len(v2.Paths))
	}
}

// reviewer is an admission webhook: it adds a label, or rejects objects with the label "refuse".
func reviewer(t *testing.T) (url string, ca []byte) {
	t.Helper()
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(q.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		var o metav1.PartialObjectMetadata
		if err := json.Unmarshal(review.Request.Object.Raw, &o); err != nil || o.Kind == "" {
			http.Error(w, fmt.Sprint("no object: ", err, string(review.Request.Object.Raw)), http.StatusBadRequest)
			return
		}
		answer := &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: o.Labels["refuse"] == ""}
		if q.URL.Path == "/mutate" {
			patch := admissionv1.PatchTypeJSONPatch
			answer.Patch,
				answer.PatchType = []byte(`[{"op":"add","path":"/metadata/labels","value":{"seen":"`+
				strings.ToLower(o.Kind)+`"}}]`), &patch
		} else if !answer.Allowed {
			answer.Result = &metav1.Status{Message: "the label says so"}
		}
		review.Response, review.Request = answer, nil
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(s.Close)
	return s.URL, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
}

func TestWebhooks(t *testing.T) {
	r := start(t, t.TempDir())
	ctx, c := t.Context(), r.admin(t)
	url, ca := reviewer(t)
	rules := []admissionregistrationv1.RuleWithOperations{{Operations: []admissionregistrationv1.OperationType{
		"CREATE"},
		Rule: admissionregistrationv1.Rule{APIGroups: []string{"", "example.org"}, APIVersions: []string{"v1"},
			Resources: []string{"configmaps", "gadgets"}}}}
	none := admissionregistrationv1.SideEffectClassNone
	client := func(path string) admissionregistrationv1.WebhookClientConfig {
		u := url + path
		return admissionregistrationv1.WebhookClientConfig{URL: &u, CABundle: ca}
	}
	if _, err := c.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(ctx,
		&admissionregistrationv1.MutatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: "labels"},
			Webhooks: []admissionregistrationv1.MutatingWebhook{{Name: "labels.example.org", Rules: rules,
				SideEffects:             &none,
				AdmissionReviewVersions: []string{"v1"}, ClientConfig: client("/mutate"),
				MatchConditions: []admissionregistrationv1.MatchCondition{{Name: "plain",
					Expression: "!has(object.metadata.labels)"}}}}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "the mutating webhook", func() error {
		m, err := c.CoreV1().ConfigMaps("default").Create(ctx,
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "m-"}}, metav1.CreateOptions{})
		if err == nil && m.Labels["seen"] != "configmap" {
			err = fmt.Errorf("labels %v", m.Labels)
		}
		return err
	})
	if _, err := c.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(ctx,
		&admissionregistrationv1.ValidatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: "refusals"},
			Webhooks: []admissionregistrationv1.ValidatingWebhook{{Name: "refusals.example.org", Rules: rules,
				SideEffects:             &none,
				AdmissionReviewVersions: []string{"v1"}, ClientConfig: client("/validate")}}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "the validating webhook", func() error {
		_, err := c.CoreV1().ConfigMaps("default").Create(ctx,
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "v-",
				Labels: map[string]string{"refuse": "yes"}}}, metav1.CreateOptions{})
		if err == nil || !strings.Contains(err.Error(), "the label says so") {
			return fmt.Errorf("not refused: %w", err)
		}
		return nil
	})
	r.establish(t, gadgets())
	made, err := r.objects(t).Resource(gadgetResource).Namespace("default").Create(ctx,
		gadget("hooked", map[string]any{}), metav1.CreateOptions{})
	if err != nil || made.GetLabels()["seen"] != "gadget" {
		t.Errorf("a custom resource: %v, %v", made, err)
	}
}

func TestAdmissionPolicies(t *testing.T) {
	r := start(t, t.TempDir())
	ctx, c := t.Context(), r.admin(t)
	match := &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{
		{RuleWithOperations: admissionregistrationv1.RuleWithOperations{
			Operations: []admissionregistrationv1.OperationType{"CREATE", "UPDATE"},
			Rule: admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"},
				Resources: []string{"configmaps"}}}}}}
	policies := c.AdmissionregistrationV1().ValidatingAdmissionPolicies()
	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "small"},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: match,
			Variables: []admissionregistrationv1.Variable{{Name: "n",
				Expression: "has(object.data) ? object.data.size() : 0"}},
			Validations: []admissionregistrationv1.Validation{{Expression: "variables.n < 2",
				MessageExpression: "'too many keys: ' + string(variables.n)"}}}}
	bad := policy.DeepCopy()
	bad.Spec.Validations[0].Expression = "variables.m < 2"
	if _, err := policies.Create(ctx, bad, metav1.CreateOptions{}); !apierrors.IsInvalid(err) ||
		!strings.Contains(err.Error(), "spec.validations[0].expression") {
		t.Errorf("an expression that does not compile: %v", err)
	}
	policy.Spec.Validations = append(policy.Spec.Validations,
		admissionregistrationv1.Validation{Expression: "object.data.size() == object.metadata.generation || true"})
	if _, err := policies.Create(ctx, policy, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Create(ctx,
		&admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: "small"},
			Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: "small",
				ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny}}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "the validating policy", func() error {
		_, err := c.CoreV1().ConfigMaps("default").Create(ctx,
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "p-"},
				Data: map[string]string{"a": "", "b": ""}}, metav1.CreateOptions{})
		if err == nil || !strings.Contains(err.Error(), "too many keys: 2") {
			return fmt.Errorf("not refused: %w", err)
		}
		return nil
	})
	testwait.Until(t, "the type check", func() error {
		p, err := policies.Get(ctx, "small", metav1.GetOptions{})
		if err == nil && p.Status.ObservedGeneration != p.Generation {
			err = fmt.Errorf("generation %d, status %+v", p.Generation, p.Status)
		}
		return err
	})
	mutation := &admissionregistrationv1.MutatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "owner"},
		Spec: admissionregistrationv1.MutatingAdmissionPolicySpec{
			MatchConstraints: match, ReinvocationPolicy: admissionregistrationv1.NeverReinvocationPolicy,
			Mutations: []admissionregistrationv1.Mutation{{
				PatchType: admissionregistrationv1.PatchTypeApplyConfiguration,
				ApplyConfiguration: &admissionregistrationv1.ApplyConfiguration{
					Expression: `Object{metadata: Object.metadata{labels: {"owner": request.userInfo.username}}}`}}}}}
	if _, err := c.AdmissionregistrationV1().MutatingAdmissionPolicies().Create(ctx, mutation,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.AdmissionregistrationV1().MutatingAdmissionPolicyBindings().Create(ctx,
		&admissionregistrationv1.MutatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: "owner"},
			Spec: admissionregistrationv1.MutatingAdmissionPolicyBindingSpec{PolicyName: "owner"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "the mutating policy", func() error {
		m, err := c.CoreV1().ConfigMaps("default").Create(ctx,
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "o-"}}, metav1.CreateOptions{})
		if err == nil && m.Labels["owner"] != "admin" {
			err = fmt.Errorf("labels %v", m.Labels)
		}
		return err
	})
}

// Objects of the built-in configuration are created again, and responses over the network have the
// headers of their flow schema.
func TestFlowControl(t *testing.T) {
	r := start(t, t.TempDir())
	ctx, c := t.Context(), r.admin(t)
	fixed := func() error {
		_, err := c.FlowcontrolV1().FlowSchemas().Get(ctx, "catch-all", metav1.GetOptions{})
		return err
	}
	testwait.Until(t, "the built-in objects", fixed)
	testwait.Until(t, "a sorted request", func() error {
		res := r.remote(t, r.pki.Admin.Pair()).CoreV1().RESTClient().Get().AbsPath("/api/v1/namespaces").Do(ctx)
		if err := res.Error(); err != nil {
			return err
		}
		var code int
		res.StatusCode(&code)
		if code != http.StatusOK {
			return fmt.Errorf("status %d", code)
		}
		if r.ext.flow.Active() {
			return nil
		}
		return fmt.Errorf("not sorted yet")
	})
	for dump, want := range map[string]string{"dump_priority_levels": "PriorityLevelName, ActiveQueues",
		"dump_queues": "PriorityLevelName, Index", "dump_requests": "FlowSchemaName"} {
		if code, body := r.get(t, flow.DebugPath+dump, "*/*"); code != http.StatusOK ||
			!strings.Contains(string(body), want) {
			t.Errorf("%s: %d %s", dump, code, body)
		}
	}
	if err := c.FlowcontrolV1().FlowSchemas().Delete(ctx, "catch-all", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "the deleted object", fixed)
	made, err := c.FlowcontrolV1().PriorityLevelConfigurations().Create(ctx,
		&flowcontrolv1.PriorityLevelConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "mine"},
			Spec: flowcontrolv1.PriorityLevelConfigurationSpec{Type: flowcontrolv1.PriorityLevelEnablementLimited,
				Limited: &flowcontrolv1.LimitedPriorityLevelConfiguration{
					LimitResponse: flowcontrolv1.LimitResponse{Type: flowcontrolv1.LimitResponseTypeQueue,
						Queuing: &flowcontrolv1.QueuingConfiguration{}}}}}, metav1.CreateOptions{})
	if err != nil || *made.Spec.Limited.NominalConcurrencyShares != 30 ||
		made.Spec.Limited.LimitResponse.Queuing.Queues != 64 {
		t.Errorf("a level of one's own: %+v, %v", made, err)
	}
	if _, err := c.FlowcontrolV1().FlowSchemas().Create(ctx,
		&flowcontrolv1.FlowSchema{ObjectMeta: metav1.ObjectMeta{Name: "greedy"},
			Spec: flowcontrolv1.FlowSchemaSpec{MatchingPrecedence: 1}},
		metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("the first place is taken: %v", err)
	}
}

// An aggregated API server gets the user's name.
func TestAggregation(t *testing.T) {
	r := start(t, t.TempDir())
	ctx, c := t.Context(), r.admin(t)
	foreign := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch q.URL.Path {
		case "/apis/far.example.org/v1":
			fmt.Fprint(w,
				`{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"far.example.org/v1","resources":[{"name":"things","singularName":"thing","namespaced":true,"kind":"Thing","verbs":["get","list"]}]}`)
		case "/openapi/v3":
			fmt.Fprint(w,
				`{"paths":{"apis/far.example.org/v1":{"serverRelativeURL":"/openapi/v3/apis/far.example.org/v1?hash=AB"}}}`)
		case "/openapi/v2":
			w.Header().Set("Etag", `"tag"`)
			fmt.Fprint(w, `{"swagger":"2.0","definitions":{"org.example.far.v1.Thing":{"type":"object"}},"paths":{}}`)
		default:
			fmt.Fprintf(w, `{"user":%q,"groups":%q,"path":%q}`, q.Header.Get("X-Remote-User"),
				q.Header["X-Remote-Group"], q.URL.Path)
		}
	}))
	defer foreign.Close()
	_, portText, err := net.SplitHostPort(foreign.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.ParseInt(portText, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	services, err := apiregistrationclient.NewForConfig(r.ClientConfig("admin", user.SystemPrivilegedGroup))
	if err != nil {
		t.Fatal(err)
	}
	a := &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: "v1.far.example.org"},
		Spec: apiregistrationv1.APIServiceSpec{Group: "far.example.org", Version: "v1",
			GroupPriorityMinimum: 100, VersionPriority: 10, InsecureSkipTLSVerify: true,
			Service: &apiregistrationv1.ServiceReference{Namespace: "default", Name: "far", Port: new(int32(port))}}}
	if _, err := services.ApiregistrationV1().APIServices().Create(ctx, a, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	available := func(want apiregistrationv1.ConditionStatus) {
		t.Helper()
		testwait.Until(t, "available is "+string(want), func() error {
			o, err := services.ApiregistrationV1().APIServices().Get(ctx, a.Name, metav1.GetOptions{})
			if err == nil && (len(o.Status.Conditions) != 1 || o.Status.Conditions[0].Status != want) {
				err = fmt.Errorf("conditions %v", o.Status.Conditions)
			}
			return err
		})
	}
	available(apiregistrationv1.ConditionFalse) // the service does not exist
	if code, _ := r.get(t, "/apis/far.example.org/v1/things",
		"application/json"); code != http.StatusServiceUnavailable {
		t.Errorf("away: %d", code)
	}
	// An endpoint slice cannot contain a loopback address; an external name can lead there.
	if _, err := c.CoreV1().Services("default").Create(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "far"},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	available(apiregistrationv1.ConditionTrue)
	code, body := r.get(t, "/apis/far.example.org/v1/namespaces/x/things/one", "application/json")
	if code != http.StatusOK || !strings.Contains(string(body), `"user":"admin"`) ||
		!strings.Contains(string(body), "system:masters") {
		t.Errorf("passed on: %d %s", code, body)
	}
	for path, want := range map[string]string{"/apis": "far.example.org", "/apis/far.example.org": "far.example.org/v1",
		"/openapi/v3": "apis/far.example.org/v1", "/openapi/v2": "org.example.far.v1.Thing"} {
		if code, body := r.get(t, path, "application/json"); code != http.StatusOK ||
			!strings.Contains(string(body), want) {
			t.Errorf("%s: %d without %s", path, code, want)
		}
	}
	if _, body := r.get(t, "/apis",
		"application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"); !strings.Contains(string(body),
		`"Thing"`) {
		t.Error("the aggregated document lacks the aggregated kind")
	}
	testwait.Until(t, "local API services", func() error {
		o, err := services.ApiregistrationV1().APIServices().Get(ctx, "v1.apps", metav1.GetOptions{})
		if err == nil && o.Spec.GroupPriorityMinimum != 17800 {
			err = fmt.Errorf("spec %v", o.Spec)
		}
		return err
	})
	if err := services.ApiregistrationV1().APIServices().Delete(ctx, a.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if code, _ := r.get(t, "/apis/far.example.org/v1/things", "application/json"); code != http.StatusNotFound {
		t.Errorf("removed: %d", code)
	}
}

// Secrets are unreadable in the engine, and readable through the API after a restart; the audit log
// says who read them.
func TestEncryptionAndAudit(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		f := filepath.Join(dir, name)
		if err := os.WriteFile(f, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return f
	}
	encryption := write("encryption.yaml", `apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets, "gadgets.example.org"]
  providers:
  - secretbox: {keys: [{name: k1, secret: `+base64.StdEncoding.EncodeToString(make([]byte, 32))+`}]}
  - identity: {}
`)
	log := filepath.Join(dir, "audit.log")
	policy := write("policy.yaml",
		"apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n- {level: RequestResponse, users: [kubernetes-admin], resources: [{group: \"\", resources: [secrets]}]}\n- {level: None}\n")
	begin := func() *running {
		cfg := newConfig(t, filepath.Join(dir, "data"))
		cfg.EncryptionConfig, cfg.Audit = encryption, audit.Config{PolicyFile: policy, LogPath: log}
		return startWith(t, cfg)
	}
	ctx := t.Context()
	r := begin()
	c := r.remote(t, r.pki.Admin.Pair())
	if _, err := c.CoreV1().Secrets("default").Create(ctx,
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "hidden"},
			StringData: map[string]string{"word": "opensesame"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	kept, err := r.engine.Client.Client.Get(ctx, "/registry/secrets/default/hidden")
	if err != nil || len(kept.Kvs) != 1 || !strings.HasPrefix(string(kept.Kvs[0].Value), "k8s:enc:secretbox:v1:k1:") ||
		strings.Contains(string(kept.Kvs[0].Value), "opensesame") {
		t.Errorf("kept: %q, %v", kept.Kvs, err)
	}
	r.stop()
	r = begin()
	got, err := r.admin(t).CoreV1().Secrets("default").Get(ctx, "hidden", metav1.GetOptions{})
	if err != nil || string(got.Data["word"]) != "opensesame" {
		t.Errorf("read again: %v, %v", got, err)
	}
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	var event auditv1.Event
	if err := json.Unmarshal([]byte(lines[0]), &event); err != nil || len(lines) != 1 || event.Verb != "create" ||
		event.User.Username != "kubernetes-admin" || event.ObjectRef.Resource != "secrets" ||
		event.ResponseStatus.Code != http.StatusCreated || event.ResponseObject == nil {
		t.Errorf("recorded: %v\n%s", err, text)
	}
	if _, err := audit.New(audit.Config{LogPath: log}); err == nil {
		t.Error("a log without a policy is accepted")
	}
}

// The server uses the authentication configuration file, and does not start with an invalid one.
func TestAuthenticationConfig(t *testing.T) {
	cfg := newConfig(t, t.TempDir())
	cfg.AuthenticationConfig = filepath.Join(t.TempDir(), "authentication.yaml")
	write := func(text string) {
		if err := os.WriteFile(cfg.AuthenticationConfig,
			[]byte("apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n"+text),
			0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("anonymous: {enabled: true, conditions: [{path: /livez}]}\n")
	r := startWith(t, cfg)
	get := func(path string) int {
		tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: r.pki.Pool}}
		defer tr.CloseIdleConnections()
		resp, err := (&http.Client{Transport: tr}).Get("https://" + r.cfg.Listener.Addr().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	if live, ready := get("/livez"), get("/readyz"); live != http.StatusOK || ready != http.StatusUnauthorized {
		t.Errorf("anonymous: /livez %d, /readyz %d", live, ready)
	}
	r.stop()
	cfg = newConfig(t, t.TempDir())
	cfg.AuthenticationConfig = r.cfg.AuthenticationConfig
	write("anonymous: {enabled: false, conditions: [{path: /livez}]}\n")
	if _, err := New(t.Context(), cfg); !errkind.Is(err, errkind.Invalid) ||
		!strings.Contains(err.Error(), cfg.AuthenticationConfig) {
		t.Errorf("started with a bad file: %v", err)
	}
}
