package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"carob/test/bench/processor"
)

// questions queries the addresses of all Services in turn: first as fast as DNS answers, then at a fixed rate.
func (n *node) questions(ctx context.Context, values map[string]float64) error {
	all := n.services[len(n.services)-1]
	wires := make([][]byte, min(all, 1000))
	for i := range wires {
		m := new(dns.Msg).SetQuestion(fmt.Sprintf("%s.%s.svc.cluster.local.", serviceName(rand.IntN(all)), namespace),
			dns.TypeA)
		wire, err := m.Pack()
		if err != nil {
			return err
		}
		wires[i] = wire
	}
	if err := until(ctx, "an answer of DNS", func() (bool, error) { return n.answers(wires[0]) }); err != nil {
		return err
	}
	const clients = 4
	var answered atomic.Int64
	var group sync.WaitGroup
	errs := make([]error, clients)
	cpu, end := processor.Time(n.dnsPID), time.Now().Add(n.seconds)
	for i := range clients {
		group.Go(func() { errs[i] = n.flood(wires, end, &answered) })
	}
	group.Wait()
	spent := processor.Time(n.dnsPID) - cpu
	if err := errors.Join(errs...); err != nil {
		return err
	}
	values["dns_rate"] = float64(answered.Load()) / spent.Seconds()
	took, err := n.paced(ctx, wires)
	values["dns_p99"] = ms(quantile(took, 0.99))
	return err
}

// answers reports whether a name has an address.
func (n *node) answers(wire []byte) (bool, error) {
	c, err := net.Dial("udp", n.dns)
	if err != nil {
		return false, err
	}
	defer c.Close()
	buf := make([]byte, 4096)
	if err := c.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return false, err
	}
	if _, err := c.Write(wire); err != nil {
		return false, nil //nolint:nilerr // it does not listen yet
	}
	got, err := c.Read(buf)
	if err != nil {
		return false, nil //nolint:nilerr // it does not listen yet
	}
	var m dns.Msg
	return m.Unpack(buf[:got]) == nil && len(m.Answer) == 1, nil
}

// flood keeps questions in flight until it is time to end.
func (n *node) flood(wires [][]byte, end time.Time, answered *atomic.Int64) error {
	const flight = 16
	c, err := net.Dial("udp", n.dns)
	if err != nil {
		return err
	}
	defer c.Close()
	buf := make([]byte, 4096)
	for i, open := 0, 0; time.Now().Before(end); {
		for ; open < flight; open++ {
			if _, err := c.Write(wires[i%len(wires)]); err != nil {
				return err
			}
			i++
		}
		if err := c.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
			return err
		}
		if _, err := c.Read(buf); err != nil {
			open = 0 // they were lost
			continue
		}
		open--
		answered.Add(1)
	}
	return nil
}

// paced sends 1,000 queries per second, one after the other, and returns how long each answer took.
func (n *node) paced(ctx context.Context, wires [][]byte) (took []time.Duration, err error) {
	c, err := net.Dial("udp", n.dns)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	buf := make([]byte, 4096)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for i := 0; time.Duration(i)*time.Millisecond < n.seconds; i++ {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-tick.C:
		}
		sent := time.Now()
		if err := c.SetDeadline(sent.Add(time.Second)); err != nil {
			return nil, err
		}
		if _, err := c.Write(wires[i%len(wires)]); err != nil {
			return nil, err
		}
		if _, err := c.Read(buf); err != nil {
			return nil, err
		}
		took = append(took, time.Since(sent))
	}
	return took, nil
}
