package devices

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"carob/internal/kinds/registry"
	"carob/internal/kinds/table"
)

// Kinds returns the kinds of resource.k8s.io (dynamic resource allocation).
func Kinds(checks DeviceChecks) []*registry.Resource {
	return []*registry.Resource{deviceClasses(), deviceTaintRules(), resourceClaims(checks),
		resourceClaimTemplates(checks), resourceSlices()}
}

func dynamic(kind string) schema.GroupVersionKind {
	return resourcev1.SchemeGroupVersion.WithKind(kind)
}

func deviceClasses() *registry.Resource {
	return registry.Of[resourcev1.DeviceClass,
		resourcev1.DeviceClassList](registry.Resource{Kind: dynamic("DeviceClass"), Plural: "deviceclasses",
		Cluster: true, ReturnDeleted: true})
}

func deviceTaintRules() *registry.Resource {
	rule := func(o runtime.Object) *resourcev1.DeviceTaintRule { return o.(*resourcev1.DeviceTaintRule) }
	return registry.Of[resourcev1.DeviceTaintRule, resourcev1.DeviceTaintRuleList](registry.Resource{
		Kind: dynamic("DeviceTaintRule"), Plural: "devicetaintrules", Cluster: true, Status: true,
		RequireResourceVersion: true,
		PrepareCreate:          func(_ context.Context, obj runtime.Object) { stampTaint(&rule(obj).Spec.Taint) },
		PrepareUpdate: func(_ context.Context, obj, old runtime.Object) {
			stampTaint(&rule(obj).Spec.Taint)
			// The time of a new effect is now, unless the client sets it.
			t, was := &rule(obj).Spec.Taint, &rule(old).Spec.Taint
			if t.Effect != was.Effect && t.TimeAdded.Equal(was.TimeAdded) {
				t.TimeAdded = &metav1.Time{Time: time.Now().Truncate(time.Second)}
			}
		},
		Table: table.Kind{Columns: table.Columns([]table.Column{{Name: "Key"}, {Name: "Value"}, {Name: "Effect"},
			{Name: "TimeAdded"}}, table.AgeColumn),
			Row: func(o runtime.Object, now time.Time) []any {
				r := rule(o)
				t := r.Spec.Taint
				added := ""
				if t.TimeAdded != nil {
					added = table.Age(*t.TimeAdded, now)
				}
				return []any{r.Name, t.Key, t.Value, string(t.Effect), added, table.Age(r.CreationTimestamp, now)}
			}},
	})
}

// stampTaint sets the time of a taint if the client does not.
func stampTaint(t *resourcev1.DeviceTaint) {
	if t.TimeAdded == nil {
		t.TimeAdded = &metav1.Time{Time: time.Now().Truncate(time.Second)}
	}
}

func resourceClaims(checks DeviceChecks) *registry.Resource {
	claim := func(o runtime.Object) *resourcev1.ResourceClaim { return o.(*resourcev1.ResourceClaim) }
	return registry.Of[resourcev1.ResourceClaim, resourcev1.ResourceClaimList](registry.Resource{
		Kind: dynamic("ResourceClaim"), Plural: "resourceclaims", Status: true, NoGeneration: true, ReturnDeleted: true,
		PrepareCreate: func(_ context.Context, obj runtime.Object) { dropDerived(&claim(obj).Spec, nil) },
		PrepareUpdate: func(_ context.Context, obj,
			old runtime.Object) {
			dropDerived(&claim(obj).Spec, &claim(old).Spec)
		},
		PrepareStatusUpdate: func(_ context.Context, obj, old runtime.Object) {
			dropSkipped(claim(obj), claim(old))
			forgetDevices(claim(obj), claim(old))
		},
		AuthorizeCreate: func(ctx context.Context, obj runtime.Object) field.ErrorList {
			return checks.adminSpec(ctx, claim(obj).Namespace, claim(obj).Spec.Devices.Requests)
		},
		AuthorizeStatus: func(ctx context.Context, obj, old runtime.Object) field.ErrorList {
			return checks.claimStatus(ctx, claim(obj), claim(old))
		},
		Table: table.Kind{Columns: table.Columns([]table.Column{{Name: "State",
			Description: "A summary of the current state (allocated, pending, reserved, etc.)."}}, table.AgeColumn),
			Row: func(o runtime.Object, now time.Time) []any {
				c := claim(o)
				return []any{c.Name, claimState(c), table.Age(c.CreationTimestamp, now)}
			}},
	})
}

