package apiserver

import (
	"net/http"
	"sync"

	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// userLimits limit how many requests of each user are handled at once, apart from long-running
// ones. The filter between take and free answers a request whose client has disconnected while the
// request continues in a goroutine of its own: without a limit, a client that cancels its requests
// at once could have any number of them. No request waits for those of another user here; behind
// it, priority and fairness executes few requests at a time.
type userLimits struct {
	size int

	mu sync.Mutex
	of map[string]*userLimit
}

type userLimit struct {
	slots chan struct{}
	users int // requests that wait for a slot or have one; protected by userLimits.mu
}

func newUserLimits(size int) *userLimits { return &userLimits{size: size, of: map[string]*userLimit{}} }

func (s *userLimits) enter(name string) *userLimit {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.of[name]
	if r == nil {
		r = &userLimit{slots: make(chan struct{}, s.size)}
		s.of[name] = r
	}
	r.users++
	return r
}

func (s *userLimits) leave(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.of[name]
	if r.users--; r.users == 0 {
		delete(s.of, name)
	}
}

// take makes a request wait for a slot of its user, until its client disconnects.
func (s *userLimits) take(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := userName(r)
		select {
		case s.enter(name).slots <- struct{}{}:
			next.ServeHTTP(w, r)
		case <-r.Context().Done():
			s.leave(name)
		}
	})
}

// free releases the slot when the request is done.
func (s *userLimits) free(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := userName(r)
		defer func() {
			s.mu.Lock()
			taken := s.of[name].slots
			s.mu.Unlock()
			<-taken
			s.leave(name)
		}()
		next.ServeHTTP(w, r)
	})
}

func userName(r *http.Request) string {
	if u, ok := apirequest.UserFrom(r.Context()); ok {
		return u.GetName()
	}
	return ""
}
