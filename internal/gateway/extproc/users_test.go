package extproc

import (
	"testing"

	"google.golang.org/grpc/connectivity"
)

// A client that is closed stays connected until its last user has ended, whenever that is, and takes no others.
func TestUsers(t *testing.T) {
	for what, c := range map[string]struct {
		before, after int // users that end before and after the Close
	}{"none": {}, "before": {2, 0}, "after": {0, 2}, "both": {1, 1}} {
		client, err := New(nil, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		for range c.before + c.after {
			if !client.Begin() {
				t.Errorf("%s: it is closed too early", what)
			}
		}
		for range c.before {
			client.End()
		}
		client.Close()
		client.Close()
		for range c.after {
			if client.conn.GetState() == connectivity.Shutdown {
				t.Errorf("%s: a user has lost the connection", what)
			}
			client.End()
		}
		if client.conn.GetState() != connectivity.Shutdown {
			t.Errorf("%s: the connection is left", what)
		}
		if client.Begin() {
			t.Errorf("%s: there is another user", what)
		}
		client.End()
	}
}