// dropDerived clears attributes that are computed by expressions (DRADerivedAttributes, off in
// v1.37), unless old, the stored claim, has some.
func dropDerived(s, old *resourcev1.ResourceClaimSpec) {
	each := func(s *resourcev1.ResourceClaimSpec, visit func(*[]resourcev1.DeviceDerivedAttribute)) {
		for i := range s.Devices.Requests {
			r := &s.Devices.Requests[i]
			if r.Exactly != nil {
				visit(&r.Exactly.DerivedAttributes)
			}
			for j := range r.FirstAvailable {
				visit(&r.FirstAvailable[j].DerivedAttributes)
			}
		}
	}
	used := false
	if old != nil {
		each(old, func(list *[]resourcev1.DeviceDerivedAttribute) { used = used || len(*list) > 0 })
	}
	if !used {
		each(s, func(list *[]resourcev1.DeviceDerivedAttribute) { *list = nil })
	}
}

// dropSkipped does the same with the node operations that drivers skip (DRAOptionalNodeOperations).
func dropSkipped(c, old *resourcev1.ResourceClaim) {
	skips := func(r resourcev1.DeviceRequestAllocationResult) bool { return len(r.SkipNodeOperations) > 0 }
	if c.Status.Allocation == nil || old.Status.Allocation != nil &&
		slices.ContainsFunc(old.Status.Allocation.Devices.Results, skips) {
		return
	}
	for i := range c.Status.Allocation.Devices.Results {
		c.Status.Allocation.Devices.Results[i].SkipNodeOperations = nil
	}
}

func claimState(c *resourcev1.ResourceClaim) string {
	var states []string
	if c.DeletionTimestamp != nil {
		states = append(states, "deleted")
	}
	switch {
	case c.Status.Allocation != nil:
		states = append(states, "allocated")
		if len(c.Status.ReservedFor) > 0 {
			states = append(states, "reserved")
		}
	case c.DeletionTimestamp == nil:
		states = append(states, "pending")
	}
	return strings.Join(states, ",")
}

// deviceID identifies one allocated share of a device.
type deviceID struct{ driver, pool, device, share string }

// forgetDevices removes the status of devices that this change removes from the claim.
func forgetDevices(c, old *resourcev1.ResourceClaim) {
	if c.Status.Devices == nil {
		return
	}
	gone := sets.New[deviceID]()
	results := func(c *resourcev1.ResourceClaim, each func(deviceID)) {
		if a := c.Status.Allocation; a != nil {
			for _, r := range a.Devices.Results {
				each(deviceID{r.Driver, r.Pool, r.Device, string(ptr.Deref(r.ShareID, ""))})
			}
		}
	}
	results(old, func(id deviceID) { gone.Insert(id) })
	results(c, func(id deviceID) { gone.Delete(id) })
	var kept []resourcev1.AllocatedDeviceStatus
	for _, d := range c.Status.Devices {
		if !gone.Has(deviceID{d.Driver, d.Pool, d.Device, ptr.Deref(d.ShareID, "")}) {
			kept = append(kept, d)
		}
	}
	c.Status.Devices = kept
}

func resourceClaimTemplates(checks DeviceChecks) *registry.Resource {
	template := func(o runtime.Object) *resourcev1.ResourceClaimTemplate {
		return o.(*resourcev1.ResourceClaimTemplate)
	}
	return registry.Of[resourcev1.ResourceClaimTemplate, resourcev1.ResourceClaimTemplateList](registry.Resource{
		Kind: dynamic("ResourceClaimTemplate"), Plural: "resourceclaimtemplates", NoGeneration: true,
		ReturnDeleted: true,
		PrepareCreate: func(_ context.Context, obj runtime.Object) { dropDerived(&template(obj).Spec.Spec, nil) },
		PrepareUpdate: func(_ context.Context, obj, old runtime.Object) {
			dropDerived(&template(obj).Spec.Spec, &template(old).Spec.Spec)
		},
		AuthorizeCreate: func(ctx context.Context, obj runtime.Object) field.ErrorList {
			t := template(obj)
			return checks.adminSpec(ctx, t.Namespace, t.Spec.Spec.Devices.Requests)
		},
	})
}

