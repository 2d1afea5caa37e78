package bridge

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"k8s.io/klog/v2"
)

// passage lets the pods' packets through a firewall of the host's: Docker and ufw
// have iptables drop whatever is forwarded and not known to them, and an accept in
// a table of our own does not count against that. Two rules at the end of their
// chain FORWARD say that what comes from or goes to the bridge may pass, so what
// the administrator forbids before stays forbidden. A chain that drops nothing by
// itself is left alone.
type passage struct {
	bridge, name string // name marks our rules, it is that of our table
	options      []nftables.ConnOption
}

var iptablesFamilies = []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6}

// open adds our rules where they are needed and missing; added is how many.
func (p *passage) open() (added int, err error) {
	conn, err := nftables.New(p.options...)
	if err != nil {
		return 0, fmt.Errorf("open nftables: %w", err)
	}
	chains, err := p.chains(conn)
	if err != nil {
		return 0, err
	}
	for _, c := range chains {
		if c.Policy == nil || *c.Policy != nftables.ChainPolicyDrop {
			continue
		}
		have, err := p.rules(conn, c)
		if err != nil {
			return 0, err
		}
		if len(have) == 2 {
			continue
		}
		for _, r := range have {
			if err := conn.DelRule(r); err != nil {
				return 0, fmt.Errorf("replace a rule of the chain FORWARD: %w", err)
			}
		}
		for _, key := range []expr.MetaKey{expr.MetaKeyIIFNAME, expr.MetaKeyOIFNAME} {
			conn.AddRule(p.rule(c, key))
			added++
		}
	}
	if added == 0 {
		return 0, nil
	}
	if err := conn.Flush(); err != nil {
		return 0, fmt.Errorf("let pods through the host's firewall: %w", err)
	}
	return added, nil
}

// rule is written as iptables writes it, so that `iptables -S FORWARD` shows it.
func (p *passage) rule(c *nftables.Chain, key expr.MetaKey) *nftables.Rule {
	return &nftables.Rule{
		Table: c.Table, Chain: c, UserData: userdata.AppendString(nil, userdata.TypeComment, p.name),
		Exprs: []expr.Any{
			&expr.Meta{Key: key, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: append([]byte(p.bridge), 0)},
			&expr.Counter{},
			&expr.Verdict{Kind: expr.VerdictAccept},
		},
	}
}

// close removes our rules.
func (p *passage) close() error {
	conn, err := nftables.New(p.options...)
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	chains, err := p.chains(conn)
	if err != nil {
		return err
	}
	var errs []error
	for _, c := range chains {
		have, err := p.rules(conn, c)
		errs = append(errs, err)
		for _, r := range have {
			errs = append(errs, conn.DelRule(r))
		}
	}
	return errors.Join(append(errs, conn.Flush())...)
}

// chains are iptables' FORWARD of both families, if they are.
func (p *passage) chains(conn *nftables.Conn) ([]*nftables.Chain, error) {
	var list []*nftables.Chain
	for _, family := range iptablesFamilies {
		all, err := conn.ListChainsOfTableFamily(family)
		if err != nil {
			return nil, fmt.Errorf("list nftables chains: %w", err)
		}
		list = append(list, slices.DeleteFunc(all, func(c *nftables.Chain) bool {
			return c.Table.Name != "filter" || c.Name != "FORWARD" || c.Hooknum == nil || *c.Hooknum != *nftables.ChainHookForward
		})...)
	}
	return list, nil
}

func (p *passage) rules(conn *nftables.Conn, c *nftables.Chain) ([]*nftables.Rule, error) {
	all, err := conn.GetRules(c.Table, c)
	if err != nil {
		return nil, fmt.Errorf("list the rules of the chain FORWARD: %w", err)
	}
	return slices.DeleteFunc(all, func(r *nftables.Rule) bool {
		comment, ok := userdata.GetString(r.UserData, userdata.TypeComment)
		return !ok || comment != p.name
	}), nil
}

// OnRulesChanged has a function called after each change of the host's rules.
func (n *Network) OnRulesChanged(tell func()) { n.rulesChanged.Store(&tell) }

// keepPassage opens the passage and does so again whenever the host's rules change.
// A firewall that is loaded anew often removes everything first, also our tables.
func (n *Network) keepPassage(ctx context.Context) error {
	logger := klog.FromContext(ctx)
	open := func() {
		switch restored, err := n.restoreRules(); {
		case err != nil:
			logger.Error(err, "The pods' rules are missing on the host", "table", n.cfg.Table)
		case restored:
			logger.Info("Somebody removed the pods' rules: they are there again", "table", n.cfg.Table)
		}
		switch added, err := n.passage.open(); {
		case err != nil:
			logger.Error(err, "The host's firewall may drop what pods send and receive", "bridge", n.cfg.Bridge)
		case added > 0:
			logger.Info("The host's firewall drops what it forwards: added rules that let pods through", "bridge", n.cfg.Bridge, "chain", "FORWARD")
		}
		if tell := n.rulesChanged.Load(); tell != nil {
			(*tell)()
		}
	}
	var err error
	if n.hostRules, err = watchRules(open); err != nil {
		return err
	}
	open()
	return nil
}
