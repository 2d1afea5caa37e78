package devices

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	drahealthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"
	drahealthv1alpha1 "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	drav1beta1 "k8s.io/kubelet/pkg/apis/dra/v1beta1"

	"carob/internal/base/backoff"
	"carob/internal/core/devices"
	"carob/internal/core/podclaims"
	"carob/internal/node/plugins"
)

// ErrClaims is the kind of errors for claims of a pod that are not prepared (S9.52).
var ErrClaims = errors.New("prepare dynamic resources")

// driver is one driver of claims. Several of its plugins may be registered while it is updated (S9.42).
type driver struct {
	name    string
	plugins []*draPlugin // the newest last
	wiping  *time.Timer  // removes its slices when no plugin has been connected for a while (S9.43); nil: none is due
}

func (d *driver) stop() {
	if d.wiping != nil {
		d.wiping.Stop()
	}
}

// draPlugin is one endpoint of a driver.
type draPlugin struct {
	driver    string
	endpoint  string
	conn      *grpc.ClientConn
	client    drav1.DRAPluginClient
	connected bool
	cancel    context.CancelFunc
}

// draHandler takes drivers that register by the plugin watcher.
type draHandler struct{ m *Manager }

var driverName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)

// Register implements plugins.Handler (S9.40, S9.41).
func (h draHandler) Register(ctx context.Context, p plugins.Plugin) (func(), error) {
	switch {
	case p.Name == "":
		return nil, errors.New("DRA driver name is empty")
	case len(p.Name) > resourcev1.DriverNameMaxLength || !driverName.MatchString(p.Name):
		return nil, fmt.Errorf("DRA driver name %q is invalid", p.Name)
	}
	service, err := chosenService(p)
	if err != nil {
		return nil, fmt.Errorf("invalid supported gRPC versions of DRA driver plugin %s at endpoint %s: %w", p.Name,
			p.Endpoint, err)
	}
	conn, err := plugins.Dial(p.Endpoint, grpc.WithUnaryInterceptor(h.m.timed(p.Name)))
	if err != nil {
		return nil, err
	}
	e := &draPlugin{driver: p.Name, endpoint: p.Endpoint, conn: conn, client: drav1.NewDRAPluginClient(conn)}
	if service == drav1beta1.DRAPluginService {
		e.client = drav1beta1.V1Beta1ClientWrapper{DRAPluginClient: drav1beta1.NewDRAPluginClient(conn)}
	}
	ctx, e.cancel = context.WithCancel(ctx)
	h.m.mu.Lock()
	d := h.m.drivers[p.Name]
	if d == nil {
		d = &driver{name: p.Name}
		h.m.drivers[p.Name] = d
	}
	if slices.ContainsFunc(d.plugins, func(o *draPlugin) bool { return o.endpoint == e.endpoint }) {
		h.m.mu.Unlock()
		e.cancel()
		return nil, errors.Join(fmt.Errorf("endpoint %s already registered for DRA driver plugin %s", p.Endpoint,
			p.Name),
			conn.Close())
	}
	d.plugins = append(d.plugins, e)
	h.m.watchDriver(ctx, d)
	h.m.mu.Unlock()
	go h.m.followConnection(ctx, e)
	switch {
	case slices.Contains(p.Versions, drahealthv1.DRAResourceHealthService):
		go h.m.followHealth(ctx, e, drahealthv1.NewDRAResourceHealthClient(conn))
	case slices.Contains(p.Versions, drahealthv1alpha1.DRAResourceHealthService):
		go h.m.followHealth(ctx, e, alphaHealth{drahealthv1alpha1.NewDRAResourceHealthClient(conn)})
	}
	return func() { h.m.unregister(ctx, e) }, nil
}

// chosenService is the first service of a driver's list that this agent supports.
func chosenService(p plugins.Plugin) (string, error) {
	known := []string{drav1.DRAPluginService, drav1beta1.DRAPluginService}
	if len(p.Versions) == 0 {
		return "", errors.New("empty list of supported gRPC services (aka supported versions)")
	}
	for _, v := range p.Versions {
		if slices.Contains(known, v) {
			return v, nil
		}
	}
	return "", fmt.Errorf("none of services supported by the plugin (%q) are supported by the kubelet (%q)", p.Versions,
		known)
}

