// Package node is the group node.k8s.io: RuntimeClasses. The kind Node is in package core.
package node
