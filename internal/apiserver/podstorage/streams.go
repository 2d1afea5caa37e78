package podstorage

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	genericrest "k8s.io/apiserver/pkg/registry/generic/rest"
	"k8s.io/apiserver/pkg/registry/rest"
	streamproxy "k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/streaming/pkg/httpstream/wsstream"
)

// located is the agent of a pod, found for one request.
type located struct {
	pod       *corev1.Pod
	container string
	base      *url.URL
	transport http.RoundTripper
}

// url is a path of the agent for the pod: /<verb>/<namespace>/<pod>[/<container>].
func (l *located) url(verb string, params url.Values) *url.URL {
	u := *l.base
	u.Path = path.Join("/", verb, l.pod.Namespace, l.pod.Name, l.container)
	u.RawQuery = params.Encode()
	return &u
}

// finder finds pods and their agents.
type finder struct {
	store  *genericregistry.Store
	agents *agents
}

func (f finder) pod(ctx context.Context, name string) (*corev1.Pod, error) {
	obj, err := f.store.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	p, ok := obj.(*corev1.Pod)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("read pod %s: unexpected %T", name, obj))
	}
	return p, nil
}

// locate finds the agent of a pod that is bound to a node. With named it also resolves the
// container (L1.130).
func (f finder) locate(ctx context.Context, name, container string, named bool) (*located, error) {
	p, err := f.pod(ctx, name)
	if err != nil {
		return nil, err
	}
	if named {
		if container, err = containerOf(p, container); err != nil {
			return nil, err
		}
	}
	if p.Spec.NodeName == "" {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("pod %s does not have a host assigned", name))
	}
	base, transport, err := f.agents.location(ctx, p.Spec.NodeName)
	if err != nil {
		return nil, err
	}
	return &located{pod: p, container: container, base: base, transport: transport}, nil
}

// containerOf resolves the container of a request (L1.130).
func containerOf(p *corev1.Pod, name string) (string, error) {
	var all []string
	for i := range p.Spec.InitContainers {
		all = append(all, p.Spec.InitContainers[i].Name)
	}
	for i := range p.Spec.Containers {
		all = append(all, p.Spec.Containers[i].Name)
	}
	for i := range p.Spec.EphemeralContainers {
		all = append(all, p.Spec.EphemeralContainers[i].Name)
	}
	switch {
	case name == "" && len(p.Spec.Containers) == 1:
		return p.Spec.Containers[0].Name, nil
	case name == "" && len(p.Spec.Containers) == 0:
		return "", apierrors.NewBadRequest(fmt.Sprintf("a container name must be specified for pod %s", p.Name))
	case name == "":
		return "", apierrors.NewBadRequest(
			fmt.Sprintf("a container name must be specified for pod %s, choose one of: %v", p.Name, all))
	case !slices.Contains(all, name):
		return "", apierrors.NewBadRequest(fmt.Sprintf("container %s is not valid for pod %s", name, p.Name))
	}
	return name, nil
}

// logREST streams the log of a container from its agent.
type logREST struct{ finder }

var _ rest.GetterWithOptions = (*logREST)(nil)

func (*logREST) New() runtime.Object { return &corev1.Pod{} }

func (*logREST) Destroy() {}

// ProducesMIMETypes says that a log is text.
func (*logREST) ProducesMIMETypes(string) []string { return []string{"text/plain"} }

// ProducesObject is the type of the body for the API description: a string.
func (*logREST) ProducesObject(string) any { return "" }

// NewGetOptions are the query parameters.
func (*logREST) NewGetOptions() (runtime.Object, bool, string) {
	return &corev1.PodLogOptions{}, false, ""
}

// OverrideMetricsVerb counts a log request separately from a get.
func (*logREST) OverrideMetricsVerb(old string) string {
	if old == "GET" {
		return "CONNECT"
	}
	return old
}

