// Package nft keeps one nftables table equal to what its owner wants, by netlink. The service data
// plane and network policies build on it. It must never touch a table that is not its owner's, nor
// know what a table is for.
//
// A Table is driven by one goroutine at a time:
//
//	t, err := nft.Open(nft.Config{Name: "carob-x", Family: nftables.TableFamilyIPv4, Sets: sets})
//	go t.Watch(ctx)                    // follows what others change; ends with ctx
//	err = t.Sync(content)              // at the start: the kernel's table becomes content
//	for {
//		select {
//		case change := <-changes:
//			if err = t.Apply(change); err != nil {
//				err = t.Sync(content)      // the transaction was refused as a whole: compare and repair
//			}
//		case <-t.Disturbed():
//			err = t.Sync(content)      // somebody else changed the table, or removed it (nft flush ruleset)
//		}
//	}
//
// Each Apply and each Sync is one transaction: packets see the table before it or after it. Apply
// costs as much as its change. Sync reads the elements that the kernel has and writes the difference,
// so that nothing that is right is touched; elements of dynamic sets (packets add them) stay. It
// replaces the rules of all chains, and the whole table if that has other sets, such as those of
// another version of carob.
//
// An element of a verdict map that goes to a chain makes the kernel check the whole table at each
// change (nft_table_validate), which takes time in proportion to all verdict maps. Maps of data, and
// sets, have no such cost: prefer them for what there is a lot of.
package nft

import (
	"errors"
	"fmt"
	"hash/fnv"
	"iter"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"carob/internal/base/errkind"
)

// Set is a set or a map. Its keys and data consist of whole 32-bit words, as in registers.
type Set struct {
	Name string
	Key  nftables.SetDatatype
	// Data makes it a map; nftables.TypeVerdict makes it a verdict map.
	Data nftables.SetDatatype
	// Interval is for keys that are ranges: elements have End. A Sync writes such a set anew.
	Interval bool
	// Concat is for keys of several fields.
	Concat bool
	// Dynamic is for sets whose elements packets add, each for some time. Only Size limits them.
	Dynamic bool
	Size    uint32 // the maximum number of elements; 0: no limit
}

// Chain is a chain with its rules.
type Chain struct {
	Name  string
	Base  *Base // nil: only other chains lead to it
	Rules [][]expr.Any
	// Comments are texts of the rules for people, in the same order; fewer are allowed. A text that
	// nftables cannot have, or that could be mistaken for something else in a listing, is left out.
	Comments []string
}

// Base says where packets enter a chain.
type Base struct {
	Type     nftables.ChainType
	Hook     *nftables.ChainHook
	Priority nftables.ChainPriority
}

// Element is an element of the set named Set.
type Element struct {
	Set string
	Key string // bytes, padded to words
	// End is the last key of a range in a concatenation, and the first key behind a range otherwise;
	// there, "" is a range up to the last key there is.
	End     string
	Data    string        // of maps
	Verdict *expr.Verdict // of verdict maps
}

// Content is a whole table, beside the sets that it always has.
type Content struct {
	Sets     []Set // that come and go
	Chains   []Chain
	Elements iter.Seq[Element]
}

// Change is the difference between two contents. Within it, elements are deleted before others are
// added: an element with other data is in both lists. A set goes with its elements.
type Change struct {
	AddSets    []Set
	DelSets    []string
	SetChains  []Chain // new ones, and those with other rules
	DelChains  []string
	DelElement []Element
	AddElement []Element
}

// Empty reports whether a change changes nothing.
func (c *Change) Empty() bool {
	return len(c.AddSets)+len(c.DelSets)+len(c.SetChains)+len(c.DelChains)+len(c.DelElement)+len(c.AddElement) == 0
}

// Config is the table's name, and the sets that it always has.
type Config struct {
	Name   string // at most 200 bytes of letters, digits, '-', '_', '.'
	Family nftables.TableFamily
	Sets   []Set
	// Version changes when keys or data of the sets get another meaning.
	Version string
}

// Table is a table in the network namespace of the thread that opened it.
type Table struct {
	cfg    Config
	table  *nftables.Table
	sets   map[string]*nftables.Set
	spec   map[string]Set
	extra  map[string]bool // names of sets that come and go
	setID  uint32
	layout string
	ns     *os.File
	conn   *nftables.Conn
	link   *netlink.Conn
	ports  portIDs
	poke   chan struct{}
	stale  map[string]time.Time // chains to delete, and since when they are empty
	now    func() time.Time
}

