package addresspool

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/netplan"
)

// The annotations of Services that request addresses, under MetalLB's names; the second form is
// that of its earlier releases.
const (
	annotationAddresses    = "metallb.io/loadBalancerIPs"
	annotationAddressesOld = "metallb.universe.tf/loadBalancerIPs"
	annotationShared       = "metallb.io/allow-shared-ip"
	annotationSharedOld    = "metallb.universe.tf/allow-shared-ip"
)

// Annotations are the annotations of Services that this package reads.
func Annotations() []string {
	return []string{annotationAddresses, annotationAddressesOld, annotationShared, annotationSharedOld}
}

// State holds the addresses of Services. It is not safe for concurrent use.
type State struct {
	pool  Pool
	known map[types.NamespacedName]*holder
	users map[netip.Addr][]types.NamespacedName
}

// holder is a Service that requests addresses.
type holder struct {
	service *corev1.Service
	request request
	has     []netip.Addr // one for each of request.families; none: it waits
	failed  string       // why, as in the event
}

// request holds the addresses that a Service requests.
type request struct {
	families  []corev1.IPFamily // of the addresses that it needs, in its order
	optional  []corev1.IPFamily // and those that it gets if the pool has them
	addresses []netip.Addr      // requested by name; none: any
	sharing   string            // key with which others may have the same address; "": none
	backend   string            // its pods: Services that share an address must have the same traffic policy or pods
	ports     []string
	wrong     string // why no address can be assigned
}

// Input is a Service as stored; a nil Service was deleted.
type Input struct {
	Name    types.NamespacedName
	Service *corev1.Service
}

// Write is what the status of a Service should name as its load balancer.
type Write struct {
	Name    types.NamespacedName
	UID     types.UID
	Ingress []corev1.LoadBalancerIngress
}

// Event is an event of a Service, with MetalLB's reasons.
type Event struct {
	Name               types.NamespacedName
	Type, Reason, Text string
}

// New returns a state without assigned addresses.
func New(p Pool) *State {
	return &State{pool: p, known: map[types.NamespacedName]*holder{},
		users: map[netip.Addr][]types.NamespacedName{}}
}

