package refs

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/node/spec"
)

// Await keeps an object current that a container's variables lack, or whose key they lack, until Arrived or Release.
// changed is called as by Hold, for each change from the next read of the object on. A container awaits one object: of
// several that are missing, the first that an attempt to start it finds. An immutable object without the key is read
// again at each call: another may have taken its place.
func (s *Store) Await(pod *corev1.Pod, container string, missing spec.Missing, changed func(uid types.UID)) {
	k := key{configMaps, pod.Namespace, missing.Name}
	if missing.Secret {
		k.kind = secrets
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	by := holder{pod.UID, container}
	if s.closed {
		return
	}
	if !slices.Contains(s.pods[by], k) {
		s.release(by)
		s.hold(by, []key{k}, changed)
	} else if o := s.held[k]; o.ended {
		s.watchAgain(k, o)
	}
}

// Arrived ends Await.
func (s *Store) Arrived(uid types.UID, container string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.release(holder{uid, container})
}
