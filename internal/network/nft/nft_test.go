package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"carob/internal/base/netns/netnstest"
)

func key(n int) string {
	return string([]byte{10, 0, byte(n >> 8), byte(n), byte(n >> 8), byte(n), 0, 0})
}

var mapKey = nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeInetService)

func sets() []Set {
	return []Set{
		{Name: "data", Key: mapKey, Data: nftables.TypeMark, Concat: true},
		{Name: "verdicts", Key: nftables.TypeInteger, Data: nftables.TypeVerdict},
		{Name: "seen", Key: nftables.TypeIPAddr, Dynamic: true, Size: 1000},
		{Name: "ranges", Key: nftables.TypeIPAddr, Interval: true},
	}
}

func content(n int, chains ...string) Content {
	list := []Element{{Set: "ranges", Key: "\x0a\x01\x00\x00", End: "\x0a\x02\x00\x00"}}
	for i := range n {
		list = append(list, datum(i, i))
	}
	c := Content{Chains: []Chain{{Name: "start", Base: &Base{nftables.ChainTypeFilter, nftables.ChainHookOutput, -5},
		Rules: [][]expr.Any{{&expr.Immediate{Register: 1, Data: binary.NativeEndian.AppendUint32(nil, 0)},
			&expr.Lookup{SourceRegister: 1, SetName: "verdicts", DestRegister: 0, IsDestRegSet: true}}}}}}
	for i, name := range chains {
		c.Chains = append(c.Chains, Chain{Name: name, Rules: [][]expr.Any{{&expr.Counter{}}}})
		list = append(list, Element{Set: "verdicts", Key: string(binary.NativeEndian.AppendUint32(nil, uint32(i))),
			Verdict: &expr.Verdict{Kind: expr.VerdictGoto, Chain: name}})
	}
	c.Elements = slices.Values(list)
	return c
}

// Sets come and go with the chains that use them; a range may reach to the last key.
func TestSetsThatComeAndGo(t *testing.T) {
	netnstest.Run(t, func(t *testing.T) {
		if _, err := exec.LookPath("nft"); err != nil {
			t.Skip("needs nft")
		}
		tab := open(t)
		set := func(name string) Set { return Set{Name: name, Key: nftables.TypeIPAddr, Interval: true} }
		uses := func(name string) Chain {
			return Chain{Name: "start", Base: &Base{nftables.ChainTypeFilter, nftables.ChainHookOutput, -5},
				Rules: [][]expr.Any{{
					&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4},
					&expr.Lookup{SourceRegister: 1, SetName: name}}}}
		}
		listed := func(want ...string) {
			t.Helper()
			out, err := exec.Command("nft", "list", "table", "ip", "carob-test").CombinedOutput()
			if err != nil {
				t.Fatal(err)
			}
			for _, w := range want {
				if not, ok := strings.CutPrefix(w, "!"); strings.Contains(string(out), not) == ok {
					t.Errorf("%s in\n%s", w, out)
				}
			}
		}
		empty := Content{Elements: slices.Values[[]Element](nil)}
		if err := tab.Sync(empty); err != nil {
			t.Fatal(err)
		}
		err := tab.Apply(Change{AddSets: []Set{set("one"), set("two")}, SetChains: []Chain{uses("one")},
			AddElement: []Element{{Set: "one", Key: "\xff\x00\x00\x00"},
				{Set: "one", Key: "\x00\x00\x00\x00", End: "\x01\x00\x00\x00"},
				{Set: "two", Key: "\x09\x00\x00\x00", End: "\x09\x00\x00\x01"}}})
		if err != nil {
			t.Fatal(err)
		}
		listed("set one", "255.0.0.0/8", "0.0.0.0/8", "@one", "set two", "9.0.0.0")
		if err := tab.Apply(Change{SetChains: []Chain{uses("two")}, DelSets: []string{"one"}}); err != nil {
			t.Fatal(err)
		}
		listed("!set one", "@two")
		// Another process removes "two", which its content lacks, and repairs "three", which another program changed.
		next := open(t)
		nftCommand(t, "add set ip carob-test three { type ipv4_addr; flags interval; elements = { 1.1.1.1 } }")
		err = next.Sync(Content{Sets: []Set{set("three"), set("four")}, Chains: []Chain{uses("three")},
			Elements: slices.Values([]Element{{Set: "three", Key: "\x0a\x00\x00\x00", End: "\x0b\x00\x00\x00"}})})
		if err != nil {
			t.Fatal(err)
		}
		listed("!set two", "set three", "set four", "10.0.0.0/8", "!1.1.1.1")
		// A refused change leaves names behind that the next Sync drops.
		if err := next.Apply(Change{AddSets: []Set{set("five")}, DelElement: []Element{datum(3, 3)}}); err == nil {
			t.Error("an element that is not there was deleted")
		}
		if err := next.Apply(Change{AddSets: []Set{set("data")}}); err == nil {
			t.Error("a set replaced one that is always there")
		}
		if err := next.Sync(empty); err != nil {
			t.Fatal(err)
		}
		listed("!set three", "!set five", "map data")
	})
}

