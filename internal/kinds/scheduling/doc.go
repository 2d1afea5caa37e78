// Package scheduling is the group scheduling.k8s.io: PriorityClasses.
package scheduling