// replyTimeout bounds a transaction with its replies, which the kernel has queued when the send returns. The kernel
// may take long: 20,000 ranges took it half a minute on a machine with much other work.
const replyTimeout = 5 * time.Minute

// staleFor is how long an empty chain stays: kernels before 6.2 notice late that no element refers
// to it (N3.10).
const staleFor = time.Second

// Open opens a table; it changes nothing yet. Kinds: Invalid for a name that nftables cannot have,
// Denied without the right to administer the network.
func Open(cfg Config) (*Table, error) {
	if err := checkName(cfg.Name, 200); err != nil {
		return nil, err
	}
	t := &Table{cfg: cfg, table: &nftables.Table{Name: cfg.Name, Family: cfg.Family},
		sets: map[string]*nftables.Set{}, spec: map[string]Set{}, extra: map[string]bool{},
		poke:  make(chan struct{}, 1),
		stale: map[string]time.Time{}, now: time.Now}
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%s", cfg.Version)
	for _, s := range cfg.Sets {
		if err := t.know(s); err != nil {
			return nil, err
		}
		_, _ = fmt.Fprintf(h, "|%q %d %s %d %s %v %v %v %d", s.Name, s.Key.Bytes, s.Key.Name, s.Data.Bytes, s.Data.Name,
			s.Interval, s.Concat, s.Dynamic, s.Size)
	}
	t.layout = fmt.Sprintf("layout-%016x", h.Sum64())
	var err error
	if t.ns, err = os.Open("/proc/thread-self/ns/net"); err != nil {
		return nil, fmt.Errorf("open the network namespace: %w", err)
	}
	if err := t.connect(); err != nil {
		_ = t.ns.Close()
		return nil, err
	}
	return t, nil
}

// know makes a set one of the table's sets.
func (t *Table) know(s Set) error {
	if err := checkName(s.Name, 128); err != nil {
		return err
	}
	t.setID++
	t.sets[s.Name] = &nftables.Set{Table: t.table, ID: t.setID, Name: s.Name, KeyType: s.Key, DataType: s.Data,
		IsMap: s.Data.Name != "", Interval: s.Interval, Concatenation: s.Concat, Dynamic: s.Dynamic,
		HasTimeout: s.Dynamic, Size: s.Size}
	t.spec[s.Name] = s
	return nil
}

func (t *Table) forget(name string) {
	delete(t.sets, name)
	delete(t.spec, name)
	delete(t.extra, name)
}

// addSets adds sets that come and go to the transaction.
func (t *Table) addSets(list []Set) (size int, err error) {
	for _, s := range list {
		if t.sets[s.Name] != nil && !t.extra[s.Name] {
			return 0, fmt.Errorf("nftables table %s always has the set %q", t.cfg.Name, s.Name)
		}
		if err := t.know(s); err != nil {
			return 0, err
		}
		t.extra[s.Name] = true
		if err := t.conn.AddSet(t.sets[s.Name], nil); err != nil {
			return 0, fmt.Errorf("add set %s: %w", s.Name, err)
		}
	}
	return 1024 * len(list), nil
}

// checkName: names reach listings, scripts and other tools.
func checkName(name string, longest int) error {
	ok := name != "" && len(name) <= longest && !strings.ContainsFunc(name, func(r rune) bool {
		return r != '-' && r != '_' && r != '.' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	})
	if !ok {
		return errkind.Errorf(errkind.Invalid,
			"the nftables name %q needs 1 to %d letters, digits, '-', '_', or '.'", name, longest)
	}
	return nil
}

func (t *Table) connect() error {
	conn, err := nftables.New(nftables.AsLasting(), nftables.WithNetNSFd(int(t.ns.Fd())),
		nftables.WithSockOptions(func(c *netlink.Conn) error {
			t.link = c
			// One reply for each message of a transaction is queued before the first is read.
			if err := c.SetReadBuffer(4 << 20); err != nil {
				return fmt.Errorf("enlarge the receive buffer: %w", err)
			}
			return t.ports.add(c)
		}))
	if errors.Is(err, unix.EPERM) {
		return errkind.Errorf(errkind.Denied, "open nftables: %w: run as root or with CAP_NET_ADMIN", err)
	}
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	t.conn = conn
	return nil
}

