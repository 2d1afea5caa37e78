package podlife

// State is what Step remembers between calls: only what can't be observed. It is a
// value that can be serialised and holds no pointer into an Input.
type State struct{}
