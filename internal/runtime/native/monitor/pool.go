package monitor

import (
	"sync"
	"time"
)

// refillPause is how long the pool leaves the CPU to the pod that took a monitor, while at least
// half of its monitors are left.
const refillPause = 50 * time.Millisecond

// Pool keeps a few monitors started in advance, so that a pod does not wait for their start. It
// refills after a pause, or at once if less than half are left, and ends its monitors when it is
// closed.
type Pool struct {
	start func() (*Monitor, error)
	ahead func(*Monitor) // prepares more for one that is not needed yet
	ready chan *Monitor
	want  chan struct{}
	stop  chan struct{}
	once  sync.Once
	done  sync.WaitGroup
}

// NewPool starts size monitors in advance; none for zero. What ahead does is done only for these,
// not for one that a pod waits for.
func NewPool(size int, start func() (*Monitor, error), ahead func(*Monitor)) *Pool {
	p := &Pool{start: start, ahead: ahead, ready: make(chan *Monitor, size), want: make(chan struct{}, 1),
		stop: make(chan struct{})}
	if size > 0 {
		p.done.Add(1)
		go p.fill()
		p.refill()
	}
	return p
}

func (p *Pool) refill() {
	select {
	case p.want <- struct{}{}:
	default:
	}
}

func (p *Pool) fill() {
	defer p.done.Done()
	for {
		select {
		case <-p.stop:
			return
		case <-p.want:
			p.pause()
		}
		for len(p.ready) < cap(p.ready) {
			m, err := p.start()
			if err != nil {
				break // Get starts one itself and returns the error
			}
			p.ahead(m)
			select {
			case p.ready <- m:
			case <-p.stop:
				m.Close()
				return
			}
		}
	}
}

// pause waits for refillPause, or until less than half are left.
func (p *Pool) pause() {
	over := time.NewTimer(refillPause)
	defer over.Stop()
	for len(p.ready)*2 >= cap(p.ready) {
		select {
		case <-p.stop:
			return
		case <-over.C:
			return
		case <-p.want:
		}
	}
}

// Get returns a monitor that belongs to no pod yet.
func (p *Pool) Get() (*Monitor, error) {
	for {
		select {
		case m := <-p.ready:
			p.refill()
			select {
			case <-m.Gone():
				continue // killed while it waited
			default:
				return m, nil
			}
		default:
			return p.start()
		}
	}
}

// Len returns how many monitors wait.
func (p *Pool) Len() int { return len(p.ready) }

// Close ends the waiting monitors.
func (p *Pool) Close() {
	p.once.Do(func() { close(p.stop) })
	p.done.Wait()
	for {
		select {
		case m := <-p.ready:
			m.Close() // a monitor without a pod exits when its connection is closed
		default:
			return
		}
	}
}
