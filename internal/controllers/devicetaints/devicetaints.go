// Package devicetaints deletes pods that use a device with a NoExecute taint that their claim does not tolerate,
// at once or when the tolerationSeconds are over, and keeps the status of DeviceTaintRules. core/devicetaints
// decides; the controller manager runs it. It must never change a claim or a slice.
//
// It starts with the first ResourceSlice or DeviceTaintRule: a cluster without any has no cost.
//
// Contract: S9.62 and S9.63 in docs/spec/storage-and-node.md.
package devicetaints

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"

	"carob/internal/controllers/inventory"
	"carob/internal/controllers/reconciler"
	"carob/internal/controllers/source"
	"carob/internal/core/devicetaints"
)

// Name is the controller's name in events and as the manager of the fields that it writes.
const Name = "device-taint-eviction-controller"

// Watches are what the controller reads.
type Watches struct {
	Pods          *source.Watch // run by the caller
	Claims        *source.Watch // run by the controller, and perhaps by others
	Slices, Rules *source.Watch // run by the controller
}

// Controller evicts pods. Its key is pod/NAMESPACE/NAME or rule/NAME.
type Controller struct {
	loop   *reconciler.Reconciler
	client kubernetes.Interface
	events record.EventRecorder
	in     Watches
	first  *reconciler.First // slice or rule

	mu      sync.Mutex
	working bool // all watches have delivered their first lists
	index   *devicetaints.Index
	marked  map[string]mark // by namespace/name, pods that will be or were evicted
	rules   map[types.UID]*ruleState
}

// mark is an eviction that is scheduled, or done.
type mark struct {
	pod   types.UID
	rules []*resourcev1.DeviceTaintRule // the reasons
	done  bool                          // the pod was deleted, even if the watch does not show it yet
}

// ruleState is the controller's state of a rule in addition to the object.
type ruleState struct {
	evicted int               // pods, since the process began
	written *metav1.Condition // last
}

// Readers notifies the controller of the first slice or rule; an inventory implements it.
type Readers interface{ AddReader(r inventory.Reader) }

// New returns a controller.
func New(client kubernetes.Interface, events record.EventRecorder, readers Readers, in Watches) (*Controller, error) {
	c := &Controller{client: client, events: events, in: in, first: reconciler.NewFirst(),
		index: devicetaints.NewIndex(), marked: map[string]mark{}, rules: map[types.UID]*ruleState{}}
	c.loop = reconciler.New(Name, 8, c.reconcile)
	readers.AddReader(inventory.Notify(c.first.Seen, resourcev1.Resource("resourceslices"),
		resourcev1.Resource("devicetaintrules")))
	for _, err := range []error{
		in.Pods.OnChange(c.podChanged), in.Claims.OnChange(c.claimChanged),
		in.Slices.OnChange(c.sliceChanged), in.Rules.OnChange(c.ruleChanged),
	} {
		if err != nil {
			return nil, fmt.Errorf("devicetaints: %w", err)
		}
	}
	return c, nil
}

// Run waits for the first slice or rule, then watches and works until ctx ends.
func (c *Controller) Run(ctx context.Context) {
	c.first.Run(ctx, []reconciler.Watched{c.in.Claims, c.in.Slices, c.in.Rules}, nil, func(ctx context.Context) {
		c.begin()
		c.loop.Run(ctx)
	})
}

// begin processes all objects once. Later changes are processed individually.
func (c *Controller) begin() {
	c.mu.Lock()
	c.working = true
	c.mu.Unlock()
	for _, obj := range c.in.Rules.Objects().List() {
		if r, ok := obj.(*resourcev1.DeviceTaintRule); ok {
			c.loop.Add("rule/" + r.Name)
		}
	}
	for _, claim := range c.claims() {
		c.addPodsOf(claim)
	}
}

// idle reports whether changes of pods or claims can be ignored: no device has a taint, and no eviction waits.
func (c *Controller) idle() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.working || c.index.Empty() && len(c.marked) == 0
}

