// Package nft keeps one nftables table equal to the content that its owner sets, by netlink. The service data plane and
// network policies use it. It must never change a table of another owner, nor depend on the purpose of a table.
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
//			err = t.Sync(content)      // another program changed the table, or removed it (nft flush ruleset)
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
// sets, have no such cost: prefer them for large numbers of elements.
//
// Contract: docs/spec/network.md.
package nft

import (
	"errors"
	"fmt"
	"hash/fnv"
	"iter"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
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
	// Interval is for keys that are ranges: elements have End. A Sync writes such a set completely.
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
	Base  *Base // nil: only other chains jump to it
	Rules [][]expr.Any
	// Comments are texts of the rules for people, in the same order; fewer are allowed. A text that nftables does not
	// allow, or that would be ambiguous in a listing, is omitted.
	Comments []string
}

// Base is where packets enter a chain.
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
	// there, "" is a range up to the last key.
	End     string
	Data    string        // of maps
	Verdict *expr.Verdict // of verdict maps
}

// Content is a whole table, in addition to the sets that it always has.
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
	// watch is the socket of Watch while it runs.
	watch atomic.Pointer[os.File]
	// largest are the bytes of the largest transaction: to remove what it made is reported at the same length.
	largest int
	stale   map[string]time.Time // chains to delete, and since when they are empty
	now     func() time.Time
}

// readBuffer is how many bytes of replies are queued at least. One reply for each message of a transaction is queued
// before the first is read, and for a rule also the rule: a large transaction needs more.
const readBuffer = 4 << 20

// Room is an option of a connection that has room for large transactions, and for their replies.
func Room() nftables.ConnOption {
	return nftables.WithSockOptions(func(c *netlink.Conn) error {
		if err := errors.Join(c.SetReadBuffer(readBuffer), c.SetWriteBuffer(readBuffer)); err != nil {
			return fmt.Errorf("enlarge the buffers: %w", err)
		}
		return nil
	})
}

// replyTimeout bounds a transaction with its replies, which the kernel has queued when the send returns. The kernel
// may take long: 20,000 ranges took it half a minute on a machine with much other work.
const replyTimeout = 5 * time.Minute

// Open opens a table; it changes nothing yet. Kinds: Invalid for a name that nftables does not allow,
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

// know adds a set to the table's sets.
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

// checkName refuses names that listings, scripts, and other tools could misread.
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
			if err := c.SetReadBuffer(readBuffer); err != nil {
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

// Disturbed receives a token when other programs have changed the table, or may have.
func (t *Table) Disturbed() <-chan struct{} { return t.poke }

// Apply makes a change in one transaction. After an error, either nothing has changed, or the
// state is unknown: call Sync.
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

// flush sends the transaction, and opens a new connection after an error: the old one may still have replies.
func (t *Table) flush(what string, size int) error {
	if err := errors.Join(t.link.SetWriteBuffer(size+1<<20), t.link.SetReadBuffer(size+readBuffer)); err != nil {
		return t.abandon(fmt.Errorf("enlarge the buffers: %w", err))
	}
	t.largest = max(t.largest, size)
	t.watchRoom(size + t.largest)
	_ = t.link.SetReadDeadline(time.Now().Add(replyTimeout))
	if err := t.conn.Flush(); err != nil {
		return t.abandon(fmt.Errorf("%s nftables table %s: %w", what, t.cfg.Name, err))
	}
	_ = t.link.SetReadDeadline(time.Time{})
	return nil
}

// abandon drops the unfinished transaction.
func (t *Table) abandon(err error) error {
	_ = t.conn.CloseLasting()
	if again := t.connect(); again != nil {
		return errors.Join(err, again)
	}
	return err
}

// Remove deletes the tables with this name in the calling thread's network namespace. It is not an
// error if there are none.
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
