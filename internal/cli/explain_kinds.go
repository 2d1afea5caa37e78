package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"carob/internal/cli/terminal"
	"carob/internal/core/explain"
)

// explainable is a kind that `carob explain` supports.
type explainable struct {
	// names in lower case: the singular, the plural (which is the resource in paths), and the short name, if there is
	// one.
	names []string
	// groups are the paths of its API groups and versions, the preferred one first.
	groups  []string
	cluster bool // its objects have no namespace
	explain func(*explainer, context.Context) (explain.Lines, error)
}

const gatewayGroup = "/apis/gateway.networking.k8s.io/v1"

// inferenceGroups have InferencePools.
var inferenceGroups = []string{"/apis/inference.networking.k8s.io/v1", "/apis/inference.networking.x-k8s.io/v1alpha2"}

// explainables are the kinds in the order of the command's help.
var explainables = []explainable{
	{names: []string{"pod", "pods", "po"}, groups: []string{"/api/v1"}, explain: (*explainer).pod},
	{names: []string{"deployment", "deployments", "deploy"}, groups: []string{"/apis/apps/v1"},
		explain: (*explainer).deployment},
	{names: []string{"replicaset", "replicasets", "rs"}, groups: []string{"/apis/apps/v1"},
		explain: (*explainer).replicaSet},
	{names: []string{"statefulset", "statefulsets", "sts"}, groups: []string{"/apis/apps/v1"},
		explain: (*explainer).statefulSet},
	{names: []string{"daemonset", "daemonsets", "ds"}, groups: []string{"/apis/apps/v1"},
		explain: (*explainer).daemonSet},
	{names: []string{"job", "jobs"}, groups: []string{"/apis/batch/v1"}, explain: (*explainer).job},
	{names: []string{"cronjob", "cronjobs", "cj"}, groups: []string{"/apis/batch/v1"}, explain: (*explainer).cronJob},
	{names: []string{"horizontalpodautoscaler", "horizontalpodautoscalers", "hpa"},
		groups: []string{"/apis/autoscaling/v2"}, explain: (*explainer).autoscaler},
	{names: []string{"service", "services", "svc"}, groups: []string{"/api/v1"}, explain: (*explainer).service},
	{names: []string{"persistentvolumeclaim", "persistentvolumeclaims", "pvc"}, groups: []string{"/api/v1"},
		explain: (*explainer).claim},
	{names: []string{"node", "nodes", "no"}, groups: []string{"/api/v1"}, cluster: true,
		explain: (*explainer).nodeObject},
	{names: []string{"namespace", "namespaces", "ns"}, groups: []string{"/api/v1"}, cluster: true,
		explain: (*explainer).namespaceObject},
	routed("Ingress", "/apis/networking.k8s.io/v1", "ingress", "ingresses", "ing"),
	routed("Gateway", gatewayGroup, "gateway", "gateways", "gtw"),
	routed("HTTPRoute", gatewayGroup, "httproute", "httproutes"),
	routed("GRPCRoute", gatewayGroup, "grpcroute", "grpcroutes"),
	routed("TLSRoute", gatewayGroup, "tlsroute", "tlsroutes"),
	routed("TCPRoute", gatewayGroup, "tcproute", "tcproutes"),
	routed("UDPRoute", gatewayGroup, "udproute", "udproutes"),
	{names: []string{"inferencepool", "inferencepools", "infpool"}, groups: inferenceGroups,
		explain: (*explainer).inferencePool},
}

// routed is a kind that a gateway serves.
func routed(kind, group string, names ...string) explainable {
	return explainable{names: names, groups: []string{group},
		explain: func(x *explainer, ctx context.Context) (explain.Lines, error) {
			return x.route(ctx, group, names[1], kind)
		}}
}

// kindNamed finds a kind by one of its names, in any case.
func kindNamed(name string) (*explainable, bool) {
	i := slices.IndexFunc(explainables, func(k explainable) bool {
		return slices.Contains(k.names, strings.ToLower(name))
	})
	if i < 0 {
		return nil, false
	}
	return &explainables[i], true
}

// kindNames are the singular names, as indented lines for the command's help.
func kindNames() string {
	var names []string
	for i := range explainables {
		names = append(names, explainables[i].names[0])
	}
	return "  " + strings.Join(terminal.Wrap(strings.Join(names, ", "), 78), "\n  ")
}

// completeExplained completes KIND/NAME, and KIND NAME.
func (r *root) completeExplained(namespace *string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
		kind, _, slash := strings.Cut(toComplete, "/")
		switch {
		case len(args) > 1 || len(args) == 1 && slash:
			return nil, cobra.ShellCompDirectiveNoFileComp
		case len(args) == 1:
			return r.namesOf(cmd.Context(), args[0], *namespace, ""), cobra.ShellCompDirectiveNoFileComp
		case slash:
			return r.namesOf(cmd.Context(), kind, *namespace, kind+"/"), cobra.ShellCompDirectiveNoFileComp
		}
		var out []string
		for i := range explainables {
			out = append(out, explainables[i].names[0]+"/")
		}
		return out, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	}
}

func (r *root) completeNamespaces(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	return r.namesOf(cmd.Context(), "namespace", "", ""), cobra.ShellCompDirectiveNoFileComp
}

// namesOf returns the names of at most 500 objects of a kind behind a prefix; none if the cluster does not answer.
func (r *root) namesOf(ctx context.Context, kind, namespace, prefix string) (out []string) {
	k, ok := kindNamed(kind)
	if !ok {
		return nil
	}
	c, err := r.client()
	if err != nil {
		return nil
	}
	for _, group := range k.groups {
		path := []string{group}
		if !k.cluster {
			path = append(path, "namespaces", namespace)
		}
		text, err := c.CoreV1().RESTClient().Get().AbsPath(append(path, k.names[1])...).Param("limit", "500").
			SetHeader("Accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1").DoRaw(ctx)
		var list struct {
			Items []struct {
				Metadata struct {
					Name string `json:"name"`
				} `json:"metadata"`
			} `json:"items"`
		}
		if err != nil || json.Unmarshal(text, &list) != nil {
			continue
		}
		for _, item := range list.Items {
			out = append(out, fmt.Sprint(prefix, item.Metadata.Name))
		}
		return out
	}
	return nil
}
