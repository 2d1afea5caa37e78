package inference

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// Publishers that begin large messages and stop do not keep others from sending theirs: 100 of them are ended one turn
// after another, eight at once, in the order in which they came, and nothing is left.
func TestSlowPublishers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const slow, size = 100, 1 << 20
		head := binary.BigEndian.AppendUint64([]byte("\x01\x01k\x02"), size)
		connect := func() (*publisher, net.Conn) {
			near, far := net.Pipe()
			return &publisher{conn: near, in: bufio.NewReaderSize(near, 16<<10)}, far
		}
		errs := make(chan error, slow)
		for range slow {
			p, far := connect()
			go func() { _, _ = far.Write(head) }()
			go func() {
				errs <- p.next(t.Context(), func([][]byte) { t.Error("it has sent nothing") })
				_ = far.Close()
			}()
			synctest.Wait()
		}
		p, far := connect()
		defer far.Close()
		go func() { _, _ = far.Write(append(head, bytes.Repeat([]byte("x"), size)...)) }()
		began, came := time.Now(), 0
		if err := p.next(t.Context(), func(f [][]byte) { came = len(f[1]) }); err != nil || came != size {
			t.Errorf("%d bytes: %v", came, err)
		}
		// 12 times eight, and four of the thirteenth turn beside which there is room.
		if took := time.Since(began); took > 13*largeMessages.turn {
			t.Errorf("it took %v", took)
		}
		for range slow {
			if err := <-errs; !errors.Is(err, errSlow) {
				t.Error(err)
			}
		}
		if len(largeMessages.held) > 0 || len(largeMessages.queue) > 0 {
			t.Errorf("%d places, %d who wait are left", len(largeMessages.held), len(largeMessages.queue))
		}
	})
}

// never is a connection whose deadlines have no effect.
type never struct{}

func (never) SetReadDeadline(time.Time) error { return nil }

// A wait ends with its context, also when a place comes at the same moment; a message that was read keeps its place.
func TestPlacesAreGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &places{most: 1, turn: time.Second}
		first, err := s.take(t.Context(), never{})
		if err != nil {
			t.Fatal(err)
		}
		s.read(first)
		for range 20 { // which of the two a wait notices is random
			ctx, cancel := context.WithCancel(t.Context())
			over := make(chan *place, 1)
			go func() {
				p, _ := s.take(ctx, never{}) // nil after an error
				over <- p
			}()
			time.Sleep(5 * s.turn) // in the time of the test
			cancel()
			s.give(first)
			if p := <-over; p != nil {
				s.give(p)
			}
			if len(s.held) > 0 || len(s.queue) > 0 {
				t.Fatalf("%d places, %d who wait are left", len(s.held), len(s.queue))
			}
			if first, err = s.take(t.Context(), never{}); err != nil {
				t.Fatal(err)
			}
			s.read(first)
		}
	})
}
