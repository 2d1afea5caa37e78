package scheduler

import (
	"context"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"carob/internal/base/partiallist"
	"carob/internal/base/zerocopy"
	"carob/internal/core/placement"
)

// everything lists and watches all objects of a kind; they are the API server's own if it runs in this process.
func everything[L runtime.Object](c zerocopy.Client[L], example runtime.Object) *zerocopy.ListWatch {
	return zerocopy.New(c, example, fields.Everything())
}

// reflect starts a reflector.
func reflect(ctx context.Context, run func(func()), what string, example runtime.Object, store cache.ReflectorStore,
	lw *zerocopy.ListWatch) {
	logger := klog.FromContext(ctx)
	r := cache.NewReflectorWithOptions(lw, example, store,
		cache.ReflectorOptions{Name: "scheduler-" + what, Logger: &logger})
	run(func() { r.RunWithContext(ctx) })
}

// watch starts the reflectors; they end with ctx. No decision is made before each
// of them has delivered a first list.
func (s *Scheduler) watch(ctx context.Context, group *sync.WaitGroup) {
	s.devices.start = s.watchDevices(ctx, group.Go)
	s.volumes.start = s.watchVolumes(ctx, group.Go)
	// An object of these kinds that cannot be read is missing: its node may get a pod too many, which the node then
	// refuses. Claims and volumes must be complete, because they are assigned here.
	start := func(what string, example runtime.Object, store cache.ReflectorStore, lw *zerocopy.ListWatch) {
		reflect(partiallist.With(ctx), group.Go, what, example, store, lw)
	}
	core, apps := s.client.CoreV1(), s.client.AppsV1()
	start("nodes", &corev1.Node{},
		&feed[*corev1.Node, *corev1.Node]{s.box, s.prepareNode, s.nodeSeen, s.nodeGone, s.allNodes},
		everything(core.Nodes(), &corev1.Node{}))
	start("namespaces", &corev1.Namespace{},
		&feed[*corev1.Namespace, *corev1.Namespace]{s.box, slimNamespace, s.namespaceSeen, s.namespaceGone,
			s.allNamespaces},
		everything(core.Namespaces(), &corev1.Namespace{}))
	// Terminated pods, too: a watch without a selector can be shared with others.
	pods := everything(core.Pods(metav1.NamespaceAll), &corev1.Pod{})
	start("pods", &corev1.Pod{},
		&feed[*corev1.Pod, *placement.Pod]{s.box, func(pod *corev1.Pod) *placement.Pod {
			return s.preparePod(pod, pods.Shared())
		}, s.podSeen, s.podGone, s.allPods}, pods)
	start("services", &corev1.Service{}, ownerFeed(s, placement.Service, func(o *corev1.Service) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: o.Spec.Selector}
	}), everything(core.Services(metav1.NamespaceAll), &corev1.Service{}))
	start("replicationcontrollers", &corev1.ReplicationController{},
		ownerFeed(s, placement.ReplicationController, func(o *corev1.ReplicationController) *metav1.LabelSelector {
			return &metav1.LabelSelector{MatchLabels: o.Spec.Selector}
		}), everything(core.ReplicationControllers(metav1.NamespaceAll), &corev1.ReplicationController{}))
	start("replicasets", &appsv1.ReplicaSet{},
		ownerFeed(s, placement.ReplicaSet, func(o *appsv1.ReplicaSet) *metav1.LabelSelector {
			return o.Spec.Selector
		}), everything(apps.ReplicaSets(metav1.NamespaceAll), &appsv1.ReplicaSet{}))
	start("statefulsets", &appsv1.StatefulSet{},
		ownerFeed(s, placement.StatefulSet, func(o *appsv1.StatefulSet) *metav1.LabelSelector {
			return o.Spec.Selector
		}), everything(apps.StatefulSets(metav1.NamespaceAll), &appsv1.StatefulSet{}))
}

// watched are the kinds that must deliver a first list.
func watched() map[string]bool {
	return map[string]bool{"Node": true, "Namespace": true, "Pod": true, string(placement.Service): true,
		string(placement.ReplicationController): true, string(placement.ReplicaSet): true,
		string(placement.StatefulSet): true}
}

func (s *Scheduler) firstList(kind string) {
	if !s.missing[kind] {
		return
	}
	if delete(s.missing, kind); len(s.missing) == 0 {
		close(s.synced)
	}
}

// owned is the part of an object with a pod selector that the scheduler keeps.
type owned struct {
	placement.Owner
	selector *metav1.LabelSelector
}

