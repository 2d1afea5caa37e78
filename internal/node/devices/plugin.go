package devices

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"carob/internal/core/devices"
	"carob/internal/core/podclaims"
	"carob/internal/node/plugins"
	"carob/internal/node/spec"
)

// registrySocket is the name of the socket where device plugins register.
const registrySocket = "kubelet.sock"

// endpoint is one connected device plugin.
type endpoint struct {
	resource string
	socket   string
	conn     *grpc.ClientConn
	client   pluginapi.DevicePluginClient
	options  *pluginapi.DevicePluginOptions
	cancel   context.CancelFunc
	last     map[string]devices.Device // as last reported; nil: not yet
}

// registry is the service where device plugins register.
type registry struct {
	pluginapi.UnimplementedRegistrationServer
	m   *Manager
	ctx context.Context // of Run: connections outlive the call that made them
}

// serveRegistry serves the socket of device plugins until ctx ends (S8.1).
func (m *Manager) serveRegistry(ctx context.Context) error {
	dir := filepath.Join(m.cfg.Root, "device-plugins")
	listener, err := listen(dir, registrySocket, true)
	if err != nil {
		m.cfg.Logger.Error(err, "Device plugins cannot register")
		m.mu.Lock()
		m.registry = err
		m.mu.Unlock()
		return nil
	}
	server := grpc.NewServer()
	pluginapi.RegisterRegistrationServer(server, &registry{m: m, ctx: ctx})
	defer m.disconnectAll()
	return serve(ctx, server, listener)
}

// listen opens a socket in a directory that plugins know. It fails if another agent serves it. others means that
// sockets with other names belong to plugins that must register again, and are removed.
func listen(dir, name string, others bool) (net.Listener, error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("make the directory of a socket: %w", err)
	}
	file := filepath.Join(dir, name)
	if conn, err := net.DialTimeout("unix", file, time.Second); err == nil {
		_ = conn.Close()
		return nil, fmt.Errorf("another kubelet or carob serves %s: choose another directory with --kubelet-dir", file)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("read the directory of a socket: %w", err)
	}
	for _, e := range entries {
		if e.Type() == os.ModeSocket && (others || e.Name() == name) {
			if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
				return nil, fmt.Errorf("remove an old socket: %w", err)
			}
		}
	}
	l, err := net.Listen("unix", file)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	if err := os.Chmod(file, 0o660); err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("restrict a socket to root: %w", err)
	}
	return l, nil
}

// serve serves until ctx ends.
func serve(ctx context.Context, server *grpc.Server, l net.Listener) error {
	stop := context.AfterFunc(ctx, server.Stop)
	defer stop()
	if err := server.Serve(l); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serve %s: %w", l.Addr(), err)
	}
	return nil
}

// Register implements the service (S8.2 to S8.4).
func (r *registry) Register(ctx context.Context, in *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	if !slices.Contains(pluginapi.SupportedVersions[:], in.Version) {
		return nil, fmt.Errorf("requested API version %.64q is not supported by kubelet. Supported version is %q",
			in.Version, pluginapi.SupportedVersions)
	}
	if err := resourceName(in.ResourceName); err != nil {
		return nil, err
	}
	r.m.cfg.Meter.Registered(in.ResourceName)
	if err := endpointName(in.Endpoint); err != nil {
		return nil, err
	}
	_, err := r.m.connectPlugin(ctx, r.ctx, in.ResourceName, filepath.Join(r.m.cfg.Root, "device-plugins", in.Endpoint))
	if err != nil {
		return nil, err
	}
	return &pluginapi.Empty{}, nil
}

// devicePluginHandler takes device plugins that register by the plugin watcher (S8.5).
type devicePluginHandler struct{ m *Manager }

