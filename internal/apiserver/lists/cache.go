package lists

import (
	"reflect"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// Objects that are not used for this long, or twice as long, are forgotten.
	cachedFor = 10 * time.Second
	// The number of bytes in each of the two generations is at most this.
	generation = 12 << 20
	// The memory of an entry besides the encoded object.
	entrySize = 160
)

// Cache keeps encoded objects while lists use them. An object of the same type, identity, and
// version is the same: the server gives each stored state its own version. The zero value is empty.
type Cache struct {
	mu          sync.Mutex
	now, before map[key]encoded
	size        int         // of the current generation, in bytes
	timer       *time.Timer // nil while the cache is empty
}

type key struct {
	kind reflect.Type // of one API version
	uid  types.UID
	json bool // or protobuf
}

type encoded struct {
	version string
	data    []byte // never changed
}

// get returns an encoded object; nil if that version is not cached.
func (k *Cache) get(id key, version string) []byte {
	k.mu.Lock()
	defer k.mu.Unlock()
	e, ok := k.now[id]
	if !ok {
		if e, ok = k.before[id]; ok {
			delete(k.before, id)
			if e.version == version {
				k.add(id, e)
			}
		}
	}
	if !ok || e.version != version {
		return nil
	}
	return e.data
}

func (k *Cache) put(id key, version string, data []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.add(id, encoded{version, data})
}

// add adds an entry to the current generation. Call with mu held.
func (k *Cache) add(id key, e encoded) {
	if old, ok := k.now[id]; ok {
		k.size -= entrySize + len(old.data)
	}
	if k.size+entrySize+len(e.data) > generation {
		k.age()
	}
	if k.now == nil {
		k.now = map[key]encoded{}
	}
	k.now[id] = e
	k.size += entrySize + len(e.data)
	if k.timer == nil {
		k.timer = time.AfterFunc(cachedFor, k.tick)
	}
}

// Clear removes all objects. Their timer ends by itself.
func (k *Cache) Clear() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.now, k.before, k.size = nil, nil, 0
}

// Len returns the number of cached objects.
func (k *Cache) Len() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.now) + len(k.before)
}

// age starts a new generation. Call with mu held.
func (k *Cache) age() { k.now, k.before, k.size = nil, k.now, 0 }

// tick runs as long as the cache is not empty.
func (k *Cache) tick() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.age()
	if k.before == nil {
		k.timer = nil
		return
	}
	k.timer.Reset(cachedFor)
}
