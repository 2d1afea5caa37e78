package aggregation

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/proxy"
	genericapi "k8s.io/apiserver/pkg/endpoints"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"
	apiserverproxy "k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/client-go/transport"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	clientset "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	"k8s.io/streaming/pkg/httpstream"

	"carob/internal/apiserver/backends"
	"carob/internal/kinds/apiregistration"
)

// remote is one APIService that another server serves.
type remote struct {
	cfg  Config
	name string
	spec apiregistrationv1.APIServiceSpec
	// busy is set while the server is checked; Server.mu protects it.
	busy bool
	// due is when the next check is due, failures counts failed checks in a row; they belong to the check while it
	// runs, otherwise to the loop.
	due      time.Time
	failures int

	state atomic.Pointer[state]
}

// state is the result of the last check.
type state struct {
	err       error
	reason    string
	transport http.RoundTripper
	resources []apidiscoveryv2.APIResourceDiscovery
	v3        map[string]string // documents by path, with their URL and hash
	v2        []byte
	v2Tag     string
}

// newRemote returns the remote of o, which replaces old unless that is nil. Until its first check it
// is as available as old was, or without old as the condition in its status says, as in
// kube-aggregator: a change of a priority interrupts no client, nor does a restart of carob.
func newRemote(cfg Config, o *apiregistrationv1.APIService, old *remote) *remote {
	r := &remote{cfg: cfg, name: o.Name, spec: *o.Spec.DeepCopy()}
	st := &state{err: errors.New("not checked yet"), reason: "Pending"}
	if old != nil {
		st = old.successor(r)
	} else if c := apiregistration.Condition(o); c != nil && c.Status == apiregistrationv1.ConditionTrue {
		st = &state{reason: c.Reason}
	}
	if st.err == nil && st.transport == nil {
		st.transport, st.err = r.roundTripper()
	}
	r.state.Store(st)
	return r
}

// successor returns the state that the remote which replaces r begins with. Connections are kept if
// they lead to the same server with the same trust; documents of another server are not.
func (r *remote) successor(next *remote) *state {
	st := *r.state.Load()
	a, b := r.spec, next.spec
	if !equality.Semantic.DeepEqual(a.Service, b.Service) || a.InsecureSkipTLSVerify != b.InsecureSkipTLSVerify ||
		!bytes.Equal(a.CABundle, b.CABundle) {
		st = state{err: st.err, reason: st.reason, resources: st.resources}
	}
	return &st
}

func (r *remote) serves(o *apiregistrationv1.APIService) bool {
	return equality.Semantic.DeepEqual(r.spec, o.Spec)
}

func (r *remote) groupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: r.spec.Group, Version: r.spec.Version}
}

func (r *remote) port() int32 {
	if r.spec.Service.Port != nil {
		return *r.spec.Service.Port
	}
	return 443
}

func (r *remote) resolve() (*url.URL, error) {
	return r.cfg.Resolver.ResolveEndpoint(r.spec.Service.Namespace, r.spec.Service.Name, r.port())
}

// roundTripper returns the connection's part of the transport; the user's headers are added to each
// request.
func (r *remote) roundTripper() (http.RoundTripper, error) {
	return transport.New(&transport.Config{TLS: transport.TLSConfig{Insecure: r.spec.InsecureSkipTLSVerify,
		CAData: r.spec.CABundle, GetCertHolder: &transport.GetCertHolder{GetCert: r.cfg.FrontProxy},
		ServerName: r.spec.Service.Name + "." + r.spec.Service.Namespace + ".svc"}})
}

const (
	lookTime = 5 * time.Second
	// The longest lists of the kinds of a version and of OpenAPI documents, and the longest of these. In memory they
	// take many times as much.
	maxKinds, maxIndex, maxDocument = 1 << 20, 1 << 20, 16 << 20
	// maxAnswer is the longest answer to a part of this process.
	maxAnswer = 64 << 20
)

