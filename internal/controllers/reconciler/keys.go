package reconciler

import "sync"

// Keys is a set of keys, which the workers of a Reconciler may use at the same time. Its zero value is empty.
type Keys struct {
	mu  sync.Mutex
	set map[string]bool
}

// Has reports whether a key is in the set.
func (k *Keys) Has(key string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.set[key]
}

// Put adds a key to the set, or removes it.
func (k *Keys) Put(key string, in bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case !in:
		delete(k.set, key)
	case k.set == nil:
		k.set = map[string]bool{key: true}
	default:
		k.set[key] = true
	}
}
