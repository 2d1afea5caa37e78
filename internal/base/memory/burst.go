package memory

import (
	"context"
	"runtime"
	"runtime/metrics"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// Collections that follow each other faster than this are those of a burst.
	burstGap = 2 * time.Second
	// A burst is over when there was none for so long.
	quietGap = 10 * time.Second
	// So much that may be unused is given back without a burst, too, when little is
	// allocated: what a long list took. An idle cluster has less.
	muchSpare = 20 << 20
	// Less is worth it after more than an idle cluster allocates in minutes: what a
	// thousand watches took to begin.
	someSpare = 6 << 20
	much      = 32 << 20 // since the process was settled
	little    = 2 << 20  // in quietGap
	// In a burst the heap may grow by so many bytes before it is collected: with a
	// heap as small as that of an idle cluster the collector takes a fifth of the
	// processor time otherwise.
	burstRoom = 192 << 20
	// The pace is changed by no less: the process stands still for a moment then.
	paceStep = 50
)

// Follow settles the process after each of the given times, counted one from the
// other, and from then on gives the collector more room while there is a burst and
// settles when it is over, until ctx ends. Every quietGap it looks whether much is
// to spare.
//
//	start ──first──▶ settled ──two collections soon after each other──▶ burst ──none for a while──▶ settled
//	                 settled ──much to spare and little allocated──▶ settled
func Follow(ctx context.Context, first ...time.Duration) error {
	p := pacer{room: room(), percent: startPercent}
	collected := make(chan struct{}, 1)
	arm(ctx, collected)
	next := append(first, quietGap)
	burst := false // since the process was settled
	before := used()
	settled := before
	settle := time.NewTimer(next[0])
	defer settle.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-collected:
			percent := p.percent
			burst = p.collected(time.Now(), live()) || burst
			if p.percent != percent {
				pace(p.percent)
			}
			if burst && len(next) == 1 {
				settle.Reset(quietGap)
			}
		case <-settle.C:
			use := used()
			quiet := use.allocated-before.allocated < little
			before = use
			if burst || len(next) > 1 || quiet && use.worthSettling(settled) {
				burst = false
				settled = use
				p.percent = settledPercent
				if err := Settle(); err != nil {
					return err
				}
			}
			if len(next) > 1 {
				next = next[1:]
			}
			settle.Reset(next[0])
		}
	}
}

// pacer decides the pace of the collector.
type pacer struct {
	room    uint64    // bytes that the heap may grow by in a burst
	last    time.Time // collection
	percent int
}

// collected notes a collection that left so many live bytes, and reports whether there is a burst.
func (p *pacer) collected(now time.Time, live uint64) (burst bool) {
	burst = now.Sub(p.last) < burstGap
	p.last = now
	if burst {
		percent := int(p.room * 100 / max(live, 1))
		p.percent = min(max(percent-percent%paceStep, settledPercent), startPercent)
	}
	return burst
}

// room leaves most of a small machine to others.
func room() uint64 {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0
	}
	return min(burstRoom, info.Totalram*uint64(info.Unit)/32)
}

// live returns the bytes that the last collection left.
func live() uint64 { return figure("/gc/heap/live:bytes") }

// use is what the heap is used for.
type use struct {
	allocated uint64 // bytes since the start
	spare     uint64 // bytes that Settle may give back: those without objects, and objects made since the last collection
}

// worthSettling says whether enough is to spare, when the process was last settled at that use.
func (u use) worthSettling(settled use) bool {
	return u.spare > muchSpare || u.spare > someSpare && u.allocated-settled.allocated > much
}

func used() use {
	made := figure("/memory/classes/heap/objects:bytes")
	return use{figure("/gc/heap/allocs:bytes"), figure("/memory/classes/heap/free:bytes") + made - min(made, live())}
}

func figure(name string) uint64 {
	s := []metrics.Sample{{Name: name}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

// arm sends after each collection until ctx ends: nothing refers to the value it
// makes, so that the next collection finds it.
func arm(ctx context.Context, collected chan<- struct{}) {
	runtime.AddCleanup(&struct{ *pacer }{}, func(struct{}) {
		if ctx.Err() != nil {
			return
		}
		select {
		case collected <- struct{}{}:
		default:
		}
		arm(ctx, collected)
	}, struct{}{})
}
