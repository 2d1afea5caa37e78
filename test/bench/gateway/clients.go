package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"
)

// result is what clients have measured.
type result struct {
	all  []time.Duration // of each request, sorted
	took time.Duration
}

func (r *result) rate() float64 { return float64(len(r.all)) / r.took.Seconds() }

// at is a quantile in microseconds.
func (r *result) at(q float64) float64 {
	return float64(r.all[min(len(r.all)-1, int(q*float64(len(r.all))))].Nanoseconds()) / 1e3
}

// clients runs n clients that do the same until the time is over. make returns what one client does again and again.
func clients(ctx context.Context, n int, long time.Duration, make func() (do func() error, end func(), err error)) (
	*result, error) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	out := &result{}
	var failed error
	ctx, cancel := context.WithTimeout(ctx, long)
	defer cancel()
	began := time.Now()
	for range n {
		wg.Go(func() {
			var mine []time.Duration
			do, end, err := make()
			if err == nil {
				defer end()
			}
			for err == nil && ctx.Err() == nil {
				at := time.Now()
				if err = do(); err == nil {
					mine = append(mine, time.Since(at))
				}
			}
			mu.Lock()
			defer mu.Unlock()
			failed = errors.Join(failed, err)
			out.all = append(out.all, mine...)
		})
	}
	wg.Wait()
	out.took = time.Since(began)
	slices.Sort(out.all)
	if failed == nil && len(out.all) == 0 {
		failed = errors.New("no request has ended")
	}
	return out, failed
}

// kept sends requests for a host on one connection of HTTP/1.1. It parses no more than it must: the client should not
// be what is measured.
func kept(at, host, path string) (do func() error, end func(), err error) {
	c, err := net.Dial("tcp", at)
	if err != nil {
		return nil, nil, err
	}
	request := fmt.Appendf(nil, "GET %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: bench\r\nAccept: */*\r\n\r\n", path, host)
	r := bufio.NewReaderSize(c, 64<<10)
	return func() error {
		if _, err := c.Write(request); err != nil {
			return err
		}
		return answer(r)
	}, func() { _ = c.Close() }, nil
}

// answer reads one answer, which must be 200 and have a length.
func answer(r *bufio.Reader) error {
	length := -1
	for first := true; ; first = false {
		line, err := r.ReadSlice('\n')
		switch {
		case err != nil:
			return fmt.Errorf("read an answer: %w", err)
		case first && !bytes.HasPrefix(line, []byte("HTTP/1.1 200")):
			return fmt.Errorf("the answer is %q", line)
		case len(line) == 2:
			if length < 0 {
				return errors.New("the answer has no length")
			}
			_, err := r.Discard(length)
			return err
		}
		if name, value, ok := bytes.Cut(line, []byte(":")); ok && bytes.EqualFold(name, []byte("Content-Length")) {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil {
				return err
			}
		}
	}
}

// secureOnce opens a TLS connection without a session, and requests 1 KB.
func secureOnce() (do func() error, end func(), err error) {
	cfg := &tls.Config{InsecureSkipVerify: true, ServerName: benchHost, MinVersion: tls.VersionTLS13}
	return func() error {
		c, err := tls.Dial("tcp", secureAt, cfg)
		if err != nil {
			return err
		}
		defer c.Close()
		if _, err := fmt.Fprintf(c, "GET /1k HTTP/1.1\r\nHost: %s\r\n\r\n", benchHost); err != nil {
			return err
		}
		return answer(bufio.NewReader(c))
	}, func() {}, nil
}

// streams returns clients that share one connection of HTTP/2.
func streams() (one func() (do func() error, end func(), err error), end func()) {
	tr := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, ServerName: benchHost},
		Protocols: &http.Protocols{}, MaxConnsPerHost: 1}
	tr.Protocols.SetHTTP2(true)
	return func() (func() error, func(), error) {
		return func() error {
			req, err := http.NewRequest(http.MethodGet, "https://"+secureAt+"/1k", nil)
			if err != nil {
				return err
			}
			req.Host = benchHost
			res, err := tr.RoundTrip(req)
			if err != nil {
				return err
			}
			defer res.Body.Close()
			if res.StatusCode != http.StatusOK || res.ProtoMajor != 2 {
				return fmt.Errorf("the answer is %s %s", res.Proto, res.Status)
			}
			_, err = io.Copy(io.Discard, res.Body)
			return err
		}, func() {}, nil
	}, tr.CloseIdleConnections
}
