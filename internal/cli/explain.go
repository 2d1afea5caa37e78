package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"

	"carob/internal/base/routeapi"
	"carob/internal/cli/terminal"
	"carob/internal/core/explain"
)

// explainer reads what `carob explain` prints.
type explainer struct {
	c                     kubernetes.Interface
	namespace, node, name string
	model                 string
}

func (r *root) explainCommand() *cobra.Command {
	x := explainer{}
	var output string
	cmd := &cobra.Command{
		Use:   "explain KIND/NAME | KIND NAME",
		Short: "Explain why an object does not do what it should",
		Long: `Explain in plain words what an object does, and what it waits for. The kinds, also by
their plural and by the short names of kubectl:

` + kindNames() + `

Lines about problems begin with "!". The exit code is 0 only if there is none.`,
		Example: `  carob explain pod/web
  carob explain deploy/web
  carob explain pvc data-db-0
  carob explain -n models inferencepool/llama --model llama-3
  carob explain httproute/shop -o json`,
		Args:              someArgs,
		ValidArgsFunction: r.completeExplained(&x.namespace),
		RunE: func(cmd *cobra.Command, args []string) error {
			kind, name, ok := strings.Cut(strings.Join(args, "/"), "/")
			if !ok || name == "" || strings.Contains(name, "/") {
				return usagef("%q is not KIND/NAME, such as pod/web", strings.Join(args, " "))
			}
			k, ok := kindNamed(kind)
			if !ok {
				return usagef("objects of kind %q cannot be explained; `carob help explain` lists the kinds that can", kind)
			}
			if r.standalone() {
				return errors.New("carob runs in standalone mode, without an API server that has objects to explain: use " +
					"`carob timeline pod/NAME` and `carob status`")
			}
			c, err := r.client()
			if err != nil {
				return err
			}
			x.c, x.name = c, name
			lines, err := k.explain(&x, cmd.Context())
			if err != nil {
				return err
			}
			if err := printObject(r.out, output, lines, func(w io.Writer) error {
				return printLines(w, lines, terminalWidth(w))
			}); err != nil {
				return err
			}
			if lines.Problems() {
				return Exit{1}
			}
			return nil
		},
	}
	addOutputFlag(cmd, &output)
	cmd.Flags().StringVarP(&x.namespace, "namespace", "n", metav1.NamespaceDefault, "namespace of the object")
	cmd.Flags().StringVar(&x.node, "node", "", "node whose gateway is queried (default: the only one)")
	cmd.Flags().StringVar(&x.model, "model", "", "for an InferencePool: the model that requests name")
	_ = cmd.RegisterFlagCompletionFunc("node", r.completeNodes)
	_ = cmd.RegisterFlagCompletionFunc("namespace", r.completeNamespaces)
	return cmd
}

// printLines prints each line behind a mark, wrapped to a width; 0: not wrapped, so that programs can read it.
func printLines(w io.Writer, lines explain.Lines, width int) error {
	const indent = "    " // of what follows the first line of a text
	for _, l := range lines {
		mark := "! "
		if !l.Problem {
			mark = "  "
		}
		texts := []string{terminal.PrintableLine(l.Text)}
		if width > 0 {
			texts = terminal.Wrap(texts[0], width-len(indent))
		}
		for i, text := range texts {
			if i > 0 {
				mark = indent
			}
			if _, err := fmt.Fprintf(w, "%s%s\n", mark, text); err != nil {
				return err
			}
		}
	}
	return nil
}

func (x *explainer) pod(ctx context.Context) (explain.Lines, error) {
	p, err := x.c.CoreV1().Pods(x.namespace).Get(ctx, x.name, metav1.GetOptions{})
	if err != nil {
		return nil, plain(err)
	}
	claims, err := x.unboundClaims(ctx, p)
	if err != nil {
		return nil, err
	}
	return explain.Pod(p, explain.Beside{Events: x.events(ctx, p.UID), Claims: claims,
		ResourceClaims: x.missingResourceClaims(ctx, p), Handler: x.missingHandler(ctx, p), Room: x.room(ctx, p),
		Log: x.failedLog(ctx, p)},
		time.Now()), nil
}

