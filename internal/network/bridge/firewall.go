package bridge

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/google/nftables/xt"
	"k8s.io/klog/v2"
)

// hostFirewall lets the pods' packets through the host's firewall. With Docker and ufw, iptables drops all other
// traffic, and an accept in carob's own table does not override that. Rules at the end of two chains accept it, so
// earlier rules of the administrator still apply: in FORWARD, packets from and to the bridge; in INPUT, connections of
// pods to a Service whose server is on the host (the API server and the cluster's DNS). A chain whose policy is to
// accept is not changed.
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
		want := p.wanted(c)
		if len(have) == len(want) {
			continue
		}
		for _, r := range have {
			if err := conn.DelRule(r); err != nil {
				return 0, fmt.Errorf("replace a rule of the chain %s: %w", c.Name, err)
			}
		}
		for _, r := range want {
			conn.AddRule(r)
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

// wanted are carob's rules of a chain.
func (p *hostFirewall) wanted(c *nftables.Chain) []*nftables.Rule {
	if c.Name == "INPUT" {
		return []*nftables.Rule{p.rule(c, expr.MetaKeyIIFNAME, translated())}
	}
	return []*nftables.Rule{p.rule(c, expr.MetaKeyIIFNAME), p.rule(c, expr.MetaKeyOIFNAME)}
}

// rule accepts packets of the bridge. It has the form that iptables uses, so that `iptables -S` shows it.
func (p *hostFirewall) rule(c *nftables.Chain, key expr.MetaKey, more ...expr.Any) *nftables.Rule {
	return &nftables.Rule{
		Table: c.Table, Chain: c, UserData: userdata.AppendString(nil, userdata.TypeComment, p.name),
		Exprs: slices.Concat([]expr.Any{
			&expr.Meta{Key: key, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: append([]byte(p.bridge), 0)},
		}, more, []expr.Any{
			&expr.Counter{},
			&expr.Verdict{Kind: expr.VerdictAccept},
		}),
	}
}

// translated matches connections whose destination was translated (`-m conntrack --ctstate DNAT`). iptables cannot
// show nftables' own expression for that, and refuses the whole table if it finds one.
func translated() expr.Any {
	const dnat = 1 << 7 // XT_CONNTRACK_STATE_DNAT
	match := &xt.ConntrackMtinfo3{}
	match.MatchFlags = uint16(xt.ConntrackState)
	match.StateMask = dnat
	return &expr.Match{Name: "conntrack", Rev: 3, Info: match}
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

// chains returns iptables' chains FORWARD and INPUT of both families, if they exist.
func (p *hostFirewall) chains(conn *nftables.Conn) ([]*nftables.Chain, error) {
	hooks := map[string]nftables.ChainHook{"FORWARD": *nftables.ChainHookForward, "INPUT": *nftables.ChainHookInput}
	var list []*nftables.Chain
	for _, family := range iptablesFamilies {
		all, err := conn.ListChainsOfTableFamily(family)
		if err != nil {
			return nil, fmt.Errorf("list nftables chains: %w", err)
		}
		list = append(list, slices.DeleteFunc(all, func(c *nftables.Chain) bool {
			hook, ok := hooks[c.Name]
			return c.Table.Name != "filter" || !ok || c.Hooknum == nil || *c.Hooknum != hook
		})...)
	}
	return list, nil
}

func (p *hostFirewall) rules(conn *nftables.Conn, c *nftables.Chain) ([]*nftables.Rule, error) {
	all, err := conn.GetRules(c.Table, c)
	if err != nil {
		return nil, fmt.Errorf("list the rules of the chain %s: %w", c.Name, err)
	}
	return slices.DeleteFunc(all, func(r *nftables.Rule) bool {
		comment, ok := userdata.GetString(r.UserData, userdata.TypeComment)
		return !ok || comment != p.name
	}), nil
}

// OnRulesChanged registers a function that is called after each change of the host's rules.
func (n *Network) OnRulesChanged(notify func()) { n.rulesChanged.Store(&notify) }

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
			logger.Info("Added rules for pods to the host's firewall, which would drop their traffic", "bridge",
				n.cfg.Bridge, "rules", added)
		}
		n.firewalld.look()
		if notify := n.rulesChanged.Load(); notify != nil {
			(*notify)()
		}
	}
	n.firewalld = keepTrusted(ctx, &firewalld{bridge: n.cfg.Bridge})
	var err error
	if n.hostRules, err = watchRules(open); err != nil {
		n.firewalld.close()
		return err
	}
	open()
	return nil
}
