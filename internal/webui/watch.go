package webui

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"carob/internal/base/journal"
	"carob/internal/base/routeapi"
	"carob/internal/core/explain"
)

// Times between tries and samples.
const (
	firstRetry  = 500 * time.Millisecond
	lastRetry   = 3 * time.Second
	refused     = 30 * time.Second // until what the user may not read is tried again
	missing     = 10 * time.Second // until a kind that the cluster does not have, or a gateway, is looked for again
	sampling    = time.Second      // of the pools' states while there is a pool and a page
	refreshing  = 5 * time.Second  // of sentences with times
	mostNodes   = 16               // whose timelines are followed
	longestLine = 1 << 20          // of a timeline
)

// source is a kind of objects that is watched.
type source struct {
	kind   string
	plural string
	object runtime.Object
	client func(c *Config) rest.Interface
	whole  bool   // it has no namespace
	fields string // a field selector
}

// sources are the kinds with types.
func sources() []source {
	core := func(c *Config) rest.Interface { return c.Client.CoreV1().RESTClient() }
	apps := func(c *Config) rest.Interface { return c.Client.AppsV1().RESTClient() }
	batch := func(c *Config) rest.Interface { return c.Client.BatchV1().RESTClient() }
	discovery := func(c *Config) rest.Interface { return c.Client.DiscoveryV1().RESTClient() }
	return []source{
		{kind: "pod", plural: "pods", object: &corev1.Pod{}, client: core},
		{kind: "node", plural: "nodes", object: &corev1.Node{}, client: core, whole: true},
		{kind: "event", plural: "events", object: &corev1.Event{}, client: core, fields: "type=Warning"},
		{kind: "deployment", plural: "deployments", object: &appsv1.Deployment{}, client: apps},
		{kind: "statefulset", plural: "statefulsets", object: &appsv1.StatefulSet{}, client: apps},
		{kind: "daemonset", plural: "daemonsets", object: &appsv1.DaemonSet{}, client: apps},
		{kind: "job", plural: "jobs", object: &batchv1.Job{}, client: batch},
		{kind: "service", plural: "services", object: &corev1.Service{}, client: core},
		{kind: "endpointslice", plural: "endpointslices", object: &discoveryv1.EndpointSlice{}, client: discovery},
	}
}

// poolKinds are the two kinds of InferencePools, which a cluster may not have.
var poolKinds = map[string]schema.GroupVersionResource{
	"inferencepool":   {Group: "inference.networking.k8s.io", Version: "v1", Resource: "inferencepools"},
	"inferencepool-x": {Group: "inference.networking.x-k8s.io", Version: "v1alpha2", Resource: "inferencepools"},
}

// store receives the objects of one watch.
type store struct {
	s    *state
	kind string
}

func (r store) Add(o any) error { return r.change(o, r.s.put) }

func (r store) Update(o any) error { return r.change(o, r.s.put) }

func (r store) Delete(o any) error { return r.change(o, r.s.drop) }

func (r store) Resync() error { return nil }

func (r store) change(o any, do func(string, metav1.Object)) error {
	object, ok := o.(metav1.Object)
	if !ok {
		return fmt.Errorf("a %T is no object", o)
	}
	object.SetManagedFields(nil)
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	do(r.kind, object)
	return nil
}

func (r store) Replace(list []any, _ string) error {
	objects := make([]metav1.Object, 0, len(list))
	for _, o := range list {
		if object, ok := o.(metav1.Object); ok {
			object.SetManagedFields(nil)
			objects = append(objects, object)
		}
	}
	r.s.replace(r.kind, objects)
	return nil
}

