package apiserver

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/authentication/user"
	corev1apply "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"carob/internal/base/errkind"
	"carob/internal/base/pki"
	"carob/internal/base/testwait"
)

// running is a server that serves until the test ends.
type running struct {
	*Server
	dir  string
	pki  *pki.PKI
	stop func()
}

func newConfig(t testing.TB, dir string) Config {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p, err := pki.Open(pki.Config{Dir: filepath.Join(dir, "pki"), ServiceIP: FirstServiceIP(nil).AsSlice(),
		NodeName: "node-1"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return Config{DataDir: dir, Listener: l, PKI: p, UnsafeNoFsync: true,
		AdvertiseAddress: netip.MustParseAddr("192.0.2.1")}
}

func start(t testing.TB, dir string) *running {
	t.Helper()
	return startWith(t, newConfig(t, dir))
}

func startWith(t testing.TB, cfg Config) *running {
	t.Helper()
	dir := cfg.DataDir
	s, err := New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	r := &running{Server: s, dir: dir, pki: cfg.PKI}
	r.stop = func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run ended with %v", err)
		}
		done <- nil
	}
	t.Cleanup(r.stop)
	select {
	case <-s.Ready():
	case err := <-done:
		done <- nil
		t.Fatalf("Run ended early: %v", err)
	}
	return r
}

