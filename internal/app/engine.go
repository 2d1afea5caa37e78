package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"

	"golang.org/x/sync/errgroup"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/base/instance"
	"carob/internal/network"
	"carob/internal/network/bridge"
	"carob/internal/network/cni"
	"carob/internal/network/cniserver"
	"carob/internal/network/policy"
	"carob/internal/node"
	"carob/internal/runtime"
	"carob/internal/runtime/native"
	"carob/internal/runtime/native/criserver"
	"carob/internal/runtime/native/images"
	"carob/internal/runtime/native/streaming"
	"carob/internal/runtime/remote"
)

// engine is the container runtime: carob's own with its images and network, or another one behind a
// socket.
type engine struct {
	runtime.Runtime
	name   string // prefix of a containerID
	detail string // for display
	images http.Handler
	run    func(context.Context) error
	closes []func() error
	// onRulesChanged registers a function that is called when the host's firewall rules change; nil
	// if the network does not watch them.
	onRulesChanged func(func())
	// queues are the connections that wait in pods; nil if the network cannot check them.
	queues node.Traffic
	// handlers are the RuntimeClass handlers of other runtimes.
	handlers []string
	// plug is the network that pods of other runtimes are attached to; nil: theirs is not ours.
	plug cniserver.Network
	// attachOthers serves their CNI plugin; nil: there are no others.
	attachOthers func(context.Context) error
	policies     *policy.Enforcer // nil if the pod network is not carob's: then it enforces policies itself
}

func openEngine(ctx context.Context, in instance.Instance, version string) (*engine, error) {
	e, err := openMain(ctx, in, version)
	if err != nil {
		return nil, err
	}
	if err := e.addHandlers(in); err != nil {
		return nil, errors.Join(err, e.close())
	}
	return e, nil
}

// openMain opens the runtime of all pods whose RuntimeClass does not name another.
func openMain(ctx context.Context, in instance.Instance, version string) (*engine, error) {
	if in.RuntimeEndpoint != "" {
		return openRemote(ctx, in)
	}
	return openNative(ctx, in, version)
}

// close closes what was opened, in reverse order. Containers keep running.
func (e *engine) close() error {
	var errs []error
	for _, closeOne := range slices.Backward(e.closes) {
		errs = append(errs, closeOne())
	}
	return errors.Join(errs...)
}

func openRemote(ctx context.Context, in instance.Instance) (*engine, error) {
	rt, err := remote.Dial(ctx, in.RuntimeEndpoint)
	if err != nil {
		return nil, err
	}
	v, err := rt.Version(ctx, &cri.VersionRequest{})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("container runtime at %s: %w", in.RuntimeEndpoint, err), rt.Close())
	}
	return &engine{
		Runtime: rt, name: v.RuntimeName, detail: v.RuntimeName + " " + v.RuntimeVersion + " at " + in.RuntimeEndpoint,
		images: imageHandler(rt, nil), closes: []func() error{rt.Close},
		run: func(ctx context.Context) error { <-ctx.Done(); return nil },
	}, nil
}

