package admission

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
)

const (
	nodeUserPrefix = "system:node:"
	// restrictedLabels are those a node may not give itself: they isolate workloads.
	restrictedLabels = "node-restriction.kubernetes.io/"
	nodeLeases       = "kube-node-lease"
)

// nodeRestriction holds the agent of a node to its own Node object and to the pods bound to it (L1.37), so that a node that
// was broken into can't reach further than its own workloads.
type nodeRestriction struct{ reader Reader }

func (nodeRestriction) Handles(op admission.Operation) bool {
	return on{create: true, update: true, remove: true}.handles(op)
}

// nodeName returns the node a user is the agent of.
func nodeName(u user.Info) (string, bool) {
	if u == nil {
		return "", false
	}
	name, ok := strings.CutPrefix(u.GetName(), nodeUserPrefix)
	if !ok || !slices.Contains(u.GetGroups(), user.NodesGroup) {
		return "", false
	}
	return name, true
}

func (n nodeRestriction) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	node, ok := nodeName(a.GetUserInfo())
	if !ok {
		return nil
	}
	if node == "" {
		return admission.NewForbidden(a, fmt.Errorf("could not determine node from user %q", a.GetUserInfo().GetName()))
	}
	var err error
	switch r := a.GetResource().GroupResource(); {
	case r == podResource:
		err = n.pod(ctx, a, node)
	case r == nodeResource:
		err = n.node(a, node)
	case r == coordinationv1.Resource("leases"):
		err = lease(a, node)
	case r == serviceAccounts && a.GetSubresource() == "token":
		err = n.token(ctx, a, node)
	}
	var status apierrors.APIStatus
	if err == nil || errors.As(err, &status) {
		return err
	}
	return admission.NewForbidden(a, err)
}

func (n nodeRestriction) pod(ctx context.Context, a admission.Attributes, node string) error {
	switch sub, op := a.GetSubresource(), a.GetOperation(); {
	case sub == "" && op == admission.Create:
		p, ok := a.GetObject().(*corev1.Pod)
		if !ok {
			return fmt.Errorf("unexpected type %T", a.GetObject())
		}
		return n.mirrorPod(ctx, p, node)
	case sub == "" && op == admission.Delete:
		return n.ownPod(ctx, a, node, "can only delete pods with spec.nodeName set to itself")
	case sub == "status" && op == admission.Update:
		return podStatus(a, node)
	case sub == "eviction" && op == admission.Create:
		if e, ok := a.GetObject().(*policyv1.Eviction); ok && a.GetName() == "" && e.Name == "" {
			return errors.New("could not determine pod from request data")
		}
		return n.ownPod(ctx, a, node, "can only evict pods with spec.nodeName set to itself")
	case sub == "":
		return fmt.Errorf("unexpected operation %q, node %q can only create and delete mirror pods", op, node)
	}
	return fmt.Errorf("unexpected pod subresource %q, only 'status' and 'eviction' are allowed", a.GetSubresource())
}

// mirrorPod: the only pods a node makes show its static pods.
func (n nodeRestriction) mirrorPod(ctx context.Context, p *corev1.Pod, node string) error {
	switch {
	case !isMirror(p):
		return fmt.Errorf("pod does not have %q annotation, node %q can only create mirror pods", corev1.MirrorPodAnnotationKey, node)
	case p.Spec.NodeName != node:
		return fmt.Errorf("node %q can only create pods with spec.nodeName set to itself", node)
	case len(p.OwnerReferences) != 1:
		return fmt.Errorf("node %q can only create pods with an owner reference set to itself", node)
	}
	owner := p.OwnerReferences[0]
	switch {
	case owner.APIVersion != "v1" || owner.Kind != "Node" || owner.Name != node:
		return fmt.Errorf("node %q can only create pods with an owner reference set to itself", node)
	case owner.Controller == nil || !*owner.Controller:
		return fmt.Errorf("node %q can only create pods with a controller owner reference set to itself", node)
	case owner.BlockOwnerDeletion != nil && *owner.BlockOwnerDeletion:
		return fmt.Errorf("node %q must not set blockOwnerDeletion on an owner reference", node)
	}
	obj, err := n.reader.Get(ctx, nodeResource, "", node)
	if err != nil {
		return fmt.Errorf("look up node %q: %w", node, err)
	}
	if o, ok := obj.(*corev1.Node); ok && o.UID != owner.UID {
		return fmt.Errorf("node %s UID mismatch: expected %s got %s", node, owner.UID, o.UID)
	}
	if p.Spec.ServiceAccountName != "" {
		return fmt.Errorf("node %q can not create pods that reference a service account", node)
	}
	if usesSecrets(p) {
		return fmt.Errorf("node %q can not create pods that reference secrets", node)
	}
	for i := range p.Spec.Volumes {
		if v := &p.Spec.Volumes[i]; v.ConfigMap != nil || v.PersistentVolumeClaim != nil {
			return fmt.Errorf("node %q can not create pods that reference configmaps or persistentvolumeclaims", node)
		}
	}
	return nil
}

