// Package policy is the group policy: PodDisruptionBudgets. Package core/disruption decides by them.
package policy
