package dns

import (
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apitypes "k8s.io/apimachinery/pkg/types"

	core "carob/internal/core/netplan/dns"
)

// zone is the cluster's zone; many goroutines read it, the reflectors change it.
type zone struct {
	mu      sync.RWMutex
	z       *core.Zone
	own     []netip.Addr
	missing int // kinds whose first list has not come yet

	left    []apitypes.UID // pods that no name resolves to any more, not reported to Follow yet
	changed chan struct{}  // gets a token with them
}

func newZone(own []netip.Addr) *zone {
	return &zone{z: core.NewZone(), own: own, missing: watched, changed: make(chan struct{}, 1)}
}

func (z *zone) answer(q *core.Query, k *core.Kubernetes, b *core.Builder, shuffle bool) core.Result {
	z.mu.RLock()
	defer z.mu.RUnlock()
	return z.z.Answer(q, k, &core.Live{Synced: z.missing == 0, Own: z.own, Rotate: rotation(shuffle)}, b)
}

// change applies a change of an object; either may be nil.
func (z *zone) change(before, after metav1.Object) {
	z.mu.Lock()
	defer z.mu.Unlock()
	defer z.note()
	z.z.Serial = max(z.z.Serial, uint32(time.Now().Unix()))
	o := after
	if o == nil {
		o = before
	}
	switch o := o.(type) {
	case *corev1.Namespace:
		if after == nil {
			z.z.RemoveNamespace(o.Name)
		} else {
			z.z.SetNamespace(o.Name)
		}
	case *corev1.Service:
		if after == nil {
			z.z.RemoveService(o.Name, o.Namespace)
		} else {
			z.z.SetService(o)
		}
	case *discoveryv1.EndpointSlice:
		if after == nil {
			z.z.RemoveSlice(o)
		} else {
			old, _ := before.(*discoveryv1.EndpointSlice)
			z.z.SetSlice(old, o)
		}
	case *corev1.Pod:
		old, _ := before.(*corev1.Pod)
		pod, _ := after.(*corev1.Pod)
		z.z.ChangePod(old, pod)
	}
}

// pods that no name resolves to any more, not reported to Follow yet
func (z *zone) note() {
	left := z.z.TakeLeft()
	if len(left) == 0 {
		return
	}
	if len(z.left) > mostLeft { // without Follow nothing is reported: callers of Routed get the right answer
		z.left = nil
	}
	z.left = append(z.left, left...)
	select {
	case z.changed <- struct{}{}:
	default:
	}
}

// mostLeft limits the pods that are kept while Follow does not run.
const mostLeft = 10_000

func (z *zone) leads(pod apitypes.UID) bool {
	z.mu.RLock()
	defer z.mu.RUnlock()
	return z.z.Leads(pod)
}

func (z *zone) takeLeft() []apitypes.UID {
	z.mu.Lock()
	defer z.mu.Unlock()
	left := z.left
	z.left = nil
	return left
}

// expect adds a kind that must be listed before the zone is complete.
func (z *zone) expect() {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.missing++
}

func (z *zone) listed() {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.missing--
}

// resolverFile is the node's resolver file, read when it is needed and has changed.
type resolverFile struct {
	name string
	own  func(netip.Addr) bool // addresses of this server: queries to them would be a loop
	now  func() time.Time

	mu      sync.Mutex
	looked  time.Time
	info    os.FileInfo
	servers []netip.AddrPort
}

// lookAgain is how long the content is used before the file is checked again.
const lookAgain = time.Second

// list returns the name servers. If the file cannot be read because it is being replaced, the
// servers stay.
func (r *resolverFile) list() []netip.AddrPort {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	if r.info != nil && now.Sub(r.looked) < lookAgain {
		return r.servers
	}
	r.looked = now
	info, err := os.Stat(r.name)
	if err != nil {
		return r.servers
	}
	if r.info != nil && os.SameFile(r.info, info) && r.info.ModTime().Equal(info.ModTime()) &&
		r.info.Size() == info.Size() && now.Sub(info.ModTime()) > 2*time.Second {
		return r.servers
	}
	cfg, err := dns.ClientConfigFromFile(r.name)
	if err != nil {
		return r.servers
	}
	r.info, r.servers = info, nil
	for _, s := range cfg.Servers {
		a, err := netip.ParseAddr(s)
		if err == nil && !r.own(a) && len(r.servers) < 15 {
			r.servers = append(r.servers, netip.AddrPortFrom(a, 53))
		}
	}
	return r.servers
}

// sources decides which clients may query: pods, and this host with all its addresses. A neighbour could
// send packets for a pod's gateway to this host with its own route.
type sources struct {
	pods []netip.Prefix // empty: everybody, because the pods' addresses are not known
	now  func() time.Time
	list func() ([]net.Addr, error) // of the host's addresses

	mu     sync.Mutex
	host   map[netip.Addr]bool
	looked time.Time
}

func (s *sources) allowed(a netip.Addr) bool {
	pod := slices.ContainsFunc(s.pods, func(p netip.Prefix) bool { return p.Contains(a) })
	if len(s.pods) == 0 || pod || a.IsLoopback() {
		return true
	}
	a = a.WithZone("")
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := s.now(); !s.host[a] && now.Sub(s.looked) > time.Second {
		s.looked = now
		list, err := s.list()
		if err != nil {
			return false
		}
		s.host = map[netip.Addr]bool{}
		for _, n := range list {
			if p, err := netip.ParsePrefix(n.String()); err == nil {
				s.host[p.Addr().Unmap()] = true
			}
		}
	}
	return s.host[a]
}
