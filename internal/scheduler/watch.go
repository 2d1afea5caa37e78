package scheduler

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"carob/internal/core/placement"
)

// watches is how many kinds are watched.
const watches = 3

// running selects the pods that hold or want a node.
var running = fields.AndSelectors(
	fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)),
	fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed)),
)

// watch starts the reflectors; they end with ctx.
func (s *Scheduler) watch(ctx context.Context, group *sync.WaitGroup) {
	start := func(what string, example runtime.Object, store cache.ReflectorStore, lw *cache.ListWatch) {
		logger := klog.FromContext(ctx)
		r := cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(lw, s.client), example, store,
			cache.ReflectorOptions{Name: "scheduler-" + what, Logger: &logger})
		group.Go(func() { r.RunWithContext(ctx) })
	}
	core := s.client.CoreV1()
	start("nodes", &corev1.Node{}, &feed[*corev1.Node]{s.box, slimNode, s.nodeSeen, s.nodeGone, s.allNodes}, &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return core.Nodes().List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return core.Nodes().Watch(ctx, o)
		},
	})
	start("namespaces", &corev1.Namespace{}, &feed[*corev1.Namespace]{s.box, slimNamespace, s.namespaceSeen, s.namespaceGone, s.allNamespaces}, &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return core.Namespaces().List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return core.Namespaces().Watch(ctx, o)
		},
	})
	start("pods", &corev1.Pod{}, &feed[*corev1.Pod]{s.box, slimPod, s.podSeen, s.podGone, s.allPods}, &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = running.String()
			return core.Pods(metav1.NamespaceAll).List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = running.String()
			return core.Pods(metav1.NamespaceAll).Watch(ctx, o)
		},
	})
}

func (s *Scheduler) firstList(already bool) {
	if already {
		return
	}
	if s.unsynced--; s.unsynced == 0 {
		close(s.synced)
	}
}

// nodeSeen takes a new or changed node.
func (s *Scheduler) nodeSeen(n *corev1.Node) {
	c := nodeChange(s.nodes[n.Name], n)
	s.nodes[n.Name] = n
	s.cluster.SetNode(n)
	s.stir(c)
}

func (s *Scheduler) nodeGone(n *corev1.Node) {
	delete(s.nodes, n.Name)
	s.cluster.RemoveNode(n.Name)
	s.stir(nodeLeft)
}

func (s *Scheduler) namespaceSeen(n *corev1.Namespace) {
	s.spaces[n.Name] = n
	s.cluster.SetNamespace(n.Name, n.Labels)
	s.stir(namespaceChanged)
}

func (s *Scheduler) namespaceGone(n *corev1.Namespace) {
	delete(s.spaces, n.Name)
	s.cluster.RemoveNamespace(n.Name)
}

// podSeen takes a new or changed pod.
func (s *Scheduler) podSeen(pod *corev1.Pod) {
	uid := pod.UID
	switch {
	case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		s.podGone(pod)
	case pod.Spec.NodeName != "":
		p := placement.Prepare(pod)
		s.queue.Remove(uid)
		s.cluster.Denominate(uid)
		delete(s.assumed, uid)
		before := s.cluster.Pod(uid)
		s.cluster.SetPod(p, pod.Spec.NodeName)
		s.bound[uid] = pod.Spec.NodeName
		s.stir(boundChange(before, p))
	case s.assumed[uid] != nil:
		// Its binding is on the way; a deletion ends in podGone.
	case pod.Spec.SchedulerName != Name && pod.Spec.SchedulerName != "":
		s.queue.Remove(uid)
		s.cluster.Denominate(uid)
	case pod.DeletionTimestamp != nil: // and finalizers keep it
		if !s.skipped[uid] && len(pod.Spec.SchedulingGates) == 0 {
			s.skipped[uid] = true
			s.recorder.Eventf(pod, nil, corev1.EventTypeWarning, "FailedScheduling", "Scheduling", "skip schedule deleting pod: %s/%s", pod.Namespace, pod.Name) // L2.6
		}
		s.queue.Remove(uid)
		s.cluster.Denominate(uid)
	default:
		p := placement.Prepare(pod)
		if node := pod.Status.NominatedNodeName; node != "" {
			s.cluster.Nominate(p, node)
		}
		s.queue.Add(p, time.Now())
	}
}

// podGone takes the end of a pod: deleted, or its containers finished for good.
func (s *Scheduler) podGone(pod *corev1.Pod) {
	s.queue.Remove(pod.UID)
	s.cluster.Denominate(pod.UID)
	delete(s.assumed, pod.UID)
	delete(s.bound, pod.UID)
	delete(s.skipped, pod.UID)
	if s.cluster.RemovePod(pod.UID) {
		s.stir(podLeft)
	}
}

func (s *Scheduler) stir(c change) {
	if len(c) > 0 {
		s.queue.Stir(c.helps, time.Now())
	}
}

// A full list replaces what was known: whatever it lacks is gone.

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
	s.firstList(s.listed.nodes)
	s.listed.nodes = true
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
	s.firstList(s.listed.namespaces)
	s.listed.namespaces = true
}

func (s *Scheduler) allPods(list []*corev1.Pod) {
	listed := map[types.UID]bool{}
	for _, pod := range list {
		listed[pod.UID] = true
		s.podSeen(pod)
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
	s.firstList(s.listed.pods)
	s.listed.pods = true
}

// slimPod drops what no decision and no event reads, which is most of a pod.
func slimPod(pod *corev1.Pod) *corev1.Pod {
	pod.ManagedFields, pod.Annotations, pod.OwnerReferences = nil, nil, nil
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			c := &list[i]
			list[i] = corev1.Container{Name: c.Name, Image: c.Image, Resources: c.Resources, Ports: c.Ports, RestartPolicy: c.RestartPolicy}
		}
	}
	pod.Spec.EphemeralContainers, pod.Spec.Volumes, pod.Spec.SecurityContext = nil, nil, nil
	pod.Spec.DNSConfig, pod.Spec.HostAliases = nil, nil
	for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range list {
			st := &list[i]
			list[i] = corev1.ContainerStatus{Name: st.Name, AllocatedResources: st.AllocatedResources, Resources: st.Resources}
		}
	}
	pod.Status.EphemeralContainerStatuses, pod.Status.PodIPs, pod.Status.HostIPs = nil, nil, nil
	return pod
}

func slimNode(n *corev1.Node) *corev1.Node {
	n.ManagedFields, n.Annotations = nil, nil
	n.Status = corev1.NodeStatus{Allocatable: n.Status.Allocatable, Images: n.Status.Images}
	return n
}

func slimNamespace(n *corev1.Namespace) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: n.Labels}}
}