func (r *running) client(t *testing.T, user string, groups ...string) kubernetes.Interface {
	t.Helper()
	c, err := kubernetes.NewForConfig(r.ClientConfig(user, groups...))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (r *running) admin(t *testing.T) kubernetes.Interface {
	return r.client(t, "admin", user.SystemPrivilegedGroup)
}

// remote is a client over the network with a certificate.
func (r *running) remote(t *testing.T, pair pki.KeyPair) kubernetes.Interface {
	t.Helper()
	c, err := kubernetes.NewForConfig(&restclient.Config{Host: "https://" + r.cfg.Listener.Addr().String(), QPS: -1,
		TLSClientConfig: restclient.TLSClientConfig{CAData: r.pki.CAPEM, CertData: pair.CertPEM, KeyData: pair.KeyPEM}})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// One server serves all tests that can share it: a start is cheap, but not free.
func TestServer(t *testing.T) {
	r := start(t, t.TempDir())
	for name, test := range map[string]func(*testing.T, *running){
		"bootstrap token":        testBootstrapToken,
		"lists of changed":       testListsOfChanged,
		"token in a secret":      testTokenInSecret,
		"impersonation":          testImpersonation,
		"constrained":            testConstrainedImpersonation,
		"system objects":         testSystemObjects,
		"in-process watch":       testInProcessWatch,
		"informer":               testInformer,
		"remote certificate":     testRemoteCertificate,
		"credentials":            testCredentials,
		"generation and status":  testGenerationAndStatus,
		"scale":                  testScale,
		"scale's owner":          testScaleOwner,
		"events in two groups":   testEventsInTwoGroups,
		"server-side apply":      testServerSideApply,
		"field ownership":        testFieldOwnership,
		"namespace deletion":     testNamespaceDeletion,
		"service allocation":     testServiceAllocation,
		"RBAC":                   testRBAC,
		"privilege escalation":   testEscalation,
		"aggregated roles":       testAggregatedRoles,
		"discovery":              testDiscovery,
		"documents are fresh":    testDocumentsFresh,
		"canceled in-process":    testCanceled,
		"tables":                 testTables,
		"dry run":                testDryRun,
		"node proxy needs right": testNodeProxyDenied,
		"health":                 testHealth,
		"metrics":                testMetrics,
		"node rights":            testNodeRights,
	} {
		t.Run(name, func(t *testing.T) { test(t, r) })
	}
}

func testSystemObjects(t *testing.T, r *running) {
	ctx, c := t.Context(), r.admin(t)
	for _, n := range []string{"default", "kube-system", "kube-public", "kube-node-lease"} {
		ns, err := c.CoreV1().Namespaces().Get(ctx, n, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if ns.Labels[corev1.LabelMetadataName] != n || ns.Status.Phase != corev1.NamespaceActive {
			t.Errorf("namespace %s: labels %v, phase %q", n, ns.Labels, ns.Status.Phase)
		}
		if len(ns.ManagedFields) != 1 || ns.ManagedFields[0].Manager != serverName ||
			ns.ManagedFields[0].FieldsV1.GetRawString() !=
				`{"f:metadata":{"f:labels":{".":{},"f:kubernetes.io/metadata.name":{}}}}` {
			t.Errorf("namespace %s: managed fields %v", n, ns.ManagedFields)
		}
	}
	svc, err := c.CoreV1().Services("default").Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil || svc.Spec.ClusterIP != "10.96.0.1" {
		t.Errorf("kubernetes service: %v, %v", svc.Spec.ClusterIP, err)
	}
	slice, err := c.DiscoveryV1().EndpointSlices("default").Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil || len(slice.Endpoints) != 1 || slice.Endpoints[0].Addresses[0] != "192.0.2.1" {
		t.Errorf("kubernetes endpoint slice: %v, %v", slice.Endpoints, err)
	}
	for _, o := range []metav1.Object{svc, slice} {
		if m := o.GetManagedFields(); len(m) != 1 || m[0].Manager != serverName || m[0].Operation != "Update" {
			t.Errorf("managed fields of %T kubernetes: %v", o, m)
		}
	}
	if pc, err := c.SchedulingV1().PriorityClasses().Get(ctx, "system-node-critical",
		metav1.GetOptions{}); err != nil || pc.Value != 2000001000 {
		// L0.64
		t.Errorf("system-node-critical: %v, %v", pc.Value, err)
	}
}

func testInProcessWatch(t *testing.T, r *running) {
	ctx, c := t.Context(), r.admin(t)
	w, err := c.CoreV1().ConfigMaps("default").Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=watched"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.CoreV1().ConfigMaps("default").Create(ctx,
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "watched"}, Data: map[string]string{"k": "v"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	e := <-w.ResultChan()
	if cm, ok := e.Object.(*corev1.ConfigMap); !ok || e.Type != watch.Added || cm.Data["k"] != "v" {
		t.Errorf("event %v %v", e.Type, e.Object)
	}
	w.Stop()
	for range w.ResultChan() { // must end
	}
}

func testInformer(t *testing.T, r *running) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	f := informers.NewSharedInformerFactory(r.admin(t), 0)
	added := make(chan string, 16)
	if _, err := f.Core().V1().Namespaces().Informer().AddEventHandler(
		cache.ResourceEventHandlerFuncs{AddFunc: func(o any) { added <- o.(*corev1.Namespace).Name }}); err != nil {
		t.Fatal(err)
	}
	f.Start(ctx.Done())
	seen := map[string]bool{}
	for late := time.After(testwait.Limit); !seen["default"] || !seen["kube-system"]; {
		select {
		case name := <-added:
			seen[name] = true
		case <-late:
			t.Fatalf("the informer knows only %v", seen)
		}
	}
	cancel()
	f.Shutdown()
}

func testRemoteCertificate(t *testing.T, r *running) {
	if _, err := r.remote(t, r.pki.Admin.Pair()).CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("admin: %v", err)
	}
	node := r.remote(t, r.pki.NodeClient.Pair())
	if _, err := node.CoreV1().Services("").List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("node: %v", err)
	}
	if _, err := node.AppsV1().Deployments("default").List(t.Context(),
		metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a node may list deployments: %v", err)
	}
	other, err := pki.Open(pki.Config{Dir: t.TempDir(), NodeName: "x"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.remote(t, other.Admin.Pair()).CoreV1().Nodes().List(t.Context(),
		metav1.ListOptions{}); !apierrors.IsUnauthorized(err) {
		t.Errorf("a certificate of another authority: %v", err)
	}
}

func testCredentials(t *testing.T, r *running) {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(r.pki.CAPEM)
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}}
	defer c.CloseIdleConnections()
	for _, tc := range []struct {
		path, token string
		want        int
	}{
		{"/readyz", "", 200}, {"/livez", "", 200}, {"/healthz", "", 200}, {"/version", "", 200},
		{"/readyz", "wrong", 401}, {"/api/v1/namespaces", "wrong", 401},
		{"/api/v1/namespaces", "", 401}, {"/metrics", "", 401}, {"/api", "", 401}, {"/openapi/v2", "", 401},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
			"https://"+r.cfg.Listener.Addr().String()+tc.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if tc.token != "" {
			req.Header.Set("Authorization", "Bearer "+tc.token)
		}
		resp, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if resp.StatusCode != tc.want {
			t.Errorf("%s with token %q: %d, want %d", tc.path, tc.token, resp.StatusCode, tc.want)
		}
	}
}