// Close ends the connection to the kernel; the table stays. Watch ends with its own context.
func (t *Table) Close() error {
	return errors.Join(t.conn.CloseLasting(), t.ns.Close())
}

// Disturbed gets a token when others have changed the table, or when that may be so.
func (t *Table) Disturbed() <-chan struct{} { return t.poke }

// Apply makes a change in one transaction. After an error nothing has changed, or what has is not
// known: call Sync.
func (t *Table) Apply(c Change) error {
	if c.Empty() {
		return nil
	}
	t.dropStale()
	size, err := t.addSets(c.AddSets)
	if err != nil {
		return t.abandon(err)
	}
	for _, chain := range c.SetChains {
		if err := t.setChain(chain, false); err != nil {
			return t.abandon(err)
		}
		size += chainSize(chain)
	}
	n, err := t.elements(c.DelElement, t.conn.SetDeleteElements)
	if err != nil {
		return t.abandon(err)
	}
	size += n
	if n, err = t.elements(c.AddElement, t.conn.SetAddElements); err != nil {
		return t.abandon(err)
	}
	size += n
	t.emptyChains(c.DelChains)
	for _, name := range c.DelSets {
		t.conn.DelSet(&nftables.Set{Table: t.table, Name: name})
		t.forget(name)
	}
	return t.flush("change", size+512*(len(c.DelChains)+len(c.DelSets)))
}

// Sync makes the table's content the given one, whatever it is now.
func (t *Table) Sync(c Content) error {
	t.dropStale()
	for name := range t.extra {
		t.forget(name)
	}
	for _, s := range c.Sets { // to read their elements
		if err := t.know(s); err != nil {
			return err
		}
		t.extra[s.Name] = true
	}
	var err error
	for range 5 {
		var now *present
		if now, err = t.read(); err != nil {
			if again(err) {
				continue
			}
			return fmt.Errorf("read nftables table %s: %w", t.cfg.Name, err)
		}
		if err = t.replace(now, c); err == nil {
			return nil
		}
		if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EEXIST) && !again(err) {
			return err
		} // others have changed the table meanwhile
	}
	return err
}

func again(err error) bool {
	return errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ENOBUFS)
}

// present is what the kernel has of the table.
type present struct {
	complete bool // the sets that are always there are as they should be
	sets     map[string]bool
	chains   map[string]*nftables.Chain
	elements map[string]map[string]string // set → key → data
}

func (t *Table) read() (*present, error) {
	now := &present{chains: map[string]*nftables.Chain{}, sets: map[string]bool{},
		elements: map[string]map[string]string{}}
	chains, err := t.conn.ListChainsOfTableFamily(t.cfg.Family)
	if err != nil {
		return nil, t.abandon(err)
	}
	for _, c := range chains {
		if c.Table.Name == t.cfg.Name && c.Table.Family == t.cfg.Family {
			now.chains[c.Name] = c
		}
	}
	if now.chains[t.layout] == nil {
		return now, nil
	}
	have, err := t.conn.GetSets(t.table)
	if err != nil {
		return nil, t.abandon(err)
	}
	for _, s := range have {
		now.sets[s.Name] = !s.Anonymous
	}
	for _, s := range t.cfg.Sets {
		if !now.sets[s.Name] {
			return now, nil
		}
	}
	now.complete = true
	for name, s := range t.sets {
		if s.Dynamic || s.Interval || !now.sets[name] {
			continue
		}
		list, err := t.conn.GetSetElements(s)
		if err != nil {
			return nil, t.abandon(err)
		}
		m := make(map[string]string, len(list))
		for _, e := range list {
			m[string(e.Key)] = value(e)
		}
		now.elements[name] = m
	}
	return now, nil
}

// value is an element's data in a comparable form.
func value(e nftables.SetElement) string {
	if e.VerdictData != nil {
		return fmt.Sprintf("verdict %d %s", e.VerdictData.Kind, strings.TrimRight(e.VerdictData.Chain, "\x00"))
	}
	return string(e.Val)
}

