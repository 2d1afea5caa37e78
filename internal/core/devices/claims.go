package devices

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/podclaims"
)

// Prepared is one device of a claim that its driver has prepared.
type Prepared struct {
	Requests []string `json:"requests,omitempty"` // that it satisfies; none: all
	Pool     string   `json:"pool"`
	Device   string   `json:"device"`
	ShareID  string   `json:"shareID,omitempty"`
	CDI      []string `json:"cdi,omitempty"` // names for the runtime
}

// Claim is a ResourceClaim that is, or may be, prepared on the node.
type Claim struct {
	UID       types.UID             `json:"uid"`
	Namespace string                `json:"namespace"`
	Name      string                `json:"name"`
	Pods      []types.UID           `json:"pods"`    // that use it
	Drivers   map[string][]Prepared `json:"drivers"` // drivers that were called, with their last answers
	// Ready means that all drivers have prepared it since the agent started. After a reboot of the machine nothing of
	// it may be left, such as its CDI specification in /var/run/cdi: drivers are called again for the next sandbox
	// (S9.57).
	Ready bool `json:"-"`
	// Alone are the allocated devices that no other claim may have at the same time, as DRIVER/POOL/DEVICE.
	Alone []string `json:"alone,omitempty"`

	leaving bool // it is being unprepared
}

// Answered reports whether all drivers have prepared the claim, maybe before the agent started.
func (c *Claim) Answered() bool {
	for _, prepared := range c.Drivers { // any order: all are the same
		if prepared == nil {
			return false
		}
	}
	return true
}

// Claims holds the ResourceClaims of the node, by UID.
type Claims map[types.UID]*Claim

// Enter records that a pod uses claims. It returns the claims to prepare, by driver, in the order of names; none
// if they are already prepared for another pod (S9.51 to S9.53). An error changes nothing.
func (c Claims) Enter(pod *corev1.Pod, list []*resourcev1.ResourceClaim) (map[string][]*Claim, error) {
	for _, o := range list {
		switch {
		case o.Status.Allocation == nil:
			return nil, fmt.Errorf("ResourceClaim %s not allocated", o.Name)
		case !podclaims.IsReserved(o, pod):
			return nil, fmt.Errorf("pod %s (%s) is not allowed to use ResourceClaim %s (%s)", pod.Name, pod.UID, o.Name,
				o.UID)
		}
		for _, have := range c { // any order: at most one has the name
			if have.UID != o.UID && have.Namespace == o.Namespace && have.Name == o.Name {
				return nil, fmt.Errorf("old ResourceClaim with same name %s and different UID %s still exists "+
					"(previous pod force-deleted?!)", o.Name, have.UID)
			}
		}
		if err := c.free(pod, o); err != nil {
			return nil, err
		}
	}
	calls := map[string][]*Claim{}
	for _, o := range list {
		have := c[o.UID]
		if have == nil {
			have = &Claim{UID: o.UID, Namespace: o.Namespace, Name: o.Name, Drivers: map[string][]Prepared{}}
			c[o.UID] = have
		}
		have.Alone = alone(o)
		if !slices.Contains(have.Pods, pod.UID) {
			have.Pods = append(have.Pods, pod.UID)
		}
		if have.Ready {
			continue
		}
		for i := range o.Status.Allocation.Devices.Results {
			driver := o.Status.Allocation.Devices.Results[i].Driver
			if _, requested := have.Drivers[driver]; !requested {
				have.Drivers[driver] = nil
			}
		}
		for driver := range have.Drivers { // any order: a map becomes a map
			calls[driver] = append(calls[driver], have)
		}
	}
	return calls, nil
}

// free returns an error while another pod has devices that are allocated to a claim of the pod: one that was force
// deleted, for which they count as free since.
func (c Claims) free(pod *corev1.Pod, o *resourcev1.ResourceClaim) error {
	wanted := alone(o)
	if have := c[o.UID]; have != nil {
		switch {
		case have.leaving:
			return fmt.Errorf("ResourceClaim %s is being unprepared", o.Name)
		case len(have.Alone) > 0 && !slices.Equal(have.Alone, wanted) &&
			slices.ContainsFunc(have.Pods, func(uid types.UID) bool { return uid != pod.UID }):
			return fmt.Errorf("ResourceClaim %s is still prepared with other devices (previous pod force-deleted?!)",
				o.Name)
		}
	}
	for _, have := range c { // any order: a device is alone in at most one
		for _, device := range wanted {
			if have.UID != o.UID && slices.Contains(have.Alone, device) {
				return fmt.Errorf("device %s of ResourceClaim %s is still prepared for ResourceClaim %s/%s "+
					"(previous pod force-deleted?!)", device, o.Name, have.Namespace, have.Name)
			}
		}
	}
	return nil
}

