package devices

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	drahealthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"
	drahealthv1alpha1 "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
)

// Limits of the health of a driver's devices (S9.70).
const (
	healthRetry   = 5 * time.Second
	healthFor     = 30 * time.Second // how long a report about a device is valid, if the driver does not specify it
	maxHealth     = 16384            // devices of a driver
	maxHealthText = 1024             // bytes of a message; longer ones are cut
	maxHealthFor  = 24 * time.Hour
)

// driverHealth is what a driver reported about its devices.
type driverHealth struct {
	devices map[poolDevice]deviceHealth
	timer   *time.Timer // checks again when the first report expires
}

type poolDevice struct{ pool, device string }

type deviceHealth struct {
	state   corev1.ResourceHealthStatus
	message string
	until   time.Time
}

// healthClient is a client of the health service, of either version.
type healthClient interface {
	NodeWatchResources(ctx context.Context, in *drahealthv1.NodeWatchResourcesRequest,
		opts ...grpc.CallOption) (grpc.ServerStreamingClient[drahealthv1.NodeWatchResourcesResponse], error)
}

// followHealth follows the health of a driver's devices, until ctx ends or the driver does not
// report it.
func (m *Manager) followHealth(ctx context.Context, e *draPlugin, client healthClient) {
	for {
		err := m.streamHealth(ctx, e, client)
		if ctx.Err() != nil || status.Code(err) == codes.Unimplemented {
			return
		}
		m.cfg.Logger.V(2).Info("A driver does not report the health of its devices", "driver", e.driver, "err", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(healthRetry):
		}
	}
}

func (m *Manager) streamHealth(ctx context.Context, e *draPlugin, client healthClient) error {
	stream, err := client.NodeWatchResources(ctx, &drahealthv1.NodeWatchResourcesRequest{})
	if err != nil {
		return err
	}
	for {
		msg, err := stream.Recv()
		if err != nil {
			return err
		}
		if len(msg.Devices) > maxHealth {
			m.cfg.Logger.Info("A driver reports too many devices; their health is ignored", "driver", e.driver,
				"devices", len(msg.Devices), "most", maxHealth)
			continue
		}
		m.takeHealth(e.driver, msg.Devices, time.Now())
	}
}

// takeHealth stores everything that a driver reports about its devices.
func (m *Manager) takeHealth(driver string, list []*drahealthv1.DeviceHealth, now time.Time) {
	h := &driverHealth{devices: map[poolDevice]deviceHealth{}}
	for _, d := range list {
		key := poolDevice{d.GetDevice().GetPoolName(), d.GetDevice().GetDeviceName()}
		if text("pool", key.pool) != nil || text("device", key.device) != nil {
			continue
		}
		lasts := time.Duration(min(max(d.HealthCheckTimeoutSeconds, 0), int64(maxHealthFor/time.Second))) * time.Second
		if lasts == 0 {
			lasts = healthFor
		}
		one := deviceHealth{state: corev1.ResourceHealthStatusUnknown, message: cut(d.Message), until: now.Add(lasts)}
		switch d.Health {
		case drahealthv1.HealthStatus_HEALTHY:
			one.state = corev1.ResourceHealthStatusHealthy
		case drahealthv1.HealthStatus_UNHEALTHY:
			one.state = corev1.ResourceHealthStatusUnhealthy
		}
		h.devices[key] = one
	}
	m.mu.Lock()
	if old := m.health[driver]; old != nil && old.timer != nil {
		old.timer.Stop()
	}
	m.health[driver] = h
	users := m.usersOf(driver)
	m.lookAgain(driver, h, now)
	m.mu.Unlock()
	for _, uid := range users {
		m.hooks.PodChanged(uid)
	}
}

// cut shortens a message, and drops bytes that are not text.
func cut(s string) string {
	out := []rune{}
	n := 0
	for _, r := range s {
		if r == 0xfffd || r < ' ' && r != '\n' && r != '\t' {
			continue
		}
		n += len(string(r))
		out = append(out, r)
		if n > maxHealthText {
			break
		}
	}
	if n <= maxHealthText {
		return string(out)
	}
	for n > maxHealthText-3 {
		n -= len(string(out[len(out)-1]))
		out = out[:len(out)-1]
	}
	return string(out) + "..."
}

