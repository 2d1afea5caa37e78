package dns

import (
	"encoding/binary"
	"net/netip"
	"slices"
)

// PodMode selects which names of pods are answered (N4.23).
type PodMode string

// Modes for the names of pods, as the Corefile spells them.
const (
	PodsDisabled PodMode = "disabled"
	PodsInsecure PodMode = "insecure"
	PodsVerified PodMode = "verified"
)

// Kubernetes configures the answers of the zone: the directive `kubernetes` of a Corefile.
type Kubernetes struct {
	Zones       [][]byte // wire form in lower case
	Primary     []byte   // the first of them that is not a reverse zone
	TTL         uint32   // seconds, at most 3600
	Pods        PodMode
	Fallthrough [][]byte // zones whose unknown names are passed to the next plugin
	// Namespaces limits what is visible; empty: all. By wire label.
	Namespaces       map[string]bool
	EndpointPodNames bool
	IgnoreEmpty      bool // cluster IPs without ready endpoints do not exist
}

// Live is what an answer depends on in addition to the zone.
type Live struct {
	Synced bool         // the zone is complete; otherwise unknown names are a server failure (N4.25)
	Own    []netip.Addr // where this server answers, for names of the server
	Rotate uint32       // which address comes first
}

// Outcome is the result of Answer.
type Outcome int

// Outcomes of Answer.
const (
	Next     Outcome = iota // the name is not in the zone: nothing was written
	Answered                // the answer is in the builder, End comes next
	Alias                   // the name is an alias of Target, whose addresses come next
)

// Result is the result of Answer.
type Result struct {
	Outcome Outcome
	Rcode   Rcode
	Target  []byte // wire form, with Alias; read only
	TTL     uint32 // of an alias
}

const (
	versionTTL   = 28800   // N4.1
	version      = "1.1.0" // N4.1
	soaRefresh   = 7200    // N4.16
	soaRetry     = 1800
	soaExpire    = 86400
	mostSOATTL   = 300
	totalWeight  = 100
	serverLabels = "\x02ns\x03dns"               // N4.24
	ownService   = "\x08kube-dns\x0bkube-system" // the Service in front of this server
	ownName      = "\x08kube-dns\x0bkube-system\x03svc"
)

// answer is one call of Answer.
type answer struct {
	z    *Zone
	q    *Query
	k    *Kubernetes
	live *Live
	b    *Builder
	zone int // label where the zone begins
	wire []byte
}

// Answer writes the answer to a question of class IN into b (N4.2 to N4.24).
func (z *Zone) Answer(q *Query, k *Kubernetes, live *Live, b *Builder) Result {
	a := answer{z: z, q: q, k: k, live: live, b: b, zone: -1}
	for _, zone := range k.Zones {
		if label, ok := q.suffix(zone); ok && (a.zone < 0 || label < a.zone) {
			a.zone, a.wire = label, zone
		}
	}
	if a.zone < 0 {
		return Result{}
	}
	r := a.records()
	if r.Outcome == Alias {
		return r
	}
	if r.Rcode == NameError {
		if slices.ContainsFunc(k.Fallthrough, q.Within) {
			return Result{}
		}
		if !live.Synced {
			r.Rcode = ServerFailure
		}
	}
	if b.counts[sectionAnswer] == 0 && !b.truncated && r.Rcode != Refused {
		a.soa(sectionAuthority)
	}
	r.Outcome = Answered
	return r
}

func found() Result   { return Result{Rcode: Success} }
func unknown() Result { return Result{Rcode: NameError} }