func ownerFeed[T metav1.Object](s *Scheduler, kind placement.OwnerKind, selector func(T) *metav1.LabelSelector) *feed[T,
	owned] {
	name := func(o T) placement.Owner {
		return placement.Owner{Kind: kind, Namespace: o.GetNamespace(), Name: o.GetName()}
	}
	return &feed[T, owned]{
		box:     s.box,
		prepare: func(o T) owned { return owned{name(o), selector(o)} },
		seen:    s.ownerSeen,
		gone:    func(o T) { s.ownerGone(name(o)) },
		all:     func(list []owned) { s.allOwners(kind, list) },
	}
}

// kindFeed passes the objects of a kind on to the loop. known returns those that a new full list may lack. The first
// full list removes the kind from missing, the kinds that pods wait for.
func kindFeed[T metav1.Object](s *Scheduler, missing map[string]bool, kind string, seen, gone func(T),
	known func() []T) cache.ReflectorStore {
	return &feed[T, T]{box: s.box, prepare: func(o T) T { return o }, seen: seen, gone: gone, all: func(list []T) {
		listed := map[types.UID]bool{}
		for _, o := range list {
			listed[o.GetUID()] = true
		}
		for _, o := range known() {
			if !listed[o.GetUID()] {
				gone(o)
			}
		}
		for _, o := range list {
			seen(o)
		}
		if missing[kind] {
			delete(missing, kind)
			s.release()
		}
	}}
}

func (s *Scheduler) ownerSeen(o owned) {
	s.owners[o.Owner] = true
	s.requeue(s.cluster.SetOwner(o.Owner, o.selector))
}

func (s *Scheduler) ownerGone(o placement.Owner) {
	delete(s.owners, o)
	s.requeue(s.cluster.RemoveOwner(o))
}

// nodeSeen handles a new or changed node.
func (s *Scheduler) nodeSeen(n *corev1.Node) {
	s.nodes[n.Name] = n
	s.requeue(s.cluster.SetNode(n))
}

func (s *Scheduler) nodeGone(n *corev1.Node) {
	delete(s.nodes, n.Name)
	s.requeue(s.cluster.RemoveNode(n.Name))
	s.lookBound() // pods that wait for their volumes there
}

func (s *Scheduler) namespaceSeen(n *corev1.Namespace) {
	s.spaces[n.Name] = n
	s.requeue(s.cluster.SetNamespace(n.Name, n.Labels))
}

func (s *Scheduler) namespaceGone(n *corev1.Namespace) {
	delete(s.spaces, n.Name)
	s.requeue(s.cluster.RemoveNamespace(n.Name))
}

// podSeen handles a new or changed pod.
func (s *Scheduler) podSeen(p *placement.Pod) {
	pod := p.Object
	uid := pod.UID
	switch {
	case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		s.podGone(pod)
	case pod.Spec.NodeName != "":
		s.queue.Remove(uid)
		reserved := s.cluster.RemoveNomination(uid)
		s.unassume(uid)
		s.requeue(s.cluster.SetPod(p, pod.Spec.NodeName))
		s.bound[uid] = pod.Spec.NodeName
		s.requeue(reserved)
		if pod.DeletionTimestamp != nil {
			s.victimLeaves(uid)
		}
	case s.assumed[uid] != nil:
		s.assumed[uid].newer = p // its binding is in flight, and may fail
	case s.profileOf(pod) == nil:
		s.queue.Remove(uid)
		s.requeue(s.cluster.RemoveNomination(uid))
	case pod.DeletionTimestamp != nil: // and kept by finalizers
		if !s.skipped[uid] && !p.Gated() {
			s.skipped[uid] = true
			// L2.6
			s.eventf(pod, corev1.EventTypeWarning, "FailedScheduling", "Scheduling",
				"skip schedule deleting pod: %s/%s", pod.Namespace, pod.Name)
		}
		s.queue.Remove(uid)
		s.requeue(s.cluster.RemoveNomination(uid))
	default:
		s.follow(p)
		s.queue.Add(p, time.Now())
	}
}

// follow reserves resources on the nominated node of the pod's status, or frees them when it has
// none. A reservation that the status doesn't show yet stays.
func (s *Scheduler) follow(p *placement.Pod) {
	node := p.Object.Status.NominatedNodeName
	if node != "" {
		s.requeue(s.cluster.Nominate(p, node))
		return
	}
	if it := s.queue.items[p.Object.UID]; it != nil && it.pod.Object.Status.NominatedNodeName != "" {
		s.requeue(s.cluster.RemoveNomination(p.Object.UID))
	}
}

