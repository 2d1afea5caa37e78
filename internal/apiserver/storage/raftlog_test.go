package storage

import (
	"fmt"
	"reflect"
	"testing"

	"go.etcd.io/raft/v3"
)

// The only member has no follower that would need the log's entries: few stay in memory after a burst.
func TestRaftLogInMemory(t *testing.T) {
	const writes, most = 500, 150 // etcd compacts the log every 100 entries
	e := open(t, t.TempDir())
	for i := range writes {
		if _, err := e.Client.Put(t.Context(), fmt.Sprint("/registry/a/", i), "value"); err != nil {
			t.Fatal(err)
		}
	}
	log := *field[*raft.MemoryStorage](hiddenField(reflect.ValueOf(e.server).Elem(), "r"), "raftStorage")
	first, err := log.FirstIndex()
	if err != nil {
		t.Fatal(err)
	}
	last, err := log.LastIndex()
	if err != nil {
		t.Fatal(err)
	}
	if last < writes || last-first > most {
		t.Errorf("entries %d to %d are in memory, want at most %d", first, last, most)
	}
}