// follow keeps the objects of a kind in the state until ctx ends.
func (s *Server) follow(ctx context.Context, kind, plural string, object runtime.Object,
	list func(context.Context, metav1.ListOptions) (runtime.Object, error),
	watching func(context.Context, metav1.ListOptions) (watch.Interface, error)) {
	var pause time.Duration // before the next request; a reflector sends one after the other
	before := func(ctx context.Context) error {
		if pause == 0 {
			return nil
		}
		return sleep(ctx, pause)
	}
	observe := func(err error) { pause = s.observe(ctx, kind, plural, err) }
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			if err := before(ctx); err != nil {
				return nil, err
			}
			l, err := list(ctx, o)
			observe(err)
			return l, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			if err := before(ctx); err != nil {
				return nil, err
			}
			w, err := watching(ctx, o)
			observe(err)
			return w, err
		},
	}
	logger := klog.New(nil) // what fails is shown in the page
	r := cache.NewReflectorWithOptions(lw, object, store{s.state, kind}, cache.ReflectorOptions{
		Logger: &logger, Name: plural, Backoff: &wait.Backoff{Duration: firstRetry, Factor: 2, Steps: 5, Cap: lastRetry,
			Jitter: 0.2}})
	r.RunWithContext(klog.NewContext(ctx, logger))
}

// sleep waits, or returns why ctx ended.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// observe notes how the API server answered a list or watch, and returns how long the next one should wait.
func (s *Server) observe(ctx context.Context, kind, plural string, err error) time.Duration {
	status, answered := errors.AsType[*apierrors.StatusError](err)
	switch {
	case ctx.Err() != nil: // the end
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		where := "in all namespaces: choose one that you may read with `carob dashboard --namespace NAME`"
		if s.cfg.Namespace != "" {
			where = "in namespace " + s.cfg.Namespace
		}
		if kind == "node" {
			where = "(they have no namespace)"
		}
		text := "you may not list and watch " + plural + " " + where
		if apierrors.IsUnauthorized(err) {
			text = "the API server does not accept the credentials of your kubeconfig: " + err.Error()
		}
		s.state.answered(kind, "")
		s.state.Note(kind, text)
		return refused
	case apierrors.IsNotFound(err) && poolKinds[kind].Resource != "": // the cluster has no pools
		s.state.answered(kind, "")
		return missing
	case err == nil, answered && status.Status().Code < http.StatusInternalServerError:
		s.state.answered(kind, "")
		if err == nil {
			s.state.Note(kind, "")
		}
	default:
		s.state.answered(kind, err.Error())
	}
	return 0
}

// watchAll starts all watches.
func (s *Server) watchAll(run func(func(context.Context))) {
	for _, k := range sources() {
		client, namespace := k.client(&s.cfg), s.cfg.Namespace
		if k.whole {
			namespace = ""
		}
		request := func(o *metav1.ListOptions) *rest.Request {
			o.FieldSelector = k.fields
			return client.Get().Namespace(namespace).Resource(k.plural).VersionedParams(o, metav1.ParameterCodec)
		}
		run(func(ctx context.Context) {
			s.follow(ctx, k.kind, k.plural, k.object, func(ctx context.Context, o metav1.ListOptions) (runtime.Object,
				error) {
				return request(&o).Do(ctx).Get()
			}, func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				o.Watch = true
				return request(&o).Watch(ctx)
			})
		})
	}
	for kind, resource := range poolKinds { // any order: each has its own goroutine
		of := s.cfg.Dynamic.Resource(resource).Namespace(s.cfg.Namespace)
		run(func(ctx context.Context) {
			s.follow(ctx, kind, "inferencepools", nil, func(ctx context.Context, o metav1.ListOptions) (runtime.Object,
				error) {
				l, err := of.List(ctx, o)
				if err != nil {
					return &unstructured.UnstructuredList{}, err
				}
				return l, nil
			}, of.Watch)
		})
	}
}

// followNodes follows the timeline of each node, and samples the pools of its gateway.
func (s *Server) followNodes(ctx context.Context, run func(func(context.Context))) {
	followed := map[string]context.CancelFunc{}
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-next.C:
		}
		nodes := s.state.nodes()
		for n, end := range followed {
			if !slices.Contains(nodes, n) { // it left the cluster: another may take its place
				end()
				delete(followed, n)
			}
		}
		for _, n := range nodes {
			if followed[n] == nil && len(followed) < mostNodes {
				following, end := context.WithCancel(ctx)
				followed[n] = end
				run(func(context.Context) {
					defer end()
					s.followTimeline(following, n)
				})
			}
		}
		again := sampling
		if page, pool := s.state.watched(); page && pool {
			again = s.samplePools(ctx, nodes)
		}
		next.Reset(again)
	}
}

