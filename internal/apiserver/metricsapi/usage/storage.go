package usage

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/klog/v2"
	"k8s.io/metrics/pkg/apis/metrics"

	"carob/internal/kinds/table"
)

// Reader reads objects of the API.
type Reader interface {
	Get(ctx context.Context, resource schema.GroupResource, namespace, name string) (runtime.Object, error)
	List(ctx context.Context, resource schema.GroupResource, namespace string, fn func(runtime.Object) bool) error
}

var (
	podResource  = schema.GroupResource{Resource: "pods"}
	nodeResource = schema.GroupResource{Resource: "nodes"}
)

// measurements join the agents' measurements with their objects.
type measurements struct {
	reader  Reader
	sampler *Sampler
}

// rates reads from the agents of these nodes in parallel; one that does not answer is left out (W8.8).
func (f *measurements) rates(ctx context.Context, nodes map[string]bool) map[string]*Rates {
	out := map[string]*Rates{}
	var mu sync.Mutex
	var all sync.WaitGroup
	for node := range nodes {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, readTimeout)
			defer cancel()
			r, err := f.sampler.Rates(ctx, node)
			if err != nil {
				klog.FromContext(ctx).V(2).Info("A node agent does not report the usage of its pods",
					"node", node, "err", err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			out[node] = r
		})
	}
	all.Wait()
	return out
}

// readTimeout is the timeout of the request to one agent.
const readTimeout = 10 * time.Second

func usageOf(r Rate) corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU: *resource.NewScaledQuantity(int64(r.CPU),
			resource.Nano), //nolint:gosec // a machine has no billion cores
		corev1.ResourceMemory: *resource.NewQuantity(int64(r.Memory), resource.BinarySI),
	}
}

// podUsage returns the usage of a pod; ok is false if not all running containers were measured
// (W8.6).
func podUsage(p *corev1.Pod, r *Rates) (m metrics.PodMetrics, ok bool) {
	m = metrics.PodMetrics{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, Labels: p.Labels,
		CreationTimestamp: metav1.Now()}}
	for _, s := range slices.Concat(p.Status.ContainerStatuses, p.Status.InitContainerStatuses,
		p.Status.EphemeralContainerStatuses) {
		if s.State.Running == nil {
			continue
		}
		c, there := r.Container(p.UID, s.Name)
		if !there {
			return m, false
		}
		m.Containers = append(m.Containers, metrics.ContainerMetrics{Name: s.Name, Usage: usageOf(c)})
		// The pod has the time of the oldest value, and the shortest window.
		if m.Timestamp.IsZero() || c.At.Before(m.Timestamp.Time) {
			m.Timestamp = metav1.NewTime(c.At)
		}
		if m.Window.Duration == 0 || c.Window < m.Window.Duration {
			m.Window.Duration = c.Window.Round(time.Millisecond)
		}
	}
	slices.SortFunc(m.Containers, func(a, b metrics.ContainerMetrics) int { return strings.Compare(a.Name, b.Name) })
	return m, len(m.Containers) > 0
}

// selected is what a client selects in a list.
type selected struct {
	label labels.Selector
	field fields.Selector
}

func selection(o *internalversion.ListOptions) (selected, error) {
	s := selected{labels.Everything(), fields.Everything()}
	if o == nil {
		return s, nil
	}
	if o.LabelSelector != nil {
		s.label = o.LabelSelector
	}
	if o.FieldSelector != nil {
		s.field = o.FieldSelector
		for _, r := range s.field.Requirements() {
			if r.Field != "metadata.name" && r.Field != "metadata.namespace" {
				return s, apierrors.NewBadRequest(fmt.Sprintf("field label not supported: %s", r.Field))
			}
		}
	}
	return s, nil
}

func (s selected) takes(o metav1.Object) bool {
	return s.label.Matches(labels.Set(o.GetLabels())) &&
		s.field.Matches(fields.Set{"metadata.name": o.GetName(), "metadata.namespace": o.GetNamespace()})
}

// podStorage serves PodMetrics.
type podStorage struct {
	*measurements
	rest.TableConvertor
}

var (
	_ rest.Getter               = podStorage{}
	_ rest.Lister               = podStorage{}
	_ rest.Scoper               = podStorage{}
	_ rest.KindProvider         = podStorage{}
	_ rest.SingularNameProvider = podStorage{}
	_ rest.Getter               = nodeStorage{}
	_ rest.Lister               = nodeStorage{}
	_ rest.Scoper               = nodeStorage{}
	_ rest.KindProvider         = nodeStorage{}
	_ rest.SingularNameProvider = nodeStorage{}
)

func (podStorage) New() runtime.Object     { return &metrics.PodMetrics{} }
func (podStorage) NewList() runtime.Object { return &metrics.PodMetricsList{} }
func (podStorage) Destroy()                {}
func (podStorage) NamespaceScoped() bool   { return true }
func (podStorage) Kind() string            { return "PodMetrics" }
func (podStorage) GetSingularName() string { return "pod" }

