package devices

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
)

// Meter counts what is done, for the metrics of S8.65, S9.80 and S12.94. It is called without
// locks.
type Meter interface {
	// Registered: a device plugin of a resource requested to register. The name is valid.
	Registered(resource string)
	// Allocated: a device plugin responded to Allocate, or failed to.
	Allocated(resource string, took time.Duration)
	// DriverCalled: a call of a driver of claims ended; method is the full name of gRPC, code that of its status.
	DriverCalled(driver, method, code string, took time.Duration)
	// ClaimsHandled: the claims of a pod were prepared or undone; operation is PrepareResources or UnprepareResources.
	ClaimsHandled(operation string, err error, took time.Duration)
	// PodResourcesServed: the pod resources API served a request; method is List, Get, or GetAllocatableResources.
	PodResourcesServed(method string, err error)
}

type noMeter struct{}

func (noMeter) Registered(string)                                  {}
func (noMeter) Allocated(string, time.Duration)                    {}
func (noMeter) DriverCalled(string, string, string, time.Duration) {}
func (noMeter) ClaimsHandled(string, error, time.Duration)         {}
func (noMeter) PodResourcesServed(string, error)                   {}

// timed reports each call of a driver to the meter.
func (m *Manager) timed(driver string) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, call grpc.UnaryInvoker,
		opts ...grpc.CallOption) error {
		began := time.Now()
		err := call(ctx, method, req, reply, conn, opts...)
		m.cfg.Meter.DriverCalled(driver, method, status.Code(err).String(), time.Since(began))
		return err
	}
}

// ClaimsInUse counts the claims that are prepared: by the drivers that prepared them, and all together, because one may
// belong to several drivers.
func (m *Manager) ClaimsInUse() (byDriver map[string]int, all int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	byDriver = map[string]int{}
	for _, c := range m.claims {
		if !c.Answered() {
			continue
		}
		all++
		for driver := range c.Drivers {
			byDriver[driver]++
		}
	}
	return byDriver, all
}