// lookAgain has the pods of a driver checked again when a report about a device expires; m.mu is held.
func (m *Manager) lookAgain(driver string, h *driverHealth, now time.Time) {
	var first time.Time
	for _, d := range h.devices { // any order: the earliest
		if d.until.After(now) && (first.IsZero() || d.until.Before(first)) {
			first = d.until
		}
	}
	if first.IsZero() {
		return
	}
	h.timer = time.AfterFunc(first.Sub(now), func() {
		m.mu.Lock()
		if m.health[driver] != h {
			m.mu.Unlock()
			return
		}
		users := m.usersOf(driver)
		m.lookAgain(driver, h, time.Now())
		m.mu.Unlock()
		for _, uid := range users {
			m.hooks.PodChanged(uid)
		}
	})
}

// usersOf are the pods with devices of a driver; m.mu is held.
func (m *Manager) usersOf(driver string) []types.UID {
	var users []types.UID
	for _, c := range m.claims { // in any order: pods are independent
		if _, ok := c.Drivers[driver]; ok {
			users = append(users, c.Pods...)
		}
	}
	return users
}

// claimHealth is the health of the devices of claims that a container uses; m.mu is held. Names within an entry are
// unique, as the API server requires: of several devices with the same CDI name, one that is unhealthy counts.
func (m *Manager) claimHealth(pod *corev1.Pod, c *corev1.Container) []corev1.ResourceStatus {
	var list []corev1.ResourceStatus
	now := time.Now()
	for _, u := range m.claims.Of(pod, c) {
		h := m.health[u.Driver]
		if h == nil || u.PodClaim == "" {
			continue // no driver reports it
		}
		name := corev1.ResourceName("claim:" + u.PodClaim)
		if u.Request != "" {
			name += corev1.ResourceName("/" + u.Request)
		}
		one := corev1.ResourceHealth{ResourceID: corev1.ResourceID(u.Driver + "/" + u.Pool + "/" + u.Device),
			Health: corev1.ResourceHealthStatusUnknown}
		if len(u.CDI) > 0 {
			one.ResourceID = corev1.ResourceID(u.CDI[0])
		}
		if d, known := h.devices[poolDevice{u.Pool, u.Device}]; known && now.Before(d.until) {
			one.Health = d.state
			if d.message != "" {
				one.Message = &d.message
			}
		}
		if n := len(list); n == 0 || list[n-1].Name != name {
			list = append(list, corev1.ResourceStatus{Name: name})
		}
		known := list[len(list)-1].Resources
		i := slices.IndexFunc(known, func(o corev1.ResourceHealth) bool { return o.ResourceID == one.ResourceID })
		switch {
		case i < 0:
			list[len(list)-1].Resources = append(known, one)
		case one.Health == corev1.ResourceHealthStatusUnhealthy && known[i].Health != one.Health:
			known[i] = one
		}
	}
	return list
}

// alphaHealth converts the first version of the service to the present one.
type alphaHealth struct {
	client drahealthv1alpha1.DRAResourceHealthClient
}

// NodeWatchResources implements healthClient.
func (a alphaHealth) NodeWatchResources(ctx context.Context, _ *drahealthv1.NodeWatchResourcesRequest,
	opts ...grpc.CallOption) (grpc.ServerStreamingClient[drahealthv1.NodeWatchResourcesResponse], error) {
	stream, err := a.client.NodeWatchResources(ctx, &drahealthv1alpha1.NodeWatchResourcesRequest{}, opts...)
	if err != nil {
		return nil, err
	}
	return alphaStream{stream, stream}, nil
}

type alphaStream struct {
	grpc.ClientStream
	from grpc.ServerStreamingClient[drahealthv1alpha1.NodeWatchResourcesResponse]
}

// Recv implements grpc.ServerStreamingClient.
func (s alphaStream) Recv() (*drahealthv1.NodeWatchResourcesResponse, error) {
	msg, err := s.from.Recv()
	if err != nil {
		return nil, err
	}
	out := &drahealthv1.NodeWatchResourcesResponse{}
	for _, d := range msg.Devices {
		out.Devices = append(out.Devices, &drahealthv1.DeviceHealth{
			Device: &drahealthv1.DeviceIdentifier{PoolName: d.GetDevice().GetPoolName(),
				DeviceName: d.GetDevice().GetDeviceName()},
			Health: drahealthv1.HealthStatus(d.Health), LastUpdatedTime: d.LastUpdatedTime,
			HealthCheckTimeoutSeconds: d.HealthCheckTimeoutSeconds, Message: d.GetMessage()})
	}
	return out, nil
}