func (r *logREST) Get(ctx context.Context, name string, options runtime.Object) (runtime.Object, error) {
	o, ok := options.(*corev1.PodLogOptions)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid options object: %#v", options))
	}
	if errs := logOptions(o); len(errs) > 0 {
		return nil, apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("PodLogOptions").GroupKind(), name, errs)
	}
	p, err := r.pod(ctx, name)
	if err != nil {
		return nil, err
	}
	streamer := &genericrest.LocationStreamer{
		ContentType: "text/plain", Flush: o.Follow,
		ResponseChecker: genericrest.NewGenericHttpResponseChecker(Resource, name),
		RedirectChecker: genericrest.PreventRedirects,
	}
	if p.Spec.NodeName == "" {
		// Nothing has been written yet: return an empty log, so that a follower of a new pod gets
		// no error.
		if _, err := containerOf(p, o.Container); err != nil {
			return nil, err
		}
		return streamer, nil
	}
	l, err := r.locate(ctx, name, o.Container, true)
	if err != nil {
		return nil, err
	}
	streamer.Location, streamer.Transport = l.url("containerLogs", logParams(o)), l.transport
	return streamer, nil
}

func logOptions(o *corev1.PodLogOptions) field.ErrorList {
	var errs field.ErrorList
	if o.TailLines != nil && *o.TailLines < 0 {
		errs = append(errs, field.Invalid(field.NewPath("tailLines"), *o.TailLines,
			"must be greater than or equal to 0"))
	}
	if o.LimitBytes != nil && *o.LimitBytes < 1 {
		errs = append(errs, field.Invalid(field.NewPath("limitBytes"), *o.LimitBytes, "must be greater than 0"))
	}
	switch {
	case o.SinceSeconds != nil && o.SinceTime != nil:
		errs = append(errs, field.Forbidden(field.NewPath(""),
			"at most one of `sinceTime` or `sinceSeconds` may be specified"))
	case o.SinceSeconds != nil && *o.SinceSeconds < 1:
		errs = append(errs, field.Invalid(field.NewPath("sinceSeconds"), *o.SinceSeconds, "must be greater than 0"))
	}
	if o.Stream != nil { // behind the feature gate PodLogsQuerySplitStreams, which is off
		errs = append(errs, field.Forbidden(field.NewPath("stream"), "may not be specified"))
	}
	return errs
}

func logParams(o *corev1.PodLogOptions) url.Values {
	v := url.Values{}
	for name, set := range map[string]bool{"follow": o.Follow, "previous": o.Previous, "timestamps": o.Timestamps} {
		if set {
			v.Set(name, "true")
		}
	}
	for name, n := range map[string]*int64{"sinceSeconds": o.SinceSeconds, "tailLines": o.TailLines,
		"limitBytes": o.LimitBytes} {
		if n != nil {
			v.Set(name, strconv.FormatInt(*n, 10))
		}
	}
	if o.SinceTime != nil {
		v.Set("sinceTime", o.SinceTime.UTC().Format(time.RFC3339))
	}
	return v
}

// streamMethods start a stream: POST for SPDY, GET for websockets.
var streamMethods = []string{http.MethodGet, http.MethodPost}

// connecter is the common part of exec, attach, and port-forward. New returns the kind in
// discovery, which webhooks get as well: the options.
type connecter struct {
	finder
	create creator
}

func (*connecter) Destroy() {}

// ConnectMethods are the HTTP methods of the subresource.
func (*connecter) ConnectMethods() []string { return streamMethods }

// streams proxies standard streams; for a client with websockets it translates to the agent's
// protocol.
func streams(location *url.URL, transport http.RoundTripper, options streamproxy.Options,
	responder rest.Responder) http.Handler {
	upgrade := upgradeOnly(location, transport, responder)
	translate := streamproxy.NewStreamTranslatorHandler(location, transport, 0, options)
	return streamproxy.NewTranslatingHandler(upgrade, translate, wsstream.IsWebSocketRequestWithStreamCloseProtocol)
}

func upgradeOnly(location *url.URL, transport http.RoundTripper, responder rest.Responder) *proxy.UpgradeAwareHandler {
	return proxy.NewUpgradeAwareHandler(location, transport, false, true, proxy.NewErrorResponder(responder))
}

// streamParams are the requested streams by the agents' names.
func streamParams(stdin, stdout, stderr, tty bool) (url.Values, streamproxy.Options) {
	v := url.Values{}
	for name, set := range map[string]bool{corev1.ExecStdinParam: stdin, corev1.ExecStdoutParam: stdout,
		corev1.ExecStderrParam: stderr, corev1.ExecTTYParam: tty} {
		if set {
			v.Set(name, "1")
		}
	}
	return v, streamproxy.Options{Stdin: stdin, Stdout: stdout, Stderr: stderr, Tty: tty}
}

