package cli

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/explain"
	"carob/internal/core/podclaims"
)

func (x *explainer) deployment(ctx context.Context) (explain.Lines, error) {
	d, err := x.c.AppsV1().Deployments(x.namespace).Get(ctx, x.name, metav1.GetOptions{})
	if err != nil {
		return nil, plain(err)
	}
	sets, err := x.c.AppsV1().ReplicaSets(x.namespace).List(ctx, selecting(d.Spec.Selector))
	if err != nil {
		return nil, fmt.Errorf("list its ReplicaSets: %w", plain(err))
	}
	owners := []types.UID{d.UID}
	for i := range sets.Items {
		if set := &sets.Items[i]; metav1.IsControlledBy(set, d) && set.Status.Replicas+*set.Spec.Replicas > 0 {
			owners = append(owners, set.UID)
		}
	}
	related, err := x.owned(ctx, d.Spec.Selector, owners...)
	return explain.Deployment(d, related, time.Now()), err
}

func (x *explainer) replicaSet(ctx context.Context) (explain.Lines, error) {
	set, err := x.c.AppsV1().ReplicaSets(x.namespace).Get(ctx, x.name, metav1.GetOptions{})
	if err != nil {
		return nil, plain(err)
	}
	related, err := x.owned(ctx, set.Spec.Selector, set.UID)
	return explain.ReplicaSet(set, related, time.Now()), err
}

func (x *explainer) statefulSet(ctx context.Context) (explain.Lines, error) {
	set, err := x.c.AppsV1().StatefulSets(x.namespace).Get(ctx, x.name, metav1.GetOptions{})
	if err != nil {
		return nil, plain(err)
	}
	related, err := x.owned(ctx, set.Spec.Selector, set.UID)
	return explain.StatefulSet(set, related, time.Now()), err
}

func (x *explainer) daemonSet(ctx context.Context) (explain.Lines, error) {
	set, err := x.c.AppsV1().DaemonSets(x.namespace).Get(ctx, x.name, metav1.GetOptions{})
	if err != nil {
		return nil, plain(err)
	}
	related, err := x.owned(ctx, set.Spec.Selector, set.UID)
	return explain.DaemonSet(set, related, time.Now()), err
}

func (x *explainer) job(ctx context.Context) (explain.Lines, error) {
	j, err := x.c.BatchV1().Jobs(x.namespace).Get(ctx, x.name, metav1.GetOptions{})
	if err != nil {
		return nil, plain(err)
	}
	related, err := x.owned(ctx, j.Spec.Selector, j.UID)
	return explain.Job(j, related, time.Now()), err
}

func (x *explainer) cronJob(ctx context.Context) (explain.Lines, error) {
	c, err := x.c.BatchV1().CronJobs(x.namespace).Get(ctx, x.name, metav1.GetOptions{})
	if err != nil {
		return nil, plain(err)
	}
	return explain.CronJob(c, explain.Related{Events: x.events(ctx, c.UID)}, time.Now()), nil
}

func (x *explainer) autoscaler(ctx context.Context) (explain.Lines, error) {
	h, err := x.c.AutoscalingV2().HorizontalPodAutoscalers(x.namespace).Get(ctx, x.name, metav1.GetOptions{})
	if err != nil {
		return nil, plain(err)
	}
	return explain.Autoscaler(h, explain.Related{Events: x.events(ctx, h.UID)}, time.Now()), nil
}

func (x *explainer) service(ctx context.Context) (explain.Lines, error) {
	s, err := x.c.CoreV1().Services(x.namespace).Get(ctx, x.name, metav1.GetOptions{})
	if err != nil {
		return nil, plain(err)
	}
	related := explain.Related{Events: x.events(ctx, s.UID)}
	if len(s.Spec.Selector) > 0 {
		selector := metav1.ListOptions{LabelSelector: labels.SelectorFromSet(s.Spec.Selector).String()}
		if related.Pods, err = x.pods(ctx, selector, func(*corev1.Pod) bool { return true }); err != nil {
			return nil, err
		}
	}
	list, err := x.c.DiscoveryV1().EndpointSlices(x.namespace).List(ctx,
		metav1.ListOptions{LabelSelector: labels.Set{discoveryv1.LabelServiceName: s.Name}.String()})
	if err != nil {
		return nil, fmt.Errorf("list its EndpointSlices: %w", plain(err))
	}
	var endpoints []*discoveryv1.EndpointSlice
	for i := range list.Items {
		endpoints = append(endpoints, &list.Items[i])
	}
	return explain.Service(s, endpoints, related, time.Now()), nil
}

