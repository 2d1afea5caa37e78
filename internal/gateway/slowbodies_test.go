package gateway

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"carob/internal/core/gatewayplan"
	"carob/internal/core/routing"
	"carob/internal/gateway/bodies"
)

// anyOf is a pool whose picker is not there, and not needed.
func anyOf(memory int64) *served {
	return &served{plan: &gatewayplan.Pool{Picker: &gatewayplan.PoolPicker{FailOpen: true}},
		bodies: bodies.NewBudget(memory)}
}

// lengthOf answers with the length of the body.
func lengthOf(w http.ResponseWriter, r *http.Request) {
	n, _ := io.Copy(io.Discard, r.Body)
	fmt.Fprint(w, n)
}

// sending is a body that arrives in parts, each after a pause.
type sending struct {
	parts, size int
	pause       func(part int) time.Duration
	ctx         context.Context //nolint:containedctx // of the test
	sent        int
	closed      chan struct{}
}

// Close ends a pause.
func (s *sending) Close() error {
	close(s.closed)
	return nil
}

func (s *sending) Read(p []byte) (int, error) {
	if s.sent == s.parts {
		return 0, io.EOF
	}
	select {
	case <-time.After(s.pause(s.sent)):
	case <-s.closed:
		return 0, io.ErrClosedPipe
	case <-s.ctx.Done():
		return 0, s.ctx.Err()
	}
	s.sent++
	return copy(p, strings.Repeat(" ", s.size)), nil
}

// uploader is a client with one connection for each request, over HTTP/1.1 or HTTP/2.
func uploader(front *pipes, h2 bool) *http.Client {
	dial := func(context.Context, string, string) (net.Conn, error) { return front.dial(), nil }
	tr := &http.Transport{DialContext: dial, DisableKeepAlives: !h2, Protocols: &http.Protocols{}}
	tr.Protocols.SetHTTP1(!h2)
	tr.Protocols.SetUnencryptedHTTP2(h2)
	return &http.Client{Transport: tr}
}

// post sends a body, of a known length if that is not -1.
func post(ctx context.Context, c *http.Client, length int64, body io.Reader) (status int, reason, text string,
	err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://a/v1/completions", body)
	if err != nil {
		return 0, "", "", err
	}
	r.ContentLength = length
	res, err := c.Do(r)
	if err != nil {
		return 0, "", "", err
	}
	defer res.Body.Close()
	got, err := io.ReadAll(res.Body)
	return res.StatusCode, res.Header.Get(routing.ReasonHeader), string(got), err
}

// A body that stops, or that comes too slowly, ends with 408 and its reason, with and without a length; one over a bad
// link arrives.
func TestSlowBodies(t *testing.T) {
	const large = 220 << 10
	every := func(d time.Duration) func(int) time.Duration { return func(int) time.Duration { return d } }
	for what, c := range map[string]struct {
		sending
		status int
		from   time.Duration // when it ends, at the earliest
		to     time.Duration
	}{
		"stops": {sending{parts: 2, size: 1000, pause: func(part int) time.Duration {
			return time.Duration(part) * time.Hour
		}}, 408, slowClient, slowClient + time.Second},
		"never begins": {sending{parts: 2, size: 1000, pause: every(time.Hour)}, 408, slowClient,
			slowClient + time.Second},
		"a byte now and then": {sending{parts: large, size: 1, pause: every(time.Second)}, 408, bodies.RateWindow,
			bodies.RateWindow + 2*time.Second},
		"much, and then a byte now and then": {sending{parts: 8 << 10, size: 1024, pause: func(part int) time.Duration {
			return time.Duration(min(1, part/4000)) * 20 * time.Second
		}}, 408, bodies.RateWindow, 20 * time.Minute},
		"a bad link": {sending{parts: large / 1024, size: 1024, pause: func(part int) time.Duration {
			if part%50 == 49 {
				return slowClient - 2*time.Second // it is lost for a while
			}
			return time.Second
		}}, 200, 3 * time.Minute, 10 * time.Minute},
	} {
		for _, h2 := range []bool{false, true} {
			for _, known := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, HTTP/2 %v, known length %v", what, h2, known), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						by := anyOf(inferenceBodies)
						front, stop := slowPool(t, by, lengthOf)
						client := uploader(front, h2)
						ctx, cancel := context.WithCancel(t.Context())
						body, length, began := c.sending, int64(-1), time.Now()
						if body.ctx, body.closed = ctx, make(chan struct{}); known {
							length = int64(c.parts * c.size)
						}
						status, reason, text, err := post(ctx, client, length, &body)
						took := time.Since(began)
						if err != nil || status != c.status || took < c.from || took > c.to {
							t.Errorf("%d %s %q %v after %v", status, reason, text, err, took)
						}
						switch {
						case status == 200 && text != fmt.Sprint(c.parts*c.size):
							t.Errorf("%s bytes have arrived", text)
						case status == 408 && reason != slowBody:
							t.Errorf("the reason is %q", reason)
						}
						cancel()
						client.CloseIdleConnections()
						stop()
						if n := by.bodies.Used(); n != 0 {
							t.Errorf("%d bytes are held", n)
						}
					})
				})
			}
		}
	}
}

// Thousands of clients that send slowly, in either version of HTTP, would spend the memory several times: they end, and
// others are served, also one over a bad link.
func TestManySlowBodies(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("HTTP/2 %v", h2), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const memory, clients = 8 << 20, 3000
				by := anyOf(memory)
				front, stop := slowPool(t, by, lengthOf)
				slow, good := uploader(front, h2), uploader(front, false)
				ctx, cancel := context.WithCancel(t.Context())
				var ended, refused, most atomic.Int64
				for i := range clients {
					go func() {
						time.Sleep(time.Duration(i) * 10 * time.Millisecond)
						body := &sending{parts: 10000, size: 25, ctx: ctx, closed: make(chan struct{}),
							pause: func(part int) time.Duration { return time.Duration(min(part, 1)) * time.Second }}
						status, _, _, _ := post(ctx, slow, -1, body)
						switch status {
						case http.StatusRequestTimeout:
							ended.Add(1)
						case http.StatusTooManyRequests:
							refused.Add(1)
						}
					}()
				}
				bad := make(chan string, 1)
				go func() {
					body := &sending{parts: 220, size: 1024, ctx: ctx, closed: make(chan struct{}),
						pause: func(int) time.Duration { return time.Second / 2 }}
					status, reason, text, err := post(ctx, good, -1, body)
					bad <- fmt.Sprint(status, " ", reason+text, err)
				}()
				for range 300 {
					time.Sleep(time.Second / 2)
					most.Store(max(most.Load(), by.bodies.Used()))
					body := strings.Repeat(" ", 100<<10)
					status, reason, _, err := post(ctx, good, int64(len(body)), strings.NewReader(body))
					if status != 200 {
						t.Errorf("another request: %d %s %v", status, reason, err)
						break
					}
				}
				if got := <-bad; got != fmt.Sprint(200, " ", "225280", nil) {
					t.Errorf("a bad link: %s", got)
				}
				if most.Load() < memory/4*3 || most.Load() > memory || ended.Load() == 0 || refused.Load() > 0 {
					t.Errorf("%d bytes at most, %d ended, %d refused", most.Load(), ended.Load(), refused.Load())
				}
				cancel()
				slow.CloseIdleConnections()
				good.CloseIdleConnections()
				synctest.Wait()
				stop()
				if n := by.bodies.Used(); n != 0 {
					t.Errorf("%d bytes are held", n)
				}
			})
		})
	}
}
