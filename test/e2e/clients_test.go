package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	corev1apply "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	executil "k8s.io/client-go/util/exec"
	"k8s.io/streaming/pkg/httpstream"
)

// program is a client that is made with client-go, as controllers and operators
// are. It records its requests.
type program struct {
	*testing.T
	config    *rest.Config
	typed     kubernetes.Interface
	namespace string

	mu   sync.Mutex
	urls []*url.URL
}

func (p *program) RoundTrip(base http.RoundTripper) http.RoundTripper {
	return roundTripper(func(q *http.Request) (*http.Response, error) {
		p.mu.Lock()
		p.urls = append(p.urls, q.URL)
		p.mu.Unlock()
		return base.RoundTrip(q)
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(q *http.Request) (*http.Response, error) { return f(q) }

// requests are those that hold, since the last call.
func (p *program) requests(hold func(*url.URL) bool) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, u := range p.urls {
		if hold(u) {
			n++
		}
	}
	p.urls = nil
	return n
}

func TestClientGo(t *testing.T) {
	for name, test := range map[string]func(*program){
		"informers": testInformers, "dynamic": testDynamicClient, "discovery": testDiscovery,
		"metadata": testMetadataClient, "apply": testTypedApply,
		"leader election": testLeaderElection, "exec": testExecutors, "port-forward": testForwarders,
	} {
		t.Run(name, func(t *testing.T) {
			p := &program{T: t, namespace: "clients-" + strings.ReplaceAll(name, " ", "-")}
			config, err := clientcmd.BuildConfigFromFlags("", shared.Kubeconfig)
			if err != nil {
				t.Fatal(err)
			}
			p.config = config
			config.Wrap(p.RoundTrip)
			if p.typed, err = kubernetes.NewForConfig(config); err != nil {
				t.Fatal(err)
			}
			if _, err := p.typed.CoreV1().Namespaces().Create(t.Context(),
				&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: p.namespace}},
				metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := p.typed.CoreV1().Namespaces().Delete(context.Background(), p.namespace,
					metav1.DeleteOptions{}); err != nil {
					t.Error(err)
				}
			})
			test(p)
		})
	}
}

func (p *program) configMap(name string) *corev1.ConfigMap {
	p.Helper()
	m, err := p.typed.CoreV1().ConfigMaps(p.namespace).Create(p.Context(),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"k": "v"}},
		metav1.CreateOptions{})
	if err != nil {
		p.Fatal(err)
	}
	return m
}

// seen is a channel of an informer's events.
func (p *program) seen(i cache.SharedInformer) func(want string) {
	p.Helper()
	events := make(chan string, 100)
	name := func(o any) string {
		if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
			o = gone.Obj
		}
		return o.(metav1.Object).GetName()
	}
	if _, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { events <- "added " + name(o) },
		UpdateFunc: func(_, o any) { events <- "updated " + name(o) },
		DeleteFunc: func(o any) { events <- "deleted " + name(o) },
	}); err != nil {
		p.Fatal(err)
	}
	return func(want string) {
		p.Helper()
		limit := time.After(patience)
		for {
			select {
			case got := <-events:
				if got == want {
					return
				}
			case <-limit:
				p.Fatalf("the informer never told %q", want)
			}
		}
	}
}

// An informer starts with a watch that brings what is there, not with a list.
func testInformers(p *program) {
	p.configMap("early")
	f := informers.NewSharedInformerFactoryWithOptions(p.typed, 0, informers.WithNamespace(p.namespace))
	maps := f.Core().V1().ConfigMaps()
	see := p.seen(maps.Informer())
	ctx, cancel := context.WithTimeout(p.Context(), patience)
	defer f.Shutdown()
	defer cancel()
	f.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), maps.Informer().HasSynced) {
		p.Fatal("the informer never had all")
	}
	if n := p.requests(func(u *url.URL) bool { return u.Query().Get("sendInitialEvents") == "true" }); n == 0 {
		p.Error("no watch asked for what is there: the library lists again")
	}
	see("added early")
	late := p.configMap("late")
	see("added late")
	late.Data["k"] = "w"
	if _, err := p.typed.CoreV1().ConfigMaps(p.namespace).Update(ctx, late, metav1.UpdateOptions{}); err != nil {
		p.Fatal(err)
	}
	see("updated late")
	if m, err := maps.Lister().ConfigMaps(p.namespace).Get("late"); err != nil || m.Data["k"] != "w" {
		p.Errorf("the lister has %v, %v", m, err)
	}
	if err := p.typed.CoreV1().ConfigMaps(p.namespace).Delete(ctx, "late", metav1.DeleteOptions{}); err != nil {
		p.Fatal(err)
	}
	see("deleted late")
}

