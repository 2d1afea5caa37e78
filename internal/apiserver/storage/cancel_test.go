package storage

import (
	"context"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Many watches that end at the same time do not block the others on the stream.
func TestManyWatchesEndAtOnce(t *testing.T) {
	e := open(t, t.TempDir())
	ctx, stop := context.WithCancel(t.Context())
	for range 300 {
		w := e.Client.Watch(ctx, "/a", clientv3.WithCreatedNotify())
		<-w
	}
	stop()
	after, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	w := e.Client.Watch(after, "/a", clientv3.WithCreatedNotify())
	if r, ok := <-w; !ok || !r.Created {
		t.Fatalf("a later watch: %v (open %t)", r, ok)
	}
}
