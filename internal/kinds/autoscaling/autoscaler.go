package autoscaling

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"carob/internal/kinds/registry"
	"carob/internal/kinds/table"
)

// Kinds returns the kinds of the autoscaling group.
func Kinds() []*registry.Resource {
	return []*registry.Resource{registry.Of[autoscalingv2.HorizontalPodAutoscaler,
		autoscalingv2.HorizontalPodAutoscalerList](registry.Resource{
		Kind: autoscalingv2.SchemeGroupVersion.WithKind("HorizontalPodAutoscaler"), Plural: "horizontalpodautoscalers",
		ShortNames: []string{"hpa"},
		Categories: []string{"all"}, Status: true, StatusMetadata: true,
		AlsoServed: []schema.GroupVersion{autoscalingv1.SchemeGroupVersion},
		Table: table.Kind{Columns: table.Columns([]table.Column{{Name: "Reference"}, {Name: "Targets"},
			{Name: "MinPods"}, {Name: "MaxPods"}, {Name: "Replicas"}}, table.AgeColumn),
			Row: func(o runtime.Object, now time.Time) []any {
				a := o.(*autoscalingv2.HorizontalPodAutoscaler)
				least := table.Unset
				if a.Spec.MinReplicas != nil {
					least = strconv.Itoa(int(*a.Spec.MinReplicas))
				}
				return []any{a.Name, a.Spec.ScaleTargetRef.Kind + "/" + a.Spec.ScaleTargetRef.Name,
					metrics(a.Spec.Metrics, a.Status.CurrentMetrics), least,
					int64(a.Spec.MaxReplicas), int64(a.Status.CurrentReplicas), table.Age(a.CreationTimestamp, now)}
			}},
	})}
}

// metrics prints "current/target" of the first metrics, and the number of others.
func metrics(specs []autoscalingv2.MetricSpec, statuses []autoscalingv2.MetricStatus) string {
	const most = 2
	if len(specs) == 0 {
		return table.None
	}
	out := make([]string, len(specs))
	for i := range specs {
		var current autoscalingv2.MetricStatus
		if i < len(statuses) {
			current = statuses[i]
		}
		out[i] = metric(&specs[i], &current)
	}
	if len(out) > most {
		return fmt.Sprintf("%s + %d more...", strings.Join(out[:most], ", "), len(out)-most)
	}
	return strings.Join(out, ", ")
}

// metric prints one metric; its value is unknown if the status has another type.
func metric(spec *autoscalingv2.MetricSpec, status *autoscalingv2.MetricStatus) string {
	switch s := spec; {
	case s.Type == autoscalingv2.ExternalMetricSourceType && s.External != nil:
		var current *autoscalingv2.MetricValueStatus
		if status.External != nil {
			current = &status.External.Current
		}
		return valueMetric(&s.External.Target, current)
	case s.Type == autoscalingv2.ObjectMetricSourceType && s.Object != nil:
		var current *autoscalingv2.MetricValueStatus
		if status.Object != nil {
			current = &status.Object.Current
		}
		return valueMetric(&s.Object.Target, current)
	case s.Type == autoscalingv2.PodsMetricSourceType && s.Pods != nil:
		current := table.Unknown
		if status.Pods != nil {
			current = quantity(status.Pods.Current.AverageValue)
		}
		return current + "/" + quantity(s.Pods.Target.AverageValue)
	case s.Type == autoscalingv2.ResourceMetricSourceType && s.Resource != nil:
		var current *autoscalingv2.MetricValueStatus
		if status.Resource != nil {
			current = &status.Resource.Current
		}
		return string(s.Resource.Name) + ": " + resourceMetric(&s.Resource.Target, current)
	case s.Type == autoscalingv2.ContainerResourceMetricSourceType && s.ContainerResource != nil:
		var current *autoscalingv2.MetricValueStatus
		if status.ContainerResource != nil {
			current = &status.ContainerResource.Current
		}
		return string(s.ContainerResource.Name) + ": " + resourceMetric(&s.ContainerResource.Target, current)
	}
	return "<unknown type>"
}

func valueMetric(target *autoscalingv2.MetricTarget, current *autoscalingv2.MetricValueStatus) string {
	if current == nil {
		current = &autoscalingv2.MetricValueStatus{}
	}
	if target.AverageValue != nil {
		return quantity(current.AverageValue) + "/" + quantity(target.AverageValue) + " (avg)"
	}
	return quantity(current.Value) + "/" + quantity(target.Value)
}

func resourceMetric(target *autoscalingv2.MetricTarget, current *autoscalingv2.MetricValueStatus) string {
	if current == nil {
		current = &autoscalingv2.MetricValueStatus{}
	}
	if target.AverageValue != nil {
		return quantity(current.AverageValue) + "/" + quantity(target.AverageValue)
	}
	percent := func(p *int32, missing string) string {
		if p == nil {
			return missing
		}
		return fmt.Sprintf("%d%%", *p)
	}
	return percent(current.AverageUtilization, table.Unknown) + "/" + percent(target.AverageUtilization, "<auto>")
}

func quantity(q *resource.Quantity) string {
	if q == nil {
		return table.Unknown
	}
	return q.String()
}
