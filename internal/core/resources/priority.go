package resources

// The system's own priority classes, which every cluster has (L0.64).
const (
	ClusterCritical = "system-cluster-critical"
	NodeCritical    = "system-node-critical"
)

// Priorities of these classes. A pod from ClusterCriticalPriority on is critical.
const (
	ClusterCriticalPriority int32 = 2_000_000_000
	NodeCriticalPriority    int32 = 2_000_001_000
)

// SystemPriority returns the priority of one of the system's own classes; false: the class is none of them.
func SystemPriority(class string) (int32, bool) {
	switch class {
	case ClusterCritical:
		return ClusterCriticalPriority, true
	case NodeCritical:
		return NodeCriticalPriority, true
	}
	return 0, false
}
