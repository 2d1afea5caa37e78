// Package devices decides which devices of the node a pod gets: devices of device plugins, which the node allocates,
// and devices of ResourceClaims, which drivers prepare. node/devices drives it. Everything is a function of its
// arguments; one goroutine at a time may use a value.
//
// Contract: S8 and S9.E in docs/spec/storage-and-node.md.
package devices

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/podclaims"
	"carob/internal/core/resources"
)

// Device is one device, as its plugin last reported it.
type Device struct {
	Healthy bool
	NUMA    []int64 // its NUMA nodes; none: unknown
}

// Resource is the state of one device plugin resource.
type Resource struct {
	Devices   map[string]Device // by id
	Connected bool              // a plugin serves it; else all devices count as unhealthy
	Gone      bool              // no plugin came back in time: its amounts are 0 (S8.11)
}

// Assignment is what a container has of one resource.
type Assignment struct {
	Pod       types.UID
	Container string
	Resource  string
	Devices   []string // sorted
	Response  []byte   // of the plugin's Allocate, as protobuf; nil while the call runs
}

// Plugins is the state of all device plugin resources. The zero value is ready to use.
type Plugins struct {
	Resources   map[string]*Resource
	Assignments []Assignment
}

// Request is the next allocation that a container needs.
type Request struct {
	Container string
	Resource  string
	Count     int
	Include   []string // devices that must be among them: of init containers that have ended (S8.21); sorted
	Free      []string // devices to choose from, without Include; sorted
	Near      []string // those of Free on the NUMA nodes of the container's other resources; none: no preference
}

// Update takes the full list of a plugin's devices (S8.4). It returns the pods whose devices changed their health.
func (p *Plugins) Update(resource string, devices map[string]Device) []types.UID {
	r := p.resource(resource)
	old := r.Devices
	r.Devices, r.Connected, r.Gone = devices, true, false
	var changed []types.UID
	for i := range p.Assignments {
		a := &p.Assignments[i]
		if a.Resource == resource && slices.ContainsFunc(a.Devices, func(id string) bool {
			was, known := old[id]
			is, still := devices[id]
			return known != still || was.Healthy != is.Healthy
		}) && !slices.Contains(changed, a.Pod) {
			changed = append(changed, a.Pod)
		}
	}
	return changed
}

func (p *Plugins) resource(name string) *Resource {
	if p.Resources == nil {
		p.Resources = map[string]*Resource{}
	}
	if p.Resources[name] == nil {
		p.Resources[name] = &Resource{}
	}
	return p.Resources[name]
}

// Disconnected records that no plugin serves a resource any more (S8.11).
func (p *Plugins) Disconnected(resource string) { p.resource(resource).Connected = false }

// Expire removes a resource that no plugin has served for some time (S8.11).
func (p *Plugins) Expire(resource string) {
	if r := p.Resources[resource]; r != nil && !r.Connected {
		r.Gone, r.Devices = true, nil
	}
}

// Amounts returns capacity and allocatable quantity of each resource (S8.10).
func (p *Plugins) Amounts() (capacity, allocatable map[string]int64) {
	capacity, allocatable = map[string]int64{}, map[string]int64{}
	for name, r := range p.Resources { // any order: a map becomes a map
		capacity[name], allocatable[name] = int64(len(r.Devices)), 0
		for _, d := range r.Devices { // any order: they are counted
			if d.Healthy && r.Connected {
				allocatable[name]++
			}
		}
	}
	return capacity, allocatable
}

// Away reports whether a resource is known but no plugin serves it at present: pods that request it
// have to wait.
func (p *Plugins) Away(resource string) bool {
	r := p.Resources[resource]
	return r != nil && !r.Connected
}

// Has reports whether a pod has, or is getting, devices.
func (p *Plugins) Has(pod types.UID) bool {
	return slices.ContainsFunc(p.Assignments, func(a Assignment) bool { return a.Pod == pod })
}

// HasOf reports whether a pod has devices of a resource.
func (p *Plugins) HasOf(pod types.UID, resource string) bool {
	return slices.ContainsFunc(p.Assignments,
		func(a Assignment) bool { return a.Pod == pod && a.Resource == resource })
}

// Pods returns the pods that have devices.
func (p *Plugins) Pods() []types.UID {
	var list []types.UID
	for i := range p.Assignments {
		if !slices.Contains(list, p.Assignments[i].Pod) {
			list = append(list, p.Assignments[i].Pod)
		}
	}
	return list
}

// Next returns the next allocation for a pod; nil if it has all its devices (S8.20 to S8.23). The
// error is the reason why the pod has to wait.
func (p *Plugins) Next(pod *corev1.Pod) (*Request, error) {
	reusable := map[string][]string{}
	all := append(slices.Clone(pod.Spec.InitContainers), pod.Spec.Containers...)
	for i := range all {
		c := &all[i]
		for _, name := range slices.Sorted(maps.Keys(c.Resources.Limits)) {
			q := c.Resources.Limits[name]
			resource, count := string(name), int(q.Value())
			r := p.Resources[resource]
			if r == nil || count == 0 || podclaims.ServedByClaim(pod, c.Name, name) {
				continue
			}
			have := p.assignment(pod.UID, c.Name, resource)
			if have == nil {
				return p.request(c.Name, resource, r, count, reusable[resource])
			}
			if err := usable(pod, c, resource, r, have, count); err != nil {
				return nil, err
			}
			if i < len(pod.Spec.InitContainers) && !resources.IsSidecar(c) {
				reusable[resource] = merge(reusable[resource], have.Devices)
			} else {
				reusable[resource] = slices.DeleteFunc(reusable[resource],
					func(id string) bool { return slices.Contains(have.Devices, id) })
			}
		}
	}
	return nil, nil
}