func openNative(ctx context.Context, in instance.Instance, version string) (_ *engine, err error) {
	e := &engine{name: "carob", detail: "native, network " + networkName(in)}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.close())
		}
	}()
	dir := filepath.Join(in.DataDir, runtimeDir)
	store, err := images.Open(ctx, images.Config{Root: filepath.Join(dir, "images"), RegistryConfig: in.RegistryConfig})
	if err != nil {
		return nil, err
	}
	e.closes = append(e.closes, store.Close)
	if in.CNIConfDir == "" && !in.Standalone {
		if e.policies, err = policy.New(policy.Config{Table: policyTable(in), Node: in.NodeName}); err != nil {
			return nil, err
		}
		e.closes = append(e.closes, e.policies.Close)
	}
	net, closeNet, err := openNetwork(ctx, in, e.policies)
	if err != nil {
		return nil, err
	}
	e.closes = append(e.closes, closeNet)
	if w, ok := net.(interface{ OnRulesChanged(func()) }); ok {
		e.onRulesChanged = w.OnRulesChanged
	}
	if n, ok := net.(*bridge.Network); ok {
		e.queues, e.plug = n.Queues(), n
	}
	rt, err := native.New(ctx, native.Config{
		RootDir: dir, StateDir: filepath.Join(in.RunDir, "runtime"), CgroupRoot: in.CgroupRoot,
		SystemdCgroups: in.CgroupDriver == "systemd",
		Images:         store, Network: net, Name: "carob", Version: version,
		SeccompRoot: filepath.Join(in.DataDir, "node", "seccomp"), SandboxPool: spareMonitors,
	})
	if err != nil {
		return nil, err
	}
	e.closes = append(e.closes, rt.Close)
	streams, err := streaming.New(rt.Streams())
	if err != nil {
		return nil, err
	}
	rt.UseStreaming(streams)
	e.Runtime = rt
	var _ runtime.OutputHolder = rt // the node agent requires it
	e.images = imageHandler(rt, storeImages{store})
	server := criserver.New(rt)
	e.run = func(ctx context.Context) error {
		l, err := criserver.Listen(in.SocketCRI, 0o600)
		if err != nil {
			return err
		}
		g, ctx := errgroup.WithContext(ctx)
		g.Go(func() error { return streams.Run(ctx) })
		g.Go(func() error { return server.Run(ctx, l) })
		return g.Wait()
	}
	return e, nil
}

// runtimeDir contains the records of the native runtime, below the data directory.
const runtimeDir = "runtime"

// spareMonitors are ready for the next pods; each costs about 60 kB, its helper 105 kB until the first container.
const spareMonitors = 4

// openNetwork opens the pod network that the instance is configured for.
func openNetwork(ctx context.Context, in instance.Instance, gate *policy.Enforcer) (network.PodNetwork, func() error,
	error) {
	if in.CNIConfDir != "" {
		n, err := cni.Open(cni.Config{ConfDir: in.CNIConfDir, StateDir: filepath.Join(in.DataDir, "network", "cni"),
			RunDir: in.RunDir})
		return n, func() error { return nil }, err
	}
	cfg := bridgeConfig(in)
	if gate != nil { // a nil pointer in an interface would not be nil
		cfg.Gate = gate
	}
	n, err := bridge.Open(ctx, cfg)
	if err != nil {
		return nil, nil, fmt.Errorf("pod network: %w", err)
	}
	return n, n.Close, nil
}

func networkName(in instance.Instance) string {
	if in.CNIConfDir != "" {
		return "CNI in " + in.CNIConfDir
	}
	return in.BridgeName
}

func bridgeConfig(in instance.Instance) bridge.Config {
	return bridge.Config{
		Bridge: in.BridgeName, Pods: in.Pods, Pods6: in.Pods6, Prefer6: in.PodsPrefer6, MTU: in.PodMTU,
		Table:    in.NFTable,
		StateDir: filepath.Join(in.DataDir, "network"), RunDir: in.RunDir,
		OwnPorts: []netip.AddrPort{in.ListenAddr, in.AgentListen},
	}
}

// policyTable has the rules of network policies.
func policyTable(in instance.Instance) string { return in.NFTable + "-policy" }

// storeImages adapts the native image store to the image service.
type storeImages struct{ store *images.Store }

func (s storeImages) Import(ctx context.Context, archive io.Reader, progress func(string)) ([]string, error) {
	return s.store.Import(ctx, archive, progress)
}

func (s storeImages) Pull(ctx context.Context, name string, progress func(string)) (string, error) {
	return s.store.Pull(ctx, name, nil, progress)
}

func (s storeImages) Tag(ctx context.Context, ref, name string) (string, error) {
	return s.store.Tag(ctx, ref, name)
}

func (s storeImages) Untag(ctx context.Context, name string) (bool, error) {
	return s.store.Untag(ctx, name)
}
