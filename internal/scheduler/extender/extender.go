// Package extender calls the HTTP extenders of a KubeSchedulerConfiguration: programs that refuse and
// rate nodes, change preemptions, and bind pods. The scheduler drives it; it makes no decisions, and
// rejects responses that name nodes or pods that were not in the request.
//
// Contract: L2 in docs/spec/pod-lifecycle.md; k8s.io/kube-scheduler/extender/v1.
package extender

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	configv1 "k8s.io/kube-scheduler/config/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
)

// defaultTimeout limits a call to an extender that sets none.
const defaultTimeout = 5 * time.Second

const (
	// leastAnswer is how long a response may always be, in bytes, answerGrowth how much more than the request it may
	// be beyond that: it may contain all nodes of a large cluster, which the request contains, too. In memory, a
	// response takes several times as much.
	leastAnswer  = 16 << 20
	answerGrowth = 4
	// maxReason is the longest reason, in bytes, that is shown: as long as the note of an event.
	maxReason = 1024
)

// reason shortens a text of an extender, which becomes part of conditions, events, and the log.
func reason(text string) string {
	if len(text) <= maxReason {
		return text
	}
	return strings.ToValidUTF8(text[:maxReason], "") + " ..."
}

func reasons(by map[string]string) map[string]string {
	for name, text := range by {
		by[name] = reason(text)
	}
	return by
}

// Client calls one extender. Its methods may be called from many goroutines.
type Client struct {
	config configv1.Extender
	http   *http.Client
}

// New returns the client of an extender whose fields were validated. transport, unless nil, is used
// instead of a connection with the extender's TLS settings.
func New(e configv1.Extender, transport http.RoundTripper) (*Client, error) {
	if transport == nil {
		t, err := dial(&e)
		if err != nil {
			return nil, fmt.Errorf("extender %s: %w", e.URLPrefix, err)
		}
		transport = t
	}
	timeout := e.HTTPTimeout.Duration
	if timeout == 0 {
		timeout = defaultTimeout
	}
	return &Client{config: e, http: &http.Client{Transport: transport, Timeout: timeout,
		// A redirect could send pods to a server that no administrator configured.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}, nil
}

// dial returns the transport for an extender. One with enableHTTPS and no authority is not verified, as
// upstream.
func dial(e *configv1.Extender) (http.RoundTripper, error) {
	var c rest.Config
	if t := e.TLSConfig; t != nil {
		c.TLSClientConfig = rest.TLSClientConfig{Insecure: t.Insecure, ServerName: t.ServerName, CertFile: t.CertFile,
			KeyFile: t.KeyFile, CAFile: t.CAFile, CertData: t.CertData, KeyData: t.KeyData, CAData: t.CAData}
	}
	if e.EnableHTTPS && c.CAFile == "" && len(c.CAData) == 0 {
		c.Insecure = true
	}
	config, err := rest.TLSConfigFor(&c)
	if err != nil {
		return nil, fmt.Errorf("read the TLS settings: %w", err)
	}
	t, ok := http.DefaultTransport.(*http.Transport)
	if !ok {
		return nil, errors.New("the default transport is not an HTTP transport")
	}
	t = t.Clone()
	t.TLSClientConfig = config
	return t, nil
}

// Name returns the extender's address.
func (c *Client) Name() string { return c.config.URLPrefix }

// Ignorable reports whether pods are scheduled without the extender while it does not answer.
func (c *Client) Ignorable() bool { return c.config.Ignorable }

// Binds reports whether the extender binds the pods that it is interested in.
func (c *Client) Binds() bool { return c.config.BindVerb != "" }

// Preempts reports whether the extender changes preemptions.
func (c *Client) Preempts() bool { return c.config.PreemptVerb != "" }

// Weight returns the weight of the extender's scores.
func (c *Client) Weight() int64 { return c.config.Weight }

// Interested reports whether the extender is called for a pod: it manages no specific resources, or
// one that the pod requests.
func (c *Client) Interested(pod *corev1.Pod) bool {
	if len(c.config.ManagedResources) == 0 {
		return true
	}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			for _, m := range c.config.ManagedResources {
				_, requested := list[i].Resources.Requests[corev1.ResourceName(m.Name)]
				_, limited := list[i].Resources.Limits[corev1.ResourceName(m.Name)]
				if requested || limited {
					return true
				}
			}
		}
	}
	return false
}

// arguments returns the pod and the nodes, in the form that the extender is configured for.
func (c *Client) arguments(pod *corev1.Pod, nodes []*corev1.Node) *extenderv1.ExtenderArgs {
	args := &extenderv1.ExtenderArgs{Pod: pod}
	if c.config.NodeCacheCapable {
		names := make([]string, 0, len(nodes))
		for _, n := range nodes {
			names = append(names, n.Name)
		}
		args.NodeNames = &names
		return args
	}
	args.Nodes = &corev1.NodeList{}
	for _, n := range nodes {
		args.Nodes.Items = append(args.Nodes.Items, *n)
	}
	return args
}

