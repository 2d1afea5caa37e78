package storage

import (
	"fmt"
	"os"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// A killed process leaves entries in the log that the database does not have
// yet. The next start replays them while it makes itself leader: neither may
// disturb the other, and no acknowledged write may be lost.
func TestKilledStoreOpensAgain(t *testing.T) {
	live := t.TempDir()
	e, err := Open(t.Context(), Config{Dir: live})
	if err != nil {
		t.Fatal(err)
	}
	const writes = 250 // more than etcd applies before it first drops entries
	for i := range writes {
		if _, err := e.Client.Put(t.Context(), fmt.Sprintf("/k/%d", i), "v"); err != nil {
			t.Fatal(err)
		}
	}
	const copies = 8
	var dirs [copies]string
	for i := range dirs {
		// The files as a kill would leave them now.
		dirs[i] = t.TempDir()
		if err := os.CopyFS(dirs[i], os.DirFS(live)); err != nil {
			t.Fatal(err)
		}
	}
	e.Close()
	for _, dir := range dirs {
		e, err := Open(t.Context(), Config{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		got, err := e.Client.KV.Get(t.Context(), "/k/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			t.Fatal(err)
		}
		if got.Count != writes {
			t.Errorf("%d of %d acknowledged writes are there", got.Count, writes)
		}
		e.Close()
	}
}
