package auth

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"carob/internal/base/partiallist"
	"carob/internal/core/nodegraph"
)

// Node authorizes the agents of nodes: an agent may read what the pods bound to its node refer to,
// and write its own objects (with NodeRestriction, which sees the objects). It follows the pods
// with one watch. If no known pod refers to an object, it reads the stores before it rejects the
// request: an agent that just saw its pod must not be rejected because the watch here is behind.
type Node struct {
	objects Objects
	static  []rbacv1.PolicyRule
	pods    Source

	mu    sync.RWMutex
	graph *nodegraph.Graph
}

// Objects reads the stores through their watch caches. The objects are shared and must not be
// changed.
type Objects interface {
	Get(ctx context.Context, resource schema.GroupResource, namespace, name string) (runtime.Object, error)
	// List calls fn for each object of a namespace ("" for all) until it returns false.
	List(ctx context.Context, resource schema.GroupResource, namespace string, fn func(runtime.Object) bool) error
}

var (
	_ authorizer.Authorizer   = (*Node)(nil)
	_ authorizer.RuleResolver = (*Node)(nil)
)

// NewNode returns an authorizer that reads everything from the stores. With SetPods and Run it
// follows the pods.
func NewNode(objects Objects) *Node {
	return &Node{objects: objects, static: nodeRules(), graph: nodegraph.New()}
}

// SetPods sets the store of the pods; call it before Run.
func (n *Node) SetPods(src Source) { n.pods = src }

// Run follows the pods until ctx ends.
func (n *Node) Run(ctx context.Context) {
	follow(ctx, n.pods, func(objs map[string]runtime.Object) {
		g := nodegraph.New()
		for _, o := range objs {
			g.Set(o.(*corev1.Pod))
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		n.graph = g
	}, func(k string, obj runtime.Object) {
		n.mu.Lock()
		defer n.mu.Unlock()
		if obj == nil {
			namespace, name, _ := strings.Cut(k, "/")
			n.graph.Remove(namespace, name)
			return
		}
		n.graph.Set(obj.(*corev1.Pod))
	})
}

// NodeUserPrefix and the name of a node are the name of its agent.
const NodeUserPrefix = "system:node:"

// NodeName returns the node whose agent u is ("" if u is none).
func NodeName(u user.Info) (string, bool) {
	if u == nil {
		return "", false
	}
	name, ok := strings.CutPrefix(u.GetName(), NodeUserPrefix)
	return name, ok && slices.Contains(u.GetGroups(), user.NodesGroup)
}

// Authorize implements authorizer.Authorizer. It never denies: a role may grant what it does not
// allow.
func (n *Node) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	node, ok := NodeName(a.GetUser())
	if !ok {
		return authorizer.DecisionNoOpinion, "", nil
	}
	if node == "" {
		return authorizer.DecisionNoOpinion, fmt.Sprintf("unknown node for user %q", a.GetUser().GetName()), nil
	}
	refused, err := n.decide(ctx, node, a)
	switch {
	case err != nil && !apierrors.IsNotFound(err):
		return authorizer.DecisionNoOpinion, "could not look up what the node may read", err
	case err != nil:
		refused = noRelation(node)
	case refused == "":
		return authorizer.DecisionAllow, "", nil
	case refused == refusal:
		refused = ""
	}
	return authorizer.DecisionNoOpinion, refused, nil
}

// Resources that a node may access in part; nodeRules has the others.
var (
	podResource        = corev1.Resource("pods")
	volumeResource     = corev1.Resource("persistentvolumes")
	sliceResource      = resourcev1.Resource("resourceslices")
	attachmentResource = storagev1.Resource("volumeattachments")
	podCertResource    = certificatesv1.Resource("podcertificaterequests")
)

