package admission

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"carob/internal/apiserver/auth"
	"carob/internal/core/nodegraph"
)

const (
	// restrictedLabels are those that a node may not set on itself: they isolate workloads.
	restrictedLabels = "node-restriction.kubernetes.io"
	nodeLeases       = "kube-node-lease"
)

// agentLabels are the labels of Kubernetes that an agent sets on its node.
var agentLabels = []string{
	corev1.LabelHostname, corev1.LabelTopologyZone, corev1.LabelTopologyRegion, corev1.LabelFailureDomainBetaZone,
	corev1.LabelFailureDomainBetaRegion,
	corev1.LabelInstanceType, corev1.LabelInstanceTypeStable, corev1.LabelOSStable, corev1.LabelArchStable,
	"beta.kubernetes.io/os", "beta.kubernetes.io/arch",
}

// nodeRestriction limits the agent of a node to its own Node object and to the pods bound to it
// (L1.37), so that a compromised node cannot affect more than its own workloads.
type nodeRestriction struct {
	reader     Reader
	authorizer authorizer.Authorizer
}

func (nodeRestriction) Handles(op admission.Operation) bool {
	return on{create: true, update: true, remove: true}.handles(op)
}

func isToken(a admission.Attributes) bool {
	return a.GetResource().GroupResource() == serviceAccounts && a.GetSubresource() == "token" &&
		a.GetOperation() == admission.Create
}

// Admit checks what is created, before defaults and validation.
func (n nodeRestriction) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetOperation() != admission.Create {
		return nil
	}
	return n.check(ctx, a)
}

// Validate checks the result, and everything else; a request for a token then has an audience that
// the client did not request.
func (n nodeRestriction) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if isToken(a) {
		return nil
	}
	return n.check(ctx, a)
}

func (n nodeRestriction) check(ctx context.Context, a admission.Attributes) error {
	node, ok := auth.NodeName(a.GetUserInfo())
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
	case isToken(a):
		err = n.token(ctx, a, node)
	case r == corev1.Resource("persistentvolumeclaims"):
		err = claimStatus(a, node)
	case r == storagev1.Resource("csinodes"):
		err = csiNode(a, node)
	case r == resourcev1.Resource("resourceslices"):
		err = resourceSlice(a, node)
	case r == certificatesv1.Resource("certificatesigningrequests"):
		err = certificateRequest(a, node)
	case r == certificatesv1.Resource("podcertificaterequests"):
		err = n.podCertificate(ctx, a, node)
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
		return n.ownPod(ctx, a, node, "node %q can only delete pods with spec.nodeName set to itself")
	case sub == "status" && op == admission.Update:
		return podStatus(a, node)
	case sub == "eviction" && op == admission.Create:
		if e, ok := a.GetObject().(*policyv1.Eviction); ok && a.GetName() == "" && e.Name == "" {
			return errors.New("could not determine pod from request data")
		}
		return n.ownPod(ctx, a, node, "node %s can only evict pods with spec.nodeName set to itself")
	case sub == "":
		return fmt.Errorf("unexpected operation %q, node %q can only create and delete mirror pods", op, node)
	}
	return fmt.Errorf("unexpected pod subresource %q, only 'status' and 'eviction' are allowed", a.GetSubresource())
}

// mirrorPod: a node may only create mirror pods of its static pods.
func (n nodeRestriction) mirrorPod(ctx context.Context, p *corev1.Pod, node string) error {
	switch {
	case !isMirror(p):
		return fmt.Errorf("pod does not have %q annotation, node %q can only create mirror pods",
			corev1.MirrorPodAnnotationKey, node)
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
		return err
	}
	if o, ok := obj.(*corev1.Node); ok && o.UID != owner.UID {
		return fmt.Errorf("node %s UID mismatch: expected %s got %s", node, owner.UID, o.UID)
	}
	if what := nodegraph.Needs(p); what != "" {
		return fmt.Errorf("node %q can not create pods that reference %s", node, what)
	}
	return nil
}

func (n nodeRestriction) ownPod(ctx context.Context, a admission.Attributes, node, rule string) error {
	obj, err := n.reader.Get(ctx, podResource, a.GetNamespace(), a.GetName())
	if apierrors.IsNotFound(err) {
		return apierrors.NewNotFound(corev1.Resource("pod"), a.GetName())
	}
	if err != nil {
		return err
	}
	if p, ok := obj.(*corev1.Pod); !ok || p.Spec.NodeName != node {
		return fmt.Errorf(rule, node)
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
		return fmt.Errorf("node %q cannot update resource claim statues", node)
	}
	// The permission to read a claim depends on these, too.
	if !apiequality.Semantic.DeepEqual(p.Status.ExtendedResourceClaimStatus, old.Status.ExtendedResourceClaimStatus) {
		return fmt.Errorf("node %q cannot update extended resource claim status", node)
	}
	if !apiequality.Semantic.DeepEqual(p.Status.NodeAllocatableResourceClaimStatuses,
		old.Status.NodeAllocatableResourceClaimStatuses) {
		return fmt.Errorf("node %q cannot update node allocatable resource claim statuses", node)
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
			return fmt.Errorf("unexpected type %T", a.GetObject())
		}
		if o.Spec.ConfigSource != nil { //nolint:staticcheck // deprecated, and refused
			return fmt.Errorf("node %q is not allowed to create pods with a non-nil configSource", node)
		}
		if bad := restricted(o.Labels, nil); len(bad) > 0 {
			return fmt.Errorf("node %q is not allowed to set the following labels: %s", node, strings.Join(bad, ", "))
		}
		for _, r := range o.OwnerReferences {
			if r.BlockOwnerDeletion != nil && *r.BlockOwnerDeletion {
				return errors.New("is not allowed to set blockOwnerDeletion on an owner reference")
			}
		}
	case admission.Update:
		old, ok := a.GetOldObject().(*corev1.Node)
		if o == nil || !ok {
			return fmt.Errorf("unexpected type %T", a.GetObject())
		}
		//nolint:staticcheck // deprecated, and refused
		if o.Spec.ConfigSource != nil && !apiequality.Semantic.DeepEqual(o.Spec.ConfigSource, old.Spec.ConfigSource) {
			return fmt.Errorf("node %q is not allowed to update configSource to a new non-nil configSource", node)
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

// restricted returns the changed labels that a node may not change.
func restricted(labels, old map[string]string) []string {
	changed := map[string]bool{}
	for _, pair := range [][2]map[string]string{{labels, old}, {old, labels}} {
		for key, value := range pair[0] {
			other, ok := pair[1][key]
			if (!ok || other != value) && !ownLabel(key) {
				changed[key] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(changed))
}

// ownLabel reports whether a node may set a label on itself: any that is not of Kubernetes, and of
// those the ones of an agent.
func ownLabel(key string) bool {
	domain, _, ok := strings.Cut(key, "/")
	if !ok {
		return true
	}
	in := func(parent string) bool { return domain == parent || strings.HasSuffix(domain, "."+parent) }
	switch {
	case in(restrictedLabels):
		return false
	case !in("kubernetes.io") && !in("k8s.io"):
		return true
	}
	return slices.Contains(agentLabels, key) || in("kubelet.kubernetes.io") || in("node.kubernetes.io")
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
