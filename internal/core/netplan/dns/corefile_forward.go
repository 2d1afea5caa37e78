package dns

import (
	"net/netip"
	"slices"
	"strings"
	"time"
)

func (p *parser) forward() error {
	args := p.d.words[1:]
	if len(args) < 2 {
		return p.fail("forward takes a zone and addresses of servers")
	}
	f := Forward{MaxFails: defaultMaxFails, HealthCheck: defaultHealth, Policy: "random"}
	from, err := zoneKey(args[0])
	if err != nil {
		return p.fail("forward: %w", err)
	}
	f.From = from[0]
	for _, to := range args[1:] {
		if to == resolvConf {
			f.Resolver = true
			continue
		}
		u, err := p.upstream(to)
		if err != nil {
			return err
		}
		f.To = append(f.To, u)
	}
	if len(f.To) > maxUpstreams {
		return p.fail("forward takes at most %d servers", maxUpstreams)
	}
	err = p.options(func(name string, args []string) (err error) {
		switch name {
		case "except":
			var zones [][]byte
			zones, err = p.zones(args)
			f.Except = append(f.Except, zones...)
		case "force_tcp":
			f.ForceTCP = true
		case "prefer_udp":
			f.PreferUDP = true
		case "max_fails":
			f.MaxFails, err = p.number(args, 0, 1<<16)
		case "max_concurrent":
			f.MaxConcurrent, err = p.number(args, 0, 1<<20)
		case "health_check":
			if len(args) == 0 {
				return p.fail("health_check takes a duration")
			}
			f.HealthCheck, err = p.duration(args[0])
		case "policy":
			if f.Policy = strings.Join(args, " "); !slices.Contains([]string{"random", "round_robin", "sequential"},
				f.Policy) {
				return p.fail("policy is one of random, round_robin, sequential")
			}
		case "tls_servername":
			if len(args) != 1 {
				return p.fail("tls_servername takes one name")
			}
			f.TLSName = args[0]
		case "expire", "max_age", "max_idle_conns": // connections are not kept
		default:
			return p.fail("forward: carob's DNS does not support the option %q", name)
		}
		return err
	})
	p.server.Forwards = append(p.server.Forwards, f)
	return err
}

func (p *parser) upstream(to string) (Upstream, error) {
	u := Upstream{}
	port := uint16(dnsPort)
	text := strings.TrimPrefix(to, "dns://")
	if rest, ok := strings.CutPrefix(text, "tls://"); ok {
		u.TLS, port = true, tlsPort
		var end string
		if text, u.TLSName, ok = strings.Cut(rest, "%"); ok {
			if u.TLSName, end, ok = strings.Cut(u.TLSName, ":"); ok {
				text += ":" + end
			}
		}
	}
	if strings.HasPrefix(text, "/") {
		return u, p.fail("forward: carob's DNS reads only %s, the resolver configuration of the node", resolvConf)
	}
	if a, err := netip.ParseAddr(strings.Trim(text, "[]")); err == nil {
		u.Addr = netip.AddrPortFrom(a, port)
		return u, nil
	}
	at, err := netip.ParseAddrPort(text)
	if err != nil || at.Port() == 0 {
		return u, p.fail("forward: %q is not an IP address with or without a port (dns:// or tls://), nor %s", to, resolvConf)
	}
	u.Addr = at
	return u, nil
}

func (p *parser) cache() error {
	c := &Cache{Success: CacheLimits{defaultCapacity, defaultCacheTTL, defaultMinTTL},
		Denial: CacheLimits{defaultCapacity, defaultDenialTTL, defaultMinTTL}, ServFail: defaultServFail}
	p.server.Cache = c
	args := p.d.words[1:]
	if len(args) > 0 && args[0] != "" && args[0][0] >= '0' && args[0][0] <= '9' && !strings.Contains(args[0], ".") {
		d, err := p.duration(args[0])
		if err != nil {
			return err
		}
		c.Success.TTL, c.Denial.TTL, args = d, d, args[1:]
	}
	var err error
	if len(args) > 0 {
		if c.Zones, err = p.zones(args); err != nil {
			return err
		}
	}
	return p.options(func(name string, args []string) (err error) {
		switch name {
		case "success":
			err = p.cacheLimits(&c.Success, args)
		case "denial":
			err = p.cacheLimits(&c.Denial, args)
		case "servfail":
			if len(args) != 1 {
				return p.fail("servfail takes a duration")
			}
			if c.ServFail, err = p.duration(args[0]); err == nil && c.ServFail > 5*time.Minute {
				return p.fail("servfail is at most 5m")
			}
		case "disable":
			if len(args) != 1 || args[0] != "success" && args[0] != "denial" {
				return p.fail("disable takes success or denial, without zones")
			}
			if args[0] == "success" {
				c.Success.Capacity = 0
			} else {
				c.Denial.Capacity = 0
			}
		case "prefetch":
			err = p.prefetch(c, args)
		case "serve_stale":
			err = p.serveStale(c, args)
		default:
			return p.fail("cache: carob's DNS does not support the option %q", name)
		}
		return err
	})
}

// maxCapacity is how many answers a cache holds at most; their bytes are limited, too.
const maxCapacity = 1 << 20

func (p *parser) cacheLimits(l *CacheLimits, args []string) (err error) {
	if len(args) == 0 || len(args) > 3 {
		return p.fail("expected a capacity, then the longest and the shortest time to keep an answer")
	}
	if l.Capacity, err = p.number(args[:1], 0, maxCapacity); err != nil {
		return err
	}
	for i, d := range []*time.Duration{&l.TTL, &l.Min} {
		if len(args) > i+1 {
			if *d, err = p.duration(args[i+1]); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *parser) prefetch(c *Cache, args []string) (err error) {
	c.PrefetchWithin, c.PrefetchPercent = time.Minute, 10
	if len(args) == 0 || len(args) > 3 {
		return p.fail("prefetch takes a number of queries, a duration, and a percentage of the TTL")
	}
	if c.Prefetch, err = p.number(args[:1], 0, 1<<30); err != nil {
		return err
	}
	if len(args) > 1 {
		if c.PrefetchWithin, err = p.duration(args[1]); err != nil {
			return err
		}
	}
	if len(args) > 2 {
		percent, ok := strings.CutSuffix(args[2], "%")
		if !ok {
			return p.fail("%q lacks the sign %%", args[2])
		}
		c.PrefetchPercent, err = p.number([]string{percent}, 10, 90)
	}
	return err
}

func (p *parser) serveStale(c *Cache, args []string) (err error) {
	c.ServeStale = time.Hour
	if len(args) > 0 {
		if c.ServeStale, err = p.duration(args[0]); err != nil {
			return err
		}
		args = args[1:]
	}
	if len(args) > 0 {
		switch args[0] {
		case "immediate":
		case "verify":
			c.StaleVerify = true
		default:
			return p.fail("serve_stale is immediate or verify")
		}
		args = args[1:]
	}
	if c.StaleVerify && len(args) > 0 {
		if c.VerifyTimeout, err = p.duration(args[0]); err != nil {
			return err
		}
		args = args[1:]
	}
	if len(args) > 0 {
		d, err := p.duration(args[0])
		if err != nil {
			return err
		}
		c.StaleTTL, args = uint32(d/time.Second), args[1:]
	}
	if len(args) > 0 {
		return p.fail("serve_stale: %q is not supported", args[0])
	}
	return nil
}
