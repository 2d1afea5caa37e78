// Package autoscaling is the group autoscaling: HorizontalPodAutoscalers. It never acts on them.
package autoscaling