func deployment(name string) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}}}
}

func testGenerationAndStatus(t *testing.T, r *running) {
	ctx, c := t.Context(), r.admin(t).AppsV1().Deployments("default")
	d := deployment("gen")
	d.Status.Replicas = 7
	d, err := c.Create(ctx, d, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if d.Generation != 1 || d.Status.Replicas != 0 || *d.Spec.Replicas != 1 {
		t.Errorf("created: generation %d, status.replicas %d, spec.replicas %d", d.Generation, d.Status.Replicas,
			*d.Spec.Replicas)
	}
	d.Labels = map[string]string{"a": "b"}
	if d, err = c.Update(ctx, d, metav1.UpdateOptions{}); err != nil || d.Generation != 1 {
		t.Errorf("a label changed: generation %d, %v", d.Generation, err)
	}
	n := int32(3)
	d.Spec.Replicas, d.Status.Replicas = &n, 7
	if d, err = c.Update(ctx, d, metav1.UpdateOptions{}); err != nil || d.Generation != 2 || d.Status.Replicas != 0 {
		t.Errorf("the spec changed: generation %d, status.replicas %d, %v", d.Generation, d.Status.Replicas, err)
	}
	one := int32(1)
	d.Spec.Replicas, d.Status.Replicas, d.Labels = &one, 2, nil
	if d, err = c.UpdateStatus(ctx, d, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if *d.Spec.Replicas != 3 || d.Status.Replicas != 2 || d.Generation != 2 || d.Labels["a"] != "b" {
		t.Errorf("status written: %d replicas wanted, %d observed, generation %d, labels %v", *d.Spec.Replicas,
			d.Status.Replicas, d.Generation, d.Labels)
	}
	stale := d.DeepCopy()
	stale.ResourceVersion = "1"
	if _, err := c.Update(ctx, stale, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("a stale update: %v", err)
	}
}

func testScale(t *testing.T, r *running) {
	ctx, c := t.Context(), r.admin(t).AppsV1().Deployments("default")
	if _, err := c.Create(ctx, deployment("scaled"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s, err := c.GetScale(ctx, "scaled", metav1.GetOptions{})
	if err != nil || s.Spec.Replicas != 1 || s.Status.Selector != "app=scaled" {
		t.Fatalf("%v, %v", s, err)
	}
	s.Spec.Replicas = 4
	if s, err = c.UpdateScale(ctx, "scaled", s, metav1.UpdateOptions{}); err != nil || s.Spec.Replicas != 4 {
		t.Errorf("%v, %v", s, err)
	}
	s.Spec.Replicas = -1
	if _, err = c.UpdateScale(ctx, "scaled", s, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("a negative scale: %v", err)
	}
	if d, err := c.Get(ctx, "scaled", metav1.GetOptions{}); err != nil || *d.Spec.Replicas != 4 || d.Generation != 2 {
		t.Errorf("replicas %d, generation %d, %v", *d.Spec.Replicas, d.Generation, err)
	}
	other := &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Name: "scaled", UID: "another"}}
	if _, err = c.UpdateScale(ctx, "scaled", other, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("the scale of another deployment by this name: %v", err)
	}
	status, text, _ := r.raw(t, "GET", "/apis/apps/v1/namespaces/default/deployments/scaled/scale",
		map[string]string{"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}, nil)
	var printed metav1.Table // kubectl get --subresource=scale
	if err := json.Unmarshal([]byte(text), &printed); err != nil || status != http.StatusOK ||
		len(printed.ColumnDefinitions) != 4 || fmt.Sprint(printed.Rows[0].Cells[:3]) != "[scaled 4 0]" {
		t.Errorf("the table of a scale: %d %s, %v", status, text, err)
	}
}

func testEventsInTwoGroups(t *testing.T, r *running) {
	ctx, c := t.Context(), r.admin(t)
	ref := corev1.ObjectReference{Kind: "Pod", Name: "p", Namespace: "default"}
	if _, err := c.EventsV1().Events("default").Create(ctx,
		&eventsv1.Event{ObjectMeta: metav1.ObjectMeta{Name: "two"}, EventTime: metav1.NowMicro(), Regarding: ref,
			ReportingController: "example.com/c", ReportingInstance: "c-1", Action: "Do", Reason: "Done", Note: "said",
			Type: "Normal"}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	list, err := c.CoreV1().Events("default").List(ctx,
		metav1.ListOptions{FieldSelector: "involvedObject.name=p,reason=Done"})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("%d events, %v", len(list.Items), err)
	}
	if e := list.Items[0]; e.Message != "said" || e.InvolvedObject.Name != "p" ||
		e.ReportingController != "example.com/c" || e.Action != "Do" {
		t.Errorf("%+v", e)
	}
	back, err := c.EventsV1().Events("default").Get(ctx, "two", metav1.GetOptions{})
	if err != nil || back.Note != "said" || back.Regarding != ref {
		t.Errorf("%+v, %v", back, err)
	}
	// The rules of events come first; those of metadata are checked where they find nothing.
	const elsewhere = `Event "" is invalid: involvedObject.namespace: Invalid value: "": does not match event.namespace`
	if _, err := c.CoreV1().Events("kube-system").Create(ctx, &corev1.Event{}, metav1.CreateOptions{}); err == nil ||
		err.Error() != elsewhere {
		t.Errorf("an event without anything: %v", err)
	}
	if _, err := c.CoreV1().Events("default").Create(ctx, &corev1.Event{},
		metav1.CreateOptions{}); err == nil || !strings.Contains(err.Error(), "metadata.name: Required value") {
		t.Errorf("an event without a name: %v", err)
	}
	_, err = c.EventsV1().Events("kube-system").Create(ctx, &eventsv1.Event{}, metav1.CreateOptions{})
	if err == nil || !strings.Contains(err.Error(), "metadata.name: Required value") {
		t.Errorf("an event without anything in events.k8s.io: %v", err)
	}
}

func testServerSideApply(t *testing.T, r *running) {
	ctx, c := t.Context(), r.admin(t).CoreV1().Services("default")
	service := func(port int32, name string) *corev1apply.ServiceApplyConfiguration {
		return corev1apply.Service("applied",
			"default").WithSpec(corev1apply.ServiceSpec().WithSelector(map[string]string{"a": "b"}).
			WithPorts(corev1apply.ServicePort().WithName(name).WithPort(port).WithProtocol(corev1.ProtocolTCP)))
	}
	if _, err := c.Apply(ctx, service(80, "one"), metav1.ApplyOptions{FieldManager: "m1"}); err != nil {
		t.Fatal(err)
	}
	// Ports are a list with keys: two managers own one element each.
	s, err := c.Apply(ctx, service(81, "two"), metav1.ApplyOptions{FieldManager: "m2"})
	if err != nil || len(s.Spec.Ports) != 2 {
		t.Fatalf("%v, %v", s.Spec.Ports, err)
	}
	if _, err := c.Apply(ctx, service(80, "renamed"),
		metav1.ApplyOptions{FieldManager: "m2"}); !apierrors.IsConflict(err) {
		t.Errorf("another's field: %v", err)
	}
}

func testFieldOwnership(t *testing.T, r *running) {
	ctx, c := t.Context(), r.admin(t).CoreV1().ConfigMaps("default")
	cm, err := c.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owned"},
		Data: map[string]string{"k": "v"}}, metav1.CreateOptions{FieldManager: "tester"})
	if err != nil {
		t.Fatal(err)
	}
	if len(cm.ManagedFields) != 1 || cm.ManagedFields[0].Manager != "tester" ||
		!strings.Contains(cm.ManagedFields[0].FieldsV1.GetRawString(), `"f:k"`) {
		t.Errorf("managed fields %v", cm.ManagedFields)
	}
}

func testNamespaceDeletion(t *testing.T, r *running) {
	ctx, c := t.Context(), r.admin(t).CoreV1().Namespaces()
	if _, err := c.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "going"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	wrong := types.UID("x")
	if err := c.Delete(ctx, "going",
		metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &wrong}}); !apierrors.IsConflict(err) {
		t.Errorf("delete with another UID: %v", err)
	}
	if err := c.Delete(ctx, "going", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	ns, err := c.Get(ctx, "going", metav1.GetOptions{})
	if err != nil || ns.Status.Phase != corev1.NamespaceTerminating || ns.DeletionTimestamp == nil ||
		len(ns.Spec.Finalizers) != 1 {
		t.Fatalf("%+v, %v", ns, err)
	}
	// Admission reads the watch cache, which lags behind the write.
	testwait.For(t, "refusal in a terminating namespace", func() bool {
		_, err := r.admin(t).CoreV1().ConfigMaps("going").Create(ctx,
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "late-"}}, metav1.CreateOptions{})
		return apierrors.IsForbidden(err)
	})
	ns.Spec.Finalizers = nil
	if _, err := c.Finalize(ctx, ns, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Get(ctx, "going", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("after the last finalizer: %v", err)
	}
}