// usable checks an earlier assignment, which may no longer be valid.
func usable(pod *corev1.Pod, c *corev1.Container, resource string, r *Resource, have *Assignment, count int) error {
	if len(have.Devices) != count {
		return fmt.Errorf("pod %q container %q changed request for resource %q from %d to %d", pod.UID, c.Name,
			resource,
			len(have.Devices), count)
	}
	if !r.Connected {
		return unregistered(resource)
	}
	for _, id := range have.Devices {
		if !r.Devices[id].Healthy {
			return fmt.Errorf("previously allocated devices are no longer healthy; cannot allocate unhealthy devices %s",
				resource)
		}
	}
	return nil
}

func unregistered(resource string) error {
	return fmt.Errorf("cannot allocate unregistered device %s", resource)
}

func (p *Plugins) request(container, resource string, r *Resource, count int, reusable []string) (*Request, error) {
	if !r.Connected {
		return nil, unregistered(resource)
	}
	used := map[string]bool{}
	for i := range p.Assignments {
		if a := &p.Assignments[i]; a.Resource == resource {
			for _, id := range a.Devices {
				used[id] = true
			}
		}
	}
	a := &Request{Container: container, Resource: resource, Count: count}
	healthy := 0
	for _, id := range slices.Sorted(maps.Keys(r.Devices)) {
		if !r.Devices[id].Healthy {
			continue
		}
		healthy++
		switch {
		case slices.Contains(reusable, id):
			if len(a.Include) < count {
				a.Include = append(a.Include, id)
			}
		case !used[id]:
			a.Free = append(a.Free, id)
		}
	}
	switch missing := count - len(a.Include); {
	case healthy == 0:
		return nil, fmt.Errorf("no healthy devices present; cannot allocate unhealthy devices %s", resource)
	case missing > len(a.Free):
		return nil, fmt.Errorf("requested number of devices unavailable for %s. Requested: %d, Available: %d", resource,
			missing, len(a.Free))
	}
	return a, nil
}

// Candidates are the devices to pass to GetPreferredAllocation: only near ones if there are more of them than
// needed.
func (a *Request) Candidates() []string {
	if len(a.Include)+len(a.Near) > a.Count {
		return append(slices.Clone(a.Include), a.Near...)
	}
	return append(slices.Clone(a.Include), a.Free...)
}

// Choose selects devices for an ask: those that must be included, then near ones, then any; of each, first those
// that the plugin prefers. It returns them sorted.
func (a *Request) Choose(preferred []string) []string {
	chosen := slices.Clone(a.Include)
	near := slices.DeleteFunc(slices.Clone(preferred), func(id string) bool { return !slices.Contains(a.Near, id) })
	for _, list := range [][]string{near, a.Near, preferred, a.Free} {
		for _, id := range list {
			if len(chosen) < a.Count && slices.Contains(a.Free, id) && !slices.Contains(chosen, id) {
				chosen = append(chosen, id)
			}
		}
	}
	slices.Sort(chosen)
	return chosen
}

// Hold reserves devices for a container, before the call of its plugin.
func (p *Plugins) Hold(pod types.UID, a *Request, devices []string) {
	p.Drop(pod, a.Container, a.Resource)
	p.Assignments = append(p.Assignments, Assignment{Pod: pod, Container: a.Container, Resource: a.Resource,
		Devices: devices})
}

// Assign stores the plugin's response for the devices that Hold reserved; false: the pod has been
// released meanwhile.
func (p *Plugins) Assign(pod types.UID, container, resource string, response []byte) bool {
	a := p.assignment(pod, container, resource)
	if a == nil {
		return false
	}
	a.Response = response
	return true
}

// Drop cancels the reservation made by Hold.
func (p *Plugins) Drop(pod types.UID, container, resource string) {
	p.Assignments = slices.DeleteFunc(p.Assignments, func(a Assignment) bool {
		return a.Pod == pod && a.Container == container && a.Resource == resource
	})
}

// Release frees all devices of a pod that has ended.
func (p *Plugins) Release(pod types.UID) {
	p.Assignments = slices.DeleteFunc(p.Assignments, func(a Assignment) bool { return a.Pod == pod })
}

func (p *Plugins) assignment(pod types.UID, container, resource string) *Assignment {
	for i := range p.Assignments {
		if a := &p.Assignments[i]; a.Pod == pod && a.Container == container && a.Resource == resource {
			return a
		}
	}
	return nil
}

// Of returns the assignments of a container, by resource.
func (p *Plugins) Of(pod types.UID, container string) []Assignment {
	var list []Assignment
	for i := range p.Assignments {
		if a := p.Assignments[i]; a.Pod == pod && a.Container == container {
			list = append(list, a)
		}
	}
	slices.SortFunc(list, func(a, b Assignment) int { return cmp.Compare(a.Resource, b.Resource) })
	return list
}

// Health is the health of a container's devices, for its status (S8.60). A device that the
// plugin no longer reports counts as healthy.
func (p *Plugins) Health(pod types.UID, container string) []corev1.ResourceStatus {
	var list []corev1.ResourceStatus
	for _, a := range p.Of(pod, container) {
		s := corev1.ResourceStatus{Name: corev1.ResourceName(a.Resource)}
		for _, id := range a.Devices {
			health := corev1.ResourceHealthStatusHealthy
			if r := p.Resources[a.Resource]; r != nil {
				if d, known := r.Devices[id]; known && !d.Healthy {
					health = corev1.ResourceHealthStatusUnhealthy
				}
			}
			s.Resources = append(s.Resources, corev1.ResourceHealth{ResourceID: corev1.ResourceID(id), Health: health})
		}
		list = append(list, s)
	}
	return list
}

func merge(a, b []string) []string {
	out := slices.Clone(a)
	for _, s := range b {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}