// check checks whether the server is available and what it serves.
func (r *remote) check(ctx context.Context) {
	next := *r.state.Load()
	next.err, next.reason = nil, "Passed"
	if next.transport == nil {
		next.transport, next.err = r.roundTripper()
	}
	if next.err == nil {
		next.reason, next.err = r.discover(ctx, &next)
	}
	if next.err != nil {
		r.failures++
		r.due = time.Now().Add(min(failurePeriod<<min(r.failures-1, 5), maxFailurePeriod))
	} else {
		r.failures = 0
		r.due = time.Now().Add(healthyPeriod)
		r.documents(ctx, &next)
	}
	r.state.Store(&next)
}

func (r *remote) discover(ctx context.Context, next *state) (reason string, err error) {
	where, err := r.resolve()
	switch {
	case apierrors.IsNotFound(err):
		return "ServiceNotFound",
			fmt.Errorf("service/%s in %q is not present", r.spec.Service.Name, r.spec.Service.Namespace)
	case err != nil && strings.Contains(err.Error(), "no service port"):
		return "ServicePortError",
			fmt.Errorf("service/%s in %q is not listening on port %d", r.spec.Service.Name, r.spec.Service.Namespace,
				r.port())
	case err != nil:
		return "MissingEndpoints",
			fmt.Errorf("endpoints for service/%s in %q have no addresses: %w", r.spec.Service.Name,
				r.spec.Service.Namespace, err)
	}
	where.Path = "/apis/" + r.groupVersion().String()
	body, _, err := r.fetch(ctx, next.transport, where, "", maxKinds)
	if err != nil {
		return "FailedDiscoveryCheck", fmt.Errorf("failing or missing response from %s: %w", where, err)
	}
	var list metav1.APIResourceList
	if err := json.Unmarshal(body, &list); err != nil {
		return "FailedDiscoveryCheck", fmt.Errorf("response from %s is not a list of resources: %w", where, err)
	}
	if next.resources, err = genericapi.ConvertGroupVersionIntoToDiscovery(list.APIResources); err != nil {
		return "FailedDiscoveryCheck", fmt.Errorf("resources of %s: %w", where, err)
	}
	return "Passed", nil
}

// fetch reads a document with the aggregator's own identity. A nil body means that the document
// with the given tag is current. A longer one than most is an error.
func (r *remote) fetch(ctx context.Context, rt http.RoundTripper, where *url.URL, tag string, most int64) (body []byte,
	newTag string, err error) {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, where.String(), nil)
	if err != nil {
		return nil, "", err
	}
	req.Header.Set("Accept", "application/json")
	if tag != "" {
		req.Header.Set("If-None-Match", tag)
	}
	transport.SetAuthProxyHeaders(req, "system:kube-aggregator", "", []string{"system:masters"}, nil)
	res, err := rt.RoundTrip(req)
	if err != nil {
		return nil, "", err
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusNotModified {
		return nil, tag, nil
	}
	if res.StatusCode != http.StatusOK {
		return nil, "", fmt.Errorf("bad status from %s: %d", where, res.StatusCode)
	}
	body, err = readWhole(res.Body, most)
	return body, res.Header.Get("Etag"), err
}

// readWhole reads a body that may have so many bytes.
func readWhole(body io.Reader, most int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(body, most+1))
	if err != nil {
		return nil, err
	}
	if int64(len(b)) > most {
		return nil, fmt.Errorf("the answer is longer than %d bytes", most)
	}
	return b, nil
}

// stale is the entry of a version whose kinds are not known: clients get an error for it.
func stale(version string) apidiscoveryv2.APIVersionDiscovery {
	return apidiscoveryv2.APIVersionDiscovery{Version: version, Freshness: apidiscoveryv2.DiscoveryFreshnessStale}
}

// discovery is the version's entry in the aggregated document; the last one of an unavailable
// server is not used.
func (r *remote) discovery() apidiscoveryv2.APIVersionDiscovery {
	st := r.state.Load()
	if st.err != nil {
		return stale(r.spec.Version)
	}
	return apidiscoveryv2.APIVersionDiscovery{Version: r.spec.Version,
		Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent, Resources: st.resources}
}