// podGone handles the end of a pod: deleted, or terminated.
func (s *Scheduler) podGone(pod *corev1.Pod) {
	s.queue.Remove(pod.UID)
	s.unassume(pod.UID)
	delete(s.bound, pod.UID)
	delete(s.skipped, pod.UID)
	delete(s.devices.held, pod.UID)
	s.forgetReady(pod.UID)
	s.forgetVolumes(pod.UID)
	s.requeue(s.cluster.RemoveNomination(pod.UID))
	gone := s.cluster.Pod(pod.UID)
	s.requeue(s.cluster.RemovePod(pod.UID))
	s.victimLeaves(pod.UID)
	s.volumesLeft(gone)
}

// requeue re-queues the pods that an event helps.
func (s *Scheduler) requeue(e placement.Event) {
	if !e.Nothing() {
		s.queue.Requeue(func(it *item) bool {
			helps, refused := s.cluster.Helps(it.pod, it.refused, e)
			it.refused = refused
			return helps
		}, time.Now())
	}
}

// A full list replaces all objects: missing ones were deleted.

func (s *Scheduler) allNodes(list []*corev1.Node) {
	listed := map[string]bool{}
	for _, n := range list {
		listed[n.Name] = true
		s.nodeSeen(n)
	}
	for name, n := range s.nodes {
		if !listed[name] {
			s.nodeGone(n)
		}
	}
	s.firstList("Node")
}

func (s *Scheduler) allNamespaces(list []*corev1.Namespace) {
	listed := map[string]bool{}
	for _, n := range list {
		listed[n.Name] = true
		s.namespaceSeen(n)
	}
	for name, n := range s.spaces {
		if !listed[name] {
			s.namespaceGone(n)
		}
	}
	s.firstList("Namespace")
}

func (s *Scheduler) allOwners(kind placement.OwnerKind, list []owned) {
	listed := map[placement.Owner]bool{}
	for _, o := range list {
		listed[o.Owner] = true
		s.ownerSeen(o)
	}
	for o := range s.owners {
		if o.Kind == kind && !listed[o] {
			s.ownerGone(o)
		}
	}
	s.firstList(string(kind))
}

func (s *Scheduler) allPods(list []*placement.Pod) {
	listed := map[types.UID]bool{}
	for _, p := range list {
		listed[p.Object.UID] = true
		s.podSeen(p)
	}
	lost := func(uid types.UID) {
		if !listed[uid] {
			s.podGone(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid}})
		}
	}
	for uid := range s.bound {
		lost(uid)
	}
	for uid := range s.assumed {
		lost(uid)
	}
	for uid := range s.queue.items {
		lost(uid)
	}
	for uid := range s.skipped {
		lost(uid)
	}
	s.firstList("Pod")
}

// preparePod extracts the data of a pod for decisions. It drops the rest, unless the pod is the API
// server's own object, which needs no extra memory and must not be modified.
func (s *Scheduler) preparePod(pod *corev1.Pod, shared bool) *placement.Pod {
	profile := s.profileOf(pod)
	if profile == nil {
		profile = s.others
	}
	p := placement.PrepareFor(pod, profile)
	if !shared && len(s.extenders) == 0 {
		slimPod(pod)
	}
	return p
}

// slimPod removes the fields that no decision and no event uses, which is most of a pod.
func slimPod(pod *corev1.Pod) {
	pod.ManagedFields, pod.Annotations, pod.OwnerReferences = nil, nil, nil
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			c := &list[i]
			list[i] = corev1.Container{Name: c.Name, Image: c.Image, Resources: c.Resources, Ports: c.Ports,
				RestartPolicy: c.RestartPolicy}
		}
	}
	pod.Spec.EphemeralContainers, pod.Spec.Volumes, pod.Spec.SecurityContext = nil, nil, nil
	pod.Spec.DNSConfig, pod.Spec.HostAliases = nil, nil
	for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range list {
			st := &list[i]
			list[i] = corev1.ContainerStatus{Name: st.Name, AllocatedResources: st.AllocatedResources,
				Resources: st.Resources}
		}
	}
	pod.Status.EphemeralContainerStatuses, pod.Status.PodIPs, pod.Status.HostIPs = nil, nil, nil
}

// prepareNode drops the fields of a node that decisions do not use, unless extenders may need them.
func (s *Scheduler) prepareNode(n *corev1.Node) *corev1.Node {
	if len(s.extenders) > 0 {
		return n
	}
	return slimNode(n)
}

// slimNode copies the fields of a node that decisions use.
func slimNode(n *corev1.Node) *corev1.Node {
	slim := &corev1.Node{ObjectMeta: n.ObjectMeta, Spec: n.Spec,
		Status: corev1.NodeStatus{Allocatable: n.Status.Allocatable, Images: n.Status.Images,
			DeclaredFeatures: n.Status.DeclaredFeatures}}
	slim.ManagedFields, slim.Annotations = nil, nil
	return slim
}

func slimNamespace(n *corev1.Namespace) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: n.Labels}}
}
