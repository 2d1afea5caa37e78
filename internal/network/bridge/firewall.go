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

// hostFirewall lets the pods' packets through the host's firewall. With Docker and ufw, iptables drops
// all forwarded traffic that they do not know, and an accept in our own table does not override
// that. Two rules at the end of the chain FORWARD accept packets from and to the bridge, so earlier
// rules of the administrator still apply. A chain whose policy is to accept is not changed.
type hostFirewall struct {
	bridge, name string // name marks our rules; it is the name of our table
	options      []nftables.ConnOption
}

var iptablesFamilies = []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6}

// allow adds our rules where they are needed and missing; added is their number.
func (p *hostFirewall) allow() (added int, err error) {
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

// rule has the form that iptables uses, so that `iptables -S FORWARD` shows it.
func (p *hostFirewall) rule(c *nftables.Chain, key expr.MetaKey) *nftables.Rule {
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

// remove removes our rules.
func (p *hostFirewall) remove() error {
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

// chains returns iptables' FORWARD chains of both families, if they exist.
func (p *hostFirewall) chains(conn *nftables.Conn) ([]*nftables.Chain, error) {
	var list []*nftables.Chain
	for _, family := range iptablesFamilies {
		all, err := conn.ListChainsOfTableFamily(family)
		if err != nil {
			return nil, fmt.Errorf("list nftables chains: %w", err)
		}
		list = append(list, slices.DeleteFunc(all, func(c *nftables.Chain) bool {
			return c.Table.Name != "filter" || c.Name != "FORWARD" || c.Hooknum == nil ||
				*c.Hooknum != *nftables.ChainHookForward
		})...)
	}
	return list, nil
}

func (p *hostFirewall) rules(conn *nftables.Conn, c *nftables.Chain) ([]*nftables.Rule, error) {
	all, err := conn.GetRules(c.Table, c)
	if err != nil {
		return nil, fmt.Errorf("list the rules of the chain FORWARD: %w", err)
	}
	return slices.DeleteFunc(all, func(r *nftables.Rule) bool {
		comment, ok := userdata.GetString(r.UserData, userdata.TypeComment)
		return !ok || comment != p.name
	}), nil
}

// OnRulesChanged registers a function that is called after each change of the host's rules.
func (n *Network) OnRulesChanged(tell func()) { n.rulesChanged.Store(&tell) }

// keepFirewall adds the rules, and adds them again whenever the host's rules change. Reloading a
// firewall often removes all rules first, including our tables.
func (n *Network) keepFirewall(ctx context.Context) error {
	logger := klog.FromContext(ctx)
	open := func() {
		switch restored, err := n.restoreRules(); {
		case err != nil:
			logger.Error(err, "The nftables tables for pods are missing and cannot be restored", "table", n.cfg.Table)
		case restored:
			logger.Info("Restored the nftables tables for pods, which were removed from outside", "table", n.cfg.Table)
		}
		switch added, err := n.firewall.allow(); {
		case err != nil:
			logger.Error(err, "Cannot add rules for pods to the host's firewall; it may drop their traffic", "bridge",
				n.cfg.Bridge)
		case added > 0:
			logger.Info("Added rules for pods to the host's firewall, which drops forwarded traffic", "bridge",
				n.cfg.Bridge, "chain", "FORWARD")
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
