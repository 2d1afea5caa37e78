package reconciler

import (
	"context"
	"testing"
	"testing/synctest"
)

// list is a watch whose sync the test controls.
type list struct {
	runs, ended int
	synced      chan struct{}
}

func (l *list) Run(ctx context.Context) {
	l.runs++
	<-ctx.Done()
	l.ended++
}

func (l *list) Synced() <-chan struct{} { return l.synced }

// No watch runs before the first object; work begins when all watches have synced, and Run ends after its
// watches.
func TestFirst(t *testing.T) {
	// How many of the events come before ctx ends: the first object, a sync of its own watch, and of another's.
	for events := range 4 {
		synctest.Test(t, func(t *testing.T) {
			f := NewFirst()
			own, other := &list{synced: make(chan struct{})}, &list{synced: make(chan struct{})}
			ctx, cancel := context.WithCancel(t.Context())
			works, done := 0, make(chan struct{})
			go func() {
				defer close(done)
				f.Run(ctx, []Watched{own}, []Watched{other}, func(ctx context.Context) { works++; <-ctx.Done() })
			}()
			for i, event := range []func(){
				func() { f.Seen(); f.Seen() }, // twice
				func() { close(own.synced) },
				func() { close(other.synced) },
			}[:events] {
				synctest.Wait()
				if own.runs != min(i, 1) || works != 0 {
					t.Errorf("after %d events its watch was run %d times, work %d times", i, own.runs, works)
				}
				event()
			}
			synctest.Wait()
			if want := events / 3; works != want || own.runs != min(events, 1) || other.runs != 0 {
				t.Errorf("after %d events work was called %d times, the watches ran %d and %d times", events, works,
					own.runs, other.runs)
			}
			select {
			case <-done:
				t.Error("it returned before ctx ended")
			default:
			}
			cancel()
			<-done
			if own.ended != own.runs {
				t.Error("its watch continues")
			}
		})
	}
}
