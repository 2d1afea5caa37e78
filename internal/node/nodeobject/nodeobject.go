// Package nodeobject keeps the Node object and the node's lease in the API server up
// to date: registration, conditions, capacity, images. The agent drives it and provides the node's state through
// callbacks; the package decides nothing about pods and never changes fields that other writers own.
//
// Contract: docs/spec/pod-lifecycle.md.
package nodeobject

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"carob/internal/base/backoff"
	"carob/internal/core/eviction"
	"carob/internal/core/resources"
)

// Config describes the node.
type Config struct {
	Client  kubernetes.Interface // nil: there is no API server, and the object is for this process only (S14.5)
	Name    string
	Labels  map[string]string   // in addition to the node's own
	HostIPs func() []netip.Addr // the machine's, as they are now
	Machine Machine
	Version string // of the node agent, as Kubernetes versions look
	Runtime string // NAME://VERSION
	// PodCIDRs are used when the object has none.
	PodCIDRs []string
	MaxPods  int
	Port     int // of the agent's HTTPS server; 0: none

	// ProviderID and Taints are written when the object is created (S11.74, S11.82).
	ProviderID string
	Taints     []corev1.Taint
	// How long the lease is valid, in seconds, after how long an unchanged status is written again, and how many
	// images it names, -1 for all; zero: 40, 5 minutes, 50 (S11.40–S11.42).
	LeaseSeconds int
	ReportPeriod time.Duration
	MaxImages    int

	// Devices are capacity and allocatable quantity of extended resources that the agent has; nil: none.
	Devices func() (capacity, allocatable corev1.ResourceList)

	// InUse returns the volumes that must not be detached from the node, given the list in its object; nil: none.
	InUse func(stored []corev1.UniqueVolumeName) []corev1.UniqueVolumeName

	Known    *Known // the newest version from the API server, for readers
	Features func() (*corev1.NodeFeatures, []corev1.NodeRuntimeHandler)
	Event    func(eventType, reason, message string)
}

// Sources provide the state of the node. Only Run calls them.
type Sources struct {
	// Pressures measures memory, disk and processes, and returns which are short. It is called
	// for every status.
	Pressures func(ctx context.Context, now time.Time) []eviction.Pressure
	// Problems returns why the node is not ready; empty: it is ready. It is cheap.
	Problems func(ctx context.Context) []string
	Images   func(ctx context.Context) []corev1.ContainerImage
}

// Known is the Node object as it was last read. The zero value has none.
type Known struct{ node atomic.Pointer[corev1.Node] }

// Node is the object as last seen; nil before it is registered.
func (k *Known) Node() *corev1.Node { return k.node.Load() }

// UID is the UID of the object; empty before it is registered.
func (k *Known) UID() types.UID {
	if n := k.node.Load(); n != nil {
		return n.UID
	}
	return ""
}

const (
	leaseSeconds   = 40 // L0.44
	reportPeriod   = 5 * time.Minute
	retryPeriod    = time.Second
	lookPeriod     = 10 * time.Second // L7.147
	callTimeout    = 10 * time.Second // as the kubelet's: the next look does not wait longer for the API server
	mostRetry      = 7 * time.Second  // as the kubelet's
	logPeriod      = time.Minute      // of a failure that lasts
	imagesReported = 50
	leaseNamespace = "kube-node-lease"
)

// Reporter writes the object. Run owns everything but the poke and what is known.
type Reporter struct {
	cfg     Config
	sources Sources       // of Run
	poke    chan struct{} // capacity 1
	images  atomic.Bool   // changed since the last report

	stored, ready         chan struct{}
	storedOnce, readyOnce sync.Once

	cordoned       atomic.Bool // as in the last event
	untaintRefused bool
	lease          *coordinationv1.Lease // as stored; nil: unknown
	reported       time.Time             // last status written
	failures       int                   // consecutive
	logged         time.Time             // last failure that was logged
}

// New returns a Reporter; nothing is written before Run.
func New(cfg Config) *Reporter {
	cfg.LeaseSeconds = cmp.Or(cfg.LeaseSeconds, leaseSeconds)
	cfg.ReportPeriod = cmp.Or(cfg.ReportPeriod, reportPeriod)
	cfg.MaxImages = cmp.Or(cfg.MaxImages, imagesReported)
	return &Reporter{cfg: cfg, poke: make(chan struct{}, 1), stored: make(chan struct{}), ready: make(chan struct{})}
}