// records writes the records of a name; nothing was written for a name that has none of the type.
func (a *answer) records() Result {
	q := a.q
	if q.Type == TypeAXFR || q.Type == TypeIXFR {
		return Result{Rcode: Refused}
	}
	if a.zone == 0 {
		switch q.Type {
		case TypeSOA:
			a.soa(sectionAnswer)
		case TypeNS:
			a.server()
		default: // no data
		}
		return found()
	}
	base := q.lower[:q.starts0(a.zone)]
	switch {
	case string(base) == serverLabels:
		for _, ip := range a.serverAddresses() {
			a.address(ip, q.Type)
		}
		return found()
	case q.Type == TypeTXT && string(base) == "\x0bdns-version":
		a.b.record(sectionAnswer, headerSize, TypeTXT, versionTTL, append([]byte{byte(len(version))}, version...)...)
		return found()
	case q.Type == TypePTR:
		if ip, ok := q.Reverse(); ok {
			return a.pointers(ip)
		}
	}
	last := a.zone - 1
	kind := string(q.label(last))
	if kind != "svc" && kind != "pod" {
		return unknown()
	}
	if last == 0 {
		return found()
	}
	last--
	namespace := q.lower[q.starts[last]:q.starts[last+1]]
	if _, ok := a.z.namespaces[string(namespace)]; !ok ||
		len(a.k.Namespaces) > 0 && !a.k.Namespaces[string(namespace)] {
		return unknown()
	}
	if last == 0 {
		return found()
	}
	last--
	if last > 2 {
		return unknown()
	}
	if kind == "pod" {
		return a.pod(string(namespace), q.label(last))
	}
	s := a.z.services[string(q.lower[q.starts[last]:q.starts[last+2]])]
	if s == nil || !s.there {
		return unknown()
	}
	var w want
	switch last {
	case 1:
		w.endpoint = q.lower[:q.starts[1]]
	case 2:
		w.port, w.protocol = stripped(q.label(0)), stripped(q.label(1))
	}
	return a.service(s, w)
}

// starts0 is where a label begins in the wire form.
func (q *Query) starts0(label int) int {
	if label >= q.labels {
		return q.length - 1
	}
	return int(q.starts[label])
}

// want is the part of a service that a name selects; nil means all.
type want struct{ endpoint, port, protocol []byte }

func stripped(label []byte) []byte {
	if len(label) > 0 && label[0] == '_' {
		label = label[1:]
	}
	if len(label) == 0 {
		return nil
	}
	return label
}

func (w *want) matches(p port) bool {
	return (w.port == nil || string(w.port) == p.name) && (w.protocol == nil || string(w.protocol) == p.protocol)
}

// any reports whether one of the ports is wanted; no ports stand for one without name.
func (w *want) any(ports []port) bool {
	if len(ports) == 0 {
		return w.matches(port{})
	}
	return slices.ContainsFunc(ports, w.matches)
}

// numbers are the numbers of the ports that are wanted, each once.
func (w *want) numbers(ports []port) []uint16 {
	var list []uint16
	seen := map[uint16]struct{}{}
	for _, p := range ports {
		if _, have := seen[p.number]; !have && w.matches(p) {
			seen[p.number] = struct{}{}
			list = append(list, p.number)
		}
	}
	return list
}

func (a *answer) service(s *service, w want) Result {
	plain := w.endpoint == nil && w.port == nil && w.protocol == nil
	if s.alias {
		if !plain || s.external == nil {
			return unknown()
		}
		switch a.q.Type {
		case TypeCNAME:
			a.b.nameRecord(TypeCNAME, a.k.TTL, nil, s.external)
		case TypeA, TypeAAAA:
			return Result{Outcome: Alias, Target: s.external, TTL: a.k.TTL}
		default: // no data
		}
		return found()
	}
	if s.headless || w.endpoint != nil {
		return a.endpoints(s, w, plain)
	}
	if a.k.IgnoreEmpty && len(s.v4)+len(s.v6) == 0 || !w.any(s.ports) {
		return unknown()
	}
	switch a.q.Type {
	case TypeA, TypeAAAA:
		for _, ip := range s.ips {
			a.address(ip, a.q.Type)
		}
	case TypeSRV:
		a.servicePorts(s, w)
	default: // no data
	}
	return found()
}

// servicePorts writes the SRV records of a cluster IP (N4.3).
func (a *answer) servicePorts(s *service, w want) {
	n := 0
	for _, p := range s.ports {
		if w.matches(p) {
			n += len(s.ips)
		}
	}
	weight := weightOf(n)
	target := slices.Concat(s.name, a.wire)
	var at uint16
	for _, number := range w.numbers(s.ports) {
		place, ok := a.srv(weight, number, target)
		if !ok {
			break // no room: the rest is left out, however many ports a user has defined
		}
		if at == 0 {
			at = place
		}
	}
	if at == 0 {
		return
	}
	for _, ip := range s.ips {
		a.addressAt(sectionAdditional, at, ip)
	}
}