func testServiceAllocation(t *testing.T, r *running) {
	ctx, c := t.Context(), r.admin(t).CoreV1().Services("default")
	mk := func(name string, mod func(*corev1.Service)) (*corev1.Service, error) {
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
		mod(s)
		return c.Create(ctx, s, metav1.CreateOptions{})
	}
	a, err := mk("alloc-a", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeNodePort })
	if err != nil || a.Spec.ClusterIP == "" || a.Spec.Ports[0].NodePort < 30000 ||
		a.Spec.ClusterIPs[0] != a.Spec.ClusterIP {
		t.Fatalf("%+v, %v", a.Spec, err)
	}
	if _, err := mk("alloc-b",
		func(s *corev1.Service) { s.Spec.ClusterIP = a.Spec.ClusterIP }); !apierrors.IsInvalid(err) ||
		!strings.Contains(err.Error(), "already allocated") {
		t.Errorf("a taken address: %v", err)
	}
	if _, err := mk("alloc-c", func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeNodePort
		s.Spec.Ports[0].NodePort = a.Spec.Ports[0].NodePort
	}); !apierrors.IsInvalid(err) {
		t.Errorf("a taken node port: %v", err)
	}
	h, err := mk("alloc-h", func(s *corev1.Service) { s.Spec.ClusterIP = corev1.ClusterIPNone })
	if err != nil || h.Spec.ClusterIPs[0] != corev1.ClusterIPNone {
		t.Errorf("headless: %v, %v", h.Spec.ClusterIPs, err)
	}
	// A manifest without the allocated fields replaces the service and keeps them.
	plain := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "alloc-a"},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 80}}}}
	b, err := c.Update(ctx, plain, metav1.UpdateOptions{})
	if err != nil || b.Spec.ClusterIP != a.Spec.ClusterIP || b.Spec.Ports[0].NodePort != a.Spec.Ports[0].NodePort {
		t.Errorf("replaced: %+v, %v", b.Spec, err)
	}
	if err := c.Delete(ctx, "alloc-a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := mk("alloc-d", func(s *corev1.Service) {
		s.Spec.Type, s.Spec.ClusterIP = corev1.ServiceTypeNodePort, a.Spec.ClusterIP
		s.Spec.Ports[0].NodePort = a.Spec.Ports[0].NodePort
	}); err != nil {
		t.Errorf("what a deleted service had is not free: %v", err)
	}
}