// Registered is closed when the object is stored in the API server, and Node returns it.
func (r *Reporter) Registered() <-chan struct{} { return r.stored }

// Ready is closed when the object was stored with Ready true for the first time.
func (r *Reporter) Ready() <-chan struct{} { return r.ready }

// Node is the object as last seen, or as it would be registered now, without conditions
// and images.
func (r *Reporter) Node() *corev1.Node {
	if n := r.cfg.Known.Node(); n != nil {
		return n
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: r.cfg.Name, Labels: r.labels()},
		Spec: corev1.NodeSpec{ProviderID: r.cfg.ProviderID, Taints: r.cfg.Taints}}
	r.describe(node)
	return node
}

// Seen gets a newer version of the object, from a watch.
func (r *Reporter) Seen(node *corev1.Node) {
	r.cfg.Known.node.Store(node)
	r.recordCordoned(node)
}

// Wake causes a check of the status now.
func (r *Reporter) Wake() {
	select {
	case r.poke <- struct{}{}:
	default:
	}
}

// ImagesChanged makes the next regular check report the images again.
func (r *Reporter) ImagesChanged() { r.images.Store(true) }

// Run registers the node and keeps object and lease current until ctx ends.
//
//	registering ──stored──▶ reporting: every 10 s a look, the lease when it is due, status when it changed or is old
func (r *Reporter) Run(ctx context.Context, sources Sources) {
	r.sources = sources
	log := klog.FromContext(ctx)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-r.poke:
		}
		next := min(r.renewPeriod(), lookPeriod) // pods are evicted after a look, however long the lease is valid
		ready, err := r.report(ctx)
		if err == nil {
			err = r.renew(ctx)
		}
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			next = r.failed(log, err)
		case !ready:
			r.works(log)
			next = retryPeriod
		default:
			r.works(log)
			r.readyOnce.Do(func() { close(r.ready) })
		}
		timer.Reset(next)
	}
}

// failed logs a failure, a lasting one seldom, and returns when to try again: later after each failure.
func (r *Reporter) failed(log klog.Logger, err error) time.Duration {
	r.failures++
	if now := time.Now(); r.failures == 1 || now.Sub(r.logged) >= logPeriod {
		r.logged = now
		log.Info("Reporting the node failed", "err", err, "failures", r.failures)
	}
	return backoff.Exponential{Initial: retryPeriod, Max: min(mostRetry, r.renewPeriod())}.Delay(r.failures)
}

// works logs the end of failures.
func (r *Reporter) works(log klog.Logger) {
	if r.failures > 0 {
		log.Info("Reporting the node works again", "failures", r.failures)
	}
	r.failures = 0
}

// report writes the object if necessary; it reports whether the node is ready.
func (r *Reporter) report(ctx context.Context) (bool, error) {
	now := time.Now()
	if r.cfg.Client == nil {
		return r.look(ctx, now), nil
	}
	old := r.cfg.Known.node.Load()
	if old == nil {
		created, err := r.register(ctx, now)
		if err != nil {
			return false, err
		}
		old = created
		r.storedOnce.Do(func() { close(r.stored) })
	}
	problems := r.sources.Problems(ctx)
	ready := len(problems) == 0
	conditions := r.conditions(ctx, problems, now)
	if !r.due(old, conditions, now) {
		return ready, r.untaint(ctx, ready)
	}
	for range 3 {
		node := old.DeepCopy()
		r.images.Store(false)
		r.fill(ctx, node, conditions, now)
		stored, err := timed(ctx, func(ctx context.Context) (*corev1.Node, error) {
			return r.cfg.Client.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{})
		})
		if apierrors.IsConflict(err) {
			if old, err = r.read(ctx); err == nil {
				continue
			}
		}
		if apierrors.IsNotFound(err) { // it was deleted: register again
			r.cfg.Known.node.Store(nil)
			r.lease = nil
		}
		if err != nil {
			r.images.Store(true)
			return false, fmt.Errorf("write the status of node %s: %w", r.cfg.Name, err)
		}
		r.recordConditions(old, stored)
		r.cfg.Known.node.Store(stored)
		r.reported = now
		return ready, r.untaint(ctx, ready)
	}
	return false, fmt.Errorf("write the status of node %s: others keep changing the object", r.cfg.Name)
}

