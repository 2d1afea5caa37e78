package apiserver

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
)

// Behaviour common to all kinds, by the concepts page "API concepts" of the Kubernetes
// documentation.
func TestMachinery(t *testing.T) {
	r := start(t, t.TempDir())
	if _, err := r.admin(t).CoreV1().ServiceAccounts("default").Create(t.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]func(*testing.T, *running){
		"version match":    testVersionMatch,
		"read after write": testReadAfterWrite,
		"watch list":       testWatchList,
		"patch types":      testPatchTypes,
		"apply":            testApplyConflicts,
		"repeated apply":   testRepeatedApply,
		"dry run":          testDryRunEverywhere,
		"immutable secret": testImmutableSecret,
		"preconditions":    testPreconditions,
		"warnings":         testWarnings,
		"discovery":        testAggregatedDiscovery,
		"CEL cost":         testExpensiveRule,
		"conversion":       testConversion,
		"odd bytes":        testOddBytes,
		"huge bodies":      testHugeBodies,
		"field validation": testFieldValidation,
		"many managers":    testManyManagers,
		"name collisions":  testNameCollisions,
		"long addresses":   testLongAddresses,
		"answers":          testAnswers,
		"zero copy":        testZeroCopy,
	} {
		t.Run(name, func(t *testing.T) { test(t, r) })
	}
	// It makes old versions unreadable.
	t.Run("continue", func(t *testing.T) { testContinueAfterCompaction(t, r) })
}

func config(name string, data map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name,
		Labels: map[string]string{"of": strings.TrimRight(name, "0123456789")}}, Data: data}
}

