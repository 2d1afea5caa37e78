package autoscaler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	custommetricsv1beta1 "k8s.io/metrics/pkg/apis/custom_metrics/v1beta1"
	custommetricsv1beta2 "k8s.io/metrics/pkg/apis/custom_metrics/v1beta2"
	externalmetricsv1beta1 "k8s.io/metrics/pkg/apis/external_metrics/v1beta1"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"carob/internal/controllers/inventory"
	"carob/internal/core/workload/autoscaler"
)

// restScales reads and writes scales through the API.
type restScales struct{ client func() rest.Interface }

func (r restScales) get(ctx context.Context, kind inventory.Kind, namespace, name string) (*autoscalingv1.Scale,
	error) {
	var s autoscalingv1.Scale
	err := kind.Request(r.client().Get(), namespace, name, "scale").Do(ctx).Into(&s)
	return &s, err
}

func (r restScales) put(ctx context.Context, kind inventory.Kind, s *autoscalingv1.Scale) error {
	// JSON, which custom resources also support.
	text, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("write a scale: %w", err)
	}
	return kind.Request(r.client().Put(), s.Namespace, s.Name, "scale").SetHeader("Content-Type", "application/json").
		Body(text).Do(ctx).Error()
}

// restMetrics reads the three metrics APIs (W8), from any server.
type restMetrics struct {
	client func() rest.Interface
	kinds  Kinds
}

// read gets JSON, which every metrics server supports.
func (r restMetrics) read(ctx context.Context, into any, query map[string]string, path ...string) error {
	q := r.client().Get().AbsPath(path...).SetHeader("Accept", "application/json")
	for key, value := range query {
		if value != "" {
			q = q.Param(key, value)
		}
	}
	text, err := q.DoRaw(ctx)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	return nil
}

func (r restMetrics) sample(ctx context.Context, hpa *autoscalingv2.HorizontalPodAutoscaler,
	m *autoscalingv2.MetricSpec, selector labels.Selector) autoscaler.Sample {
	switch m.Type {
	case autoscalingv2.ResourceMetricSourceType:
		return r.resource(ctx, hpa.Namespace, selector, m.Resource.Name, "")
	case autoscalingv2.ContainerResourceMetricSourceType:
		return r.resource(ctx, hpa.Namespace, selector, m.ContainerResource.Name, m.ContainerResource.Container)
	case autoscalingv2.PodsMetricSourceType:
		return r.ofPods(ctx, hpa.Namespace, selector, m.Pods.Metric)
	case autoscalingv2.ObjectMetricSourceType:
		return r.ofObject(ctx, hpa.Namespace, m.Object)
	case autoscalingv2.ExternalMetricSourceType:
		return r.external(ctx, hpa.Namespace, m.External.Metric)
	}
	return autoscaler.Sample{Err: fmt.Errorf("unknown metric source type %q", m.Type)}
}

func (r restMetrics) resource(ctx context.Context, namespace string, selector labels.Selector, name corev1.ResourceName,
	container string) autoscaler.Sample {
	var list metricsv1beta1.PodMetricsList
	err := r.read(ctx, &list, map[string]string{"labelSelector": selector.String()},
		"/apis/metrics.k8s.io/v1beta1/namespaces", namespace, "pods")
	switch {
	case err != nil:
		return autoscaler.Sample{Err: fmt.Errorf("unable to fetch metrics from resource metrics API: %w", err)}
	case len(list.Items) == 0:
		return autoscaler.Sample{Err: errors.New("no metrics returned from resource metrics API")}
	}
	s := autoscaler.Sample{Pods: map[string]autoscaler.PodValue{}}
	for i := range list.Items {
		m := &list.Items[i]
		sum, complete, found := int64(0), true, false
		for _, c := range m.Containers {
			if container != "" && c.Name != container {
				continue
			}
			found = true
			q, ok := c.Usage[name]
			complete = complete && ok
			sum += q.MilliValue()
		}
		if found && complete { // W7.37
			s.Pods[m.Name] = autoscaler.PodValue{Value: sum, At: m.Timestamp.Time, Window: m.Window.Duration}
		}
	}
	return s
}

func selectorText(s *metav1.LabelSelector) (string, error) {
	if s == nil {
		return "", nil
	}
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return "", err
	}
	return selector.String(), nil
}

// customWindow is the window of a custom metric without one (W8.21).
const customWindow = time.Minute