// agent is a request to a node's agent through the API server.
func (s *Server) agent(node string, path ...string) *rest.Request {
	return s.cfg.Client.CoreV1().RESTClient().Get().Resource("nodes").Name(node).SubResource("proxy").Suffix(path...)
}

// samplePools reads the states of the pools from the gateways of the nodes, and returns when to do so again.
func (s *Server) samplePools(ctx context.Context, nodes []string) time.Duration {
	var all []explain.PoolState
	unknown, again := "", sampling
	for _, n := range nodes[:min(len(nodes), mostNodes)] {
		limited, cancel := context.WithTimeout(ctx, 10*time.Second)
		body, err := s.agent(n, routeapi.PoolsPath).Param("namespace", s.cfg.Namespace).DoRaw(limited)
		cancel()
		var states []explain.PoolState
		switch {
		case apierrors.IsNotFound(err):
			unknown, again = "carob was started without a gateway (--gateway-http, --gateway-https, --gateway-addresses)",
				missing
		case apierrors.IsForbidden(err):
			unknown, again = "you need the right to get nodes/proxy", refused
		case err != nil:
			unknown = "node " + n + ": " + err.Error()
		default:
			if err := json.Unmarshal(body, &states); err != nil {
				unknown = "node " + n + ": " + err.Error()
			}
			all = append(all, states...)
		}
	}
	if len(all) > 0 {
		unknown = ""
	}
	s.state.gateway(all, unknown)
	return again
}

// followTimeline reads the timeline of a node until ctx ends.
func (s *Server) followTimeline(ctx context.Context, node string) {
	var last time.Time
	about := "timeline of " + node
	defer s.state.Note(about, "")
	for retry := firstRetry; ctx.Err() == nil; {
		err := s.readTimeline(ctx, node, &last)
		again := retry
		switch {
		case ctx.Err() != nil:
			return
		case apierrors.IsForbidden(err):
			s.state.Note(about, "you may not get nodes/proxy of node "+node+
				": lanes show the times in the pods' statuses, which are whole seconds")
			again = refused
		case apierrors.IsNotFound(err):
			s.state.Note(about, "node "+node+
				" has no timeline to follow: lanes show the times in the pods' statuses, which are whole seconds")
			again = refused
		case err == nil:
			retry, again = firstRetry, firstRetry
		default:
			retry = min(retry*2, lastRetry)
		}
		if sleep(ctx, again) != nil {
			return
		}
	}
}

// readTimeline reads a node's timeline until it ends, which is no error.
func (s *Server) readTimeline(ctx context.Context, node string, last *time.Time) error {
	request := s.agent(node, "timeline", "follow")
	if !last.IsZero() {
		request = request.Param("since", last.UTC().Format(time.RFC3339Nano))
	}
	body, err := request.Stream(ctx)
	if err != nil {
		return err
	}
	defer body.Close()
	s.state.Note("timeline of "+node, "")
	r := bufio.NewReaderSize(body, 64<<10)
	var list []journal.Entry
	for {
		line, err := readLine(r)
		if err != nil {
			s.state.entries(list)
			return nil //nolint:nilerr // the node or carob stops: the caller tries again
		}
		var e journal.Entry
		if json.Unmarshal(line, &e) == nil && e.Pod != "" && (s.cfg.Namespace == "" || e.Namespace == s.cfg.Namespace) {
			list = append(list, e)
			if e.Time.After(*last) {
				*last = e.Time
			}
		}
		if r.Buffered() == 0 || len(list) >= 1000 {
			s.state.entries(list)
			list = list[:0]
		}
	}
}

var errLongLine = errors.New("a line is too long")

// readLine reads a line of at most longestLine bytes.
func readLine(r *bufio.Reader) (line []byte, err error) {
	for {
		part, err := r.ReadSlice('\n')
		if len(line)+len(part) > longestLine {
			return nil, errLongLine
		}
		line = append(line, part...)
		if err == nil {
			return line, nil
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return nil, err
		}
	}
}