func datum(i, v int) Element {
	return Element{Set: "data", Key: key(i), Data: string(binary.BigEndian.AppendUint32(nil, uint32(v)))}
}

func open(t *testing.T) *Table {
	t.Helper()
	tab, err := Open(Config{Name: "carob-test", Family: nftables.TableFamilyIPv4, Sets: sets(), Version: "1"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tab.Close() })
	return tab
}

// kernel is what the kernel has, read by another connection.
func kernel(t *testing.T, tab *Table) (chains []string, data map[string]string) {
	t.Helper()
	conn, err := nftables.New(nftables.WithNetNSFd(int(tab.ns.Fd())))
	if err != nil {
		t.Fatal(err)
	}
	all, err := conn.ListChainsOfTableFamily(nftables.TableFamilyIPv4)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range all {
		if c.Table.Name == "carob-test" && !strings.HasPrefix(c.Name, "layout-") {
			chains = append(chains, c.Name)
		}
	}
	slices.Sort(chains)
	data = map[string]string{}
	list, err := conn.GetSetElements(tab.sets["data"])
	if err != nil && !errors.Is(err, unix.ENOENT) {
		t.Fatal(err)
	}
	for _, e := range list {
		data[string(e.Key)] = string(e.Val)
	}
	return chains, data
}

func nftCommand(t *testing.T, script string) string {
	t.Helper()
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(script)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("nft %s: %v\n%s", script, err, out)
	}
	return string(out)
}

// A table is installed, changed, and repaired; each change is complete or not made at all; tables of others are not
// changed.
func TestTable(t *testing.T) {
	netnstest.Run(t, func(t *testing.T) {
		if _, err := exec.LookPath("nft"); err != nil {
			t.Skip("needs nft")
		}
		nftCommand(t, "table ip other { chain c { type filter hook input priority 0; }; }")
		tab := open(t)
		const many = 30_000 // more than one message holds, and more than the default buffers
		if err := tab.Sync(content(many, "a", "b")); err != nil {
			t.Fatal(err)
		}
		chains, data := kernel(t, tab)
		if !slices.Equal(chains, []string{"a", "b", "start"}) || len(data) != many {
			t.Fatalf("chains %v, %d elements", chains, len(data))
		}
		// An element gets other data, one goes, one is new; a chain goes, with the element that leads to it.
		err := tab.Apply(Change{DelElement: []Element{datum(0, 0), datum(1, 1),
			{Set: "verdicts", Key: string(binary.NativeEndian.AppendUint32(nil, 1)),
				Verdict: &expr.Verdict{Kind: expr.VerdictGoto, Chain: "b"}}},
			AddElement: []Element{datum(0, 7), datum(many, 8)}, DelChains: []string{"b"}})
		if err != nil {
			t.Fatal(err)
		}
		_, data = kernel(t, tab)
		if v, gone := data[key(0)], data[key(1)]; v != "\x00\x00\x00\x07" || gone != "" || len(data) != many {
			t.Errorf("%q %q %d", v, gone, len(data))
		}
		tab.now = func() time.Time { return time.Now().Add(staleFor) }
		if err := tab.Apply(Change{AddElement: []Element{datum(1, 1)}}); err != nil {
			t.Fatal(err)
		}
		if chains, _ := kernel(t, tab); !slices.Equal(chains, []string{"a", "start"}) {
			t.Errorf("chains %v", chains)
		}
		// A refused transaction changes nothing, and the next one works.
		err = tab.Apply(Change{DelElement: []Element{datum(many+5, 0)}, AddElement: []Element{datum(many+1, 0)}})
		if !errors.Is(err, unix.ENOENT) {
			t.Errorf("deleted what is not there: %v", err)
		}
		if _, data := kernel(t, tab); data[key(many+1)] != "" {
			t.Error("half of a transaction was made")
		}
		// Elements that packets added stay; others' are put right.
		nftCommand(t, "add element ip carob-test seen { 192.0.2.1 timeout 1h }\n"+
			"delete element ip carob-test ranges { 10.1.0.0-10.1.255.255 }\nadd chain ip carob-test strange\n"+
			"flush chain ip carob-test start\nadd element ip carob-test data { 10.9.9.9 . 5 : 6 }")
		if err := tab.Sync(content(many, "a", "b")); err != nil {
			t.Fatal(err)
		}
		tab.now = func() time.Time { return time.Now().Add(2 * staleFor) }
		if err := tab.Sync(content(many, "a", "b")); err != nil {
			t.Fatal(err)
		}
		chains, data = kernel(t, tab)
		if !slices.Equal(chains, []string{"a", "b", "start"}) || len(data) != many {
			t.Errorf("chains %v, %d elements", chains, len(data))
		}
		out, err := exec.Command("nft", "list", "table", "ip", "carob-test").CombinedOutput()
		if err != nil || !strings.Contains(string(out), "192.0.2.1 timeout 1h") ||
			!strings.Contains(string(out), "10.1.0.0/16") || !strings.Contains(string(out), "vmap @verdicts") {
			t.Errorf("%v\n%.2000s", err, out)
		}
		// Another version has other sets.
		newer, err := Open(Config{Name: "carob-test", Family: nftables.TableFamilyIPv4, Sets: sets(), Version: "2"})
		if err != nil {
			t.Fatal(err)
		}
		defer newer.Close()
		if err := newer.Sync(content(3, "a")); err != nil {
			t.Fatal(err)
		}
		if _, data := kernel(t, tab); len(data) != 3 {
			t.Errorf("%d elements", len(data))
		}
		if err := Remove("carob-test", nftables.TableFamilyIPv4, nftables.TableFamilyIPv6); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("nft", "list", "ruleset").CombinedOutput(); err != nil ||
			!strings.Contains(string(out), "table ip other") || strings.Contains(string(out), "carob-test") {
			t.Errorf("%v\n%s", err, out)
		}
	})
}