// custom reads values of custom.metrics.k8s.io in the version that is served, the newer first (W8.20).
func (r restMetrics) custom(ctx context.Context, metric autoscalingv2.MetricIdentifier, pods string,
	place ...string) ([]custommetricsv1beta2.MetricValue, error) {
	text, err := selectorText(metric.Selector)
	if err != nil {
		return nil, err
	}
	var group metav1.APIGroup
	if err := r.read(ctx, &group, nil, "/apis/custom.metrics.k8s.io"); apierrors.IsNotFound(err) {
		return nil, errors.New("no custom metrics API (custom.metrics.k8s.io) registered")
	} else if err != nil {
		return nil, err
	}
	served := map[string]bool{}
	for _, v := range group.Versions {
		served[v.Version] = true
	}
	query := map[string]string{"labelSelector": pods, "metricLabelSelector": text}
	where := func(version string) []string {
		return append([]string{"/apis/custom.metrics.k8s.io/" + version}, append(place, metric.Name)...)
	}
	if served["v1beta2"] {
		var list custommetricsv1beta2.MetricValueList
		err := r.read(ctx, &list, query, where("v1beta2")...)
		return list.Items, err
	}
	if !served["v1beta1"] {
		return nil, errors.New("no known available metric versions found")
	}
	var list custommetricsv1beta1.MetricValueList
	if err := r.read(ctx, &list, query, where("v1beta1")...); err != nil {
		return nil, err
	}
	var out []custommetricsv1beta2.MetricValue
	for _, v := range list.Items {
		out = append(out, custommetricsv1beta2.MetricValue{DescribedObject: v.DescribedObject, Timestamp: v.Timestamp,
			WindowSeconds: v.WindowSeconds, Value: v.Value})
	}
	return out, nil
}

func (r restMetrics) ofPods(ctx context.Context, namespace string, selector labels.Selector,
	metric autoscalingv2.MetricIdentifier) autoscaler.Sample {
	values, err := r.custom(ctx, metric, selector.String(), "namespaces", namespace, "pods", "*")
	switch {
	case err != nil:
		return autoscaler.Sample{Err: fmt.Errorf("unable to fetch metrics from custom metrics API: %w", err)}
	case len(values) == 0:
		return autoscaler.Sample{Err: errors.New("no metrics returned from custom metrics API")}
	}
	s := autoscaler.Sample{Pods: map[string]autoscaler.PodValue{}}
	for _, v := range values {
		window := customWindow
		if v.WindowSeconds != nil {
			window = time.Duration(*v.WindowSeconds) * time.Second
		}
		s.Pods[v.DescribedObject.Name] = autoscaler.PodValue{Value: v.Value.MilliValue(), At: v.Timestamp.Time,
			Window: window}
	}
	return s
}

func (r restMetrics) ofObject(ctx context.Context, namespace string,
	m *autoscalingv2.ObjectMetricSource) autoscaler.Sample {
	gvk := schema.FromAPIVersionAndKind(m.DescribedObject.APIVersion, m.DescribedObject.Kind)
	place := []string{"namespaces", namespace, "metrics"}
	if gvk.GroupKind() != (schema.GroupKind{Kind: "Namespace"}) {
		kind, ok := r.kinds.Preferred(gvk.GroupKind())
		if !ok {
			return autoscaler.Sample{
				Err: fmt.Errorf("unable to fetch metrics from custom metrics API: unable to map kind %s to resource: "+
					"no matches for kind %q in group %q", gvk.GroupKind(), gvk.Kind, gvk.Group)}
		}
		place = []string{"namespaces", namespace, kind.GroupVersionResource.GroupResource().String(),
			m.DescribedObject.Name}
	}
	values, err := r.custom(ctx, m.Metric, "", place...)
	if err != nil {
		return autoscaler.Sample{Err: fmt.Errorf("unable to fetch metrics from custom metrics API: %w", err)}
	}
	var s autoscaler.Sample
	for _, v := range values {
		s.Values = append(s.Values, v.Value.MilliValue())
	}
	return s
}

func (r restMetrics) external(ctx context.Context, namespace string,
	metric autoscalingv2.MetricIdentifier) autoscaler.Sample {
	text, err := selectorText(metric.Selector)
	var list externalmetricsv1beta1.ExternalMetricValueList
	if err == nil {
		err = r.read(ctx, &list, map[string]string{"labelSelector": text},
			"/apis/external.metrics.k8s.io/v1beta1/namespaces", namespace, metric.Name)
	}
	switch {
	case err != nil:
		return autoscaler.Sample{Err: fmt.Errorf("unable to fetch metrics from external metrics API: %w", err)}
	case len(list.Items) == 0:
		return autoscaler.Sample{Err: errors.New("no metrics returned from external metrics API")}
	}
	var s autoscaler.Sample
	for _, v := range list.Items {
		s.Values = append(s.Values, v.Value.MilliValue())
	}
	return s
}