// look updates the object for this process only, and reports whether the node is ready.
func (r *Reporter) look(ctx context.Context, now time.Time) bool {
	problems := r.sources.Problems(ctx)
	node, old := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: r.cfg.Name, Labels: r.labels()},
		Spec: corev1.NodeSpec{ProviderID: r.cfg.ProviderID, Taints: r.cfg.Taints}}, r.cfg.Known.node.Load()
	if old == nil {
		old = &corev1.Node{}
	}
	node.Status.Conditions = slices.Clone(old.Status.Conditions)
	r.describe(node)
	for _, c := range r.conditions(ctx, problems, now) {
		setCondition(node, c, now)
	}
	r.recordConditions(old, node)
	r.cfg.Known.node.Store(node)
	r.storedOnce.Do(func() { close(r.stored) })
	return len(problems) == 0
}

// register creates the object, or adopts the existing one.
func (r *Reporter) register(ctx context.Context, now time.Time) (*corev1.Node, error) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: r.cfg.Name, Labels: r.labels()}}
	if len(r.cfg.PodCIDRs) > 0 {
		node.Spec.PodCIDR, node.Spec.PodCIDRs = r.cfg.PodCIDRs[0], r.cfg.PodCIDRs
	}
	r.fill(ctx, node, r.conditions(ctx, r.sources.Problems(ctx), now), now)
	stored, err := timed(ctx, func(ctx context.Context) (*corev1.Node, error) {
		return r.cfg.Client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	})
	if err == nil {
		r.recordConditions(&corev1.Node{}, stored)
		r.reported = now
		r.cfg.Known.node.Store(stored)
		return stored, nil
	}
	if !apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("register node %s: %w", r.cfg.Name, err)
	}
	if stored, err = r.read(ctx); err != nil {
		return nil, fmt.Errorf("read node %s: %w", r.cfg.Name, err)
	}
	if boot := stored.Status.NodeInfo.BootID; boot != "" && boot != r.cfg.Machine.Info.BootID { // L7.80
		r.cfg.Event(corev1.EventTypeWarning, "Rebooted",
			fmt.Sprintf("Node %s has been rebooted, boot id: %s", r.cfg.Name, r.cfg.Machine.Info.BootID))
	}
	wanted := stored.DeepCopy()
	if wanted.Labels == nil {
		wanted.Labels = map[string]string{}
	}
	maps.Copy(wanted.Labels, r.labels())
	if wanted.Spec.PodCIDR == "" && len(r.cfg.PodCIDRs) > 0 {
		wanted.Spec.PodCIDR, wanted.Spec.PodCIDRs = r.cfg.PodCIDRs[0], r.cfg.PodCIDRs
	}
	r.recordCordoned(stored)
	if !equality.Semantic.DeepEqual(stored, wanted) {
		if stored, err = r.update(ctx, wanted); err != nil {
			return nil, fmt.Errorf("update the labels of node %s: %w", r.cfg.Name, err)
		}
	}
	r.cfg.Known.node.Store(stored)
	return stored, nil
}

func (r *Reporter) labels() map[string]string {
	l := map[string]string{
		corev1.LabelHostname:      r.cfg.Name,
		corev1.LabelOSStable:      goruntime.GOOS,
		corev1.LabelArchStable:    goruntime.GOARCH,
		"beta.kubernetes.io/os":   goruntime.GOOS,
		"beta.kubernetes.io/arch": goruntime.GOARCH,
	}
	maps.Copy(l, r.cfg.Labels)
	return l
}

// conditions are the current conditions of the node.
func (r *Reporter) conditions(ctx context.Context, problems []string, now time.Time) []corev1.NodeCondition {
	return append(pressureConditions(r.sources.Pressures(ctx, now)), readyCondition(problems))
}

// due reports whether the status must be written now.
func (r *Reporter) due(node *corev1.Node, conditions []corev1.NodeCondition, now time.Time) bool {
	if now.Sub(r.reported) >= r.cfg.ReportPeriod || r.images.Load() ||
		!slices.Equal(node.Status.Addresses, r.addresses()) {
		return true
	}
	capacity, allocatable := r.quantities(node)
	if !sameQuantities(node.Status.Capacity, capacity) || !sameQuantities(node.Status.Allocatable, allocatable) {
		return true
	}
	if !slices.Equal(node.Status.VolumesInUse, r.inUse(node)) {
		return true
	}
	if features, handlers := r.cfg.Features(); !equality.Semantic.DeepEqual(node.Status.Features, features) ||
		!equality.Semantic.DeepEqual(node.Status.RuntimeHandlers, handlers) {
		return true
	}
	for i := range conditions {
		have := condition(node, conditions[i].Type)
		if have == nil || have.Status != conditions[i].Status || have.Message != conditions[i].Message {
			return true
		}
	}
	return false
}

