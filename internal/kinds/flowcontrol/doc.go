// Package flowcontrol is the group flowcontrol.apiserver.k8s.io: FlowSchemas and
// PriorityLevelConfigurations. Package apiserver/flow queues requests by them.
package flowcontrol
