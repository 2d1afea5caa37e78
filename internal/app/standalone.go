package app

import (
	"context"
	"net/netip"

	"k8s.io/klog/v2"

	"carob/internal/base/pki"
	"carob/internal/node"
)

// agentURL is where the node agent serves this host.
func agentURL(at netip.AddrPort) string { return "https://" + reachable(at).String() }

// standalone changes the agent's configuration for a process without an API server (S14): static pods run, and the
// administrator reads their state from the agent, with the certificate that is otherwise for the API server.
func (c *carob) standalone(cfg *node.Config) {
	cfg.Standalone, cfg.Client = true, nil
	cfg.AllowedUsers = []string{pki.APIServerClientName, pki.AdminName}
	cfg.ServeOthers = false // there is no API server to authorize them
	if c.in.ClusterDNS == "" {
		cfg.ClusterDNS, cfg.NoClusterDNS = nil, true
	}
	cfg.DrainTimeout = 0 // there are no Services
}

// startStandalone runs the runtime and the node agent, and returns when static pods are taken.
func (c *carob) startStandalone(ctx context.Context) error {
	c.parts.start(ctx, "runtime", c.engine.run)
	return c.startAgent(ctx)
}

// addressesChanged notifies the parts that the addresses of the machine have changed.
func (c *carob) addressesChanged(ctx context.Context, agent *node.Agent) {
	if c.server != nil {
		c.server.Advertise(c.advertise())
	}
	agent.HostChanged()
	if c.services != nil {
		c.services.NodeChanged()
	}
	klog.FromContext(ctx).V(2).Info("All parts use the new addresses")
}