// alone are the devices that are allocated to a claim alone, sorted: neither for administrators nor shared.
func alone(o *resourcev1.ResourceClaim) []string {
	var list []string
	for _, r := range o.Status.Allocation.Devices.Results {
		if (r.AdminAccess == nil || !*r.AdminAccess) && r.ShareID == nil {
			list = append(list, r.Driver+"/"+r.Pool+"/"+r.Device)
		}
	}
	slices.Sort(list)
	return list
}

// Answered records what a driver has prepared for a claim.
func (c Claims) Answered(claim types.UID, driver string, devices []Prepared) {
	if have := c[claim]; have != nil {
		have.Drivers[driver] = devices
	}
}

// Done reports whether all drivers have prepared the claim.
func (c Claims) Done(claims []*resourcev1.ResourceClaim) {
	for _, o := range claims {
		if have := c[o.UID]; have != nil {
			have.Ready = true
		}
	}
}

// Leave removes a pod that has ended from its claims. It returns, by driver, the claims that no other pod uses, to be
// unprepared; claims that are still in use only lose the pod (S9.55).
func (c Claims) Leave(pod types.UID) map[string][]*Claim {
	calls := map[string][]*Claim{}
	for _, uid := range slices.Sorted(maps.Keys(c)) {
		have := c[uid]
		i := slices.Index(have.Pods, pod)
		switch {
		case i < 0:
		case len(have.Pods) > 1:
			have.Pods = slices.Delete(have.Pods, i, i+1)
		case len(have.Drivers) == 0:
			delete(c, uid)
		default:
			have.leaving = true
			for driver := range have.Drivers { // any order: a map becomes a map
				calls[driver] = append(calls[driver], have)
			}
		}
	}
	return calls
}

// Unprepared records that a driver has unprepared a claim, and removes the claim after the last
// driver.
func (c Claims) Unprepared(claim types.UID, driver string) {
	have := c[claim]
	if have == nil {
		return
	}
	have.Ready = false
	if delete(have.Drivers, driver); len(have.Drivers) == 0 {
		delete(c, claim)
	}
}

// Stays records that a claim could not be unprepared, so that it is tried again.
func (c Claims) Stays(claim types.UID) {
	if have := c[claim]; have != nil {
		have.leaving = false
	}
}

// Has reports whether a pod uses a claim.
func (c Claims) Has(pod types.UID) bool {
	for _, have := range c { // any order: only reads
		if slices.Contains(have.Pods, pod) {
			return true
		}
	}
	return false
}

// Pods returns the pods that use claims, sorted.
func (c Claims) Pods() []types.UID {
	var list []types.UID
	for _, have := range c { // any order: sorted below
		list = append(list, have.Pods...)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// Used is a device of a claim that is available in a container.
type Used struct {
	Claim    *Claim
	PodClaim string // the entry of the pod's spec; empty for extended resources
	Request  string // the one that the container names; empty for all
	Driver   string
	Prepared
}

// Of returns the devices of claims that are available in a container (S9.5, S9.54), sorted by claim,
// driver, pool and device.
func (c Claims) Of(pod *corev1.Pod, container *corev1.Container) []Used {
	var list []Used
	add := func(claim, entry, request string) {
		for _, uid := range slices.Sorted(maps.Keys(c)) {
			have := c[uid]
			if have.Namespace != pod.Namespace || have.Name != claim || !slices.Contains(have.Pods, pod.UID) {
				continue
			}
			for _, driver := range slices.Sorted(maps.Keys(have.Drivers)) {
				for _, d := range have.Drivers[driver] {
					if request == "" || len(d.Requests) == 0 || slices.Contains(d.Requests, request) {
						list = append(list, Used{have, entry, request, driver, d})
					}
				}
			}
		}
	}
	for _, r := range container.Resources.Claims {
		for i := range pod.Spec.ResourceClaims {
			if entry := &pod.Spec.ResourceClaims[i]; entry.Name == r.Name {
				if n := podclaims.Name(pod, entry); n.Claim != "" {
					add(n.Claim, entry.Name, r.Request)
				}
			}
		}
	}
	if s := pod.Status.ExtendedResourceClaimStatus; s != nil {
		for _, m := range s.RequestMappings {
			if m.ContainerName == container.Name {
				add(s.ResourceClaimName, "", m.RequestName)
			}
		}
	}
	return list
}