func weightOf(n int) uint16 {
	if n == 0 {
		return totalWeight
	}
	return uint16(max(totalWeight/n, 1))
}

func (a *answer) srv(weight, number uint16, target []byte) (at uint16, ok bool) {
	data := make([]byte, 6, 6+len(target))
	binary.BigEndian.PutUint16(data[2:], weight)
	binary.BigEndian.PutUint16(data[4:], number)
	return a.b.nameRecord(TypeSRV, a.k.TTL, data, target)
}

// endpoints writes the records of endpoints (N4.5 to N4.7).
func (a *answer) endpoints(s *service, w want, plain bool) Result {
	if plain && a.q.Type != TypeSRV {
		list := s.v4
		if a.q.Type == TypeAAAA {
			list = s.v6
		}
		if len(s.v4)+len(s.v6) == 0 {
			return unknown()
		}
		if a.q.Type == TypeA || a.q.Type == TypeAAAA {
			for i := range list {
				ip := list[(i+int(a.live.Rotate%uint32(len(list))))%len(list)]
				if !a.address(ip, a.q.Type) {
					break
				}
			}
		}
		return found()
	}
	wanted := a.wanted(s, w)
	if len(wanted) == 0 {
		return unknown()
	}
	switch a.q.Type {
	case TypeA, TypeAAAA:
		seen := map[netip.Addr]struct{}{}
		for _, one := range wanted {
			for _, e := range one.endpoints {
				if _, have := seen[e.ip]; have {
					continue
				}
				seen[e.ip] = struct{}{}
				if !a.address(e.ip, a.q.Type) {
					return found()
				}
			}
		}
	case TypeSRV:
		a.endpointPorts(s, wanted)
	default: // no data
	}
	return found()
}

// wantedSlice is the part of a slice that a name selects.
type wantedSlice struct {
	endpoints []labelled
	pairs     int      // of an endpoint and a port
	numbers   []uint16 // of the ports, each once
}

type labelled struct {
	label []byte
	ip    netip.Addr
}

// wanted returns the parts of a service's slices that a name selects. Its cost is that of the endpoints and the ports
// of each slice, not that of their pairs.
func (a *answer) wanted(s *service, w want) []wantedSlice {
	var list []wantedSlice
	for _, one := range s.slices {
		if !w.any(one.ports) {
			continue
		}
		var part wantedSlice
		for _, e := range one.endpoints {
			label := e.label
			if a.k.EndpointPodNames {
				label = e.podLabel
			}
			if w.endpoint == nil || string(w.endpoint) == string(label) {
				part.endpoints = append(part.endpoints, labelled{label, e.addr})
			}
		}
		if len(part.endpoints) == 0 {
			continue
		}
		part.pairs = len(part.endpoints)
		if a.q.Type == TypeSRV && len(one.ports) > 0 {
			ports := 0
			for _, p := range one.ports {
				if w.matches(p) {
					ports++
				}
			}
			part.pairs *= ports
			part.numbers = slices.DeleteFunc(w.numbers(one.ports), func(n uint16) bool { return n == 0 })
		}
		list = append(list, part)
	}
	return list
}

// endpointPorts writes the SRV records of endpoints, and their addresses, until there is no room (N4.6, N4.7).
func (a *answer) endpointPorts(s *service, wanted []wantedSlice) {
	type target struct {
		label  string
		number uint16
	}
	type address struct {
		label string
		ip    netip.Addr
	}
	n, done, at, written := 0, map[target]bool{}, map[string]uint16{}, map[address]bool{}
	for _, one := range wanted {
		n += one.pairs
	}
	weight := weightOf(n)
	record := func(label []byte, number uint16) bool {
		k := target{string(label), number}
		if done[k] {
			return true
		}
		place, ok := a.srv(weight, number, slices.Concat(label, s.name, a.wire))
		if done[k] = true; at[k.label] == 0 {
			at[k.label] = place
		}
		return ok
	}
	eachTarget(wanted, record)
	for _, one := range wanted {
		if len(one.numbers) == 0 {
			continue
		}
		for _, e := range one.endpoints {
			k := address{string(e.label), e.ip}
			if at[k.label] == 0 || written[k] {
				continue
			}
			if written[k] = true; !a.addressAt(sectionAdditional, at[k.label], e.ip) {
				return
			}
		}
	}
}

