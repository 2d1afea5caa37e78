package devices

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/utils/ptr"
)

// DeviceChecks has the dependencies of the validation of claims on the rest of the API: some parts
// of a claim need more permissions than writing it.
type DeviceChecks struct {
	Authorizer authorizer.UnconditionalAuthorizer
	// Namespace returns a namespace by name.
	Namespace func(ctx context.Context, name string) (*corev1.Namespace, error)
}

// adminNamespace rejects admin access outside of the namespaces labelled for it.
func (c DeviceChecks) adminNamespace(ctx context.Context, namespace string, at *field.Path) field.ErrorList {
	ns, err := c.Namespace(ctx, namespace)
	if err != nil {
		return field.ErrorList{field.InternalError(at,
			fmt.Errorf("could not retrieve namespace to verify admin access: %w", err))}
	}
	if ns.Labels[resourcev1.DRAAdminNamespaceLabelKey] != "true" {
		return field.ErrorList{field.Forbidden(at,
			fmt.Sprintf("admin access to devices requires the `%s: true` label on the containing namespace",
				resourcev1.DRAAdminNamespaceLabelKey))}
	}
	return nil
}

func (c DeviceChecks) adminSpec(ctx context.Context, namespace string,
	requests []resourcev1.DeviceRequest) field.ErrorList {
	for i, r := range requests {
		if r.Exactly != nil && ptr.Deref(r.Exactly.AdminAccess, false) {
			return c.adminNamespace(ctx, namespace,
				field.NewPath("spec", "devices", "requests").Index(i).Child("adminAccess"))
		}
	}
	return nil
}

// adminResult returns the index of the first result with admin access, -1 if there is none.
func adminResult(claim *resourcev1.ResourceClaim) int {
	if a := claim.Status.Allocation; a != nil {
		for i, r := range a.Devices.Results {
			if ptr.Deref(r.AdminAccess, false) {
				return i
			}
		}
	}
	return -1
}

func (c DeviceChecks) claimStatus(ctx context.Context, claim, old *resourcev1.ResourceClaim) field.ErrorList {
	var errs field.ErrorList
	if i := adminResult(claim); i >= 0 && adminResult(old) < 0 {
		errs = c.adminNamespace(ctx, claim.Namespace,
			field.NewPath("status", "allocation", "devices", "results").Index(i).Child("adminAccess"))
	}
	if !equality.Semantic.DeepEqual(claim.Status.Allocation, old.Status.Allocation) ||
		!equality.Semantic.DeepEqual(claim.Status.ReservedFor, old.Status.ReservedFor) {
		errs = append(errs, c.binding(ctx)...)
	}
	if claim.Status.Allocation != nil {
		errs = append(errs, c.deviceStatus(ctx, claim, old)...)
	}
	return errs
}

// part is an authorization request for a virtual subresource of claims.
type part struct {
	authorizer.Attributes
	verb, subresource, namespace, name string
}

func (p part) GetVerb() string { return p.verb }

func (p part) GetSubresource() string { return p.subresource }

func (p part) GetNamespace() string { return p.namespace }

func (p part) GetName() string { return p.name }

func (c DeviceChecks) allowed(ctx context.Context, p part) error {
	decision, reason, err := c.Authorizer.Authorize(ctx, p)
	if decision == authorizer.DecisionAllow {
		return nil
	}
	switch {
	case err != nil && reason != "":
		reason = fmt.Sprintf("%v: %s", err, reason)
	case err != nil:
		reason = err.Error()
	}
	return responsewriters.ForbiddenStatusError(p, reason)
}

// binding requires the permission to allocate and reserve, which schedulers have for all claims.
func (c DeviceChecks) binding(ctx context.Context) field.ErrorList {
	at := field.NewPath("status", "allocation")
	base, err := filters.GetAuthorizerAttributes(ctx)
	if err != nil {
		return field.ErrorList{field.InternalError(at, fmt.Errorf("cannot build authorizer attributes: %w", err))}
	}
	if err := c.allowed(ctx, part{Attributes: base, verb: base.GetVerb(),
		subresource: resourcev1.SubresourceBinding}); err != nil {
		return field.ErrorList{field.Forbidden(at,
			fmt.Sprintf(
				"changing status.allocation or status.reservedFor requires resource=\"resourceclaims/binding\", verb=%q permission: %s", base.GetVerb(), err))}
	}
	return nil
}

// deviceStatus requires the permission to report the status of each driver whose devices change.
func (c DeviceChecks) deviceStatus(ctx context.Context, claim, old *resourcev1.ResourceClaim) field.ErrorList {
	drivers := changedDrivers(claim, old)
	if len(drivers) == 0 {
		return nil
	}
	at := field.NewPath("status", "devices")
	base, err := filters.GetAuthorizerAttributes(ctx)
	if err != nil {
		return field.ErrorList{field.InternalError(at, fmt.Errorf("cannot build authorizer attributes: %w", err))}
	}
	verbs := []string{resourcev1.VerbPrefixArbitraryNode + base.GetVerb()}
	if onAllocatedNode(base.GetUser(), claim.Status.Allocation) {
		verbs = append([]string{resourcev1.VerbPrefixAssociatedNode + base.GetVerb()}, verbs...)
	}
	var errs field.ErrorList
	for _, driver := range sets.List(drivers) {
		var refused error
		for _, verb := range verbs {
			err := c.allowed(ctx,
				part{Attributes: base, verb: verb, subresource: resourcev1.SubresourceDriver,
					namespace: base.GetNamespace(), name: driver})
			if err == nil {
				refused = nil
				break
			}
			if refused == nil {
				refused = err
			}
		}
		if refused != nil {
			errs = append(errs,
				field.Forbidden(at,
					fmt.Sprintf(
						"changing status.devices requires resource=\"resourceclaims/driver\", verb=\"%s\" permission: %s", verbs, refused)))
		}
	}
	return errs
}

func changedDrivers(claim, old *resourcev1.ResourceClaim) sets.Set[string] {
	id := func(d resourcev1.AllocatedDeviceStatus) deviceID {
		return deviceID{d.Driver, d.Pool, d.Device, ptr.Deref(d.ShareID, "")}
	}
	before := map[deviceID]resourcev1.AllocatedDeviceStatus{}
	for _, d := range old.Status.Devices {
		before[id(d)] = d
	}
	out := sets.New[string]()
	for _, d := range claim.Status.Devices {
		was, ok := before[id(d)]
		delete(before, id(d))
		if !ok || !equality.Semantic.DeepEqual(was, d) {
			out.Insert(d.Driver)
		}
	}
	for _, d := range before {
		out.Insert(d.Driver)
	}
	return out
}

// onAllocatedNode reports whether u is a service account whose token is bound to the node of the
// allocated devices.
func onAllocatedNode(u user.Info, a *resourcev1.AllocationResult) bool {
	if a == nil || a.NodeSelector == nil || len(a.NodeSelector.NodeSelectorTerms) != 1 {
		return false
	}
	term := a.NodeSelector.NodeSelectorTerms[0]
	if len(term.MatchExpressions) != 0 || len(term.MatchFields) != 1 {
		return false
	}
	f := term.MatchFields[0]
	if f.Key != "metadata.name" || f.Operator != corev1.NodeSelectorOpIn || len(f.Values) != 1 || f.Values[0] == "" {
		return false
	}
	if _, _, err := serviceaccount.SplitUsername(u.GetName()); err != nil {
		return false
	}
	nodes := u.GetExtra()[serviceaccount.NodeNameKey]
	return len(nodes) == 1 && nodes[0] == f.Values[0]
}
