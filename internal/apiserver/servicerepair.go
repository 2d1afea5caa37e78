package apiserver

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"

	"carob/internal/base/partiallist"
	"carob/internal/kinds/registry"
	"carob/internal/kinds/services"
)

// repairEvery is upstream's period, too.
const repairEvery = 3 * time.Minute

// repair corrects the records of service addresses and ports from time to time, until ctx ends, and
// creates the config map about tokens again if it was deleted. Its findings, and those of
// the start, are reported as events.
func (s *Server) repair(ctx context.Context) {
	ctx = asServer(ctx)
	found := s.found
	if c := s.strangeRange.Load(); c != nil {
		found = append(found, services.Finding{About: c, Reporter: services.RangeReporter,
			Reason: "KubernetesDefaultServiceCIDRInconsistent", Action: "ServiceCIDRSync",
			Message: fmt.Sprintf("The default ServiceCIDR %v does not match the controller flag configurations %v",
				c.Spec.CIDRs, s.allocator.Range().Spec.CIDRs)})
	}
	var reporters map[string]events.EventRecorder // created for the first finding
	for {
		if len(found) > 0 && reporters == nil {
			reporters = s.reporters(ctx, services.AddressReporter, services.PortReporter, services.RangeReporter)
		}
		for _, f := range found {
			klog.FromContext(ctx).Info("Repairing services", "reason", f.Reason, "finding", f.Message)
			reporters[f.Reporter].Eventf(f.About, nil, corev1.EventTypeWarning, f.Reason, f.Action, "%s", f.Message)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(repairEvery):
		}
		var err error
		stored := s.stores[servicesResource]
		if found, err = s.allocator.Repair(ctx, stored, readServices(stored)); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Repairing the addresses of services failed; trying again", "wait",
				repairEvery)
		}
		if err := s.trackTokens(ctx, time.Now()); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Cannot store the date from which the use of tokens is tracked; trying again",
				"wait", repairEvery)
		}
	}
}

// readServices lists services, also if some of them cannot be read.
func readServices(s *registry.Store) services.Reader {
	return func(ctx context.Context) (runtime.Object, []types.NamespacedName, error) {
		return partiallist.List(ctx, func(ctx context.Context) (runtime.Object, error) {
			return s.List(ctx, &internalversion.ListOptions{})
		})
	}
}

// reporters are event recorders by the names of their components; they end with ctx.
func (s *Server) reporters(ctx context.Context, names ...string) map[string]events.EventRecorder {
	client, err := kubernetes.NewForConfig(s.serverClient())
	if err != nil {
		panic(fmt.Sprintf("a client of our own: %v", err)) // it has no options that could be invalid
	}
	out := map[string]events.EventRecorder{}
	for _, name := range names {
		b := events.NewBroadcaster(&events.EventSinkImpl{Interface: client.EventsV1()})
		if err := b.StartRecordingToSinkWithContext(ctx); err != nil {
			klog.FromContext(ctx).Error(err, "Recording events failed", "reporter", name)
		}
		context.AfterFunc(ctx, b.Shutdown)
		out[name] = b.NewRecorder(s.set.Scheme, name)
	}
	return out
}