func testRBAC(t *testing.T, r *running) {
	ctx, admin := t.Context(), r.admin(t)
	jane := r.client(t, "jane")
	if _, err := jane.CoreV1().Pods("default").List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Fatalf("without a role: %v", err)
	}
	if _, err := admin.RbacV1().RoleBindings("default").Create(ctx,
		&rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "jane"},
			Subjects: []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: "jane"}},
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	testwait.For(t, "the binding's effect", func() bool {
		_, err := jane.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
		return err == nil
	})
	for what, err := range map[string]error{
		"another namespace": func() error {
			_, err := jane.CoreV1().Pods("kube-system").List(ctx, metav1.ListOptions{})
			return err
		}(),
		"secrets": func() error {
			_, err := jane.CoreV1().Secrets("default").List(ctx, metav1.ListOptions{})
			return err
		}(),
		"delete": jane.CoreV1().Pods("default").Delete(ctx, "x", metav1.DeleteOptions{}),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := admin.RbacV1().RoleBindings("default").Delete(ctx, "jane", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	testwait.For(t, "the binding's end", func() bool {
		_, err := jane.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
		return apierrors.IsForbidden(err)
	})
}

func testEscalation(t *testing.T, r *running) {
	ctx, admin := t.Context(), r.admin(t)
	if _, err := admin.RbacV1().RoleBindings("default").Create(ctx,
		&rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "max"},
			Subjects: []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: "max"}},
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "admin"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	max := r.client(t, "max").RbacV1()
	role := func(name, resource, verb string) error {
		_, err := max.Roles("default").Create(ctx, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: name},
			Rules: []rbacv1.PolicyRule{{Verbs: []string{verb}, APIGroups: []string{""},
				Resources: []string{resource}}}}, metav1.CreateOptions{})
		return err
	}
	testwait.For(t, "the binding's effect", func() bool { return role("held", "pods", "get") == nil })
	if err := role("not-held", "nodes", "delete"); !apierrors.IsForbidden(err) ||
		!strings.Contains(err.Error(), "not currently held") {
		t.Errorf("a role beyond one's own rights: %v", err)
	}
	_, err := max.RoleBindings("default").Create(ctx, &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "grab"},
		Subjects: []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: "max"}},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"}},
		metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) {
		t.Errorf("a binding to cluster-admin: %v", err)
	}
}

