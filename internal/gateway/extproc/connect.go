package extproc

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"
)

// connectTime is how long an attempt to connect may take, with TLS.
const connectTime = 10 * time.Second

// reconnects is how a picker that cannot be reached is tried again: within a second, however long it was away. gRPC
// itself would wait for up to two minutes, in which each request fails although the picker is there again.
func reconnects() grpc.DialOption {
	return grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: connectTime, Backoff: backoff.Config{
		BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second}})
}

// Connected waits until a server of the picker is connected, ctx ends, or Close is called.
func (c *Client) Connected(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-c.closing:
			cancel()
		case <-ctx.Done():
		}
	}()
	for {
		state := c.conn.GetState()
		if state == connectivity.Ready {
			return nil
		}
		if state == connectivity.Idle {
			c.conn.Connect()
		}
		if !c.conn.WaitForStateChange(ctx, state) {
			return fmt.Errorf("wait for the endpoint picker: %w", ctx.Err())
		}
	}
}

// Lost reports whether a pick has failed because its connection has ended, or there was none. Another server of the
// picker may be there.
func Lost(err error) bool { return err != nil && status.Code(err) == codes.Unavailable }