// sameQuantities reports whether two lists have the same resources in the same quantities.
func sameQuantities(a, b corev1.ResourceList) bool {
	return maps.EqualFunc(a, b, func(a, b resource.Quantity) bool { return a.Cmp(b) == 0 })
}

// fill sets everything of the status that the agent owns.
func (r *Reporter) fill(ctx context.Context, node *corev1.Node, conditions []corev1.NodeCondition, now time.Time) {
	r.describe(node)
	s := &node.Status
	s.VolumesInUse = r.inUse(node)
	s.Images = r.sources.Images(ctx)
	if most := r.cfg.MaxImages; most >= 0 && len(s.Images) > most {
		s.Images = s.Images[:most]
	}
	for _, c := range conditions {
		setCondition(node, c, now)
	}
}

// describe sets what the machine and the agent are.
func (r *Reporter) describe(node *corev1.Node) {
	s := &node.Status
	s.Capacity, s.Allocatable = r.quantities(node)
	s.NodeInfo = r.cfg.Machine.Info
	s.NodeInfo.KubeletVersion = r.cfg.Version
	s.NodeInfo.ContainerRuntimeVersion = r.cfg.Runtime
	s.DaemonEndpoints.KubeletEndpoint.Port = int32(r.cfg.Port)
	s.Addresses = r.addresses()
	s.Features, s.RuntimeHandlers = r.cfg.Features()
	s.DeclaredFeatures = declaredFeatures()
}

// quantities are the resources of the node: those of the machine and of devices, and the extended resources that
// others advertise in the object's capacity, all of which can be allocated.
func (r *Reporter) quantities(node *corev1.Node) (capacity, allocatable corev1.ResourceList) {
	capacity, allocatable = r.cfg.Machine.Capacity.DeepCopy(), r.cfg.Machine.Allocatable()
	for name, q := range node.Status.Capacity { // any order: they are independent
		if resources.IsExtended(name) {
			capacity[name], allocatable[name] = q, q
		}
	}
	deviceCapacity, deviceAllocatable := r.devices()
	maps.Copy(capacity, deviceCapacity)
	maps.Copy(allocatable, deviceAllocatable)
	pods := *resource.NewQuantity(int64(r.cfg.MaxPods), resource.DecimalSI)
	capacity[corev1.ResourcePods], allocatable[corev1.ResourcePods] = pods, pods
	return capacity, allocatable
}

func (r *Reporter) devices() (capacity, allocatable corev1.ResourceList) {
	if r.cfg.Devices == nil {
		return nil, nil
	}
	return r.cfg.Devices()
}

func (r *Reporter) inUse(node *corev1.Node) []corev1.UniqueVolumeName {
	if r.cfg.InUse == nil {
		return node.Status.VolumesInUse
	}
	return r.cfg.InUse(node.Status.VolumesInUse)
}

// addresses are the machine's addresses and its name.
func (r *Reporter) addresses() []corev1.NodeAddress {
	var list []corev1.NodeAddress
	for _, ip := range r.cfg.HostIPs() {
		list = append(list, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip.String()})
	}
	return append(list, corev1.NodeAddress{Type: corev1.NodeHostName, Address: r.cfg.Name})
}

// readyCondition is the agent's own verdict (L7.164a).
func readyCondition(problems []string) corev1.NodeCondition {
	c := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady",
		Message: "kubelet is posting ready status"}
	switch len(problems) {
	case 0:
	case 1:
		c.Status, c.Reason, c.Message = corev1.ConditionFalse, "KubeletNotReady", problems[0]
	default:
		c.Status, c.Reason, c.Message = corev1.ConditionFalse, "KubeletNotReady", "["+strings.Join(problems, ", ")+"]"
	}
	return c
}