// decide returns why the request is rejected, "" if it is allowed. NotFound is a rejection, too.
func (n *Node) decide(ctx context.Context, node string, a authorizer.Attributes) (string, error) {
	if a.IsResourceRequest() {
		switch gr := (schema.GroupResource{Group: a.GetAPIGroup(), Resource: a.GetResource()}); gr {
		case corev1.Resource("secrets"):
			return n.read(ctx, node, nodegraph.Secret, a)
		case corev1.Resource("configmaps"):
			return n.read(ctx, node, nodegraph.ConfigMap, a)
		case corev1.Resource("persistentvolumeclaims"):
			if a.GetSubresource() == "status" {
				if !verbIn(a, "update", "patch") {
					return "can only get/update/patch this type", nil
				}
				return n.related(ctx, node, nodegraph.VolumeClaim, a)
			}
			if refused := onlyGet(a); refused != "" {
				return refused, nil
			}
			return n.related(ctx, node, nodegraph.VolumeClaim, a)
		case resourcev1.Resource("resourceclaims"):
			if refused := onlyGet(a); refused != "" {
				return refused, nil
			}
			return n.related(ctx, node, nodegraph.ResourceClaim, a)
		case corev1.Resource("serviceaccounts"):
			switch {
			case verbIn(a, "get") && a.GetSubresource() == "":
				return n.read(ctx, node, nodegraph.ServiceAccount, a)
			case !verbIn(a, "create") || a.GetName() == "":
				return "can only create tokens for individual service accounts", nil
			case a.GetSubresource() != "token":
				return "can only create token subresource of serviceaccount", nil
			}
			return n.related(ctx, node, nodegraph.ServiceAccount, a)
		case volumeResource:
			if refused := onlyGet(a); refused != "" {
				return refused, nil
			}
			return n.onlyIfOwned(ctx, node, a, n.leadsToVolume)
		case attachmentResource:
			if refused := onlyGet(a); refused != "" {
				return refused, nil
			}
			return n.onlyIfOwned(ctx, node, a,
				isOf(func(o *storagev1.VolumeAttachment) string { return o.Spec.NodeName }))
		case podCertResource:
			return n.podCertificate(ctx, node, a)
		case sliceResource:
			return n.slice(ctx, node, a)
		case podResource:
			return n.pod(ctx, node, a)
		case corev1.Resource("nodes"):
			return nodeObject(node, a), nil
		case coordinationv1.Resource("leases"):
			if verbIn(a, namedVerbs...) && a.GetNamespace() != corev1.NamespaceNodeLease {
				return fmt.Sprintf("can only access leases in the %q system namespace", corev1.NamespaceNodeLease), nil
			}
			return named(node, a, "node lease"), nil
		case storagev1.Resource("csinodes"):
			switch a.GetSubresource() {
			case "":
				return named(node, a, "CSINode"), nil
			case "status":
				return "CSINode status access requires CSIVolumeHealth feature", nil
			}
			return "cannot authorize CSINode subresources", nil
		}
	}
	if slices.ContainsFunc(n.static, func(r rbacv1.PolicyRule) bool { return allows(&r, a) }) {
		return "", nil
	}
	return refusal, nil
}

// refusal is the reason if there is nothing to explain: what nodes never may.
const refusal = "-"

func verbIn(a authorizer.Attributes, verbs ...string) bool {
	return slices.Contains(verbs, a.GetVerb())
}

func noRelation(node string) string {
	return fmt.Sprintf("no relationship found between node '%s' and this object", node)
}

// onlyGet rejects everything but the read of one object.
func onlyGet(a authorizer.Attributes) string {
	switch {
	case !verbIn(a, "get"):
		return "can only get individual resources of this type"
	case a.GetSubresource() != "":
		return "cannot get subresource"
	}
	return ""
}

const unnamed = "No Object name found"

// read allows reads of one object that a pod of the node refers to. A list or watch has a name if
// its field selector is metadata.name.
func (n *Node) read(ctx context.Context, node string, kind nodegraph.Kind, a authorizer.Attributes) (string, error) {
	switch {
	case !verbIn(a, "get", "list", "watch"):
		return "can only read resources of this type", nil
	case a.GetSubresource() != "":
		return "cannot read subresource", nil
	case a.GetNamespace() == "":
		return "can only read namespaced object of this type", nil
	}
	return n.related(ctx, node, kind, a)
}

func (n *Node) related(ctx context.Context, node string, kind nodegraph.Kind, a authorizer.Attributes) (string, error) {
	if a.GetName() == "" {
		return unnamed, nil
	}
	r := nodegraph.Ref{Kind: kind, Namespace: a.GetNamespace(), Name: a.GetName()}
	ok, err := n.leads(ctx, node, r)
	if err == nil && !ok && kind == nodegraph.Secret {
		ok, err = n.leadsByVolume(ctx, node, r)
	}
	return unless(ok, node), err
}

func unless(ok bool, node string) string {
	if ok {
		return ""
	}
	return noRelation(node)
}

