package apiserver

import (
	"encoding/json"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// An apply that changes nothing writes nothing, also where a value with defaults belongs to its manager as a whole and
// is therefore sent without them. Tools that apply again and again depend on it (kubectl, Flux, Argo CD). The time of
// the manager's entry is set back, so that this is seen although all happens within one second.
func testRepeatedApply(t *testing.T, r *running) {
	const template = `"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{
		"containers":[{"name":"c","image":"i","ports":[{"containerPort":80}],
		"env":[{"name":"E","valueFrom":{"fieldRef":{"fieldPath":"metadata.name"}}}]}]}}`
	client := r.admin(t).AppsV1().RESTClient()
	for _, kind := range []struct{ path, body string }{
		{"/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations", `{
			"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingWebhookConfiguration","webhooks":[{
			"name":"a.b.c","admissionReviewVersions":["v1"],"sideEffects":"None","clientConfig":{"url":"https://a.b/c"},
			"rules":[{"apiGroups":["q.example.com"],"apiVersions":["v1"],"operations":["CREATE"],"resources":["x"]}]}]`},
		{"/apis/networking.k8s.io/v1/namespaces/default/networkpolicies", `{
			"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","spec":{"podSelector":{"matchLabels":{"a":"b"}},
			"ingress":[{"ports":[{"port":80}]}]}`},
		{"/apis/apps/v1/namespaces/default/deployments", `{
			"apiVersion":"apps/v1","kind":"Deployment","spec":{"replicas":0,` + template + `}`},
		{"/apis/apps/v1/namespaces/default/statefulsets", `{
			"apiVersion":"apps/v1","kind":"StatefulSet","spec":{"replicas":0,"volumeClaimTemplates":[{
			"metadata":{"name":"v"},"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}}],` +
			template + `}`},
		{"/apis/rbac.authorization.k8s.io/v1/clusterroles", `{
			"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","rules":[
			{"apiGroups":[""],"resources":["pods"],"verbs":["get"]}]`},
	} {
		send := func(format types.PatchType, body string) *metav1.PartialObjectMetadata {
			t.Helper()
			text, err := client.Patch(format).AbsPath(kind.path, "repeated").Param("fieldManager", "m").
				SetHeader("Accept", "application/json").Body([]byte(body)).DoRaw(t.Context())
			if err != nil {
				t.Fatalf("%s: %v: %s", kind.path, err, text)
			}
			o := &metav1.PartialObjectMetadata{}
			if err := json.Unmarshal(text, o); err != nil {
				t.Fatal(err)
			}
			return o
		}
		body := kind.body + `,"metadata":{"name":"repeated"}}`
		send(types.ApplyPatchType, body)
		old := send(types.JSONPatchType,
			`[{"op":"replace","path":"/metadata/managedFields/0/time","value":"2020-01-01T00:00:00Z"},
			{"op":"add","path":"/metadata/labels","value":{"other":"change"}}]`)
		if at := old.ManagedFields[0].Time; at == nil || at.Year() != 2020 {
			t.Fatalf("%s: the entry is of %v", kind.path, at)
		}
		if again := send(types.ApplyPatchType, body); again.ResourceVersion != old.ResourceVersion {
			t.Errorf("%s: version %s became %s by the same apply, entry of %v", kind.path, old.ResourceVersion,
				again.ResourceVersion, again.ManagedFields[0].Time)
		}
	}
}
