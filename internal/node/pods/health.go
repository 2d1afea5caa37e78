package pods

import (
	"fmt"
	"time"
)

// rests records that the owner has finished the work from its mailbox, and when it wakes by itself.
func (o *owner) rests(alarm time.Time) {
	o.box.mu.Lock()
	o.box.works, o.box.alarm = time.Time{}, alarm
	o.box.mu.Unlock()
}

// blockedSince returns since when the owner has made no progress; zero: it makes progress.
func (o *owner) blockedSince() time.Time {
	o.box.mu.Lock()
	defer o.box.mu.Unlock()
	if w := o.box.works; !w.IsZero() {
		return w
	}
	return o.box.waits
}

// Healthy returns an error that names a pod whose owner has made no progress for longer than limit;
// nil: there is none.
func (m *Manager) Healthy(now time.Time, limit time.Duration) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.entries {
		if e.owner == nil {
			continue
		}
		if since := e.owner.blockedSince(); !since.IsZero() && now.Sub(since) > limit {
			return fmt.Errorf("pod %s/%s has been waiting for %v", e.pod.Namespace, e.pod.Name,
				now.Sub(since).Truncate(time.Second))
		}
	}
	return nil
}