// Register implements plugins.Handler.
func (h devicePluginHandler) Register(ctx context.Context, p plugins.Plugin) (func(), error) {
	if !slices.ContainsFunc(p.Versions,
		func(v string) bool { return slices.Contains(pluginapi.SupportedVersions[:], v) }) {
		return nil, fmt.Errorf("manager version, %s, is not among plugin supported versions %q", pluginapi.Version,
			p.Versions)
	}
	if err := resourceName(p.Name); err != nil {
		return nil, err
	}
	e, err := h.m.connectPlugin(ctx, ctx, p.Name, p.Endpoint)
	if err != nil {
		return nil, err
	}
	return func() { h.m.disconnect(e) }, nil
}

// connectPlugin connects to a plugin and follows its list of devices until life ends.
func (m *Manager) connectPlugin(ctx, life context.Context, resource, socket string) (*endpoint, error) {
	conn, err := plugins.Dial(socket)
	if err != nil {
		return nil, err
	}
	e := &endpoint{resource: resource, socket: socket, conn: conn, client: pluginapi.NewDevicePluginClient(conn)}
	call, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	e.options, err = e.client.GetDevicePluginOptions(call, &pluginapi.Empty{}, grpc.WaitForReady(true))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("get the options of device plugin %s: %w", resource, err), conn.Close())
	}
	life, e.cancel = context.WithCancel(life)
	stream, err := e.client.ListAndWatch(life, &pluginapi.Empty{})
	if err != nil {
		e.cancel()
		return nil, errors.Join(fmt.Errorf("list the devices of device plugin %s: %w", resource, err), conn.Close())
	}
	m.mu.Lock()
	same := func(o *endpoint) bool { return o.socket == socket }
	if i := slices.IndexFunc(m.endpoints[resource], same); i >= 0 {
		// The socket was created again before the end of the old connection was noticed.
		m.endpoints[resource][i].cancel()
		m.endpoints[resource] = slices.Delete(m.endpoints[resource], i, i+1)
	}
	m.endpoints[resource] = append(m.endpoints[resource], e)
	if e.options.GetPreStartRequired() {
		m.preStarts[resource] = true
	} else {
		delete(m.preStarts, resource)
	}
	m.mu.Unlock()
	go m.follow(e, stream)
	return e, nil
}

// follow takes the lists of a plugin until its stream ends.
func (m *Manager) follow(e *endpoint, stream grpc.ServerStreamingClient[pluginapi.ListAndWatchResponse]) {
	for {
		msg, err := stream.Recv()
		if err != nil {
			m.cfg.Logger.V(2).Info("A device plugin went away", "resource", e.resource, "err", err)
			m.disconnect(e)
			return
		}
		list, err := listed(msg.Devices)
		if err != nil {
			m.cfg.Logger.Error(err, "A device plugin's list is not used", "resource", e.resource)
			continue
		}
		m.update(e, list)
	}
}

// update takes a list of the newest plugin of a resource (S8.6).
func (m *Manager) update(e *endpoint, list map[string]devices.Device) {
	m.mu.Lock()
	e.last = list
	if m.newest(e.resource) != e {
		m.mu.Unlock()
		return
	}
	changed := m.use(e)
	m.mu.Unlock()
	m.notifyOwners(changed)
}

// use makes a plugin's last list that of its resource; m.mu is held.
func (m *Manager) use(e *endpoint) (changed []types.UID) {
	if t := m.expiring[e.resource]; t != nil {
		t.Stop()
		delete(m.expiring, e.resource)
	}
	changed = m.plugins.Update(e.resource, e.last)
	m.saved()
	return changed
}

// saved writes the state and only logs an error: the next write stores what this one did not; m.mu is held.
func (m *Manager) saved() {
	if err := m.save(); err != nil {
		m.cfg.Logger.Error(err, "These devices are not in the state file yet: a restart of carob would lose their allocation")
	}
}

func (m *Manager) notifyOwners(pods []types.UID) {
	for _, uid := range pods {
		m.hooks.PodChanged(uid)
	}
	m.hooks.NodeChanged()
}