func (m *Manager) unregister(ctx context.Context, e *draPlugin) {
	e.cancel()
	_ = e.conn.Close()
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.drivers[e.driver]
	d.plugins = slices.DeleteFunc(d.plugins, func(o *draPlugin) bool { return o == e })
	m.watchDriver(context.WithoutCancel(ctx), d)
}

// followConnection maintains a connection and tracks whether it works, until ctx ends.
func (m *Manager) followConnection(ctx context.Context, e *draPlugin) {
	for {
		state := e.conn.GetState()
		if state == connectivity.Idle {
			e.conn.Connect()
		}
		m.mu.Lock()
		if ctx.Err() == nil && e.connected != (state == connectivity.Ready) {
			e.connected = state == connectivity.Ready
			m.watchDriver(ctx, m.drivers[e.driver])
		}
		m.mu.Unlock()
		if !e.conn.WaitForStateChange(ctx, state) {
			return
		}
	}
}

// watchDriver has the slices of a driver removed if it does not come back in time; m.mu is held.
func (m *Manager) watchDriver(ctx context.Context, d *driver) {
	connected := slices.ContainsFunc(d.plugins, func(e *draPlugin) bool { return e.connected })
	switch {
	case connected && d.wiping != nil:
		d.wiping.Stop()
		d.wiping = nil
	case !connected && d.wiping == nil:
		ctx := context.WithoutCancel(ctx)
		d.wiping = time.AfterFunc(driverReturn, func() { m.wipe(ctx, d.name) })
	}
}

// wipe removes the ResourceSlices of this node: of one driver, or, with an empty name, of all
// drivers (S9.43). It tries until that succeeds, or until the driver is back.
func (m *Manager) wipe(ctx context.Context, name string) {
	if m.cfg.Client == nil {
		return
	}
	selected := fields.Set{resourcev1.ResourceSliceSelectorNodeName: m.cfg.Node}
	if name != "" {
		selected[resourcev1.ResourceSliceSelectorDriver] = name
	}
	delays := backoff.Exponential{Initial: time.Second, Max: 5 * time.Minute}
	for n := 1; ; n++ {
		if name != "" && !m.lost(name) {
			return
		}
		call, cancel := context.WithTimeout(ctx, prepareTimeout)
		err := m.cfg.Client.ResourceV1().ResourceSlices().DeleteCollection(call, metav1.DeleteOptions{},
			metav1.ListOptions{FieldSelector: selected.String()})
		cancel()
		if err == nil || ctx.Err() != nil {
			return
		}
		m.cfg.Logger.Info("Removing resource slices of drivers that are gone failed", "driver", name, "err", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(delays.Delay(n)):
		}
	}
}

// lost reports whether no plugin of a driver is connected and no new wait for it has begun.
func (m *Manager) lost(name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.drivers[name]
	return d != nil && !m.closed && !slices.ContainsFunc(d.plugins, func(e *draPlugin) bool { return e.connected })
}

// plugin is the newest plugin of a driver that is connected, else the newest; nil if there is none; m.mu is held.
func (m *Manager) plugin(name string) *draPlugin {
	d := m.drivers[name]
	if d == nil || len(d.plugins) == 0 {
		return nil
	}
	for _, e := range slices.Backward(d.plugins) {
		if e.connected {
			return e
		}
	}
	return d.plugins[len(d.plugins)-1]
}

// PrepareClaims has the drivers prepare the claims of a pod (S9.50 to S9.53). Errors are of the kind ErrClaims.
func (m *Manager) PrepareClaims(ctx context.Context, pod *corev1.Pod) error {
	if len(pod.Spec.ResourceClaims) == 0 && pod.Status.ExtendedResourceClaimStatus == nil {
		return nil
	}
	began := time.Now()
	err := m.prepare(ctx, pod)
	m.cfg.Meter.ClaimsHandled("PrepareResources", err, time.Since(began))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrClaims, err)
	}
	return nil
}