func testDynamicClient(p *program) {
	d, err := dynamic.NewForConfig(p.config)
	if err != nil {
		p.Fatal(err)
	}
	groups, err := restmapper.GetAPIGroupResources(p.typed.Discovery())
	if err != nil {
		p.Fatal(err)
	}
	m, err := restmapper.NewDiscoveryRESTMapper(groups).RESTMapping(schema.GroupKind{Group: "apps", Kind: "Deployment"})
	if err != nil {
		p.Fatal(err)
	}
	ctx, deployments := p.Context(), d.Resource(m.Resource).Namespace(p.namespace)
	web := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "apps/v1", "kind": "Deployment",
		"metadata": map[string]any{"name": "web"}, "spec": map[string]any{
			"selector": map[string]any{"matchLabels": map[string]any{"app": "web"}},
			"template": map[string]any{"metadata": map[string]any{"labels": map[string]any{"app": "web"}},
				"spec": map[string]any{"containers": []any{map[string]any{"name": "c", "image": "busybox"}}}}}}}
	made, err := deployments.Create(ctx, web, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
	if err != nil {
		p.Fatal(err)
	}
	if n, _, _ := unstructured.NestedInt64(made.Object, "spec", "replicas"); n != 1 {
		p.Errorf("%d replicas by default", n)
	}
	w, err := deployments.Watch(ctx, metav1.ListOptions{ResourceVersion: made.GetResourceVersion()})
	if err != nil {
		p.Fatal(err)
	}
	defer w.Stop()
	if _, err := deployments.Patch(ctx, "web", types.MergePatchType, []byte(`{"spec":{"replicas":4}}`),
		metav1.PatchOptions{}, "scale"); err != nil {
		p.Fatal(err)
	}
	for e := range w.ResultChan() { // its controller writes, too
		u, ok := e.Object.(*unstructured.Unstructured)
		if !ok {
			p.Fatalf("watched %v", e)
		}
		if fmt.Sprint(u.Object["spec"].(map[string]any)["replicas"]) == "4" {
			break
		}
	}
	if err := deployments.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		p.Error(err)
	}
	if all, err := deployments.List(ctx, metav1.ListOptions{}); err != nil || len(all.Items) > 0 {
		p.Errorf("%v, %v", all, err)
	}
}

// All groups and kinds come in two requests.
func testDiscovery(p *program) {
	p.requests(func(*url.URL) bool { return true })
	d := memory.NewMemCacheClient(discovery.NewDiscoveryClient(p.typed.Discovery().RESTClient()))
	groups, kinds, err := d.ServerGroupsAndResources()
	if err != nil || len(groups) < 15 || len(kinds) < 15 {
		p.Fatalf("%d groups, %d versions, %v", len(groups), len(kinds), err)
	}
	if n := p.requests(func(*url.URL) bool { return true }); n != 2 {
		p.Errorf("discovery took %d requests", n)
	}
	if v, err := d.ServerVersion(); err != nil || v.Minor != "37" {
		p.Errorf("version %v, %v", v, err)
	}
	if paths, err := d.OpenAPIV3().Paths(); err != nil || paths["apis/apps/v1"] == nil {
		p.Errorf("OpenAPI: %d paths, %v", len(paths), err)
	}
}