// report writes the condition Available if it changed.
func (r *remote) report(ctx context.Context, client clientset.Interface) (err error) {
	st := r.state.Load()
	want := apiregistrationv1.APIServiceCondition{Type: apiregistrationv1.Available,
		Status: apiregistrationv1.ConditionTrue, Reason: st.reason, Message: "all checks passed"}
	if st.err != nil {
		want.Status, want.Message = apiregistrationv1.ConditionFalse, st.err.Error()
	}
	services := client.ApiregistrationV1().APIServices()
	o, err := services.Get(ctx, r.name, metav1.GetOptions{})
	if err != nil || !r.serves(o) {
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}
	before := o.DeepCopy()
	defer func() {
		availability().SetUnavailableGauge(o)
		if err == nil {
			availability().SetUnavailableCounter(before, o)
		}
	}()
	want.LastTransitionTime = metav1.Now()
	if c := apiregistration.Condition(o); c != nil {
		if c.Status == want.Status && c.Reason == want.Reason && c.Message == want.Message {
			return nil
		}
		if c.Status == want.Status {
			want.LastTransitionTime = c.LastTransitionTime
		}
		*c = want
	} else {
		o.Status.Conditions = append(o.Status.Conditions, want)
	}
	_, err = services.UpdateStatus(ctx, o, metav1.UpdateOptions{})
	return err
}

// ServeHTTP proxies a request.
func (r *remote) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	st := r.state.Load()
	if st.err != nil {
		r.unavailable(w, req, fmt.Errorf("APIService %s is not available: %w", r.name, st.err))
		return
	}
	user, ok := apirequest.UserFrom(req.Context())
	if !ok {
		http.Error(w, "missing user", http.StatusInternalServerError)
		return
	}
	to, err := r.resolve()
	if err != nil {
		r.unavailable(w, req, fmt.Errorf("find the server of APIService %s: %w", r.name, err))
		return
	}
	to.Path, to.RawQuery = req.URL.Path, req.URL.RawQuery
	lasts := r.cfg.Lasts(req)
	if !lasts {
		ctx, cancel := context.WithTimeout(req.Context(), r.cfg.Timeout)
		defer cancel()
		req = req.WithContext(ctx)
	}
	out, done := apiserverproxy.NewRequestForProxy(to, req)
	defer done()
	upgrade := httpstream.IsUpgradeRequest(req)
	if upgrade { // an upgrade bypasses the round tripper that would add the user
		transport.SetAuthProxyHeaders(out, user.GetName(), user.GetUID(), user.GetGroups(), user.GetExtra())
	}
	connections := backends.Checked(st.transport)
	if !lasts && r.cfg.Own(req.Context()) {
		connections = whole{connections}
	}
	rt := transport.NewAuthProxyRoundTripper(user.GetName(), user.GetUID(), user.GetGroups(), user.GetExtra(),
		connections)
	where := *to
	where.RawQuery = "" // the library parses it again, and panics if a query like "a#%zz" makes it invalid
	h := proxy.NewUpgradeAwareHandler(&where, rt, true, upgrade, failed{r})
	h.Location.RawQuery, h.RejectForwardingRedirects = to.RawQuery, true
	utilflowcontrol.RequestDelegated(req.Context())
	h.ServeHTTP(w, out)
}

// whole reads answers for a client in this process, which has them in memory anyway. Longer ones are errors, not parts.
type whole struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (w whole) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := w.RoundTripper.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	b, err := readWhole(res.Body, maxAnswer)
	if err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	res.Body, res.ContentLength = io.NopCloser(bytes.NewReader(b)), int64(len(b))
	return res, nil
}

// unavailable answers with an error as a Status: clients such as kubectl show only its message.
func (r *remote) unavailable(w http.ResponseWriter, req *http.Request, err error) {
	responsewriters.ErrorNegotiated(apierrors.NewServiceUnavailable(err.Error()), r.cfg.Serializer, metav1.Unversioned,
		w, req)
}

// failed writes the error of a failed request to a server.
type failed struct{ *remote }

// Error implements proxy.ErrorResponder.
func (f failed) Error(w http.ResponseWriter, req *http.Request, err error) {
	if errors.Is(req.Context().Err(), context.DeadlineExceeded) {
		err = fmt.Errorf("the server of APIService %s has not answered in time", f.name)
	}
	f.unavailable(w, req, err)
}