// Get implements rest.Getter.
func (s podStorage) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	o, err := s.reader.Get(ctx, podResource, apirequest.NamespaceValue(ctx), name)
	if apierrors.IsNotFound(err) {
		return nil, apierrors.NewNotFound(metrics.Resource("pods"), name)
	}
	if err != nil {
		return nil, err
	}
	if p, ok := o.(*corev1.Pod); ok && p.Spec.NodeName != "" {
		if r := s.rates(ctx, map[string]bool{p.Spec.NodeName: true})[p.Spec.NodeName]; r != nil {
			if m, ok := podUsage(p, r); ok {
				return &m, nil
			}
		}
	}
	return nil, apierrors.NewNotFound(metrics.Resource("pods"), name)
}

// List implements rest.Lister.
func (s podStorage) List(ctx context.Context, o *internalversion.ListOptions) (runtime.Object, error) {
	want, err := selection(o)
	if err != nil {
		return nil, err
	}
	var pods []*corev1.Pod
	nodes := map[string]bool{}
	err = s.reader.List(ctx, podResource, apirequest.NamespaceValue(ctx), func(o runtime.Object) bool {
		if p, ok := o.(*corev1.Pod); ok && p.Status.Phase == corev1.PodRunning && p.Spec.NodeName != "" &&
			want.takes(p) {
			pods = append(pods, p)
			nodes[p.Spec.NodeName] = true
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	rates := s.rates(ctx, nodes)
	out := &metrics.PodMetricsList{Items: []metrics.PodMetrics{}}
	for _, p := range pods {
		if r := rates[p.Spec.NodeName]; r != nil {
			if m, ok := podUsage(p, r); ok {
				out.Items = append(out.Items, m)
			}
		}
	}
	slices.SortFunc(out.Items, func(a, b metrics.PodMetrics) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	return out, nil
}

// nodeStorage serves NodeMetrics.
type nodeStorage struct {
	*measurements
	rest.TableConvertor
}

func (nodeStorage) New() runtime.Object     { return &metrics.NodeMetrics{} }
func (nodeStorage) NewList() runtime.Object { return &metrics.NodeMetricsList{} }
func (nodeStorage) Destroy()                {}
func (nodeStorage) NamespaceScoped() bool   { return false }
func (nodeStorage) Kind() string            { return "NodeMetrics" }
func (nodeStorage) GetSingularName() string { return "node" }

func nodeUsage(n *corev1.Node, r *Rates) (metrics.NodeMetrics, bool) {
	if r == nil || r.Node == nil {
		return metrics.NodeMetrics{}, false
	}
	return metrics.NodeMetrics{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: n.Labels, CreationTimestamp: metav1.Now()},
		Timestamp:  metav1.NewTime(r.Node.At), Window: metav1.Duration{Duration: r.Node.Window.Round(time.Millisecond)},
		Usage: usageOf(*r.Node),
	}, true
}

// Get implements rest.Getter.
func (s nodeStorage) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	o, err := s.reader.Get(ctx, nodeResource, "", name)
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, err
	}
	if n, ok := o.(*corev1.Node); ok && err == nil {
		if m, ok := nodeUsage(n, s.rates(ctx, map[string]bool{name: true})[name]); ok {
			return &m, nil
		}
	}
	return nil, apierrors.NewNotFound(metrics.Resource("nodes"), name)
}

// List implements rest.Lister.
func (s nodeStorage) List(ctx context.Context, o *internalversion.ListOptions) (runtime.Object, error) {
	want, err := selection(o)
	if err != nil {
		return nil, err
	}
	var nodes []*corev1.Node
	names, wanted := map[string]bool{}, map[string]bool{}
	err = s.reader.List(ctx, nodeResource, "", func(o runtime.Object) bool {
		if n, ok := o.(*corev1.Node); ok {
			names[n.Name] = true
			if want.takes(n) {
				nodes = append(nodes, n)
				wanted[n.Name] = true
			}
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	s.sampler.Keep(names)
	rates := s.rates(ctx, wanted)
	out := &metrics.NodeMetricsList{Items: []metrics.NodeMetrics{}}
	for _, n := range nodes {
		if m, ok := nodeUsage(n, rates[n.Name]); ok {
			out.Items = append(out.Items, m)
		}
	}
	slices.SortFunc(out.Items, func(a, b metrics.NodeMetrics) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// columns are those of metrics-server.
var columns = []table.Column{table.NameColumn, {Name: "cpu"}, {Name: "memory"}, {Name: "window"}}

func podRow(o runtime.Object, _ time.Time) []any {
	m, ok := o.(*metrics.PodMetrics)
	if !ok {
		return []any{"", "", "", ""}
	}
	var cpu, memory resource.Quantity
	for _, c := range m.Containers {
		cpu.Add(c.Usage[corev1.ResourceCPU])
		memory.Add(c.Usage[corev1.ResourceMemory])
	}
	return []any{m.Name, cpu.String(), memory.String(), m.Window.Duration.String()}
}

func nodeRow(o runtime.Object, _ time.Time) []any {
	m, ok := o.(*metrics.NodeMetrics)
	if !ok {
		return []any{"", "", "", ""}
	}
	return []any{m.Name, m.Usage.Cpu().String(), m.Usage.Memory().String(), m.Window.Duration.String()}
}