// Addresses returns the addresses of Services, in order.
func (s *State) Addresses() []netip.Addr {
	out := make([]netip.Addr, 0, len(s.users))
	// any order: sorted below
	for a := range s.users {
		out = append(out, a)
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out
}

// Update applies changed Services; the first call must have all of them. A Service keeps its
// addresses as long as they are valid; otherwise it gets those of its status; otherwise a free one,
// older Services first. node are addresses of the node itself: a Service gets one of them only if it
// requests it.
func (s *State) Update(in []Input, node []netip.Addr) (writes []Write, events []Event) {
	changed := map[types.NamespacedName]bool{}
	released := false
	for _, i := range in {
		changed[i.Name] = true
		old := s.known[i.Name]
		if !ours(i.Service) {
			if old != nil {
				released = s.release(i.Name) || released
				delete(s.known, i.Name)
			}
			if w, ok := s.cleared(i); ok {
				writes = append(writes, w)
			}
			continue
		}
		now := &holder{service: i.Service, request: s.requestOf(i.Service)}
		if old != nil {
			had := old.has
			released = s.release(i.Name) || released
			now.has, now.failed = had, old.failed
		}
		s.known[i.Name] = now
	}
	order := s.order(changed, released)
	for _, name := range order { // first those that have an address already
		h := s.known[name]
		had := h.has
		h.has = nil
		if len(had) > 0 && !s.take(name, had) {
			events = append(events, Event{name, corev1.EventTypeWarning, "ClearAssignment",
				fmt.Sprintf("it can no longer have %s", text(had))})
		}
	}
	for _, name := range order {
		if h := s.known[name]; len(h.has) == 0 {
			s.take(name, statusOf(h.service))
		}
	}
	for _, name := range order {
		h := s.known[name]
		if len(h.has) == 0 {
			events = append(events, s.allocate(name, node)...)
		}
		if w, differs := write(name, h); differs {
			writes = append(writes, w)
		}
	}
	return writes, events
}

// order returns the Services to process: the changed ones, and those that wait if an address became
// free.
func (s *State) order(changed map[types.NamespacedName]bool, released bool) []types.NamespacedName {
	var out []types.NamespacedName
	// any order: sorted below
	for name, h := range s.known {
		if changed[name] || released && len(h.has) == 0 {
			out = append(out, name)
		}
	}
	slices.SortFunc(out, func(a, b types.NamespacedName) int {
		x, y := s.known[a].service, s.known[b].service
		return cmp.Or(x.CreationTimestamp.Time.Compare(y.CreationTimestamp.Time),
			strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return out
}

// ours reports whether this package assigns the addresses of a Service.
func ours(s *corev1.Service) bool {
	return s != nil && s.Spec.Type == corev1.ServiceTypeLoadBalancer && s.Spec.LoadBalancerClass == nil &&
		s.DeletionTimestamp == nil
}

// cleared removes addresses of the pool out of the status of a Service that is not a load balancer any
// more.
func (s *State) cleared(i Input) (Write, bool) {
	if i.Service == nil || i.Service.DeletionTimestamp != nil || i.Service.Spec.LoadBalancerClass != nil {
		return Write{}, false
	}
	has := statusOf(i.Service)
	return Write{Name: i.Name, UID: i.Service.UID}, len(has) > 0 && !slices.ContainsFunc(has,
		func(a netip.Addr) bool { return !s.pool.Contains(a) })
}

// release frees the addresses of a Service.
func (s *State) release(name types.NamespacedName) bool {
	h := s.known[name]
	for _, a := range h.has {
		left := slices.DeleteFunc(s.users[a], func(n types.NamespacedName) bool { return n == name })
		if s.users[a] = left; len(left) == 0 {
			delete(s.users, a)
		}
	}
	return len(h.has) > 0
}

// take gives a Service the addresses if it may have them and they fulfil its request.
func (s *State) take(name types.NamespacedName, want []netip.Addr) bool {
	h := s.known[name]
	if !s.suits(h.request, want) {
		return false
	}
	for _, a := range want {
		if s.conflict(name, a) != nil {
			return false
		}
	}
	h.has, h.failed = slices.Clone(want), ""
	for _, a := range want {
		s.users[a] = append(s.users[a], name)
	}
	return true
}

// suits reports whether addresses fulfil a request, also if other Services have them.
func (s *State) suits(r request, want []netip.Addr) bool {
	if r.wrong != "" || len(want) == 0 {
		return false
	}
	if len(r.addresses) > 0 {
		return slices.Equal(sorted(r.addresses), sorted(want)) && !slices.ContainsFunc(want,
			func(a netip.Addr) bool { return !s.pool.Contains(a) })
	}
	var have []corev1.IPFamily
	for _, a := range want {
		if slices.Contains(have, familyOf(a)) || !s.pool.Contains(a) {
			return false
		}
		have = append(have, familyOf(a))
	}
	for _, f := range r.families {
		if !slices.Contains(have, f) {
			return false
		}
	}
	for _, f := range have {
		if !slices.Contains(r.families, f) && !slices.Contains(r.optional, f) {
			return false
		}
	}
	for _, f := range r.optional {
		if !slices.Contains(have, f) && s.pool.has(f == corev1.IPv6Protocol) {
			return false
		}
	}
	return true
}

func sorted(list []netip.Addr) []netip.Addr {
	return slices.SortedFunc(slices.Values(list), netip.Addr.Compare)
}

// conflict returns why a Service cannot share an address with its holders.
func (s *State) conflict(name types.NamespacedName, a netip.Addr) error {
	r := s.known[name].request
	for _, other := range s.users[a] {
		if other == name {
			continue
		}
		o := s.known[other].request
		switch {
		case r.sharing == "" || o.sharing == "" || r.sharing != o.sharing:
			return fmt.Errorf("%s belongs to Service %s, and they have no sharing key in common", a, other)
		case r.backend != o.backend:
			return fmt.Errorf(
				"%s belongs to Service %s, which shares it only with externalTrafficPolicy Cluster or the same pods",
				a, other)
		}
		for _, p := range r.ports {
			if slices.Contains(o.ports, p) {
				return fmt.Errorf("%s belongs to Service %s, which has port %s, too", a, other, p)
			}
		}
	}
	return nil
}

// allocate gives a Service free addresses, or returns why it cannot.
func (s *State) allocate(name types.NamespacedName, node []netip.Addr) []Event {
	h := s.known[name]
	want, err := s.find(name, node)
	if err == nil && !s.take(name, want) {
		err = errors.New("the addresses do not fit the families of the Service")
	}
	if err != nil {
		why := fmt.Sprintf("Failed to allocate IP for %q: %v", name, err)
		if h.failed == why {
			return nil
		}
		h.failed = why
		return []Event{{name, corev1.EventTypeWarning, "AllocationFailed", why}}
	}
	return []Event{{name, corev1.EventTypeNormal, "IPAllocated", "Assigned IP " + text(want)}}
}

func (s *State) find(name types.NamespacedName, node []netip.Addr) (want []netip.Addr, err error) {
	r := s.known[name].request
	if r.wrong != "" {
		return nil, errors.New(r.wrong)
	}
	for _, a := range r.addresses {
		if !s.pool.Contains(a) {
			return nil, fmt.Errorf("%s is not in the pool", a)
		}
		if err := s.conflict(name, a); err != nil {
			return nil, err
		}
	}
	if len(r.addresses) > 0 {
		return r.addresses, nil
	}
	for _, f := range append(slices.Clip(r.families), r.optional...) {
		a := s.free(name, f == corev1.IPv6Protocol, node)
		switch {
		case a.IsValid():
			want = append(want, a)
		case slices.Contains(r.families, f) || s.pool.has(f == corev1.IPv6Protocol):
			return nil, fmt.Errorf("no available %s addresses", f)
		}
	}
	return want, nil
}

// free returns the first address of a family that a Service may have.
func (s *State) free(name types.NamespacedName, v6 bool, node []netip.Addr) netip.Addr {
	for a := range s.pool.all(v6) {
		if !slices.Contains(node, a) && s.conflict(name, a) == nil {
			return a
		}
	}
	return netip.Addr{}
}

func (s *State) requestOf(svc *corev1.Service) (r request) {
	families := netplan.Families(svc)
	policy := corev1.IPFamilyPolicySingleStack
	if svc.Spec.IPFamilyPolicy != nil {
		policy = *svc.Spec.IPFamilyPolicy
	}
	for _, f := range families {
		if policy == corev1.IPFamilyPolicyPreferDualStack && !s.pool.has(f == corev1.IPv6Protocol) {
			r.optional = append(r.optional, f)
			continue
		}
		r.families = append(r.families, f)
	}
	if len(r.families) == 0 {
		r.families, r.optional = families, nil
	}
	get := func(name, old string) string {
		if v, ok := svc.Annotations[name]; ok {
			return v
		}
		return svc.Annotations[old]
	}
	r.sharing = get(annotationShared, annotationSharedOld)
	list := get(annotationAddresses, annotationAddressesOld)
	if by := svc.Spec.LoadBalancerIP; by != "" { //nolint:staticcheck // still in use
		if list != "" {
			r.wrong = "it requests addresses by spec.loadBalancerIP and by annotation"
		}
		list = by
	}
	if r.wrong == "" && list != "" {
		r.read(list)
	}
	if svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		r.backend = "pods " + labels.FormatLabels(svc.Spec.Selector)
	}
	for _, p := range svc.Spec.Ports {
		r.ports = append(r.ports, fmt.Sprintf("%d/%s", p.Port, cmp.Or(p.Protocol, corev1.ProtocolTCP)))
	}
	return r
}

// read returns the addresses that a Service requests by name.
func (r *request) read(list string) {
	wanted := slices.Concat(r.families, r.optional)
	var seen []corev1.IPFamily
	for one := range strings.SplitSeq(list, ",") {
		a, err := netip.ParseAddr(strings.TrimSpace(one))
		if err != nil || a.Zone() != "" {
			r.wrong = fmt.Sprintf("%q is not an IP address", one)
			return
		}
		a = a.Unmap()
		if !slices.Contains(wanted, familyOf(a)) || slices.Contains(seen, familyOf(a)) {
			r.wrong = fmt.Sprintf("%s is not one address of each family of the Service", list)
			return
		}
		seen, r.addresses = append(seen, familyOf(a)), append(r.addresses, a)
	}
}

func familyOf(a netip.Addr) corev1.IPFamily {
	if a.Is6() {
		return corev1.IPv6Protocol
	}
	return corev1.IPv4Protocol
}

// statusOf returns the addresses in a status; none if the status has other entries, too.
func statusOf(s *corev1.Service) (out []netip.Addr) {
	for _, i := range s.Status.LoadBalancer.Ingress {
		a, err := netip.ParseAddr(i.IP)
		if err != nil {
			return nil
		}
		out = append(out, a)
	}
	return out
}

// write returns the desired status of a Service, and whether it differs from the stored one.
func write(name types.NamespacedName, h *holder) (Write, bool) {
	w := Write{Name: name, UID: h.service.UID}
	for _, a := range h.has {
		w.Ingress = append(w.Ingress, corev1.LoadBalancerIngress{IP: a.String(),
			IPMode: new(corev1.LoadBalancerIPModeVIP)})
	}
	return w, !slices.EqualFunc(w.Ingress, h.service.Status.LoadBalancer.Ingress,
		func(a, b corev1.LoadBalancerIngress) bool {
			return a.IP == b.IP && b.Hostname == "" && len(b.Ports) == 0
		})
}

func text(list []netip.Addr) string { return strings.Trim(fmt.Sprint(list), "[]") }
