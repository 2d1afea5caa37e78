package gctuning

import (
	"context"
	"runtime"
	"runtime/metrics"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// Collections with a shorter interval belong to a burst.
	burstGap = 2 * time.Second
	// A burst is over after this time without a collection in the interval.
	quietGap = 10 * time.Second
	// This much unused memory is released even without a burst, while little is allocated, for
	// example after a long list. An idle cluster has less.
	muchSpare = 20 << 20
	// Memory is released again only after more allocations than an idle cluster makes in minutes,
	// such as the start of a thousand watches.
	someSpare = 6 << 20
	much      = 32 << 20 // since the last Settle
	little    = 2 << 20  // in quietGap
	// In a burst, the heap may grow by this many bytes before the next collection. Otherwise, with
	// the small heap of an idle cluster, the collector takes a fifth of the CPU time.
	burstRoom = 192 << 20
	// At the beginning of a burst it is less: the objects that a burst leaves are spread over all pages that the heap
	// had, and a short burst should not leave a large heap. Then it grows with the square of what the burst has
	// allocated: 64 MB after 256 MB, all of it after 444 MB.
	firstRoom = 16 << 20
	longBurst = 1 << 30 // with as much room, if it were not limited
	// Smaller changes of the percentage are not applied, because a change stops the process for a moment.
	percentStep = 25
)

// Follow calls Settle after each of the given delays, one after the other. From then on, until ctx
// is done, it lets the heap grow more during a burst and calls Settle when the burst is over. Every
// quietGap it checks whether there is much unused memory.
//
//	start ──first──▶ settled ──two collections within a short time──▶ burst ──none for a while──▶ settled
//	                 settled ──little allocated; and much unused, or the burst had gone on slowly──▶ settled
func Follow(ctx context.Context, first ...time.Duration) error {
	p := tuner{room: room(), percent: startPercent}
	collected := make(chan struct{}, 1)
	arm(ctx, collected)
	next := append(first, quietGap)
	burst := false // since the last Settle
	before := used()
	p.settled(collections())
	need := need{settled: before}
	settle := time.NewTimer(next[0])
	defer settle.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-collected:
			percent := p.percent
			burst = p.collected(time.Now(), collections(), retained(), used().allocated) || burst
			if p.percent != percent {
				setPercent(p.percent)
			}
			if burst && len(next) == 1 {
				settle.Reset(quietGap)
			}
		case <-settle.C:
			use := used()
			quiet := use.allocated-before.allocated < little
			before = use
			if need.check(use, quiet, burst, len(next) > 1) {
				burst = false
				if err := Settle(); err != nil {
					return err
				}
				p.settled(collections())
			}
			if len(next) > 1 {
				next = next[1:]
			}
			settle.Reset(next[0])
		}
	}
}

// need decides when to call Settle.
type need struct {
	settled use  // at the last Settle
	early   bool // the last Settle came while a burst still went on slowly
}

// check reports whether to call Settle now, and takes it for done then.
func (n *need) check(now use, quiet, burst, starting bool) bool {
	if !burst && !starting && (!quiet || !n.early && !now.worthSettling(n.settled)) {
		return false
	}
	n.settled, n.early = now, burst && !quiet
	return true
}

// tuner decides how much the heap may grow between two collections.
type tuner struct {
	room    uint64    // bytes that the heap may grow in a long burst
	began   uint64    // bytes allocated until the burst since the last Settle began; 0: there was none
	last    time.Time // collection
	seen    uint64    // collections until the last Settle, with its own
	percent int
}

// settled begins anew after a Settle, with as many collections since the start.
func (p *tuner) settled(collections uint64) {
	p.percent, p.began, p.seen = settledPercent, 0, collections
}

// collected records a collection, the bytes that it has kept, and the bytes allocated since the start, and reports
// whether there is a burst. The collections of a Settle are none.
func (p *tuner) collected(now time.Time, collections, kept, allocated uint64) (burst bool) {
	if collections == p.seen {
		return false
	}
	burst = now.Sub(p.last) < burstGap
	p.last = now
	if burst {
		if p.began == 0 {
			p.began = allocated
		}
		made := min(allocated-p.began, longBurst)
		grow := min(max(made*made/longBurst, firstRoom), p.room)
		percent := int(grow * 100 / max(kept, 1))
		p.percent = min(max(percent-percent%percentStep, settledPercent), startPercent)
	}
	return burst
}

// room leaves most of the memory of a small machine to others.
func room() uint64 {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0
	}
	return min(burstRoom, info.Totalram*uint64(info.Unit)/32)
}

// live returns the live bytes after the last collection.
func live() uint64 { return figure("/gc/heap/live:bytes") }

// retained returns the bytes that Go's percentage refers to: live ones, stacks, and global variables.
func retained() uint64 {
	return live() + figure("/gc/scan/stack:bytes") + figure("/gc/scan/globals:bytes")
}

// collections returns how many collections there were since the start.
func collections() uint64 { return figure("/gc/cycles/total:gc-cycles") }

// use describes how the heap is used.
type use struct {
	allocated uint64 // bytes since the start
	spare     uint64 // bytes that Settle may release: free memory, and objects allocated since the last collection
}

// worthSettling reports whether Settle would release enough, given the use at the last Settle.
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

// arm sends after each collection until ctx is done: nothing refers to the value it allocates, so
// the next collection finds it.
func arm(ctx context.Context, collected chan<- struct{}) {
	runtime.AddCleanup(&struct{ *tuner }{}, func(struct{}) {
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