func (m *Manager) prepare(ctx context.Context, pod *corev1.Pod) error {
	list, err := m.claimsOf(ctx, pod)
	if err != nil || len(list) == 0 {
		return err
	}
	m.mu.Lock()
	calls, err := m.enter(pod, list)
	m.mu.Unlock()
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(calls)) {
		if err := m.prepareBy(ctx, name, calls[name]); err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.claims.Done(list)
	return m.save()
}

// claimsOf reads the claims of a pod from the API server.
func (m *Manager) claimsOf(ctx context.Context, pod *corev1.Pod) ([]*resourcev1.ResourceClaim, error) {
	var list []*resourcev1.ResourceClaim
	get := func(name string, made bool) error {
		c, err := m.cfg.Client.ResourceV1().ResourceClaims(pod.Namespace).Get(ctx, name, metav1.GetOptions{})
		switch {
		case err != nil:
			return fmt.Errorf("fetch ResourceClaim %s: %w", name, err)
		case made && !podclaims.OwnedBy(pod, c):
			return errors.New(podclaims.NotOwned(pod, c))
		}
		list = append(list, c)
		return nil
	}
	for i := range pod.Spec.ResourceClaims {
		n := podclaims.Name(pod, &pod.Spec.ResourceClaims[i])
		switch {
		case !n.Known:
			return nil, fmt.Errorf("pod \"%s/%s\": ResourceClaim not created yet", pod.Namespace, pod.Name)
		case n.Claim != "":
			if err := get(n.Claim, n.Made); err != nil {
				return nil, err
			}
		}
	}
	if s := pod.Status.ExtendedResourceClaimStatus; s != nil && s.ResourceClaimName != "" {
		if err := get(s.ResourceClaimName, true); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// enter records that the pod uses the claims, once all drivers are connected: before the first
// call nothing binds a pod to a driver (S9.51). m.mu is held.
func (m *Manager) enter(pod *corev1.Pod, list []*resourcev1.ResourceClaim) (map[string][]*devices.Claim, error) {
	for _, c := range list {
		if have := m.claims[c.UID]; c.Status.Allocation == nil || have != nil && have.Ready {
			continue
		}
		for i := range c.Status.Allocation.Devices.Results {
			if name := c.Status.Allocation.Devices.Results[i].Driver; m.plugin(name) == nil {
				return nil, fmt.Errorf("DRA driver %s is not registered", name)
			}
		}
	}
	calls, err := m.claims.Enter(pod, list)
	if err != nil {
		return nil, err
	}
	return calls, m.save()
}

// prepareBy has one driver prepare claims.
func (m *Manager) prepareBy(ctx context.Context, name string, claims []*devices.Claim) error {
	m.mu.Lock()
	e := m.plugin(name)
	req := &drav1.NodePrepareResourcesRequest{Claims: references(claims)}
	m.mu.Unlock()
	if e == nil {
		return fmt.Errorf("DRA driver %s is not registered", name)
	}
	ctx, cancel := context.WithTimeout(ctx, prepareTimeout)
	defer cancel()
	resp, err := e.client.NodePrepareResources(ctx, req)
	if err != nil {
		return fmt.Errorf("NodePrepareResources: %s", status.Convert(err).Message())
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for uid, r := range resp.Claims { // any order: one error is enough
		i := slices.IndexFunc(claims, func(c *devices.Claim) bool { return string(c.UID) == uid })
		switch {
		case i < 0:
			return fmt.Errorf("NodePrepareResources returned result for unknown claim UID %.64s", uid)
		case r.GetError() != "":
			return fmt.Errorf("NodePrepareResources failed for ResourceClaim %s: %.1024s", claims[i].Name, r.Error)
		}
		prepared, err := preparedOf(r.GetDevices())
		if err != nil {
			return fmt.Errorf("NodePrepareResources of driver %s for ResourceClaim %s: %w", name, claims[i].Name, err)
		}
		m.claims.Answered(claims[i].UID, name, prepared)
	}
	if skipped := len(claims) - len(resp.Claims); skipped > 0 {
		return fmt.Errorf("NodePrepareResources skipped %d ResourceClaims", skipped)
	}
	return nil
}

func references(claims []*devices.Claim) []*drav1.Claim {
	var list []*drav1.Claim
	for _, c := range claims {
		list = append(list, &drav1.Claim{Namespace: c.Namespace, Uid: string(c.UID), Name: c.Name})
	}
	return list
}

// preparedOf validates the devices in a driver's response.
func preparedOf(list []*drav1.Device) ([]devices.Prepared, error) {
	if len(list) > maxEntries {
		return nil, fmt.Errorf("%d devices, at most %d", len(list), maxEntries)
	}
	out := []devices.Prepared{}
	for _, d := range list {
		if err := errors.Join(text("the name of a pool", d.GetPoolName()),
			text("the name of a device", d.GetDeviceName())); err != nil {
			return nil, err
		}
		if len(d.CdiDeviceIds)+len(d.RequestNames) > maxEntries {
			return nil, fmt.Errorf("more than %d names", maxEntries)
		}
		for _, name := range d.CdiDeviceIds {
			if err := cdiName(name); err != nil {
				return nil, err
			}
		}
		for _, name := range d.RequestNames {
			if err := text("the name of a request", name); err != nil {
				return nil, err
			}
		}
		if d.ShareId != nil {
			if err := text("the id of a share", *d.ShareId); err != nil {
				return nil, err
			}
		}
		out = append(out, devices.Prepared{Requests: d.RequestNames, Pool: d.PoolName, Device: d.DeviceName,
			ShareID: d.GetShareId(), CDI: d.CdiDeviceIds})
	}
	return out, nil
}

// unprepare undoes the preparation of claims that are used only by a pod that has ended (S9.55).
func (m *Manager) unprepare(ctx context.Context, pod types.UID) error {
	m.mu.Lock()
	has := m.claims.Has(pod)
	m.mu.Unlock()
	began := time.Now()
	err := m.leave(ctx, pod)
	if has || err != nil {
		m.cfg.Meter.ClaimsHandled("UnprepareResources", err, time.Since(began))
	}
	return err
}

func (m *Manager) leave(ctx context.Context, pod types.UID) error {
	m.mu.Lock()
	calls := m.claims.Leave(pod)
	err := m.save()
	m.mu.Unlock()
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(calls)) {
		errs = append(errs, m.unprepareBy(ctx, name, calls[name]))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, claims := range calls { // any order: each by itself
		for _, c := range claims {
			m.claims.Stays(c.UID)
		}
	}
	if err := errors.Join(append(errs, m.save())...); err != nil {
		return fmt.Errorf("unprepare dynamic resources: %w", err)
	}
	return nil
}

func (m *Manager) unprepareBy(ctx context.Context, name string, claims []*devices.Claim) error {
	m.mu.Lock()
	e := m.plugin(name)
	req := &drav1.NodeUnprepareResourcesRequest{Claims: references(claims)}
	m.mu.Unlock()
	if e == nil {
		return fmt.Errorf("DRA driver %s is not registered", name)
	}
	ctx, cancel := context.WithTimeout(ctx, prepareTimeout)
	defer cancel()
	resp, err := e.client.NodeUnprepareResources(ctx, req)
	if err != nil {
		return fmt.Errorf("NodeUnprepareResources: %s", status.Convert(err).Message())
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var errs []error
	for _, c := range claims {
		r, ok := resp.Claims[string(c.UID)]
		switch {
		case !ok:
			errs = append(errs, fmt.Errorf("NodeUnprepareResources skipped ResourceClaim %s", c.Name))
		case r.GetError() != "":
			errs = append(errs, fmt.Errorf("NodeUnprepareResources failed for ResourceClaim %s: %.1024s", c.Name,
				r.Error))
		default:
			m.claims.Unprepared(c.UID, name)
		}
	}
	return errors.Join(errs...)
}