func condition(node *corev1.Node, kind corev1.NodeConditionType) *corev1.NodeCondition {
	for i := range node.Status.Conditions {
		if node.Status.Conditions[i].Type == kind {
			return &node.Status.Conditions[i]
		}
	}
	return nil
}

func setCondition(node *corev1.Node, c corev1.NodeCondition, now time.Time) {
	c.LastHeartbeatTime = metav1.NewTime(now)
	c.LastTransitionTime = c.LastHeartbeatTime
	old := condition(node, c.Type)
	if old == nil {
		node.Status.Conditions = append(node.Status.Conditions, c)
		return
	}
	if old.Status == c.Status {
		c.LastTransitionTime = old.LastTransitionTime
	}
	*old = c
}

// recordCordoned records that the node became schedulable or unschedulable (L10.71).
func (r *Reporter) recordCordoned(node *corev1.Node) {
	if r.cordoned.Swap(node.Spec.Unschedulable) == node.Spec.Unschedulable {
		return
	}
	reason := "NodeSchedulable"
	if node.Spec.Unschedulable {
		reason = "NodeNotSchedulable"
	}
	r.recordStatus(reason)
}

func (r *Reporter) recordStatus(reason string) {
	r.cfg.Event(corev1.EventTypeNormal, reason, fmt.Sprintf("Node %s status is now: %s", r.cfg.Name, reason))
}

// recordConditions records events for conditions that changed (L10.71).
func (r *Reporter) recordConditions(old, stored *corev1.Node) {
	names := map[corev1.NodeConditionType]map[corev1.ConditionStatus]string{
		corev1.NodeReady: {corev1.ConditionTrue: "NodeReady", corev1.ConditionFalse: "NodeNotReady"},
		corev1.NodeMemoryPressure: {corev1.ConditionTrue: "NodeHasInsufficientMemory",
			corev1.ConditionFalse: "NodeHasSufficientMemory"},
		corev1.NodeDiskPressure: {corev1.ConditionTrue: "NodeHasDiskPressure",
			corev1.ConditionFalse: "NodeHasNoDiskPressure"},
		corev1.NodePIDPressure: {corev1.ConditionTrue: "NodeHasInsufficientPID",
			corev1.ConditionFalse: "NodeHasSufficientPID"},
	}
	for i := range stored.Status.Conditions {
		c := &stored.Status.Conditions[i]
		reason := names[c.Type][c.Status]
		if was := condition(old, c.Type); reason == "" || (was != nil && was.Status == c.Status) {
			continue
		}
		r.recordStatus(reason)
	}
}

// untaint takes off the taint that a node has from its registration until it is
// ready (L7.162), without waiting for a controller to notice. Where the API server
// leaves taints to the controller, as upstream does, that is tried only once.
func (r *Reporter) untaint(ctx context.Context, ready bool) error {
	node := r.cfg.Known.node.Load()
	if !ready || node == nil || r.untaintRefused {
		return nil
	}
	var keep []corev1.Taint
	for _, t := range node.Spec.Taints {
		if t.Key != corev1.TaintNodeNotReady {
			keep = append(keep, t)
		}
	}
	if len(keep) == len(node.Spec.Taints) {
		return nil
	}
	node = node.DeepCopy()
	node.Spec.Taints = keep
	stored, err := r.update(ctx, node)
	switch {
	case apierrors.IsForbidden(err):
		r.untaintRefused = true
		return nil
	case apierrors.IsConflict(err):
		if stored, err = r.read(ctx); err == nil {
			r.Wake()
		}
	}
	if err != nil {
		return fmt.Errorf("take the taint %s off node %s: %w", corev1.TaintNodeNotReady, r.cfg.Name, err)
	}
	r.cfg.Known.node.Store(stored)
	return nil
}

// read reads the object from the API server.
func (r *Reporter) read(ctx context.Context) (*corev1.Node, error) {
	return timed(ctx, func(ctx context.Context) (*corev1.Node, error) {
		return r.cfg.Client.CoreV1().Nodes().Get(ctx, r.cfg.Name, metav1.GetOptions{})
	})
}

// update writes everything of the object but its status.
func (r *Reporter) update(ctx context.Context, node *corev1.Node) (*corev1.Node, error) {
	return timed(ctx, func(ctx context.Context) (*corev1.Node, error) {
		return r.cfg.Client.CoreV1().Nodes().Update(ctx, node, metav1.UpdateOptions{})
	})
}