// missingResourceClaims names the ResourceClaims of a pod, and their templates, that do not exist. What the user may
// not read is not named: to read pods is enough to have them explained.
func (x *explainer) missingResourceClaims(ctx context.Context, p *corev1.Pod) (out []string) {
	made := map[string]*string{} // by their name in the pod: those of templates
	for _, s := range p.Status.ResourceClaimStatuses {
		made[s.Name] = s.ResourceClaimName
	}
	claims := x.c.ResourceV1().ResourceClaims(p.Namespace)
	templates := x.c.ResourceV1().ResourceClaimTemplates(p.Namespace)
	for _, c := range p.Spec.ResourceClaims {
		name, of := c.ResourceClaimName, c.ResourceClaimTemplateName
		if name == nil {
			name = made[c.Name]
		}
		switch {
		case name != nil:
			if _, err := claims.Get(ctx, *name, metav1.GetOptions{}); apierrors.IsNotFound(err) {
				out = append(out, "resource claim "+*name)
			}
		case of != nil:
			if _, err := templates.Get(ctx, *of, metav1.GetOptions{}); apierrors.IsNotFound(err) {
				out = append(out, "resource claim template "+*of)
			}
		}
	}
	return out
}

// room reads what a pod that is not scheduled is compared with. What the user may not read is left out: to read pods is
// enough to have them explained.
func (x *explainer) room(ctx context.Context, p *corev1.Pod) (out explain.Room) {
	nodes, pods := explain.NeedsRoom(p)
	if !nodes {
		return out
	}
	if list, err := x.c.CoreV1().Nodes().List(ctx, metav1.ListOptions{}); err == nil {
		out.Nodes = list.Items
	}
	if !pods {
		return out
	}
	if list, err := x.c.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{}); err == nil {
		out.Pods = list.Items
	}
	return out
}

// missingHandler is the RuntimeClass handler of a pod if its node does not have it now. It is empty if that is not
// known: to read pods is enough to have them explained.
func (x *explainer) missingHandler(ctx context.Context, p *corev1.Pod) string {
	if p.Spec.RuntimeClassName == nil || p.Spec.NodeName == "" {
		return ""
	}
	class, err := x.c.NodeV1().RuntimeClasses().Get(ctx, *p.Spec.RuntimeClassName, metav1.GetOptions{})
	if err != nil {
		return ""
	}
	node, err := x.c.CoreV1().Nodes().Get(ctx, p.Spec.NodeName, metav1.GetOptions{})
	if err != nil {
		return ""
	}
	return explain.MissingHandler(node, class.Handler)
}