// disconnect removes a plugin. If no other plugin serves its resource, the devices stay listed as unhealthy for a while
// (S8.11).
func (m *Manager) disconnect(e *endpoint) {
	e.cancel()
	_ = e.conn.Close()
	m.mu.Lock()
	all := m.endpoints[e.resource]
	i := slices.Index(all, e)
	if i < 0 {
		m.mu.Unlock()
		return
	}
	m.endpoints[e.resource] = slices.Delete(all, i, i+1)
	var changed []types.UID
	if next := m.newest(e.resource); next != nil && next.last != nil {
		changed = m.use(next)
	} else if next == nil {
		m.plugins.Disconnected(e.resource)
		m.expire(e.resource)
	}
	m.mu.Unlock()
	m.notifyOwners(changed)
}

func (m *Manager) disconnectAll() {
	m.mu.Lock()
	var all []*endpoint
	for _, list := range m.endpoints {
		all = append(all, list...)
	}
	m.mu.Unlock()
	for _, e := range all {
		m.disconnect(e)
	}
}

// expire removes a resource if no plugin serves it in time; m.mu is held.
func (m *Manager) expire(resource string) {
	if t := m.expiring[resource]; t != nil {
		t.Stop()
	}
	m.expiring[resource] = time.AfterFunc(pluginReturn, func() {
		m.mu.Lock()
		m.plugins.Expire(resource)
		m.saved()
		m.mu.Unlock()
		m.notifyOwners(nil)
	})
}

// Allocate gives a pod the devices of plugins that its containers request (S8.20 to S8.23). The error names what the
// pod waits for; devices that were allocated stay allocated.
func (m *Manager) Allocate(ctx context.Context, pod *corev1.Pod) error {
	for {
		m.mu.Lock()
		request, err := m.plugins.Next(pod)
		var e *endpoint
		if request != nil {
			e = m.newest(request.Resource)
		}
		m.mu.Unlock()
		switch {
		case err != nil || request == nil:
			return err
		case e == nil:
			return fmt.Errorf("unknown Device Plugin %s", request.Resource)
		}
		if err := m.allocateOne(ctx, pod, request, e); err != nil {
			return err
		}
	}
}

func (m *Manager) newest(resource string) *endpoint {
	if all := m.endpoints[resource]; len(all) > 0 {
		return all[len(all)-1]
	}
	return nil
}