// leads checks the graph, then the watch cache, and before a rejection the store: an agent that saw
// a pod by a watch or a read is never rejected for being early. Only a rejection costs that read.
func (n *Node) leads(ctx context.Context, node string, r nodegraph.Ref) (bool, error) {
	n.mu.RLock()
	ok := n.graph.Leads(node, r)
	n.mu.RUnlock()
	if ok {
		return true, nil
	}
	look := func(o runtime.Object) bool {
		p, isPod := o.(*corev1.Pod)
		ok = isPod && p.Spec.NodeName == node && slices.Contains(nodegraph.Refs(p), r)
		return !ok
	}
	ctx = partiallist.With(ctx) // a pod that cannot be read gives no rights; others keep theirs
	if err := n.objects.List(ctx, podResource, r.Namespace, look); ok || err != nil || n.pods == nil {
		return ok, err
	}
	ctx = apirequest.WithRequestInfo(ctx,
		&apirequest.RequestInfo{IsResourceRequest: true, Resource: podResource.Resource, Namespace: r.Namespace})
	list, err := n.pods.List(apirequest.WithNamespace(ctx, r.Namespace), &internalversion.ListOptions{})
	if err != nil {
		return false, fmt.Errorf("list the pods of %s: %w", r.Namespace, err)
	}
	err = meta.EachListItem(list, func(o runtime.Object) error {
		if !ok {
			look(o)
		}
		return nil
	})
	return ok, err
}

// leadsByVolume reports whether a volume, whose claim a pod of the node uses, needs the secret.
func (n *Node) leadsByVolume(ctx context.Context, node string, secret nodegraph.Ref) (bool, error) {
	var claims []nodegraph.Ref
	if err := n.objects.List(ctx, volumeResource, "", func(o runtime.Object) bool {
		if pv, ok := o.(*corev1.PersistentVolume); ok && slices.Contains(nodegraph.VolumeSecrets(pv), secret) {
			if claim, bound := nodegraph.VolumeClaimOf(pv); bound {
				claims = append(claims, claim)
			}
		}
		return true
	}); err != nil {
		return false, err
	}
	for _, c := range claims {
		if ok, err := n.leads(ctx, node, c); ok || err != nil {
			return ok, err
		}
	}
	return false, nil
}

func (n *Node) leadsToVolume(ctx context.Context, node string, o runtime.Object) (bool, error) {
	pv, ok := o.(*corev1.PersistentVolume)
	if !ok {
		return false, nil
	}
	claim, bound := nodegraph.VolumeClaimOf(pv)
	if !bound {
		return false, nil
	}
	return n.leads(ctx, node, claim)
}

// relation reports whether a stored object belongs to the node.
type relation func(ctx context.Context, node string, o runtime.Object) (bool, error)

// isOf is the relation of an object with a field that names its node.
func isOf[T runtime.Object](name func(T) string) relation {
	return func(_ context.Context, node string, o runtime.Object) (bool, error) {
		t, ok := o.(T)
		return ok && name(t) == node, nil
	}
}

// onlyIfOwned decides by the stored object.
func (n *Node) onlyIfOwned(ctx context.Context, node string, a authorizer.Attributes, belongs relation) (string,
	error) {
	if a.GetName() == "" {
		return unnamed, nil
	}
	o, err := n.objects.Get(ctx, schema.GroupResource{Group: a.GetAPIGroup(), Resource: a.GetResource()},
		a.GetNamespace(), a.GetName())
	if err != nil {
		return "", err
	}
	ok, err := belongs(ctx, node, o)
	return unless(ok, node), err
}

// selects reports whether the request is limited to objects whose field is the node.
func selects(a authorizer.Attributes, field, node string) bool {
	reqs, err := a.GetFieldSelector()
	if err != nil {
		return false
	}
	for _, r := range reqs {
		if r.Field == field && r.Operator == selection.Equals && r.Value == node {
			return true
		}
	}
	return false
}

func (n *Node) pod(ctx context.Context, node string, a authorizer.Attributes) (string, error) {
	switch a.GetSubresource() + "." + a.GetVerb() {
	case ".create", ".delete", "status.update", "status.patch", "eviction.create":
		return "", nil // mirror pods and removed pods, pods of the node: NodeRestriction checks them
	case ".list", ".watch":
		if selects(a, "spec.nodeName", node) {
			return "", nil
		}
		if a.GetName() == "" {
			return "can only list/watch pods with spec.nodeName field selector", nil
		}
	case ".get":
	default:
		return refusal, nil
	}
	return n.onlyIfOwned(ctx, node, a, isOf(func(p *corev1.Pod) string { return p.Spec.NodeName }))
}

