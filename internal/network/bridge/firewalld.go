package bridge

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/godbus/dbus/v5"
	"github.com/google/nftables"
	"k8s.io/klog/v2"
)

// firewalld is a client of firewalld, the firewall service of Fedora, RHEL, and openSUSE. Its own table rejects what
// its zones do not allow, and only firewalld itself changes that table. Like Docker's and Podman's networks, the bridge
// is put into a zone that accepts: "trusted", in the runtime configuration only. A bridge that the administrator put
// into another zone stays there. A reload of firewalld drops the runtime configuration; the kernel then reports changed
// rules, and the bridge is added again.
type firewalld struct {
	bridge  string
	options []nftables.ConnOption
	timeout time.Duration // of one call; 0: firewalldTimeout
}

const (
	firewalldService = "org.fedoraproject.FirewallD1"
	firewalldPath    = dbus.ObjectPath("/org/fedoraproject/FirewallD1")
	firewalldZones   = firewalldService + ".zone."
	trustedZone      = "trusted"

	firewalldTimeout = 5 * time.Second
)

// trust puts the bridge into the zone if firewalld has rules and the bridge is in no zone. zone is its zone afterwards;
// empty: there is no firewalld.
func (f *firewalld) trust(ctx context.Context) (zone string, added bool, err error) {
	if runs, err := f.hasRules(); !runs || err != nil {
		return "", false, err
	}
	err = f.call(ctx, func(ctx context.Context, o dbus.BusObject) error {
		if err := o.CallWithContext(ctx, firewalldZones+"getZoneOfInterface", 0, f.bridge).Store(&zone); err != nil {
			return fmt.Errorf("get the firewalld zone of %s: %w", f.bridge, err)
		}
		if zone != "" {
			return nil
		}
		err := o.CallWithContext(ctx, firewalldZones+"addInterface", 0, trustedZone, f.bridge).Store(&zone)
		if err != nil {
			return fmt.Errorf("add %s to firewalld's zone %s: %w", f.bridge, trustedZone, err)
		}
		added = true
		return nil
	})
	return zone, added, err
}

// distrust removes the bridge from the zone.
func (f *firewalld) distrust(ctx context.Context) error {
	if runs, err := f.hasRules(); !runs || err != nil {
		return err
	}
	return f.call(ctx, func(ctx context.Context, o dbus.BusObject) error {
		err := o.CallWithContext(ctx, firewalldZones+"removeInterface", 0, trustedZone, f.bridge).Err
		if e, ok := errors.AsType[dbus.Error](err); ok && notThere(e) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("remove %s from firewalld's zone %s: %w", f.bridge, trustedZone, err)
		}
		return nil
	})
}

// notThere: the interface is in no zone, or in another one.
func notThere(e dbus.Error) bool {
	text := e.Error()
	return strings.HasPrefix(text, "UNKNOWN_INTERFACE") || strings.HasPrefix(text, "ZONE_CONFLICT")
}

// stopped: firewalld does not run, but its rules exist.
func stopped(err error) bool {
	e, ok := errors.AsType[dbus.Error](err)
	return ok && (e.Name == "org.freedesktop.DBus.Error.ServiceUnknown" ||
		e.Name == "org.freedesktop.DBus.Error.NameHasNoOwner")
}

// hasRules reports whether firewalld has filled its table, or with its iptables backend the chain for direct rules.
func (f *firewalld) hasRules() (bool, error) {
	conn, err := nftables.New(f.options...)
	if err != nil {
		return false, fmt.Errorf("open nftables: %w", err)
	}
	chains, err := conn.ListChains()
	if err != nil {
		return false, fmt.Errorf("list nftables chains: %w", err)
	}
	return slices.ContainsFunc(chains, func(c *nftables.Chain) bool {
		return c.Table.Name == "firewalld" || c.Table.Name == "filter" && c.Name == "FORWARD_direct"
	}), nil
}

// call runs do with a connection to firewalld, within the timeout.
func (f *firewalld) call(ctx context.Context, do func(context.Context, dbus.BusObject) error) error {
	timeout := f.timeout
	if timeout == 0 {
		timeout = firewalldTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := dbus.ConnectSystemBus(dbus.WithContext(ctx))
	if err == nil {
		defer func() { _ = conn.Close() }()
		err = do(ctx, conn.Object(firewalldService, firewalldPath))
	}
	if err != nil && ctx.Err() != nil { // which closes the connection, too
		err = ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("call firewalld: %w", err)
	}
	return nil
}

// trustKeeper calls firewalld whenever the host's rules have changed. It has its own goroutine, so that a firewalld
// that does not respond delays nothing else.
type trustKeeper struct {
	cancel context.CancelFunc
	wake   chan struct{} // capacity 1
	done   chan struct{}
}

// The wait between two attempts, which grows, as firewalld may be starting or hang.
const (
	leastTrustRest = time.Second
	mostTrustRest  = time.Minute
)

func keepTrusted(ctx context.Context, f *firewalld) *trustKeeper {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	k := &trustKeeper{cancel: cancel, wake: make(chan struct{}, 1), done: make(chan struct{})}
	go k.run(ctx, f)
	return k
}

// look makes the keeper check once more.
func (k *trustKeeper) look() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

func (k *trustKeeper) close() {
	k.cancel()
	<-k.done
}

func (k *trustKeeper) run(ctx context.Context, f *firewalld) {
	defer close(k.done)
	logger := klog.FromContext(ctx)
	var last, logged string
	for rest := leastTrustRest; ; {
		select {
		case <-ctx.Done():
			return
		case <-k.wake:
		}
		zone, added, err := f.trust(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			if logged != err.Error() { // not each time
				logged = err.Error()
				logger.Error(err, "Cannot let pods through firewalld; it rejects their traffic", "bridge", f.bridge)
			}
			if stopped(err) {
				continue // when it starts, it changes the rules
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(rest):
			}
			rest = min(2*rest, mostTrustRest)
			k.look()
			continue
		case added:
			logger.Info("Added the bridge of pods to a zone of firewalld", "bridge", f.bridge, "zone", zone)
		case zone != "" && zone != last && zone != trustedZone:
			logger.Info("The bridge of pods is in a zone of firewalld; its rules apply to pods", "bridge", f.bridge,
				"zone", zone)
		}
		last, logged, rest = zone, "", leastTrustRest
	}
}