func resourceSlices() *registry.Resource {
	slice := func(o runtime.Object) *resourcev1.ResourceSlice { return o.(*resourcev1.ResourceSlice) }
	return registry.Of[resourcev1.ResourceSlice, resourcev1.ResourceSliceList](registry.Resource{
		Kind: dynamic("ResourceSlice"), Plural: "resourceslices", Cluster: true, ReturnDeleted: true,
		PrepareCreate: func(_ context.Context, obj runtime.Object) { prepareSlice(slice(obj), nil) },
		PrepareUpdate: func(_ context.Context, obj, old runtime.Object) { prepareSlice(slice(obj), slice(old)) },
		Fields: map[string]func(runtime.Object) string{
			resourcev1.ResourceSliceSelectorNodeName: func(o runtime.Object) string {
				return ptr.Deref(slice(o).Spec.NodeName, "")
			},
			resourcev1.ResourceSliceSelectorDriver:   func(o runtime.Object) string { return slice(o).Spec.Driver },
			resourcev1.ResourceSliceSelectorPoolName: func(o runtime.Object) string { return slice(o).Spec.Pool.Name },
		},
		Index: []string{resourcev1.ResourceSliceSelectorNodeName},
		Validator: registry.Validator{Warnings: func(_ context.Context, obj, _ runtime.Object) []string {
			if d := slice(obj).Spec.Driver; d != strings.ToLower(d) {
				return []string{
					fmt.Sprintf("spec.driver: driver names should be lowercase; %q contains uppercase characters", d)}
			}
			return nil
		}},
		Table: table.Kind{Columns: table.Columns([]table.Column{{Name: "Node"}, {Name: "Driver"}, {Name: "Pool"}},
			table.AgeColumn),
			Row: func(o runtime.Object, now time.Time) []any {
				s := slice(o)
				return []any{s.Name, ptr.Deref(s.Spec.NodeName, ""), s.Spec.Driver, s.Spec.Pool.Name,
					table.Age(s.CreationTimestamp, now)}
			}},
	})
}

// prepareSlice sets the times of taints, and clears fields of features that are off in v1.37,
// unless the stored slice uses them.
func prepareSlice(s, old *resourcev1.ResourceSlice) {
	type uses struct{ partition, skip, allocatable, groups, lists bool }
	var was uses
	if old != nil {
		was.partition, was.skip = old.Spec.PartitionTypeAttribute != nil, len(old.Spec.SkipNodeOperations) > 0
		for _, d := range old.Spec.Devices {
			was.allocatable = was.allocatable || len(d.NodeAllocatableResources) > 0
			for _, c := range d.ConsumesCounters {
				was.groups = was.groups || len(c.CompatibilityGroups) > 0
			}
			for _, a := range d.Attributes {
				was.lists = was.lists || a.BoolValues != nil || a.IntValues != nil || a.StringValues != nil ||
					a.VersionValues != nil
			}
		}
	}
	if !was.partition {
		s.Spec.PartitionTypeAttribute = nil
	}
	if !was.skip {
		s.Spec.SkipNodeOperations = nil
	}
	for i := range s.Spec.Devices {
		d := &s.Spec.Devices[i]
		for j := range d.Taints {
			stampTaint(&d.Taints[j])
		}
		if !was.allocatable {
			d.NodeAllocatableResources = nil
		}
		if !was.groups {
			for j := range d.ConsumesCounters {
				d.ConsumesCounters[j].CompatibilityGroups = nil
			}
		}
		if was.lists {
			continue
		}
		for name, a := range d.Attributes {
			a.BoolValues, a.IntValues, a.StringValues, a.VersionValues = nil, nil, nil, nil
			d.Attributes[name] = a
		}
	}
}
