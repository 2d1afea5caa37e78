// Package services is the data plane of Services on this node.
package services