func needStream(stdin, stdout, stderr bool, kind, name string) error {
	if stdin || stdout || stderr {
		return nil
	}
	return apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind(kind).GroupKind(), name,
		field.ErrorList{field.Required(field.NewPath(""),
			"at least one of `stdin`, `stdout` or `stderr` must be specified")})
}

// execREST runs a command in a container.
type execREST struct{ connecter }

var _ rest.Connecter = (*execREST)(nil)

func (*execREST) New() runtime.Object { return &corev1.PodExecOptions{} }

// NewConnectOptions are the query parameters.
func (*execREST) NewConnectOptions() (runtime.Object, bool, string) {
	return &corev1.PodExecOptions{}, false, ""
}

func (r *execREST) Connect(ctx context.Context, name string, options runtime.Object,
	responder rest.Responder) (http.Handler, error) {
	if err := r.create.check(ctx); err != nil {
		return nil, err
	}
	o, ok := options.(*corev1.PodExecOptions)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid options object: %#v", options))
	}
	if len(o.Command) == 0 {
		return nil, apierrors.NewBadRequest("you must specify at least 1 command for the container")
	}
	if err := needStream(o.Stdin, o.Stdout, o.Stderr, "PodExecOptions", name); err != nil {
		return nil, err
	}
	l, err := r.locate(ctx, name, o.Container, true)
	if err != nil {
		return nil, err
	}
	// With a terminal there is one output stream.
	params, wanted := streamParams(o.Stdin, o.Stdout, o.Stderr && !o.TTY, o.TTY)
	for _, c := range o.Command {
		params.Add("command", c)
	}
	return streams(l.url("exec", params), l.transport, wanted, responder), nil
}

// attachREST connects to the streams of a running container.
type attachREST struct{ connecter }

var _ rest.Connecter = (*attachREST)(nil)

func (*attachREST) New() runtime.Object { return &corev1.PodAttachOptions{} }

// NewConnectOptions are the query parameters.
func (*attachREST) NewConnectOptions() (runtime.Object, bool, string) {
	return &corev1.PodAttachOptions{}, false, ""
}

func (r *attachREST) Connect(ctx context.Context, name string, options runtime.Object,
	responder rest.Responder) (http.Handler, error) {
	if err := r.create.check(ctx); err != nil {
		return nil, err
	}
	o, ok := options.(*corev1.PodAttachOptions)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid options object: %#v", options))
	}
	if err := needStream(o.Stdin, o.Stdout, o.Stderr, "PodAttachOptions", name); err != nil {
		return nil, err
	}
	l, err := r.locate(ctx, name, o.Container, true)
	if err != nil {
		return nil, err
	}
	params, wanted := streamParams(o.Stdin, o.Stdout, o.Stderr && !o.TTY, o.TTY)
	return streams(l.url("attach", params), l.transport, wanted, responder), nil
}

// portForwardREST forwards ports of the client to the pod.
type portForwardREST struct{ connecter }

var _ rest.Connecter = (*portForwardREST)(nil)

func (*portForwardREST) New() runtime.Object { return &corev1.PodPortForwardOptions{} }

// NewConnectOptions are the query parameters.
func (*portForwardREST) NewConnectOptions() (runtime.Object, bool, string) {
	return &corev1.PodPortForwardOptions{}, false, ""
}

func (r *portForwardREST) Connect(ctx context.Context, name string, options runtime.Object,
	responder rest.Responder) (http.Handler, error) {
	if err := r.create.check(ctx); err != nil {
		return nil, err
	}
	o, ok := options.(*corev1.PodPortForwardOptions)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid options object: %#v", options))
	}
	l, err := r.locate(ctx, name, "", false)
	if err != nil {
		return nil, err
	}
	params := url.Values{}
	if len(o.Ports) > 0 {
		ports := make([]string, len(o.Ports))
		for i, p := range o.Ports {
			ports[i] = strconv.Itoa(int(p))
		}
		params.Set(corev1.PortHeader, strings.Join(ports, ","))
	}
	upgrade := upgradeOnly(l.url("portForward", params), l.transport, responder)
	return streamproxy.NewTranslatingHandler(upgrade, streamproxy.NewTunnelingHandler(upgrade),
		wsstream.IsWebSocketRequestWithTunnelingProtocol), nil
}