// createConfig stores a config map and returns it.
func createConfig(t *testing.T, c kubernetes.Interface, name string, data map[string]string) *corev1.ConfigMap {
	t.Helper()
	m, err := c.CoreV1().ConfigMaps("default").Create(t.Context(), config(name, data), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// A list of events, which have no cache, continues with an inconsistent token when its version is
// compacted. A kind with a cache continues consistently. A watch from that version gets 410 Gone.
func testContinueAfterCompaction(t *testing.T, r *running) {
	ctx, maps, events := t.Context(), r.admin(t).CoreV1().ConfigMaps("default"), r.admin(t).CoreV1().Events("default")
	add := func(i int) {
		createConfig(t, r.admin(t), fmt.Sprint("page", i), nil)
		if _, err := events.Create(ctx,
			&corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("page", i),
				Labels: map[string]string{"of": "page"}},
				InvolvedObject: corev1.ObjectReference{Namespace: "default"}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 5 {
		add(i)
	}
	page := metav1.ListOptions{Limit: 2, LabelSelector: "of=page"}
	cached, err := maps.List(ctx, page)
	if err != nil || len(cached.Items) != 2 || cached.Continue == "" {
		t.Fatalf("%d items, continue %q, %v", len(cached.Items), cached.Continue, err)
	}
	first, err := events.List(ctx, page)
	if err != nil || len(first.Items) != 2 || first.Continue == "" {
		t.Fatalf("%d items, continue %q, %v", len(first.Items), first.Continue, err)
	}
	add(9)
	if _, err := r.engine.Client.Compact(ctx, revision(t, r)); err != nil {
		t.Fatal(err)
	}
	page.Continue, page.Limit = cached.Continue, 0
	rest, err := maps.List(ctx, page)
	if err != nil || len(rest.Items) != 3 || rest.ResourceVersion != cached.ResourceVersion {
		t.Errorf("the rest of config maps: %d items of version %s, %v", len(rest.Items), rest.ResourceVersion, err)
	}
	page.Continue, page.Limit = first.Continue, 2
	_, err = events.List(ctx, page)
	if !apierrors.IsResourceExpired(err) || !strings.Contains(err.Error(), "inconsistent list") {
		t.Fatalf("a token of a version that is gone: %v", err)
	}
	page.Continue = err.(apierrors.APIStatus).Status().Continue
	var names []string
	for page.Continue != "" {
		rest, err := events.List(ctx, page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range rest.Items {
			names = append(names, m.Name)
		}
		page.Continue = rest.Continue
	}
	if fmt.Sprint(names) != "[page2 page3 page4 page9]" {
		t.Errorf("the rest is %v", names)
	}
	if _, err := events.List(ctx,
		metav1.ListOptions{ResourceVersion: first.ResourceVersion,
			ResourceVersionMatch: metav1.ResourceVersionMatchExact}); !apierrors.IsResourceExpired(err) {
		t.Errorf("an exact version that is gone: %v", err)
	}
	for path, c := range map[string]func() (watch.Interface, error){
		"events": func() (watch.Interface, error) {
			return r.admin(t).CoreV1().Events("").Watch(ctx, metav1.ListOptions{ResourceVersion: "1"})
		},
		"configmaps": func() (watch.Interface, error) {
			return maps.Watch(ctx, metav1.ListOptions{ResourceVersion: "1"})
		},
	} {
		w, err := c()
		if err != nil {
			if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
				t.Errorf("%s: %v", path, err)
			}
			continue
		}
		e := <-w.ResultChan()
		if err := apierrors.FromObject(e.Object); e.Type != watch.Error || !apierrors.IsResourceExpired(err) &&
			!apierrors.IsGone(err) || !strings.Contains(err.Error(), "too old") &&
			!strings.Contains(err.Error(), "compacted") {
			t.Errorf("%s: %v %v", path, e.Type, err)
		}
		w.Stop()
	}
}

func testVersionMatch(t *testing.T, r *running) {
	ctx, maps := t.Context(), r.admin(t).CoreV1().ConfigMaps("default")
	m := createConfig(t, r.admin(t), "match", map[string]string{"n": "1"})
	old := m.ResourceVersion
	m.Data["n"] = "2"
	m, err := maps.Update(ctx, m, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	const exact, notOlder = metav1.ResourceVersionMatchExact, metav1.ResourceVersionMatchNotOlderThan
	for _, c := range []struct {
		version string
		match   metav1.ResourceVersionMatch
		limit   int64
		want    string // the value, or part of the error
	}{
		{"", "", 0, "2"}, {"0", "", 0, "2"}, {old, "", 0, "2"}, {old, notOlder, 0, "2"},
		{m.ResourceVersion, notOlder, 0, "2"}, {"0", notOlder, 0, "2"},
		{old, exact, 0, "1"}, {m.ResourceVersion, exact, 0, "2"}, {old, exact, 5, "1"},
		{"0", exact, 0, "resourceVersionMatch"}, {"", exact, 0, "resourceVersionMatch"},
		{"", notOlder, 0, "resourceVersionMatch"}, {old, "Sometimes", 0, "resourceVersionMatch"},
		{"-1", "", 0, "resource version"}, // TestBadInput covers a future version, which clients try again
	} {
		list, err := maps.List(ctx,
			metav1.ListOptions{LabelSelector: "of=match", ResourceVersion: c.version, ResourceVersionMatch: c.match,
				Limit: c.limit})
		switch {
		case err != nil:
			if len(c.want) == 1 || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%q %s: %v, want %q", c.version, c.match, err, c.want)
			}
		case len(list.Items) != 1 || list.Items[0].Data["n"] != c.want:
			t.Errorf("%q %s: %v, want %s", c.version, c.match, list.Items, c.want)
		case c.match == exact && list.ResourceVersion != c.version:
			t.Errorf("exactly %s: version %s", c.version, list.ResourceVersion)
		}
	}
}

// A list without a version shows every write that was acknowledged before, whatever serves it.
func testReadAfterWrite(t *testing.T, r *running) {
	ctx, c := t.Context(), r.remote(t, r.pki.Admin.Pair())
	w, err := c.AppsV1().Deployments("default").Watch(ctx, metav1.ListOptions{}) // creates the cache
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for i := range 30 {
		name := fmt.Sprint("fresh", i)
		createConfig(t, c, name, nil)
		if _, err := c.AppsV1().Deployments("default").Create(ctx, deployment(name),
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		list, err := c.CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{LabelSelector: "of=fresh"})
		if err != nil || len(list.Items) != i+1 {
			t.Fatalf("%d of %d config maps, %v", len(list.Items), i+1, err)
		}
		deployments, err := c.AppsV1().Deployments("default").List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if n := len(slices.DeleteFunc(deployments.Items,
			func(d appsv1.Deployment) bool { return !strings.HasPrefix(d.Name, "fresh") })); n != i+1 {
			t.Fatalf("%d of %d deployments", n, i+1)
		}
	}
}

func testWatchList(t *testing.T, r *running) {
	ctx, c := t.Context(), r.remote(t, r.pki.Admin.Pair())
	createConfig(t, c, "listed", nil)
	if _, err := c.CoreV1().ResourceQuotas("default").Create(ctx,
		&corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "listed"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.CoreV1().Events("default").Create(ctx,
		&corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "listed"},
			InvolvedObject: corev1.ObjectReference{Namespace: "default"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	begin := metav1.ListOptions{SendInitialEvents: new(true), AllowWatchBookmarks: true,
		ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan}
	for kind, start := range map[string]func(context.Context, metav1.ListOptions) (watch.Interface, error){
		"configmaps":     c.CoreV1().ConfigMaps("default").Watch,
		"resourcequotas": c.CoreV1().ResourceQuotas("default").Watch, "events": c.CoreV1().Events("default").Watch,
	} {
		w, err := start(ctx, begin)
		if err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
		found := false
		for e := range w.ResultChan() {
			m, ok := e.Object.(metav1.Object)
			if !ok {
				t.Fatalf("%s: %s %v", kind, e.Type, e.Object)
			}
			if e.Type == watch.Bookmark {
				if m.GetAnnotations()[metav1.InitialEventsAnnotationKey] != "true" || m.GetResourceVersion() == "" {
					t.Errorf("%s: bookmark %v", kind, e.Object)
				}
				break
			}
			found = found || e.Type == watch.Added && m.GetName() == "listed"
		}
		if !found {
			t.Errorf("%s: the bookmark came before the object", kind)
		}
		w.Stop()
		without := begin
		without.ResourceVersionMatch = ""
		if _, err := start(ctx, without); !apierrors.IsInvalid(err) {
			t.Errorf("%s: initial events without a match: %v", kind, err)
		}
	}
}

func testPatchTypes(t *testing.T, r *running) {
	createConfig(t, r.admin(t), "patched", map[string]string{"a": "1"})
	if _, err := r.admin(t).AppsV1().Deployments("default").Create(t.Context(), deployment("patched"),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	const path = "/api/v1/namespaces/default/configmaps/patched"
	const apply = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"patched"},"data":{"f":"6"}}`
	for _, c := range []struct {
		kind, path, body string
		status           int
		message          string
	}{
		{"application/json-patch+json", path,
			`[{"op":"test","path":"/data/a","value":"1"},{"op":"add","path":"/data/b","value":"2"}]`, 200, `"b":"2"`},
		{"application/json-patch+json", path,
			`[{"op":"test","path":"/data/a","value":"9"},{"op":"remove","path":"/data/b"}]`, 422, "Invalid"},
		{"application/json-patch+json", path, `[{"op":"remove","path":"/nothing/here"}]`, 422, "Invalid"},
		{"application/json-patch+json", path, `{"op":"add"}`, 400, "error decoding patch"},
		{"application/merge-patch+json", path, `{"data":{"c":"3","b":null}}`, 200, `"c":"3"`},
		{"application/merge-patch+json", path, `[]`, 400, ""},
		{"application/merge-patch+json", path, `{"metadata":{"resourceVersion":"1"}}`, 409,
			"the object has been modified"},
		{"application/merge-patch+json", path, `{"metadata":{"name":"other"}}`, 400, "does not match"},
		{"application/merge-patch+json", path, `{"metadata":{"uid":"other"}}`, 422, "metadata.uid: Invalid value"},
		{"application/merge-patch+json", path, `{"data":7}`, 422, "cannot unmarshal number"},
		{"application/strategic-merge-patch+json", path, `{"data":{"d":"4"}}`, 200, `"d":"4"`},
		{"application/strategic-merge-patch+json", "/apis/apps/v1/namespaces/default/deployments/patched",
			`{"spec":{"template":{"spec":{"containers":[{"name":"d","image":"j"}]}}}}`, 200, `"name":"c"`},
		{"application/strategic-merge-patch+json", "/apis/apps/v1/namespaces/default/deployments/patched",
			`{"spec":{"template":{"spec":{"containers":[{"name":"c","$patch":"delete"}]}}}}`, 200, `"name":"d"`},
		{"application/apply-patch+yaml", path + "?fieldManager=m", apply, 200, `"f":"6"`},
		{"application/apply-patch+yaml", path + "?fieldManager=m", "apiVersion: v1\nkind: ConfigMap\ndata: {a: b: c}",
			400, "yaml"},
		// upstream's gate for CBOR is off
		{"application/apply-patch+cbor", path + "?fieldManager=m", "\xa0", 415, "UnsupportedMediaType"},
		{"application/merge-patch+json; charset=utf-8", path, `{}`, 200, ""},
		{"text/plain", path, `{}`, 415, "UnsupportedMediaType"},
	} {
		status, text, _ := r.raw(t, "PATCH", c.path, map[string]string{"Content-Type": c.kind}, []byte(c.body))
		if status != c.status || !strings.Contains(text, c.message) {
			t.Errorf("%s %s: %d %.400s, want %d with %q", c.kind, c.body, status, text, c.status, c.message)
		}
	}
}

func testApplyConflicts(t *testing.T, r *running) {
	ctx, deployments := t.Context(), r.admin(t).AppsV1().Deployments("default")
	apply := func(manager string, force bool, replicas int, sub ...string) (*appsv1.Deployment, error) {
		d := deployment("contested")
		d.TypeMeta = metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"}
		text, err := runtime.DefaultUnstructuredConverter.ToUnstructured(d)
		if err != nil {
			t.Fatal(err)
		}
		text["spec"].(map[string]any)["replicas"] = replicas
		delete(text, "status")
		delete(text["metadata"].(map[string]any), "creationTimestamp")
		if len(sub) > 0 {
			text["status"] = map[string]any{"replicas": replicas}
			delete(text, "spec")
		}
		body, err := json.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		return deployments.Patch(ctx, "contested", types.ApplyPatchType, body,
			metav1.PatchOptions{FieldManager: manager, Force: &force}, sub...)
	}
	if _, err := apply("one", false, 1); err != nil {
		t.Fatal(err)
	}
	_, err := apply("two", false, 2)
	if !apierrors.IsConflict(err) || !strings.Contains(err.Error(), `conflict with "one"`) {
		t.Fatalf("another's field: %v", err)
	}
	if causes := err.(apierrors.APIStatus).Status().Details.Causes; len(causes) != 1 ||
		causes[0].Type != metav1.CauseTypeFieldManagerConflict || causes[0].Field != ".spec.replicas" {
		t.Errorf("causes %v", causes)
	}
	d, err := apply("two", true, 2)
	if err != nil || *d.Spec.Replicas != 2 {
		t.Fatalf("forced: %v", err)
	}
	if _, err := apply("three", false, 5, "status"); err != nil {
		t.Fatalf("the status: %v", err)
	}
	if d, err = deployments.Get(ctx, "contested", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	owners := map[string]string{}
	for _, m := range d.ManagedFields {
		owners[m.Manager+"/"+m.Subresource] = m.FieldsV1.GetRawString()
	}
	if strings.Contains(owners["one/"], "f:replicas") || !strings.Contains(owners["two/"], "f:replicas") ||
		!strings.Contains(owners["three/status"], "f:status") || strings.Contains(owners["three/status"], "f:spec") {
		t.Errorf("owners %v", owners)
	}
	// Scaling updates the field through a subresource.
	if _, err := deployments.UpdateScale(ctx, "contested",
		&autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Name: "contested"},
			Spec: autoscalingv1.ScaleSpec{Replicas: 4}}, metav1.UpdateOptions{FieldManager: "scaler"}); err != nil {
		t.Fatal(err)
	}
	if _, err := apply("two", false, 2); !apierrors.IsConflict(err) ||
		!strings.Contains(err.Error(), `"scaler" with subresource "scale"`) {
		t.Errorf("a field that was scaled: %v", err)
	}
}

// No request with dryRun=All changes stored objects.
func testDryRunEverywhere(t *testing.T, r *running) {
	ctx, c := t.Context(), r.admin(t)
	createConfig(t, c, "dry", map[string]string{"a": "1"})
	if _, err := c.AppsV1().Deployments("default").Create(ctx, deployment("dry"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "dry"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	if _, err := c.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	all := []string{metav1.DryRunAll}
	before := revision(t, r)
	created := metav1.CreateOptions{DryRun: all}
	gone := metav1.DeleteOptions{DryRun: all}
	changed := config("dry", map[string]string{"a": "2"})
	other := pod.DeepCopy()
	other.Name = "dry2"
	for what, try := range map[string]func() error{
		"create": func() error {
			return errOf(c.CoreV1().ConfigMaps("default").Create(ctx, config("dry2", nil), created))
		},
		"update": func() error {
			return errOf(c.CoreV1().ConfigMaps("default").Update(ctx, changed, metav1.UpdateOptions{DryRun: all}))
		},
		"patch": func() error {
			return errOf(c.CoreV1().ConfigMaps("default").Patch(ctx, "dry", types.MergePatchType,
				[]byte(`{"data":{"a":"3"}}`), metav1.PatchOptions{DryRun: all}))
		},
		"apply": func() error {
			return errOf(c.CoreV1().ConfigMaps("default").Patch(ctx, "dry3", types.ApplyPatchType,
				[]byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"dry3"}}`),
				metav1.PatchOptions{DryRun: all, FieldManager: "m"}))
		},
		"delete": func() error { return c.CoreV1().ConfigMaps("default").Delete(ctx, "dry", gone) },
		"delete collection": func() error {
			return c.CoreV1().ConfigMaps("default").DeleteCollection(ctx, gone, metav1.ListOptions{})
		},
		"status": func() error {
			return errOf(c.AppsV1().Deployments("default").Patch(ctx, "dry", types.MergePatchType,
				[]byte(`{"status":{"replicas":3}}`), metav1.PatchOptions{DryRun: all}, "status"))
		},
		"scale": func() error {
			return errOf(c.AppsV1().Deployments("default").UpdateScale(ctx, "dry",
				&autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Name: "dry"},
					Spec: autoscalingv1.ScaleSpec{Replicas: 4}}, metav1.UpdateOptions{DryRun: all}))
		},
		"pod":        func() error { return errOf(c.CoreV1().Pods("default").Create(ctx, other, created)) },
		"pod delete": func() error { return c.CoreV1().Pods("default").Delete(ctx, "dry", gone) },
		"evict": func() error {
			return c.CoreV1().Pods("default").EvictV1(ctx,
				&policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "dry"}, DeleteOptions: &gone})
		},
		"bind": func() error {
			return c.CoreV1().Pods("default").Bind(ctx,
				&corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "dry"},
					Target: corev1.ObjectReference{Kind: "Node", Name: "n"}}, created)
		},
		"ephemeral": func() error {
			return errOf(c.CoreV1().Pods("default").Patch(ctx, "dry", types.StrategicMergePatchType,
				[]byte(`{"spec":{"ephemeralContainers":[{"name":"e","image":"i"}]}}`), metav1.PatchOptions{DryRun: all},
				"ephemeralcontainers"))
		},
		"namespace": func() error {
			return errOf(c.CoreV1().Namespaces().Create(ctx,
				&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "dry"}}, created))
		},
		"namespace delete": func() error { return c.CoreV1().Namespaces().Delete(ctx, "kube-public", gone) },
		"service": func() error {
			return errOf(c.CoreV1().Services("default").Create(ctx,
				&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "dry9"},
					Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 1}}}},
				created))
		},
		"definition": func() error {
			return errOf(r.definitions(t).ApiextensionsV1().CustomResourceDefinitions().Create(ctx, gadgets(), created))
		},
	} {
		if err := try(); err != nil && !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, prefix := range []string{"configmaps/default/", "deployments/", "pods/", "namespaces/", "services/specs/",
		"ipaddresses/", "apiextensions.k8s.io/"} {
		got, err := r.engine.Client.KV.Get(ctx, "/registry/"+prefix, clientv3.WithPrefix(),
			clientv3.WithMinModRev(before+1), clientv3.WithKeysOnly())
		if err != nil {
			t.Fatal(err)
		}
		for _, kv := range got.Kvs {
			t.Errorf("%s was written", kv.Key)
		}
	}
	for name, get := range map[string]func() error{
		"config map": func() error {
			return errOf(c.CoreV1().ConfigMaps("default").Get(ctx, "dry", metav1.GetOptions{}))
		},
		"pod": func() error { return errOf(c.CoreV1().Pods("default").Get(ctx, "dry", metav1.GetOptions{})) },
		"namespace": func() error {
			return errOf(c.CoreV1().Namespaces().Get(ctx, "kube-public", metav1.GetOptions{}))
		},
	} {
		if err := get(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// revision is the engine's newest revision.
func revision(t *testing.T, r *running) int64 {
	t.Helper()
	got, err := r.engine.Client.KV.Get(t.Context(), "/none")
	if err != nil {
		t.Fatal(err)
	}
	return got.Header.Revision
}

func testImmutableSecret(t *testing.T, r *running) {
	ctx, secrets := t.Context(), r.admin(t).CoreV1().Secrets("default")
	if _, err := secrets.Create(ctx,
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "fixed"}, Immutable: new(true),
			StringData: map[string]string{"a": "b"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{`{"data":{"a":"AAAA"}}`, `{"stringData":{"a":"c"}}`, `{"immutable":false}`,
		`{"immutable":null}`, `{"type":"other"}`} {
		if _, err := secrets.Patch(ctx, "fixed", types.MergePatchType, []byte(p),
			metav1.PatchOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "immutable") {
			t.Errorf("%s: %v", p, err)
		}
	}
	if _, err := secrets.Patch(ctx, "fixed", types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`),
		metav1.PatchOptions{}); err != nil {
		t.Error(err)
	}
}

func testPreconditions(t *testing.T, r *running) {
	ctx, maps := t.Context(), r.admin(t).CoreV1().ConfigMaps("default")
	m := createConfig(t, r.admin(t), "guarded", nil)
	old := m.ResourceVersion
	m.Data = map[string]string{"a": "b"}
	m, err := maps.Update(ctx, m, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := maps.Delete(ctx, "guarded",
		metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &old}}); !apierrors.IsConflict(
		err) || !strings.Contains(err.Error(), "ResourceVersion") {
		t.Errorf("an old version: %v", err)
	}
	if err := maps.Delete(ctx, "guarded",
		metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: new(types.UID("x"))}}); !apierrors.IsConflict(
		err) || !strings.Contains(err.Error(), "UID") {
		t.Errorf("another UID: %v", err)
	}
	if err := maps.Delete(ctx, "guarded",
		metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletionPropagation("Sideways"))}); !apierrors.IsInvalid(
		err) {
		t.Errorf("a policy nobody knows: %v", err)
	}
	if err := maps.Delete(ctx, "guarded",
		metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &m.ResourceVersion,
			UID: &m.UID}}); err != nil {
		t.Errorf("the one that was meant: %v", err)
	}
}

func testWarnings(t *testing.T, r *running) {
	pod := `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"warned"},"spec":{"containers":[{"name":"c","image":"i","env":[{"name":"A","value":"1"},{"name":"A","value":"2"}]}]}}`
	_, _, warnings := r.raw(t, "POST", "/api/v1/namespaces/default/pods?dryRun=All", nil, []byte(pod))
	if len(warnings) != 1 || !strings.Contains(warnings[0],
		`299 - "spec.containers[0].env[1]: hides previous definition of \"A\"`) {
		t.Errorf("a name that comes twice: %q", warnings)
	}
}

func testAggregatedDiscovery(t *testing.T, r *running) {
	const accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	for path, want := range map[string][]string{"/api": {`"resource":"pods"`, `"shortNames":["po"]`,
		`"subresource":"status"`}, "/apis": {`"resource":"deployments"`, `"freshness":"Current"`, `"name":"apps"`}} {
		code, body := r.get(t, path, accept)
		for _, w := range append(want, `"kind":"APIGroupDiscoveryList"`) {
			if code != http.StatusOK || !strings.Contains(string(body), w) {
				t.Errorf("%s: %d, no %s in %.200s", path, code, w, body)
			}
		}
	}
}

// A rule that could run without end is rejected in the definition; one that does at run time ends
// the request.
func testExpensiveRule(t *testing.T, r *running) {
	d := gadgets()
	spec := d.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
	text := apiextensionsv1.JSONSchemaProps{Type: "array",
		Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &apiextensionsv1.JSONSchemaProps{Type: "string"}}}
	spec.Properties["list"] = text
	spec.XValidations = apiextensionsv1.ValidationRules{
		{Rule: "self.list.all(a, self.list.all(b, self.list.all(c, a + b != c)))"}}
	d.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"] = spec
	_, err := r.definitions(t).ApiextensionsV1().CustomResourceDefinitions().Create(t.Context(), d,
		metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "estimated rule cost exceeds budget") {
		t.Errorf("a rule of cubic cost: %v", err)
	}
}

// Bytes that are not valid UTF-8, and invalid names.
func testOddBytes(t *testing.T, r *running) {
	const path = "/api/v1/namespaces/default/configmaps"
	for _, c := range []struct {
		name, method, path, kind, body string
		status                         int
	}{
		{"invalid UTF-8 in a value", "POST", path, "application/json",
			`{"metadata":{"name":"odd1"},"data":{"a":"` + "\xff\xfe" + `"}}`, 201},
		{"NUL in a value", "POST", path, "application/json", `{"metadata":{"name":"odd2"},"data":{"a":"\u0000"}}`, 201},
		{"NUL in a name", "POST", path, "application/json", `{"metadata":{"name":"odd\u0000"}}`, 422},
		{"invalid UTF-8 in a name", "POST", path, "application/json", `{"metadata":{"name":"odd` + "\xff" + `"}}`, 422},
		{"control characters in a label", "POST", path, "application/json",
			`{"metadata":{"name":"odd","labels":{"a":"\u0007"}}}`, 422},
		{"a raw control character", "POST", path, "application/json", "{\"metadata\":{\"name\":\"o\x01dd\"}}", 400},
		{"YAML that is not text", "POST", path, "application/yaml", "a: \xff\xfe", 400},
		{"YAML bomb", "POST", path, "application/yaml", yamlBomb, 400},
		{"no protobuf", "POST", path, "application/vnd.kubernetes.protobuf", "garbage", 400},
		{"protobuf cut off", "POST", path, "application/vnd.kubernetes.protobuf",
			"k8s\x00\x0a\x04\x0a\x02v1\x12\xff\xff\xff\xff\x0f", 400},
		{"NUL in the address", "GET", path + "/a%00b", "application/json", "", 404},
		{"a way up in the address", "GET", path + "/..%2f..%2fsecrets", "application/json", "", 404},
		{"an odd namespace", "GET", "/api/v1/namespaces/%ff/configmaps", "application/json", "", 200},
		{"a long name", "GET", path + "/" + strings.Repeat("a", 5000), "application/json", "", 404},
		{"compressed without saying so", "POST", path, "application/json", "\x1f\x8b\x08\x00", 400},
		{"two objects", "POST", path, "application/json", `{"metadata":{"name":"odd3"}}{"metadata":{"name":"odd4"}}`,
			400},
		{"selector nested", "GET", path + "?labelSelector=" + url.QueryEscape(strings.Repeat("a in (", 5000)),
			"application/json", "", 400},
		{"field selector of 10,000 terms", "GET",
			path + "?fieldSelector=" + strings.Repeat("metadata.name%3Da,", 10000) + "metadata.name%3Da",
			"application/json", "", 200},
		{"half an address", "GET", "/api/v1/watch", "application/json", "", 404},
		{"half an address of a group", "GET", "/apis/apps/v1/watch", "application/json", "", 404},
		{"an object in a version that is none", "GET", path + "/odd1?resourceVersion=A", "application/json", "", 400},
		{"an event in a version that is none", "GET", "/api/v1/namespaces/default/events/e?resourceVersion=-1",
			"application/json", "", 400},
		{"a quota in a version that is none", "GET", "/api/v1/namespaces/default/resourcequotas/q?resourceVersion=1.5",
			"application/json", "", 400},
		{"a watch from a version that is none", "GET", "/api/v1/events?watch=1&resourceVersion=A", "application/json",
			"", 400},
		{"a cached watch from a version that is none", "GET", path + "?watch=1&resourceVersion=A", "application/json",
			"", 400},
		{"a watch of quotas from a version that is none", "GET", "/api/v1/resourcequotas?watch=1&resourceVersion=A",
			"application/json", "", 400},
		{"huge limit", "GET", path + "?limit=99999999999999999999", "application/json", "", 400},
		{"negative limit", "GET", path + "?limit=-5", "application/json", "", 200},
		{"negative timeout", "GET", path + "?limit=1&timeoutSeconds=-1", "application/json", "", 200},
	} {
		status, text, _ := r.raw(t, c.method, c.path, map[string]string{"Content-Type": c.kind}, []byte(c.body))
		if status != c.status {
			t.Errorf("%s: %d %.300s, want %d", c.name, status, text, c.status)
		}
	}
}

// yamlBomb expands to 10⁹ strings.
const yamlBomb = `a: &a ["x","x","x","x","x","x","x","x","x","x"]
b: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]
c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]
d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]
e: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]
f: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e,*e]
g: &g [*f,*f,*f,*f,*f,*f,*f,*f,*f,*f]
h: &h [*g,*g,*g,*g,*g,*g,*g,*g,*g,*g]
i: &i [*h,*h,*h,*h,*h,*h,*h,*h,*h,*h]
`

// A kind with two versions whose webhook moves a field is read, written, listed, and watched in
// both; the error of a failing webhook is returned.
func testConversion(t *testing.T, r *running) {
	ctx := t.Context()
	d := gadgets()
	d.Name, d.Spec.Names = "things.example.org",
		apiextensionsv1.CustomResourceDefinitionNames{Plural: "things", Singular: "thing", Kind: "Thing",
			ListKind: "ThingList"}
	c := serveConversion(t, d)
	r.establish(t, d)
	one, two := gadgetResource.GroupVersion().WithResource("things"),
		gadgetResource.GroupVersion().WithResource("things")
	two.Version = "v2"
	v1, v2 := r.objects(t).Resource(one).Namespace("default"), r.objects(t).Resource(two).Namespace("default")
	color := func(u *unstructured.Unstructured, field string) any {
		x, _, _ := unstructured.NestedFieldNoCopy(u.Object, "spec", field)
		return x
	}
	thing := gadget("one", map[string]any{"paint": "red"})
	thing.SetKind("Thing")
	thing.SetAPIVersion("example.org/v2")
	made, err := v2.Create(ctx, thing, metav1.CreateOptions{})
	if err != nil || color(made, "paint") != "red" {
		t.Fatalf("%v, %v", made, err)
	}
	w, err := v2.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	got, err := v1.Get(ctx, "one", metav1.GetOptions{})
	if err != nil || color(got, "color") != "red" || color(got, "paint") != nil ||
		got.GetAPIVersion() != "example.org/v1" {
		t.Fatalf("in v1: %v, %v", got, err)
	}
	if list, err := v1.List(ctx, metav1.ListOptions{FieldSelector: "spec.color=red"}); err != nil ||
		len(list.Items) != 1 {
		t.Errorf("selected by the field of v1: %v, %v", list, err)
	}
	got, err = v1.Patch(ctx, "one", types.MergePatchType, []byte(`{"spec":{"color":"blue"}}`), metav1.PatchOptions{})
	if err != nil || color(got, "color") != "blue" {
		t.Fatalf("patched in v1: %v, %v", got, err)
	}
	for _, want := range []string{"red", "blue"} {
		e := <-w.ResultChan()
		if u, ok := e.Object.(*unstructured.Unstructured); !ok || color(u, "paint") != want {
			t.Errorf("event %s %v, want %s", e.Type, e.Object, want)
		}
	}
	applied, err := v2.Apply(ctx, "one",
		&unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.org/v2", "kind": "Thing",
			"metadata": map[string]any{"name": "one"}, "spec": map[string]any{"paint": "green"}}},
		metav1.ApplyOptions{FieldManager: "painter", Force: true})
	if err != nil || color(applied, "paint") != "green" {
		t.Fatalf("applied in v2: %v, %v", applied, err)
	}
	c.fail()
	if _, err := v2.Get(ctx, "one", metav1.GetOptions{}); err == nil || !strings.Contains(err.Error(), "no way") {
		t.Errorf("a webhook that fails: %v", err)
	}
	if got, err := v1.Get(ctx, "one", metav1.GetOptions{}); err != nil || color(got, "color") != "green" {
		t.Errorf("the stored version needs no webhook: %v, %v", got, err)
	}
}