func testAggregatedRoles(t *testing.T, r *running) {
	ctx, c := t.Context(), r.admin(t).RbacV1().ClusterRoles()
	if _, err := c.Create(ctx,
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "widgets",
			Labels: map[string]string{"rbac.authorization.k8s.io/aggregate-to-view": "true"}},
			Rules: []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{"example.com"},
				Resources: []string{"widgets"}}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"view", "edit", "admin"} { // view's labels aggregate it into edit, and so on
		testwait.For(t, "aggregation into "+name, func() bool {
			role, err := c.Get(ctx, name, metav1.GetOptions{})
			return err == nil && strings.Contains(fmt.Sprint(role.Rules), "widgets")
		})
	}
}

func testDiscovery(t *testing.T, r *running) {
	_, lists, err := r.admin(t).Discovery().ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, l := range lists {
		for _, res := range l.APIResources {
			found[l.GroupVersion+"/"+res.Name] = true
		}
	}
	for _, want := range []string{"v1/pods", "v1/pods/status", "v1/pods/exec", "v1/pods/log", "v1/nodes/proxy",
		"v1/namespaces/finalize", "v1/serviceaccounts/token", "apps/v1/deployments/scale",
		"events.k8s.io/v1/events", "policy/v1/poddisruptionbudgets",
		"authorization.k8s.io/v1/selfsubjectaccessreviews"} {
		if !found[want] {
			t.Errorf("%s is not served", want)
		}
	}
	v, err := r.admin(t).Discovery().ServerVersion()
	if err != nil || v.Major != "1" || v.Minor != "37" || !strings.HasPrefix(v.GitVersion, "v1.37.") {
		t.Errorf("version %+v, %v", v, err)
	}
}