// Changes of this table by others are reported, carob's own and those of other tables are not.
func TestDisturbed(t *testing.T) {
	netnstest.Run(t, func(t *testing.T) {
		if _, err := exec.LookPath("nft"); err != nil {
			t.Skip("needs nft")
		}
		tab := open(t)
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error)
		go func() { ended <- tab.Watch(ctx) }()
		<-tab.Disturbed() // it has subscribed
		if err := tab.Sync(content(5000, "a")); err != nil {
			t.Fatal(err)
		}
		nftCommand(t, "table ip other { chain c { type filter hook input priority 0; }; }\n"+
			"table ip6 carob-test { chain c { }; }")
		if err := tab.Apply(Change{DelElement: []Element{datum(1, 1)}}); err != nil {
			t.Fatal(err)
		}
		for _, script := range []string{"delete element ip carob-test data { 10.0.0.2 . 2 }",
			"add rule ip carob-test a counter", "delete table ip carob-test", "flush ruleset"} {
			nftCommand(t, script)
			<-tab.Disturbed()
			if err := tab.Sync(content(5000, "a")); err != nil {
				t.Fatal(err)
			}
			if _, data := kernel(t, tab); len(data) != 5000 {
				t.Errorf("after %q: %d elements", script, len(data))
			}
		}
		nftCommand(t, "add table ip another")
		// The next notification arrives after those of carob's own transactions; none of these was reported.
		nftCommand(t, "add chain ip carob-test last")
		<-tab.Disturbed()
		select {
		case <-tab.Disturbed():
			t.Error("told twice, or of our own changes")
		default:
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func TestNames(t *testing.T) {
	for _, name := range []string{"", "a b", "a;flush ruleset", "a\x00", "ä", strings.Repeat("x", 300), "{"} {
		if _, err := Open(Config{Name: name}); err == nil {
			t.Errorf("%q is a name", name)
		}
	}
}

func FuzzTableOf(f *testing.F) {
	f.Add([]byte("\x09\x00\x01\x00abcd\x00"))
	f.Add([]byte("\x04\x00\x02\x00\x06\x00\x01\x00a\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if name, ok := tableOf(b); len(name) > len(b) || !ok && name != "" {
			t.Errorf("%q %v", name, ok)
		}
	})
}
