package nft

import (
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/userdata"
)

// staleFor is how long an empty chain stays: kernels before 6.2 release the references of deleted elements late
// (N3.10).
const staleFor = time.Second

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
