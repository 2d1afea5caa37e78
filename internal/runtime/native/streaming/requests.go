package streaming

import (
	"path"
	"sync"
	"time"

	"carob/internal/base/streamguard"
)

// Kinds of requests; the third one is exec.
const (
	kindForward = "portforward"
	kindAttach  = "attach"
)

// Limits of URLs, which are cri-streaming's.
const (
	validFor = time.Minute
	mostWait = 1000
)

// request is what a URL stands for.
type request struct {
	kind    string
	streams streamguard.Streams // of exec and attach
	pod     string              // of port-forward: the ID of the sandbox
	ports   []int32             // of port-forward with WebSockets
	until   time.Time
}

// requests are those whose URLs were not used yet, by the last element of the URL.
type requests struct {
	mu   sync.Mutex
	wait map[string]request
}

// add adds a request unless too many wait, and removes those whose URLs are not valid any more.
func (q *requests) add(address string, r request) bool {
	now := time.Now()
	q.mu.Lock()
	defer q.mu.Unlock()
	for token, r := range q.wait {
		if now.After(r.until) {
			delete(q.wait, token)
		}
	}
	if len(q.wait) >= mostWait {
		return false
	}
	if q.wait == nil {
		q.wait = map[string]request{}
	}
	r.until = now.Add(validFor)
	q.wait[path.Base(address)] = r
	return true
}

// take removes a request.
func (q *requests) take(token string) (request, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	r, ok := q.wait[token]
	delete(q.wait, token)
	return r, ok && !time.Now().After(r.until)
}
