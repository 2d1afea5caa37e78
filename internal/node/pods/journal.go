// Package pods drives the life of every pod of a node.
package pods

// Journal is told of everything that happens to a pod. Record must not block.
type Journal interface{}