// Filtered is the result of an extender's filter.
type Filtered struct {
	Nodes        []*corev1.Node    // accepted
	Failed       map[string]string // refused, by node: why
	Unresolvable map[string]string // refused, and removing pods does not help
}

// Filter returns which of these nodes can run the pod. Without a filterVerb, all can.
func (c *Client) Filter(ctx context.Context, pod *corev1.Pod, nodes []*corev1.Node) (Filtered, error) {
	if c.config.FilterVerb == "" {
		return Filtered{Nodes: nodes}, nil
	}
	var result extenderv1.ExtenderFilterResult
	if err := c.send(ctx, c.config.FilterVerb, c.arguments(pod, nodes), &result); err != nil {
		return Filtered{}, err
	}
	if result.Error != "" {
		return Filtered{}, errors.New(reason(result.Error))
	}
	var names []string
	switch {
	case c.config.NodeCacheCapable && result.NodeNames != nil:
		names = *result.NodeNames
	case result.Nodes != nil:
		for i := range result.Nodes.Items {
			names = append(names, result.Nodes.Items[i].Name)
		}
	}
	given := make(map[string]*corev1.Node, len(nodes))
	for _, n := range nodes {
		given[n.Name] = n
	}
	out := Filtered{Failed: reasons(result.FailedNodes), Unresolvable: reasons(result.FailedAndUnresolvableNodes)}
	for _, name := range names {
		if given[name] == nil {
			return Filtered{}, fmt.Errorf(
				"extender %q claims a filtered node %q which is not found in the input node list", c.Name(), name)
		}
		out.Nodes = append(out.Nodes, given[name])
	}
	return out, nil
}

// Scores returns the scores of these nodes, 0 to 10 each; none without a prioritizeVerb.
func (c *Client) Scores(ctx context.Context, pod *corev1.Pod, nodes []*corev1.Node) (map[string]int64, error) {
	if c.config.PrioritizeVerb == "" {
		return nil, nil
	}
	var result extenderv1.HostPriorityList
	if err := c.send(ctx, c.config.PrioritizeVerb, c.arguments(pod, nodes), &result); err != nil {
		return nil, err
	}
	scores := make(map[string]int64, len(result))
	for _, h := range result {
		// A score beyond the allowed range could outweigh every other score, or overflow.
		scores[h.Host] = min(max(h.Score, extenderv1.MinExtenderPriority), extenderv1.MaxExtenderPriority)
	}
	return scores, nil
}

// Preempt returns which nodes and victims of a planned preemption remain; the response has UIDs
// only.
func (c *Client) Preempt(ctx context.Context, pod *corev1.Pod,
	plan map[string]*extenderv1.Victims) (map[string]*extenderv1.MetaVictims, error) {
	args := &extenderv1.ExtenderPreemptionArgs{Pod: pod}
	if c.config.NodeCacheCapable {
		args.NodeNameToMetaVictims = map[string]*extenderv1.MetaVictims{}
		for node, v := range plan {
			m := &extenderv1.MetaVictims{NumPDBViolations: v.NumPDBViolations}
			for _, p := range v.Pods {
				m.Pods = append(m.Pods, &extenderv1.MetaPod{UID: string(p.UID)})
			}
			args.NodeNameToMetaVictims[node] = m
		}
	} else {
		args.NodeNameToVictims = plan
	}
	var result extenderv1.ExtenderPreemptionResult
	err := c.send(ctx, c.config.PreemptVerb, args, &result)
	return result.NodeNameToMetaVictims, err
}

// Bind binds a pod by the extender.
func (c *Client) Bind(ctx context.Context, b *corev1.Binding) error {
	var result extenderv1.ExtenderBindingResult
	err := c.send(ctx, c.config.BindVerb, &extenderv1.ExtenderBindingArgs{PodName: b.Name, PodNamespace: b.Namespace,
		PodUID: b.UID, Node: b.Target.Name}, &result)
	if err == nil && result.Error != "" {
		err = errors.New(reason(result.Error))
	}
	return err
}

func (c *Client) send(ctx context.Context, verb string, args, result any) error {
	body, err := json.Marshal(args)
	if err != nil {
		return fmt.Errorf("encode a call to extender %s: %w", c.Name(), err)
	}
	url := strings.TrimRight(c.config.URLPrefix, "/") + "/" + verb
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("call extender %s: %w", c.Name(), err)
	}
	request.Header.Set("Content-Type", "application/json")
	answer, err := c.http.Do(request)
	if err != nil {
		return err // the error contains the address
	}
	defer answer.Body.Close() //nolint:errcheck // it was read
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("failed %v with extender at URL %v, code %v", verb, url, answer.StatusCode)
	}
	most := leastAnswer + answerGrowth*int64(len(body))
	err = json.NewDecoder(http.MaxBytesReader(nil, answer.Body, most)).Decode(result)
	if long, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return fmt.Errorf("the answer of extender %s to %s is longer than %d bytes", c.Name(), verb, long.Limit)
	}
	if err != nil {
		return fmt.Errorf("read the answer of extender %s to %s: %w", c.Name(), verb, err)
	}
	return nil
}