// replace writes the difference between what the kernel has and the content.
func (t *Table) replace(now *present, c Content) error {
	if !now.complete {
		t.conn.AddTable(t.table)
		t.conn.DelTable(t.table)
		t.conn.AddTable(t.table)
		clear(now.chains)
		clear(now.elements)
		clear(now.sets)
		clear(t.stale)
		for _, s := range t.cfg.Sets {
			set := t.sets[s.Name]
			if err := t.conn.AddSet(set, nil); err != nil {
				return t.abandon(fmt.Errorf("add set %s: %w", s.Name, err))
			}
		}
	}
	size := 64 << 10
	for _, s := range c.Sets {
		if !now.sets[s.Name] {
			n, err := t.addSets([]Set{s})
			if err != nil {
				return t.abandon(err)
			}
			size += n
		} else if s.Interval {
			t.conn.FlushSet(t.sets[s.Name])
		}
	}
	chains := append([]Chain{{Name: t.layout}}, c.Chains...)
	for _, chain := range chains {
		have := now.chains[chain.Name]
		moved := have != nil && !sameHook(have, chain.Base)
		if err := t.setChain(chain, moved); err != nil {
			return t.abandon(err)
		}
		size += chainSize(chain)
		delete(now.chains, chain.Name)
	}
	var add, del []Element
	for _, s := range t.cfg.Sets {
		if s.Interval && now.complete {
			t.conn.FlushSet(t.sets[s.Name])
		}
	}
	for e := range c.Elements {
		have, ok := now.elements[e.Set][e.Key]
		delete(now.elements[e.Set], e.Key)
		if ok && have == value(t.element(e)) {
			continue
		}
		if ok {
			del = append(del, Element{Set: e.Set, Key: e.Key})
		}
		add = append(add, e)
	}
	for name, left := range now.elements {
		for key := range left {
			del = append(del, Element{Set: name, Key: key})
		}
	}
	n, err := t.elements(del, t.conn.SetDeleteElements)
	if err != nil {
		return t.abandon(err)
	}
	size += n
	if n, err = t.elements(add, t.conn.SetAddElements); err != nil {
		return t.abandon(err)
	}
	size += n
	var extra []string
	for name := range now.chains {
		if _, known := t.stale[name]; !known {
			extra = append(extra, name)
		}
	}
	t.emptyChains(extra)
	for name, named := range now.sets {
		if named && t.sets[name] == nil {
			t.conn.DelSet(&nftables.Set{Table: t.table, Name: name})
			size += 512
		}
	}
	return t.flush("install", size+512*len(extra))
}

func sameHook(have *nftables.Chain, want *Base) bool {
	if want == nil || have.Hooknum == nil {
		return want == nil && have.Hooknum == nil
	}
	return have.Type == want.Type && *have.Hooknum == *want.Hook && have.Priority != nil &&
		*have.Priority == want.Priority
}

// setChain adds a chain with its rules, or replaces the rules that it has.
func (t *Table) setChain(c Chain, again bool) error {
	if err := checkName(c.Name, 128); err != nil {
		return err
	}
	delete(t.stale, c.Name)
	chain := &nftables.Chain{Table: t.table, Name: c.Name}
	if again { // a hook cannot be changed
		t.conn.FlushChain(chain)
		t.conn.DelChain(chain)
	}
	if c.Base != nil {
		chain.Type, chain.Hooknum, chain.Priority = c.Base.Type, c.Base.Hook, &c.Base.Priority
	}
	t.conn.AddChain(chain)
	t.conn.FlushChain(chain)
	for i, exprs := range c.Rules {
		rule := &nftables.Rule{Table: t.table, Chain: chain, Exprs: exprs}
		if i < len(c.Comments) && isComment(c.Comments[i]) {
			rule.UserData = userdata.AppendString(nil, userdata.TypeComment, c.Comments[i])
		}
		t.conn.AddRule(rule)
	}
	return nil
}

// isComment allows names of objects of the API, and namespaces before them.
func isComment(s string) bool {
	return s != "" && len(s) <= 120 && !strings.ContainsFunc(s, func(r rune) bool {
		return r != '-' && r != '.' && r != '/' && (r < '0' || r > '9') && (r < 'a' || r > 'z')
	})
}

// emptyChains removes the rules of chains; dropStale deletes the chains later.
func (t *Table) emptyChains(names []string) {
	for _, name := range names {
		t.conn.FlushChain(&nftables.Chain{Table: t.table, Name: name})
		t.stale[name] = t.now()
	}
}

