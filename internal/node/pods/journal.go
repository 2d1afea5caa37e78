package pods

// Journal is told of everything that happens to a pod. Record must not block.
type Journal interface{}
