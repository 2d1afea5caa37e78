package pods

import (
	"fmt"
	"time"
)

// rests says that the owner is done with what it took out of its mailbox.
func (o *owner) rests() {
	o.box.mu.Lock()
	o.box.works = time.Time{}
	o.box.mu.Unlock()
}

// stuck says since when the owner has not got on; zero: it does.
func (o *owner) stuck() time.Time {
	o.box.mu.Lock()
	defer o.box.mu.Unlock()
	if w := o.box.works; !w.IsZero() {
		return w
	}
	return o.box.waits
}

// Stuck names a pod whose owner has not got on for longer than limit; nil: none.
func (m *Manager) Stuck(now time.Time, limit time.Duration) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.entries {
		if e.owner == nil {
			continue
		}
		if since := e.owner.stuck(); !since.IsZero() && now.Sub(since) > limit {
			return fmt.Errorf("pod %s/%s has been waiting for %v", e.pod.Namespace, e.pod.Name,
				now.Sub(since).Truncate(time.Second))
		}
	}
	return nil
}