func testMetadataClient(p *program) {
	m, err := metadata.NewForConfig(metadata.ConfigFor(p.config))
	if err != nil {
		p.Fatal(err)
	}
	maps := schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	p.configMap("one")
	f := metadatainformer.NewFilteredSharedInformerFactory(m, 0, p.namespace, nil)
	see := p.seen(f.ForResource(maps).Informer())
	ctx, cancel := context.WithTimeout(p.Context(), patience)
	defer f.Shutdown()
	defer cancel()
	f.Start(ctx.Done())
	see("added one")
	o, err := m.Resource(maps).Namespace(p.namespace).Get(ctx, "one", metav1.GetOptions{})
	if err != nil || o.UID == "" {
		p.Errorf("%v, %v", o, err)
	}
	if _, err := m.Resource(maps).Namespace(p.namespace).Patch(ctx, "one", types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{}); err != nil {
		p.Error(err)
	}
	see("updated one")
	if err := m.Resource(maps).Namespace(p.namespace).DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{LabelSelector: "a=b"}); err != nil {
		p.Error(err)
	}
	see("deleted one")
}

func testTypedApply(p *program) {
	ctx, maps := p.Context(), p.typed.CoreV1().ConfigMaps(p.namespace)
	apply := func(manager, key, value string, force bool) (*corev1.ConfigMap, error) {
		return maps.Apply(ctx, corev1apply.ConfigMap("shared", p.namespace).WithData(map[string]string{key: value}),
			metav1.ApplyOptions{FieldManager: manager, Force: force})
	}
	if _, err := apply("first", "a", "1", false); err != nil {
		p.Fatal(err)
	}
	both, err := apply("second", "b", "2", false)
	if err != nil || len(both.Data) != 2 {
		p.Fatalf("%v, %v", both, err)
	}
	if _, err := apply("second", "a", "3", false); !apierrors.IsConflict(err) ||
		!strings.Contains(err.Error(), `conflict with "first"`) {
		p.Errorf("a field of the first: %v", err)
	}
	taken, err := apply("second", "a", "3", true)
	if err != nil || taken.Data["a"] != "3" || len(taken.Data) != 1 { // fields that are no longer applied are gone
		p.Errorf("by force: %v, %v", taken, err)
	}
	own, err := corev1apply.ExtractConfigMap(taken, "second")
	if err != nil || len(own.Data) != 1 || own.Data["a"] != "3" {
		p.Errorf("what is the second's: %v, %v", own, err)
	}
}

// The second leads as soon as the first lets go.
func testLeaderElection(p *program) {
	leading := make(chan string, 4)
	ctx, cancel := context.WithTimeout(p.Context(), patience)
	defer cancel()
	candidate := func(ctx context.Context, id string) (done chan struct{}) {
		done = make(chan struct{})
		lock := &resourcelock.LeaseLock{LeaseMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: "lead"},
			Client: p.typed.CoordinationV1(), LockConfig: resourcelock.ResourceLockConfig{Identity: id}}
		e, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{Lock: lock,
			LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 200 * time.Millisecond,
			ReleaseOnCancel: true,
			Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: func(context.Context) { leading <- id },
				OnStoppedLeading: func() {}}})
		if err != nil {
			p.Fatal(err)
		}
		go func() { defer close(done); e.Run(ctx) }()
		return done
	}
	expect := func(id string) {
		p.Helper()
		select {
		case got := <-leading:
			if got != id {
				p.Fatalf("%s leads, not %s", got, id)
			}
		case <-ctx.Done():
			p.Fatal("nobody leads")
		}
	}
	firstCtx, letGo := context.WithCancel(ctx)
	first := candidate(firstCtx, "first")
	expect("first")
	second := candidate(ctx, "second")
	letGo()
	<-first
	expect("second")
	cancel()
	<-second
}

// run starts a pod of busybox and waits until it is ready.
func (p *program) run(name string, command ...string) {
	p.Helper()
	shared.kubectl(p.T,
		append([]string{"run", name, "--namespace=" + p.namespace, "--image=busybox:1.36", "--overrides",
			`{"spec":{"terminationGracePeriodSeconds":1}}`, "--command", "--"}, command...)...)
	shared.wait(p.T, "pod/"+name, "condition=Ready", "--namespace="+p.namespace)
}

