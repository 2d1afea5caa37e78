package children

import (
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/workload"
)

// Failures holds what the next decision about an owner needs of the failures of its pods: the last one at each place.
// It is not stored; after a restart of carob the back-off starts anew. Its zero value is ready for use.
type Failures struct {
	mu sync.Mutex
	of map[string]failures // by the owner's key
}

// keptFor is longer than any back-off counts failures.
const keptFor = time.Hour

// failures are those of one generation of an owner.
type failures struct {
	uid        types.UID
	generation int64
	at         map[string]workload.Failure
}

func (f failures) are(uid types.UID, generation int64) bool {
	return f.uid == uid && f.generation == generation
}

// Of returns the failures of a generation of an owner; the caller may change the map.
func (f *Failures) Of(key string, uid types.UID, generation int64) map[string]workload.Failure {
	f.mu.Lock()
	defer f.mu.Unlock()
	if known := f.of[key]; known.are(uid, generation) {
		return maps.Clone(known.at)
	}
	return nil
}

// Add adds failures; those of other generations of the owner are forgotten.
func (f *Failures) Add(key string, uid types.UID, generation int64, at map[string]workload.Failure) {
	if len(at) == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	known := f.of[key]
	if !known.are(uid, generation) {
		known = failures{uid, generation, map[string]workload.Failure{}}
	}
	maps.Copy(known.at, at)
	var newest time.Time
	for _, f := range at { // any order: the maximum
		if f.At.After(newest) {
			newest = f.At
		}
	}
	maps.DeleteFunc(known.at, func(_ string, f workload.Failure) bool { return newest.Sub(f.At) > keptFor })
	if f.of == nil {
		f.of = map[string]failures{}
	}
	f.of[key] = known
}

// Forget forgets an owner that is gone.
func (f *Failures) Forget(key string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.of, key)
}
