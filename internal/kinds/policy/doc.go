// Package policy is the group policy: PodDisruptionBudgets. Package core/disruption applies them.
package policy
