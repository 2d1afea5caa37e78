package devices

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"carob/internal/core/pinning"
	"carob/internal/core/podclaims"
	"carob/internal/core/resources"
)

// Hints are the sets of NUMA nodes that have enough devices of each resource for a container, or for the whole pod when
// c is nil (S10.31). nodes are those of the machine; other nodes that plugins report are ignored.
func (p *Plugins) Hints(pod *corev1.Pod, c *corev1.Container, nodes pinning.Mask) pinning.Hints {
	want := map[string]int{}
	if c != nil {
		p.wanted(pod, c, want)
	} else {
		p.wantedOfPod(pod, want)
	}
	hints := pinning.Hints{}
	for name, count := range want { // any order: a map becomes a map
		r := p.Resources[name]
		if !slices.ContainsFunc(p.ids(name), func(id string) bool { return len(r.Devices[id].NUMA) > 0 }) {
			hints[name] = nil // their nodes are unknown
			continue
		}
		own := p.owned(pod, c, name)
		switch free := p.free(name); {
		case len(own) == count:
			hints[name] = r.hints(own, count, nodes)
		case len(own) > 0, len(free) < count:
			hints[name] = []pinning.Hint{}
		default:
			hints[name] = r.hints(free, count, nodes)
		}
	}
	return hints
}

// wanted adds the device plugin resources that a container requests.
func (p *Plugins) wanted(pod *corev1.Pod, c *corev1.Container, to map[string]int) {
	for name, q := range c.Resources.Limits { // any order: a map becomes a map
		if p.Resources[string(name)] != nil && !q.IsZero() && !podclaims.ServedByClaim(pod, c.Name, name) {
			to[string(name)] += int(q.Value())
		}
	}
}

// wantedOfPod is the devices that all containers need: later containers reuse the devices of init
// containers.
func (p *Plugins) wantedOfPod(pod *corev1.Pod, to map[string]int) {
	most, sidecars := map[string]int{}, map[string]int{}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		own := map[string]int{}
		p.wanted(pod, c, own)
		for name, n := range own { // any order: each by itself
			if resources.IsSidecar(c) {
				sidecars[name] += n
			} else {
				most[name] = max(most[name], sidecars[name]+n)
			}
		}
	}
	for i := range pod.Spec.Containers {
		p.wanted(pod, &pod.Spec.Containers[i], to)
	}
	for name, n := range sidecars { // any order: each by itself
		to[name] += n
	}
	for name, n := range most { // any order: each by itself
		to[name] = max(to[name], n)
	}
}

func (p *Plugins) ids(resource string) []string {
	var ids []string
	for id := range p.Resources[resource].Devices { // any order: a set
		ids = append(ids, id)
	}
	return ids
}

// owned are the devices that a container, or a pod, has of a resource.
func (p *Plugins) owned(pod *corev1.Pod, c *corev1.Container, resource string) []string {
	var ids []string
	for i := range p.Assignments {
		if a := &p.Assignments[i]; a.Pod == pod.UID && a.Resource == resource && (c == nil || a.Container == c.Name) {
			ids = merge(ids, a.Devices)
		}
	}
	return ids
}

// free are the healthy devices that are not assigned.
func (p *Plugins) free(resource string) []string {
	return slices.DeleteFunc(p.ids(resource), func(id string) bool {
		has := func(a Assignment) bool { return a.Resource == resource && slices.Contains(a.Devices, id) }
		return !p.Resources[resource].Devices[id].Healthy || slices.ContainsFunc(p.Assignments, has)
	})
}

// hints are the sets of nodes with at least count of the devices.
func (r *Resource) hints(ids []string, count int, machine pinning.Mask) []pinning.Hint {
	at := func(id string) (m pinning.Mask) {
		for _, n := range r.Devices[id].NUMA {
			m |= pinning.MaskOf(int(n))
		}
		return m & machine
	}
	var all pinning.Mask
	var every, some []pinning.Mask
	for id := range r.Devices { // any order: they are counted
		every = append(every, at(id))
		all |= at(id)
	}
	for _, id := range ids {
		some = append(some, at(id))
	}
	if all == 0 {
		all = machine
	}
	near := func(devices []pinning.Mask, mask pinning.Mask) (n int) {
		for _, m := range devices {
			if m&mask != 0 {
				n++
			}
		}
		return n
	}
	return pinning.HintsFor(all.Nodes(), func(mask pinning.Mask) (could, can bool) {
		return near(every, mask) >= count, near(some, mask) >= count
	})
}

// Align sets which devices of an ask are on the given NUMA nodes.
func (p *Plugins) Align(a *Request, nodes pinning.Mask) {
	for _, id := range a.Free {
		if slices.ContainsFunc(p.Resources[a.Resource].Devices[id].NUMA,
			func(n int64) bool { return nodes.Has(int(n)) }) {
			a.Near = append(a.Near, id)
		}
	}
}