// Every served route is in the generated OpenAPI document; if this fails, run the generator (go run
// ./cmd/generate in tools).
func testDocumentsFresh(t *testing.T, r *running) {
	doc, err := r.admin(t).Discovery().OpenAPISchema()
	if err != nil {
		t.Fatal(err)
	}
	described := map[string]bool{}
	for _, p := range doc.Paths.Path {
		described[p.Name] = true
	}
	services, _ := r.Routes()
	for _, ws := range services {
		for _, route := range ws.Routes() {
			if path := strings.ReplaceAll(route.Path, ":*}", "}"); !described[path] {
				t.Errorf("%s is served and not described", path)
			}
		}
	}
}

func testCanceled(t *testing.T, r *running) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.admin(t).CoreV1().Nodes().List(ctx, metav1.ListOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func testTables(t *testing.T, r *running) {
	b, err := r.admin(t).CoreV1().RESTClient().Get().AbsPath("/api/v1/namespaces").SetHeader("Accept",
		"application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"kind":"Table"`, `"name":"Status"`, `"Active"`} {
		if !strings.Contains(string(b), want) {
			t.Errorf("no %s in %.200s", want, b)
		}
	}
}

func testDryRun(t *testing.T, r *running) {
	ctx, c := t.Context(), r.admin(t).CoreV1().Services("default")
	s, err := c.Create(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "dry"},
		Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.77", Ports: []corev1.ServicePort{{Port: 1}}}},
		metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil || s.Spec.ClusterIP != "10.96.0.77" {
		t.Fatalf("%v, %v", s, err)
	}
	if _, err := c.Get(ctx, "dry", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a dry run was stored: %v", err)
	}
	s.ObjectMeta = metav1.ObjectMeta{Name: "wet"}
	if _, err := c.Create(ctx, s, metav1.CreateOptions{}); err != nil {
		t.Errorf("a dry run kept an address: %v", err)
	}
}

func testNodeProxyDenied(t *testing.T, r *running) {
	err := r.client(t, "jane").CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes/n/proxy/pods").Do(t.Context()).Error()
	if !apierrors.IsForbidden(err) {
		t.Errorf("%v", err)
	}
}

// A second server on the same data is rejected at once; a restart finds everything.
func TestRestart(t *testing.T) {
	dir := t.TempDir()
	r := start(t, dir)
	if _, err := r.admin(t).CoreV1().ConfigMaps("default").Create(t.Context(),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kept"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	svc, err := r.admin(t).CoreV1().Services("default").Create(t.Context(),
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "kept"},
			Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := New(t.Context(), newConfig(t, dir)); !errkind.Is(err, errkind.InUse) {
		t.Errorf("a second server: %v", err)
	}
	r.stop()
	r = start(t, dir)
	if _, err := r.admin(t).CoreV1().ConfigMaps("default").Get(t.Context(), "kept", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := r.admin(t).CoreV1().Services("default").Create(t.Context(),
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "other"},
			Spec: corev1.ServiceSpec{ClusterIP: svc.Spec.ClusterIP, Ports: []corev1.ServicePort{{Port: 80}}}},
		metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("an address of a stored service after a restart: %v", err)
	}
}

func TestDamagedData(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, dir string){
		"database": func(t *testing.T, dir string) { overwrite(t, filepath.Join(dir, "etcd/member/snap/db")) },
		"log": func(t *testing.T, dir string) {
			logs, err := filepath.Glob(filepath.Join(dir, "etcd/member/wal/*.wal"))
			if err != nil || len(logs) == 0 {
				t.Fatalf("no log: %v", err)
			}
			overwrite(t, logs[0])
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			start(t, dir).stop()
			damage(t, dir)
			_, err := New(t.Context(), newConfig(t, dir))
			if !errkind.Is(err, errkind.Corrupt) {
				t.Errorf("%v: %v", errkind.Of(err), err)
			} else if strings.Contains(err.Error(), "\n") {
				t.Errorf("more than one line: %v", err)
			}
		})
	}
}

func overwrite(t *testing.T, file string) {
	t.Helper()
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte(strings.Repeat("damage!!", 4096)), 0); err != nil {
		t.Fatal(err)
	}
}