func (p *program) subresource(pod, name string) *rest.Request {
	return p.typed.CoreV1().RESTClient().Post().Resource("pods").Namespace(p.namespace).Name(pod).SubResource(name)
}

func testExecutors(p *program) {
	p.run("shell", "sleep", "3600")
	for name, executor := range map[string]func(u *url.URL) (remotecommand.Executor, error){
		"SPDY": func(u *url.URL) (remotecommand.Executor, error) {
			return remotecommand.NewSPDYExecutor(p.config, "POST", u)
		},
		"websocket": func(u *url.URL) (remotecommand.Executor, error) {
			return remotecommand.NewWebSocketExecutor(p.config, "GET", u.String())
		},
	} {
		exec := func(stdin io.Reader, command ...string) (out, errs string, err error) {
			o := &corev1.PodExecOptions{Command: command, Stdin: stdin != nil, Stdout: true, Stderr: true}
			e, err := executor(p.subresource("shell", "exec").VersionedParams(o, scheme.ParameterCodec).URL())
			if err != nil {
				p.Fatal(err)
			}
			var stdout, stderr bytes.Buffer
			err = e.StreamWithContext(p.Context(),
				remotecommand.StreamOptions{Stdin: stdin, Stdout: &stdout, Stderr: &stderr})
			return stdout.String(), stderr.String(), err
		}
		// More than any buffer on the way, and an end that the command sees.
		const size = 3 << 20
		out, errs, err := exec(io.LimitReader(zeros{}, size), "sh", "-c", "wc -c; echo aside >&2")
		if strings.TrimSpace(out) != fmt.Sprint(size) || errs != "aside\n" || err != nil {
			p.Errorf("%s: %q, %q, %v", name, out, errs, err)
		}
		out, _, err = exec(nil, "head", "-c", fmt.Sprint(size), "/dev/zero")
		if len(out) != size || err != nil {
			p.Errorf("%s: %d bytes came, %v", name, len(out), err)
		}
		_, _, err = exec(nil, "sh", "-c", "exit 42")
		var code executil.CodeExitError
		if !errors.As(err, &code) || code.Code != 42 {
			p.Errorf("%s: a command that ends with 42: %v", name, err)
		}
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

func testForwarders(p *program) {
	p.run("web", "sh", "-c", "mkdir /www; echo served > /www/index.html; exec httpd -f -p 8080 -h /www")
	u := p.subresource("web", "portforward").URL()
	transport, upgrader, err := spdy.RoundTripperFor(p.config)
	if err != nil {
		p.Fatal(err)
	}
	tunnel, err := portforward.NewSPDYOverWebsocketDialerForStreaming(u, p.config)
	if err != nil {
		p.Fatal(err)
	}
	for name, dialer := range map[string]httpstream.Dialer{"SPDY": spdy.NewDialerForStreaming(upgrader,
		&http.Client{Transport: transport}, "POST", u), "websocket": tunnel} {
		stop, ready := make(chan struct{}), make(chan struct{})
		var errs bytes.Buffer
		f, err := portforward.NewOnAddressesForStreaming(dialer, []string{"127.0.0.1"}, []string{"0:8080"}, stop, ready,
			io.Discard, &errs)
		if err != nil {
			p.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- f.ForwardPorts() }()
		select {
		case <-ready:
		case err := <-ended:
			p.Fatalf("%s: %v", name, err)
		}
		ports, err := f.GetPorts()
		if err != nil {
			p.Fatal(err)
		}
		page := fmt.Sprintf("http://127.0.0.1:%d/", ports[0].Local)
		contains(p.T, name, get(p.T, page), "served\n")
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				res, err := http.Get(page)
				if err != nil {
					p.Errorf("%s: %v", name, err)
					return
				}
				defer res.Body.Close()
				if b, err := io.ReadAll(res.Body); string(b) != "served\n" || err != nil {
					p.Errorf("%s: %q, %v", name, b, err)
				}
			})
		}
		all.Wait()
		close(stop)
		if err := <-ended; err != nil {
			p.Errorf("%s: ended with %v", name, err)
		}
		if errs.Len() > 0 {
			p.Errorf("%s: %s", name, &errs)
		}
	}
}
