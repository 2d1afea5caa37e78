package podlife

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// lookups find in long lists what Step needs for each of many containers. Short lists are searched one by one. Each map
// is made when it is first needed.
type lookups struct {
	containers map[string]*podContainer // by name, with the image volumes
	instances  map[string]*Container    // by ID
	stops      map[string]int           // positions in State.Stops, by container ID
	flights    map[place]int            // positions in State.InFlight of the first at each place
}

// short is the length up to which a list is searched.
const short = 16

// place is what only one action at a time works on, apart from those that were cancelled.
type place struct {
	op             op
	object, detail string // detail: the type of a probe
}

func (f *flight) place() place {
	p := place{op: f.Op, object: f.Object}
	if f.Op == opProbe {
		p.detail = f.Detail
	}
	return p
}

// container finds a container, or an image volume by its volumeName name.
func (m *machine) container(name string) *podContainer {
	if len(m.containers)+len(m.volumes) > short {
		if m.find.containers == nil {
			m.find.containers = make(map[string]*podContainer, len(m.containers)+len(m.volumes))
			for _, list := range [...][]podContainer{m.containers, m.volumes} {
				for i := range list {
					if _, again := m.find.containers[list[i].spec.Name]; !again {
						m.find.containers[list[i].spec.Name] = &list[i]
					}
				}
			}
		}
		return m.find.containers[name]
	}
	for _, list := range [...][]podContainer{m.containers, m.volumes} {
		for i := range list {
			if list[i].spec.Name == name {
				return &list[i]
			}
		}
	}
	return nil
}

// instance finds a container by its ID.
func (m *machine) instance(id string) *Container {
	all := m.in.Observed.Containers
	if len(all) > short {
		if m.find.instances == nil {
			m.find.instances = make(map[string]*Container, len(all))
			for i, o := range slices.Backward(all) {
				m.find.instances[o.ID] = &all[i]
			}
		}
		return m.find.instances[id]
	}
	for i := range all {
		if all[i].ID == id {
			return &all[i]
		}
	}
	return nil
}

// stopOf finds the stop of an instance.
func (m *machine) stopOf(id string) *containerStop {
	if len(m.s.Stops) > short {
		if m.find.stops == nil {
			m.find.stops = make(map[string]int, len(m.s.Stops))
			for i, stop := range slices.Backward(m.s.Stops) {
				m.find.stops[stop.ContainerID] = i
			}
		}
		if i, ok := m.find.stops[id]; ok {
			return &m.s.Stops[i]
		}
		return nil
	}
	for i := range m.s.Stops {
		if m.s.Stops[i].ContainerID == id {
			return &m.s.Stops[i]
		}
	}
	return nil
}

// flightAt finds an action in flight.
func (m *machine) flightAt(p place) *flight {
	if len(m.s.InFlight) > short {
		if m.find.flights == nil {
			m.find.flights = make(map[place]int, len(m.s.InFlight))
			for i, f := range slices.Backward(m.s.InFlight) {
				m.find.flights[f.place()] = i
			}
		}
		if i, ok := m.find.flights[p]; ok {
			return &m.s.InFlight[i]
		}
		return nil
	}
	for i := range m.s.InFlight {
		if f := &m.s.InFlight[i]; f.Op == p.op && f.Object == p.object && (p.detail == "" || f.Detail == p.detail) {
			return f
		}
	}
	return nil
}

// inFlight finds an action of this kind, but no probe; object "" stands for any.
func (m *machine) inFlight(o op, object string) *flight {
	if object != "" {
		return m.flightAt(place{op: o, object: object})
	}
	for i := range m.s.InFlight {
		if f := &m.s.InFlight[i]; f.Op == o {
			return f
		}
	}
	return nil
}

// addFlight adds an action to those in flight.
func (m *machine) addFlight(f flight) {
	m.s.InFlight = append(m.s.InFlight, f)
	if _, other := m.find.flights[f.place()]; m.find.flights != nil && !other {
		m.find.flights[f.place()] = len(m.s.InFlight) - 1
	}
}

// addStop adds a stop.
func (m *machine) addStop(s containerStop) {
	m.s.Stops = append(m.s.Stops, s)
	if m.find.stops != nil {
		m.find.stops[s.ContainerID] = len(m.s.Stops) - 1
	}
}

// statuses calls each with the entries of a published status, and their container of the spec.
func (m *machine) statuses(st *corev1.PodStatus, each func(*podContainer, *corev1.ContainerStatus)) {
	for i, list := range [...][]corev1.ContainerStatus{st.InitContainerStatuses, st.ContainerStatuses,
		st.EphemeralContainerStatuses} {
		for j := range list {
			c := m.container(list[j].Name)
			if c != nil && i == statusList(c.class) {
				each(c, &list[j])
			}
		}
	}
}

// statusList is the list in which containers of a class are published: of init, of regular, of ephemeral containers.
func statusList(k class) int {
	switch k {
	case initial, sidecar:
		return 0
	case ephemeral:
		return 2
	case regular, volume:
	}
	return 1
}
