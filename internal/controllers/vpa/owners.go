package vpa

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"carob/internal/controllers/inventory"
	"carob/internal/controllers/source"
	"carob/internal/core/workload/vpa"
)

// Kinds finds the resource of a kind.
type Kinds interface {
	Resolve(schema.GroupVersionKind) (inventory.Kind, bool)
	Synced() <-chan struct{}
}

// Owners are the watches of the well-known controllers.
type Owners struct {
	Deployments, ReplicaSets, StatefulSets, DaemonSets, Jobs, CronJobs, ReplicationControllers *source.Watch
}

// scales reads the scale of other controllers.
type scales interface {
	get(ctx context.Context, kind inventory.Kind, namespace, name string) (*autoscalingv1.Scale, error)
}

// scaleFor is how long a scale is cached; readTimeout is the timeout of a read.
const (
	scaleFor    = time.Minute
	readTimeout = 5 * time.Second
)

// scaled holds the cached scales.
type scaled struct {
	mu    sync.Mutex
	known map[vpa.Ref]scaleEntry
}

type scaleEntry struct {
	at  time.Time
	c   vpa.Controller
	err error
}

// wellKnown returns the watch of a kind; nil if the kind is not well known.
func (o *Owners) wellKnown(gk schema.GroupKind) *source.Watch {
	switch gk {
	case schema.GroupKind{Group: appsv1.GroupName, Kind: "Deployment"}:
		return o.Deployments
	case schema.GroupKind{Group: appsv1.GroupName, Kind: "ReplicaSet"}:
		return o.ReplicaSets
	case schema.GroupKind{Group: appsv1.GroupName, Kind: "StatefulSet"}:
		return o.StatefulSets
	case schema.GroupKind{Group: appsv1.GroupName, Kind: "DaemonSet"}:
		return o.DaemonSets
	case schema.GroupKind{Group: batchv1.GroupName, Kind: "Job"}:
		return o.Jobs
	case schema.GroupKind{Group: batchv1.GroupName, Kind: "CronJob"}:
		return o.CronJobs
	case schema.GroupKind{Kind: "ReplicationController"}:
		return o.ReplicationControllers
	}
	return nil
}

// controllers returns the lookup of controllers.
func (c *Controller) controllers(ctx context.Context) vpa.Controllers {
	return func(ref vpa.Ref) (vpa.Controller, error) { return c.controller(ctx, ref) }
}

func (c *Controller) controller(ctx context.Context, ref vpa.Ref) (vpa.Controller, error) {
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return vpa.Controller{}, err
	}
	w := c.Owners.wellKnown(gv.WithKind(ref.Kind).GroupKind())
	if w == nil {
		return c.scalable(ctx, ref, gv.WithKind(ref.Kind))
	}
	obj, there, _ := w.Objects().GetByKey(ref.Namespace + "/" + ref.Name)
	if !there {
		return vpa.Controller{}, fmt.Errorf("%s %s/%s %w", ref.Kind, ref.Namespace, ref.Name, errNotThere)
	}
	out := vpa.Controller{WellKnown: true}
	var selector *metav1.LabelSelector
	switch o := obj.(type) {
	case *appsv1.Deployment:
		selector = o.Spec.Selector
	case *appsv1.ReplicaSet:
		selector = o.Spec.Selector
	case *appsv1.StatefulSet:
		selector = o.Spec.Selector
	case *appsv1.DaemonSet:
		selector = o.Spec.Selector
	case *batchv1.Job:
		selector = o.Spec.Selector
	case *batchv1.CronJob:
		selector = metav1.SetAsLabelSelector(o.Spec.JobTemplate.Spec.Template.Labels)
	case *corev1.ReplicationController:
		selector = metav1.SetAsLabelSelector(o.Spec.Selector)
	}
	if o, ok := obj.(metav1.Object); ok {
		out.Parent = metav1.GetControllerOfNoCopy(o)
	}
	out.Selector, out.Unselected = metav1.LabelSelectorAsSelector(selector)
	if out.Unselected == nil && out.Selector.Empty() {
		// A CronJob whose pods have no labels would select all pods of the namespace.
		out.Selector, out.Unselected = nil, fmt.Errorf("%s %s/%s has an empty selector", ref.Kind, ref.Namespace,
			ref.Name)
	}
	return out, nil
}

// scalable requests the scale of a controller of another kind.
func (c *Controller) scalable(ctx context.Context, ref vpa.Ref, gvk schema.GroupVersionKind) (vpa.Controller, error) {
	c.scale.mu.Lock()
	e, there := c.scale.known[ref]
	c.scale.mu.Unlock()
	if there && time.Since(e.at) < scaleFor {
		return e.c, e.err
	}
	e = scaleEntry{at: time.Now()}
	fail := func(err error) {
		e.err = fmt.Errorf("unhandled targetRef %s / %s / %s, last error %w", ref.APIVersion, ref.Kind, ref.Name, err)
	}
	kind, served := c.Kinds.Resolve(gvk)
	if !served {
		fail(fmt.Errorf("no matches for kind %q in version %q", ref.Kind, ref.APIVersion))
	} else {
		ctx, cancel := context.WithTimeout(ctx, readTimeout)
		s, err := c.scales.get(ctx, kind, ref.Namespace, ref.Name)
		cancel()
		switch {
		case err != nil:
			fail(err)
		default:
			e.c = vpa.Controller{Scalable: true, Parent: metav1.GetControllerOfNoCopy(s)}
			if e.c.Selector, e.c.Unselected = labels.Parse(s.Status.Selector); s.Status.Selector == "" {
				e.c.Selector, e.c.Unselected = nil, fmt.Errorf(
					"resource %s/%s has an empty selector for scale sub-resource", ref.Namespace, ref.Name)
			}
		}
	}
	c.scale.mu.Lock()
	defer c.scale.mu.Unlock()
	for r, old := range c.scale.known {
		if time.Since(old.at) >= scaleFor {
			delete(c.scale.known, r)
		}
	}
	c.scale.known[ref] = e
	return e.c, e.err
}

// configured returns the replicas of an owner (W9.53).
func (o *Owners) configured(namespace string, of vpa.Owner) (int, bool) {
	key, n := namespace+"/"+of.Name, (*int32)(nil)
	switch of.Kind {
	case "ReplicaSet":
		if s := source.Get[*appsv1.ReplicaSet](o.ReplicaSets, key); s != nil {
			n = s.Spec.Replicas
		}
	case "StatefulSet":
		if s := source.Get[*appsv1.StatefulSet](o.StatefulSets, key); s != nil {
			n = s.Spec.Replicas
		}
	case "ReplicationController":
		if s := source.Get[*corev1.ReplicationController](o.ReplicationControllers, key); s != nil {
			n = s.Spec.Replicas
		}
	case "DaemonSet":
		if s := source.Get[*appsv1.DaemonSet](o.DaemonSets, key); s != nil {
			n = &s.Status.DesiredNumberScheduled
		}
	}
	if n == nil {
		return 0, false
	}
	return int(*n), true
}

func vpaSort(all []*vpa.VerticalPodAutoscaler) {
	slices.SortFunc(all, func(a, b *vpa.VerticalPodAutoscaler) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}