// eachTarget calls f for each label of a slice with each of its port numbers, until f returns false.
func eachTarget(wanted []wantedSlice, f func(label []byte, number uint16) bool) {
	for _, one := range wanted {
		seen := map[string]bool{}
		for _, e := range one.endpoints {
			if seen[string(e.label)] {
				continue
			}
			seen[string(e.label)] = true
			for _, number := range one.numbers {
				if !f(e.label, number) {
					return
				}
			}
		}
	}
}

// pod writes the address in the name of a pod.
func (a *answer) pod(namespace string, label []byte) Result {
	if a.k.Pods == PodsDisabled || a.k.Pods == "" {
		return unknown()
	}
	ip, ok := undashed(label)
	if !ok || a.k.Pods == PodsVerified && a.z.pods[ip][namespace] == 0 {
		return unknown()
	}
	a.address(ip, a.q.Type)
	return found()
}

// pointers writes the names of an address (N4.22).
func (a *answer) pointers(ip netip.Addr) Result {
	visible := func(s *service) bool {
		return s.there && (len(a.k.Namespaces) == 0 || a.k.Namespaces[s.namespace])
	}
	for _, s := range a.z.clusterIPs[ip] {
		if visible(s) {
			a.b.nameRecord(TypePTR, a.k.TTL, nil, slices.Concat(s.name, a.k.Primary))
			return found()
		}
	}
	seen := map[string]bool{}
	for _, e := range a.z.endpoints[ip] {
		label := e.label
		if a.k.EndpointPodNames {
			label = e.podLabel
		}
		name := slices.Concat(label, e.service.name, a.k.Primary)
		if len(name) > maxName || seen[string(name)] || !visible(e.service) {
			continue
		}
		seen[string(name)] = true
		if _, ok := a.b.nameRecord(TypePTR, a.k.TTL, nil, name); !ok {
			break
		}
	}
	if len(seen) == 0 {
		return unknown()
	}
	return found()
}

// address writes a record of a type if the address has it; false: it does not fit.
func (a *answer) address(ip netip.Addr, typ Type) bool {
	if typ != typeOf(ip) {
		return true
	}
	return a.addressAt(sectionAnswer, a.b.ownerOf(0), ip)
}

func typeOf(ip netip.Addr) Type {
	if ip.Is4() {
		return TypeA
	}
	return TypeAAAA
}

func (a *answer) addressAt(section int, owner uint16, ip netip.Addr) bool {
	if ip.Is4() {
		b := ip.As4()
		return a.b.record(section, owner, TypeA, a.k.TTL, b[:]...)
	}
	b := ip.As16()
	return a.b.record(section, owner, TypeAAAA, a.k.TTL, b[:]...)
}

// soa writes the SOA record of the zone (N4.16).
func (a *answer) soa(section int) {
	data := make([]byte, 0, 2*maxName)
	data = append(append(data, serverLabels...), a.wire...)
	data = append(append(data, "\x0ahostmaster"...), a.wire...)
	for _, n := range []uint32{a.z.Serial, soaRefresh, soaRetry, soaExpire, a.k.TTL} {
		data = binary.BigEndian.AppendUint32(data, n)
	}
	a.b.record(section, a.b.ownerOf(a.zone), TypeSOA, min(a.k.TTL, mostSOATTL), data...)
}

// serverAddresses are the addresses of the Service in front of this server, or its own.
func (a *answer) serverAddresses() []netip.Addr {
	if s := a.z.services[ownService]; s != nil && s.there && len(s.ips) > 0 {
		return s.ips
	}
	return a.live.Own
}

// server writes the NS record of the zone, and the addresses of its target (N4.24).
func (a *answer) server() {
	name := slices.Concat([]byte(serverLabels), a.wire)
	if s := a.z.services[ownService]; s != nil && s.there && len(s.ips) > 0 {
		name = slices.Concat([]byte(ownName), a.wire)
	}
	at, ok := a.b.nameRecord(TypeNS, a.k.TTL, nil, name)
	if !ok || at == 0 {
		return
	}
	for _, ip := range a.serverAddresses() {
		a.addressAt(sectionAdditional, at, ip)
	}
}