// allocateOne has a plugin allocate for one container. The devices are reserved for the container before the call.
func (m *Manager) allocateOne(ctx context.Context, pod *corev1.Pod, request *devices.Request, e *endpoint) error {
	near, aligned := m.cfg.Pinning.Near(pod.UID, request.Container)
	m.mu.Lock()
	if aligned {
		m.plugins.Align(request, near)
	}
	m.mu.Unlock()
	preferred, err := m.preferred(ctx, request, e)
	if err != nil {
		return err
	}
	m.mu.Lock()
	again, err := m.plugins.Next(pod) // other pods may have taken some during the call of the plugin
	if err != nil || again == nil || again.Container != request.Container || again.Resource != request.Resource {
		m.mu.Unlock()
		return err // if nil, the loop tries again
	}
	if aligned {
		m.plugins.Align(again, near)
	}
	chosen := again.Choose(preferred)
	m.plugins.Hold(pod.UID, again, chosen)
	m.mu.Unlock()
	began := time.Now()
	resp, err := e.client.Allocate(ctx, &pluginapi.AllocateRequest{
		ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: chosen}}})
	m.cfg.Meter.Allocated(request.Resource, time.Since(began))
	var response []byte
	switch {
	case err != nil:
		err = fmt.Errorf("device plugin %s: %s", request.Resource, status.Convert(err).Message())
	case len(resp.ContainerResponses) == 0:
		err = fmt.Errorf("no containers return in allocation response %v", resp)
	default:
		if _, err = answer(resp.ContainerResponses[0]); err == nil {
			response, err = proto.Marshal(resp.ContainerResponses[0])
		}
		if err != nil {
			err = fmt.Errorf("answer of device plugin %s: %w", request.Resource, err)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil {
		m.plugins.Drop(pod.UID, request.Container, request.Resource)
		return err
	}
	if response == nil {
		response = []byte{} // an empty response is valid, too
	}
	if !m.plugins.Assign(pod.UID, request.Container, request.Resource, response) {
		return errors.New("the pod ended while its devices were allocated")
	}
	return m.save()
}

// preferred calls a plugin for the devices that it prefers, if there is a choice (S8.22).
func (m *Manager) preferred(ctx context.Context, request *devices.Request, e *endpoint) ([]string, error) {
	if !e.options.GetGetPreferredAllocationAvailable() || len(request.Include)+len(request.Free) <= request.Count {
		return nil, nil
	}
	resp, err := e.client.GetPreferredAllocation(ctx, &pluginapi.PreferredAllocationRequest{
		ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{{
			AvailableDeviceIDs:   request.Candidates(),
			MustIncludeDeviceIDs: request.Include, AllocationSize: int32(min(request.Count, maxDevices))}}})
	if err != nil {
		return nil, fmt.Errorf("device plugin GetPreferredAllocation rpc failed with err: %w", err)
	}
	if len(resp.ContainerResponses) == 0 {
		return nil, nil
	}
	return resp.ContainerResponses[0].DeviceIDs, nil // Choose ignores those that are not free
}

// Options is what a container gets of its devices, before each start of it (S8.25, S8.26, S9.54).
func (m *Manager) Options(ctx context.Context, pod *corev1.Pod, c *corev1.Container) (*spec.Devices, error) {
	m.mu.Lock()
	mine := m.plugins.Of(pod.UID, c.Name)
	used := m.claims.Of(pod, c)
	for name, q := range c.Resources.Limits { // any order: one error is enough
		if m.plugins.Resources[string(name)] != nil && !q.IsZero() && !podclaims.ServedByClaim(pod, c.Name, name) &&
			!slices.ContainsFunc(mine, func(a devices.Assignment) bool { return a.Resource == string(name) }) {
			m.mu.Unlock()
			return nil, fmt.Errorf("no devices of %s are allocated for container %s", name, c.Name)
		}
	}
	m.mu.Unlock()
	if len(mine) == 0 && len(used) == 0 {
		return nil, nil
	}
	all := &spec.Devices{Annotations: map[string]string{}}
	for _, a := range mine {
		if err := m.preStart(ctx, a); err != nil {
			return nil, err
		}
		var r pluginapi.ContainerAllocateResponse
		if err := proto.Unmarshal(a.Response, &r); err != nil {
			return nil, fmt.Errorf("read what device plugin %s answered: %w", a.Resource, err)
		}
		one, err := answer(&r)
		if err != nil {
			return nil, fmt.Errorf("answer of device plugin %s: %w", a.Resource, err)
		}
		all.Add(one)
	}
	for _, u := range used {
		all.Add(&spec.Devices{CDI: u.CDI})
	}
	return all, nil
}

// preStart calls PreStartContainer of a plugin that requires it.
func (m *Manager) preStart(ctx context.Context, a devices.Assignment) error {
	m.mu.Lock()
	e, required := m.newest(a.Resource), m.preStarts[a.Resource]
	m.mu.Unlock()
	if e == nil && required {
		return fmt.Errorf("device plugin %s is not running: it must be called before each start of a container",
			a.Resource)
	}
	if e == nil || !e.options.GetPreStartRequired() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, preStartTimeout)
	defer cancel()
	_, err := e.client.PreStartContainer(ctx, &pluginapi.PreStartContainerRequest{DevicesIds: a.Devices})
	if err != nil {
		return fmt.Errorf("device plugin PreStartContainer rpc failed with err: %w", err)
	}
	return nil
}