// unboundClaims explains the claims of a pod that are not bound, by name; those that do not exist have no lines.
func (x *explainer) unboundClaims(ctx context.Context, p *corev1.Pod) (map[string]explain.Lines, error) {
	out := map[string]explain.Lines{}
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		name := p.Name + "-" + v.Name
		if v.PersistentVolumeClaim != nil {
			name = v.PersistentVolumeClaim.ClaimName
		} else if v.Ephemeral == nil {
			continue
		}
		c, err := found(x.c.CoreV1().PersistentVolumeClaims(p.Namespace).Get(ctx, name, metav1.GetOptions{}))
		switch {
		case apierrors.IsForbidden(err): // to read pods is enough to have them explained
		case err != nil:
			return nil, fmt.Errorf("read claim %s: %w", name, plain(err))
		case c == nil:
			out[name] = nil
		case c.Status.Phase != corev1.ClaimBound:
			if out[name], err = x.explainClaim(ctx, c); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// failedLog reads the end of the log of the program that failed last in any of the pods. Nil: there is none, or the
// user may not read it.
func (x *explainer) failedLog(ctx context.Context, pods ...*corev1.Pod) *explain.Log {
	ref := explain.FailedLog(pods...)
	if ref == nil {
		return nil
	}
	options := &corev1.PodLogOptions{Container: ref.Container, Previous: ref.Previous,
		TailLines: new(int64(explain.LogLines)), LimitBytes: new(int64(explain.LogBytes))}
	text, err := x.c.CoreV1().Pods(x.namespace).GetLogs(ref.Pod, options).DoRaw(ctx)
	if err != nil {
		return nil
	}
	return &explain.Log{LogRef: *ref, Text: string(text)}
}

// query queries the node's gateway; unknown is why the result is not known.
func (x *explainer) query(ctx context.Context, path string, into any) (unknown string, err error) {
	node, err := oneNode(ctx, x.c, x.node)
	if err != nil {
		return "", err
	}
	body, err := agentPath(x.c, "GET", node, path).Param("namespace", x.namespace).DoRaw(ctx)
	switch {
	case apierrors.IsNotFound(err):
		return explain.NoGateway, nil
	case apierrors.IsForbidden(err):
		return plain(err).Error(), nil
	case err != nil:
		return "", fmt.Errorf("query the gateway of node %s: %w", node, plain(err))
	}
	if err := json.Unmarshal(body, into); err != nil {
		return "", fmt.Errorf("read the answer of node %s: %w", node, err)
	}
	return "", nil
}

func (x *explainer) inferencePool(ctx context.Context) (explain.Lines, error) {
	var text []byte
	err := errors.New("the cluster has no InferencePools: `carob addon enable inference`")
	group, served := "", false
	for _, path := range inferenceGroups {
		var failed error
		text, failed = x.read(ctx, path, "inferencepools")
		if group = strings.Split(path, "/")[2]; failed == nil {
			err = nil
			break
		}
		known := !apierrors.IsNotFound(failed) || strings.Contains(failed.Error(), "\""+x.name+"\"")
		if known && !served {
			err, served = plain(failed), true // of the preferred version
		}
	}
	if err != nil {
		return nil, err
	}
	facts, err := explain.PoolFacts(text, group)
	if err != nil {
		return nil, err
	}
	facts.Model = x.model
	pods, err := x.c.CoreV1().Pods(x.namespace).List(ctx,
		metav1.ListOptions{LabelSelector: labels.SelectorFromSet(facts.Selector).String()})
	if err != nil {
		return nil, fmt.Errorf("list its pods: %w", plain(err))
	}
	for i := range pods.Items {
		facts.Pods = append(facts.Pods, &pods.Items[i])
	}
	var states []explain.PoolState
	if facts.Unknown, err = x.query(ctx, routeapi.PoolsPath, &states); err != nil {
		return nil, err
	}
	for i := range states {
		if states[i].Name == x.name && states[i].Namespace == x.namespace && states[i].Group == group {
			facts.State = &states[i]
		}
	}
	return explain.InferencePool(&facts, time.Now()), nil
}

// read returns the object. Only Error has the server's message about one that does not exist.
func (x *explainer) read(ctx context.Context, path, resource string) ([]byte, error) {
	res := x.c.CoreV1().RESTClient().Get().AbsPath(path, "namespaces", x.namespace, resource, x.name).Do(ctx)
	if err := res.Error(); err != nil {
		return nil, err
	}
	return res.Raw()
}

func (x *explainer) route(ctx context.Context, group, resource, kind string) (explain.Lines, error) {
	text, err := x.read(ctx, group, resource)
	if err != nil {
		return nil, plain(err)
	}
	facts, err := explain.RouteFacts(text, kind)
	if err != nil {
		return nil, err
	}
	for i := range facts.Named {
		g := &facts.Named[i]
		text, err := x.c.CoreV1().RESTClient().Get().AbsPath(gatewayGroup, "namespaces",
			cmp.Or(g.Namespace, x.namespace), "gateways", g.Name).Do(ctx).Raw()
		g.Read(text, plain(err), apierrors.IsNotFound(err))
	}
	var list routeapi.List
	if facts.Unknown, err = x.query(ctx, routeapi.Path, &list); err != nil {
		return nil, err
	}
	for _, p := range list.Problems {
		if p.Kind == kind && p.Name == x.name && (p.Namespace == x.namespace || p.Namespace == "") {
			facts.Problems = append(facts.Problems, fmt.Sprintf("%s (%s)", p.Message, p.Reason))
		}
	}
	for i := range list.Routes {
		if r := &list.Routes[i]; r.Kind == kind && r.Name == x.name && r.Namespace == x.namespace {
			facts.Places = append(facts.Places, placeOf(r))
		}
	}
	lines := explain.Route(&facts)
	if kind == "Gateway" { // its routes are explained by themselves
		lines = slices.DeleteFunc(lines, func(l explain.Line) bool { return l.Text == explain.NothingServed })
		if len(lines) == 0 {
			lines = append(lines, explain.Line{Text: "is programmed: all its conditions are true"})
		}
	}
	return lines, nil
}

func placeOf(r *routeapi.Route) explain.Place {
	out := explain.Place{Where: strings.ToLower(r.Protocol) + "://" + r.Address, Answer: r.Answer}
	if r.Host != "*" && r.Host != "" {
		out.Where += " for " + r.Host
	}
	if r.Path != "" {
		out.Where += " " + r.Path
	}
	for _, b := range r.Backends {
		out.Backends = append(out.Backends, explain.PlaceBackend{Name: b.Service, Ready: len(b.Endpoints),
			Weight: b.Weight, Problem: b.Problem})
	}
	return out
}