// dropStale deletes chains that have been empty for a while. If the kernel refuses, they stay: an
// empty chain does nothing, and the next Sync finds it.
func (t *Table) dropStale() {
	n := 0
	for name, since := range t.stale {
		if t.now().Sub(since) >= staleFor {
			t.conn.DelChain(&nftables.Chain{Table: t.table, Name: name})
			delete(t.stale, name)
			n++
		}
	}
	if n > 0 {
		_ = t.flush("delete unused chains of", 512*n)
	}
}

// chainSize bounds the bytes of a chain's messages.
func chainSize(c Chain) int {
	n := 1024
	for _, r := range c.Rules {
		n += 512 + 192*len(r)
	}
	return n
}

// maxList bounds the bytes of elements in one message: the length of an attribute has 16 bits.
const maxList = 60 << 10

// elements adds messages for elements, grouped by set, in messages of bounded size.
func (t *Table) elements(list []Element, add func(*nftables.Set, []nftables.SetElement) error) (size int, err error) {
	bySet := map[string][]Element{}
	for _, e := range list {
		if t.sets[e.Set] == nil {
			return 0, fmt.Errorf("nftables table %s has no set %q", t.cfg.Name, e.Set)
		}
		bySet[e.Set] = append(bySet[e.Set], e)
	}
	for _, name := range slices.Sorted(maps.Keys(bySet)) {
		s := t.spec[name]
		part, bytes := []nftables.SetElement(nil), 0
		send := func() error {
			if len(part) == 0 {
				return nil
			}
			size += bytes + 256
			err := add(t.sets[s.Name], part)
			part, bytes = nil, 0
			return err
		}
		for _, e := range bySet[s.Name] {
			n := elementSize(e)
			if bytes+n > maxList {
				if err := send(); err != nil {
					return size, err
				}
			}
			part, bytes = append(part, t.element(e)), bytes+n
			if s.Interval && !s.Concat && e.End != "" {
				part = append(part, nftables.SetElement{Key: []byte(e.End), IntervalEnd: true})
			}
		}
		if err := send(); err != nil {
			return size, err
		}
	}
	return size, nil
}

// elementSize bounds the bytes of an element in a message.
func elementSize(e Element) int {
	n := 64 + len(e.Key) + 2*len(e.End) + len(e.Data)
	if e.End != "" {
		n += 64
	}
	if e.Verdict != nil {
		n += 48 + len(e.Verdict.Chain)
	}
	return n
}

func (t *Table) element(e Element) nftables.SetElement {
	out := nftables.SetElement{Key: []byte(e.Key), VerdictData: e.Verdict}
	if e.Data != "" {
		out.Val = []byte(e.Data)
	}
	if t.spec[e.Set].Concat && e.End != "" {
		out.KeyEnd = []byte(e.End)
	}
	return out
}

// flush sends the transaction, and takes a new connection after an error: replies may be left in
// the old one.
func (t *Table) flush(what string, size int) error {
	if err := t.link.SetWriteBuffer(size + 1<<20); err != nil {
		return t.abandon(fmt.Errorf("enlarge the send buffer: %w", err))
	}
	_ = t.link.SetReadDeadline(time.Now().Add(replyTimeout))
	if err := t.conn.Flush(); err != nil {
		return t.abandon(fmt.Errorf("%s nftables table %s: %w", what, t.cfg.Name, err))
	}
	_ = t.link.SetReadDeadline(time.Time{})
	return nil
}

// abandon forgets the transaction that was being made.
func (t *Table) abandon(err error) error {
	_ = t.conn.CloseLasting()
	if again := t.connect(); again != nil {
		return errors.Join(err, again)
	}
	return err
}

// Remove deletes the tables with this name in the calling thread's network namespace; missing ones
// are not an error.
func Remove(name string, families ...nftables.TableFamily) error {
	var errs []error
	for _, f := range families {
		conn, err := nftables.New()
		if err != nil {
			return fmt.Errorf("open nftables: %w", err)
		}
		conn.DelTable(&nftables.Table{Name: name, Family: f})
		if err := conn.Flush(); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, syscall.EAFNOSUPPORT) {
			errs = append(errs, fmt.Errorf("remove nftables table %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}