func (n *Node) slice(ctx context.Context, node string, a authorizer.Attributes) (string, error) {
	if a.GetSubresource() != "" {
		return "cannot authorize ResourceSlice subresources", nil
	}
	switch a.GetVerb() {
	case "create":
		return "", nil
	case "list", "watch", "deletecollection":
		if selects(a, resourcev1.ResourceSliceSelectorNodeName, node) {
			return "", nil
		}
		return "can only list/watch/deletecollection resourceslices with nodeName field selector", nil
	case "get", "update", "patch", "delete":
		return n.onlyIfOwned(ctx, node, a, isOf(func(s *resourcev1.ResourceSlice) string {
			if s.Spec.NodeName == nil {
				return ""
			}
			return *s.Spec.NodeName
		}))
	}
	return "only the following verbs are allowed for a ResourceSlice: get, watch, list, create, update, patch, delete, deletecollection", nil
}

func (n *Node) podCertificate(ctx context.Context, node string, a authorizer.Attributes) (string, error) {
	if a.GetSubresource() != "" {
		return "nodes may not access the status subresource of PodCertificateRequests", nil
	}
	switch a.GetVerb() {
	case "create":
		return "", nil
	case "list", "watch":
		if selects(a, "spec.nodeName", node) {
			return "", nil
		}
		return "can only list/watch podcertificaterequests with nodeName field selector", nil
	case "get":
		return n.onlyIfOwned(ctx, node, a,
			isOf(func(r *certificatesv1.PodCertificateRequest) string { return string(r.Spec.NodeName) }))
	}
	return fmt.Sprintf("nodes may not %s podcertificaterequests", a.GetVerb()), nil
}

// nodeObject: a node reads its own Node, which need not exist yet. NodeRestriction checks whose
// Node is written.
func nodeObject(node string, a authorizer.Attributes) string {
	switch a.GetSubresource() + "." + a.GetVerb() {
	case ".create", ".update", ".patch", "status.update", "status.patch":
		return ""
	case ".get", ".list", ".watch":
		switch a.GetName() {
		case node:
			return ""
		case "":
			return fmt.Sprintf("node '%s' cannot read all nodes, only its own Node object", node)
		}
		return fmt.Sprintf("node '%s' cannot read '%s', only its own Node object", node, a.GetName())
	}
	return refusal
}

var namedVerbs = []string{"get", "create", "update", "patch", "delete"}

// named allows objects with the name of the node, and their creation: a new object has no name yet
// here, NodeRestriction checks it.
func named(node string, a authorizer.Attributes, what string) string {
	switch {
	case !verbIn(a, namedVerbs...):
		return fmt.Sprintf("can only get, create, update, patch, or delete a %s", what)
	case !verbIn(a, "create") && a.GetName() != node:
		return fmt.Sprintf("can only access %s with the same name as the requesting node", what)
	}
	return ""
}

// ConditionsAwareAuthorize implements authorizer.Authorizer; nodes have no conditions.
func (n *Node) ConditionsAwareAuthorize(ctx context.Context,
	a authorizer.Attributes) authorizer.ConditionsAwareDecision {
	return authorizer.ConditionsAwareDecisionFromParts(n.Authorize(ctx, a))
}

// EvaluateConditions implements authorizer.Authorizer.
func (n *Node) EvaluateConditions(context.Context, authorizer.ConditionsAwareDecision,
	authorizer.ConditionsData) (authorizer.Decision, string, error) {
	return authorizer.DecisionDeny, "", authorizer.ErrorConditionEvaluationNotSupported
}

// RulesFor implements authorizer.RuleResolver: the permissions of a node are not a list of rules.
func (n *Node) RulesFor(_ context.Context, u user.Info, _ string) ([]authorizer.ResourceRuleInfo,
	[]authorizer.NonResourceRuleInfo, bool, error) {
	if _, ok := NodeName(u); ok {
		return nil, nil, true, errors.New("node authorizer does not support user rule resolution")
	}
	return nil, nil, false, nil
}