// podChanged processes a pod that is added, removed, bound, gets other claims, or is being deleted.
func (c *Controller) podChanged(before, after metav1.Object) {
	b, _ := before.(*corev1.Pod)
	a, _ := after.(*corev1.Pod)
	pod := a
	if pod == nil {
		pod = b
	}
	if pod == nil || len(pod.Spec.ResourceClaims) == 0 || c.idle() {
		return
	}
	if a != nil && b != nil && a.Spec.NodeName == b.Spec.NodeName &&
		(a.DeletionTimestamp == nil) == (b.DeletionTimestamp == nil) && sameClaims(a, b) {
		return
	}
	c.loop.Add("pod/" + pod.Namespace + "/" + pod.Name)
}

func sameClaims(a, b *corev1.Pod) bool {
	return slices.EqualFunc(a.Status.ResourceClaimStatuses, b.Status.ResourceClaimStatuses,
		func(x, y corev1.PodResourceClaimStatus) bool {
			return x.Name == y.Name && (x.ResourceClaimName == nil) == (y.ResourceClaimName == nil) &&
				(x.ResourceClaimName == nil || *x.ResourceClaimName == *y.ResourceClaimName)
		})
}

func (c *Controller) claimChanged(before, after metav1.Object) {
	if c.idle() {
		return
	}
	for _, o := range []metav1.Object{before, after} {
		if claim, ok := o.(*resourcev1.ResourceClaim); ok {
			c.addPodsOf(claim)
		}
	}
}

// addPodsOf queues the pods that have reserved a claim.
func (c *Controller) addPodsOf(claim *resourcev1.ResourceClaim) {
	for _, user := range claim.Status.ReservedFor {
		if user.APIGroup == "" && user.Resource == "pods" {
			c.loop.Add("pod/" + claim.Namespace + "/" + user.Name)
		}
	}
}

func (c *Controller) claims() []*resourcev1.ResourceClaim {
	var out []*resourcev1.ResourceClaim
	for _, obj := range c.in.Claims.Objects().List() {
		if claim, ok := obj.(*resourcev1.ResourceClaim); ok {
			out = append(out, claim)
		}
	}
	return out
}

// addPodsOn queues the pods of all claims that have one of some devices.
func (c *Controller) addPodsOn(one func(d devicetaints.Device) bool) {
	for _, claim := range c.claims() {
		if claim.Status.Allocation != nil && slices.ContainsFunc(claim.Status.Allocation.Devices.Results,
			func(r resourcev1.DeviceRequestAllocationResult) bool {
				return one(devicetaints.Device{Driver: r.Driver, Pool: r.Pool, Name: r.Device})
			}) {
			c.addPodsOf(claim)
		}
	}
}

func (c *Controller) sliceChanged(before, after metav1.Object) {
	b, _ := before.(*resourcev1.ResourceSlice)
	a, _ := after.(*resourcev1.ResourceSlice)
	c.mu.Lock()
	changed, working := c.index.SetSlice(b, a), c.working
	c.mu.Unlock()
	if len(changed) == 0 || !working {
		return
	}
	set := make(map[devicetaints.Device]bool, len(changed))
	for _, d := range changed {
		set[d] = true
	}
	c.addPodsOn(func(d devicetaints.Device) bool { return set[d] })
}

// ruleChanged writes the status of a new rule before its pods are checked.
func (c *Controller) ruleChanged(before, after metav1.Object) {
	b, _ := before.(*resourcev1.DeviceTaintRule)
	a, _ := after.(*resourcev1.DeviceTaintRule)
	if a != nil && b != nil && a.Generation == b.Generation && devicetaints.SameTaint(a, b) {
		return // its status
	}
	c.mu.Lock()
	switch {
	case a != nil:
		c.index.SetRule(a)
		if c.rules[a.UID] == nil {
			c.rules[a.UID] = &ruleState{}
		}
	case b != nil:
		c.index.RemoveRule(b.Name)
		delete(c.rules, b.UID)
	}
	working := c.working
	c.mu.Unlock()
	if !working {
		return
	}
	if a != nil {
		c.loop.Add("rule/" + a.Name)
	}
	c.addPodsOn(func(d devicetaints.Device) bool {
		return b != nil && devicetaints.Selects(b, d) || a != nil && devicetaints.Selects(a, d)
	})
}

func (c *Controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	kind, name, _ := strings.Cut(key, "/")
	if kind == "rule" {
		return c.describe(ctx, name)
	}
	return c.look(ctx, name)
}