func (x *explainer) claim(ctx context.Context) (explain.Lines, error) {
	c, err := x.c.CoreV1().PersistentVolumeClaims(x.namespace).Get(ctx, x.name, metav1.GetOptions{})
	if err != nil {
		return nil, plain(err)
	}
	return x.explainClaim(ctx, c)
}

func (x *explainer) explainClaim(ctx context.Context, c *corev1.PersistentVolumeClaim) (explain.Lines, error) {
	var err error
	var class *storagev1.StorageClass
	if name := c.Spec.StorageClassName; name != nil && *name != "" {
		class, err = x.c.StorageV1().StorageClasses().Get(ctx, *name, metav1.GetOptions{})
		if class, err = found(class, err); err != nil {
			return nil, fmt.Errorf("read its StorageClass: %w", plain(err))
		}
	}
	var volume *corev1.PersistentVolume
	if name := c.Spec.VolumeName; name != "" {
		volume, err = x.c.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
		if volume, err = found(volume, err); err != nil {
			return nil, fmt.Errorf("read its volume: %w", plain(err))
		}
	}
	related := explain.Related{Events: x.events(ctx, c.UID)}
	if related.Pods, err = x.pods(ctx, metav1.ListOptions{}, func(p *corev1.Pod) bool {
		return podclaims.UsesVolumeClaim(p, c)
	}); err != nil {
		return nil, err
	}
	return explain.Claim(c, class, volume, related, time.Now()), nil
}

// found returns nil without an error for an object that does not exist.
func found[T any](o *T, err error) (*T, error) {
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return o, err
}

func (x *explainer) nodeObject(ctx context.Context) (explain.Lines, error) {
	n, err := x.c.CoreV1().Nodes().Get(ctx, x.name, metav1.GetOptions{})
	if err != nil {
		return nil, plain(err)
	}
	x.namespace = metav1.NamespaceDefault // where events of nodes are, whose UID there is the name
	return explain.Node(n, x.events(ctx, types.UID(n.Name), n.UID), time.Now()), nil
}

func selecting(s *metav1.LabelSelector) metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(s)}
}

// owned returns the pods that one of the owners controls, and the events about the owners.
func (x *explainer) owned(ctx context.Context, s *metav1.LabelSelector, owners ...types.UID) (explain.Related, error) {
	pods, err := x.pods(ctx, selecting(s), func(p *corev1.Pod) bool {
		ref := metav1.GetControllerOf(p)
		for _, uid := range owners {
			if ref != nil && ref.UID == uid {
				return true
			}
		}
		return false
	})
	return explain.Related{Pods: pods, Events: x.events(ctx, owners...), Log: x.failedLog(ctx, pods...)}, err
}

func (x *explainer) pods(ctx context.Context, options metav1.ListOptions, wanted func(*corev1.Pod) bool) (
	out []*corev1.Pod, err error) {
	list, err := x.c.CoreV1().Pods(x.namespace).List(ctx, options)
	if err != nil {
		return nil, fmt.Errorf("list its pods: %w", plain(err))
	}
	for i := range list.Items {
		if wanted(&list.Items[i]) {
			out = append(out, &list.Items[i])
		}
	}
	return out, nil
}

// events returns the events about objects; none if the user may not read events.
func (x *explainer) events(ctx context.Context, about ...types.UID) (out []corev1.Event) {
	for _, uid := range about {
		list, err := x.c.CoreV1().Events(x.namespace).List(ctx,
			metav1.ListOptions{FieldSelector: fields.Set{"involvedObject.uid": string(uid)}.String()})
		if err == nil {
			out = append(out, list.Items...)
		}
	}
	return out
}