func (n nodeRestriction) ownPod(ctx context.Context, a admission.Attributes, node, rule string) error {
	obj, err := n.reader.Get(ctx, podResource, a.GetNamespace(), a.GetName())
	if err != nil {
		return err // NotFound is what the request would give anyway
	}
	if p, ok := obj.(*corev1.Pod); !ok || p.Spec.NodeName != node {
		return fmt.Errorf("node %q %s", node, rule)
	}
	return nil
}

func podStatus(a admission.Attributes, node string) error {
	p, ok := a.GetObject().(*corev1.Pod)
	old, okOld := a.GetOldObject().(*corev1.Pod)
	if !ok || !okOld {
		return fmt.Errorf("unexpected type %T", a.GetObject())
	}
	if old.Spec.NodeName != node {
		return fmt.Errorf("node %q can only update pod status for pods with spec.nodeName set to itself", node)
	}
	if !maps.Equal(p.Labels, old.Labels) {
		return fmt.Errorf("node %q cannot update labels through pod status", node)
	}
	if !apiequality.Semantic.DeepEqual(p.Status.ResourceClaimStatuses, old.Status.ResourceClaimStatuses) {
		return fmt.Errorf("node %q cannot update resource claim statuses", node)
	}
	return nil
}

func (n nodeRestriction) node(a admission.Attributes, node string) error {
	name := a.GetName()
	o, _ := a.GetObject().(*corev1.Node)
	if name == "" && o != nil {
		name = o.Name
	}
	if name != node {
		return fmt.Errorf("node %q is not allowed to modify node %q", node, name)
	}
	switch a.GetOperation() {
	case admission.Create:
		if o == nil {
			return nil
		}
		if bad := restricted(o.Labels, nil); len(bad) > 0 {
			return fmt.Errorf("is not allowed to set the following labels: %s", strings.Join(bad, ", "))
		}
		for _, r := range o.OwnerReferences {
			if r.BlockOwnerDeletion != nil && *r.BlockOwnerDeletion {
				return errors.New("is not allowed to set blockOwnerDeletion on an owner reference")
			}
		}
	case admission.Update:
		old, ok := a.GetOldObject().(*corev1.Node)
		if o == nil || !ok {
			return nil
		}
		if !apiequality.Semantic.DeepEqual(o.Spec.Taints, old.Spec.Taints) {
			return fmt.Errorf("node %q is not allowed to modify taints", node)
		}
		if !apiequality.Semantic.DeepEqual(o.OwnerReferences, old.OwnerReferences) {
			return fmt.Errorf("node %q is not allowed to modify ownerReferences", node)
		}
		if bad := restricted(o.Labels, old.Labels); len(bad) > 0 {
			return fmt.Errorf("is not allowed to modify labels: %s", strings.Join(bad, ", "))
		}
	}
	return nil
}

// restricted returns the changed labels that are not a node's to change.
func restricted(labels, old map[string]string) []string {
	changed := map[string]bool{}
	for _, pair := range [][2]map[string]string{{labels, old}, {old, labels}} {
		for key, value := range pair[0] {
			other, ok := pair[1][key]
			domain, _, _ := strings.Cut(key, "/")
			if (!ok || other != value) && (domain+"/" == restrictedLabels || strings.HasSuffix(domain+"/", "."+restrictedLabels)) {
				changed[key] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(changed))
}

func lease(a admission.Attributes, node string) error {
	if a.GetNamespace() != nodeLeases {
		return fmt.Errorf("can only access leases in the %q system namespace", nodeLeases)
	}
	name := a.GetName()
	if o, ok := a.GetObject().(*coordinationv1.Lease); ok && name == "" {
		name = o.Name
	}
	if name != node {
		return fmt.Errorf("can only access node lease with the same name as the requesting node")
	}
	return nil
}

// token: an agent gets tokens only for pods that run on its node.
func (n nodeRestriction) token(ctx context.Context, a admission.Attributes, node string) error {
	req, ok := a.GetObject().(*authenticationv1.TokenRequest)
	if !ok {
		return fmt.Errorf("unexpected type %T", a.GetObject())
	}
	ref := req.Spec.BoundObjectRef
	if ref == nil || ref.APIVersion != "v1" || ref.Kind != "Pod" || ref.Name == "" {
		return fmt.Errorf("node requested token not bound to a pod")
	}
	if ref.UID == "" {
		return fmt.Errorf("node requested token with a pod binding without a uid")
	}
	obj, err := n.reader.Get(ctx, podResource, a.GetNamespace(), ref.Name)
	if err != nil {
		return err
	}
	p, ok := obj.(*corev1.Pod)
	switch {
	case !ok:
		return fmt.Errorf("unexpected type %T", obj)
	case p.UID != ref.UID:
		return fmt.Errorf("the UID in the bound object reference (%s) does not match the UID in record. The object might have been deleted and then recreated", ref.UID)
	case p.Spec.NodeName != node:
		return errors.New("node requested token bound to a pod scheduled on a different node")
	}
	return nil
}
