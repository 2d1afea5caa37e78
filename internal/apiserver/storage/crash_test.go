package storage

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// childDir names the store that a child process of the test writes to until it is killed.
const childDir = "CAROB_TEST_STORE"

// TestWriteUntilKilled is the child: it prints a line for each acknowledged write.
func TestWriteUntilKilled(t *testing.T) {
	dir := os.Getenv(childDir)
	if dir == "" {
		t.Skip("run by TestKilledStoreOpensAgain")
	}
	e, err := Open(t.Context(), Config{Dir: dir})
	if err != nil {
		fmt.Println(err)
		t.Fatal(err)
	}
	big := strings.Repeat("v", 150<<10) // the log begins new files, which are written ahead meanwhile
	for i := 0; ; i++ {
		e.logFiles.look()
		value := big[:len(big)/2*(i%3)]
		if _, err := e.Client.KV.Put(t.Context(), fmt.Sprintf("/k/%d/%d", os.Getpid(), i), value); err != nil {
			t.Fatal(err)
		}
		fmt.Println("stored")
	}
}

// A killed process leaves entries in the log that the database does not have yet. The next start
// replays them while it makes itself leader: neither may disturb the other, and no acknowledged
// write may be lost.
func TestKilledStoreOpensAgain(t *testing.T) {
	dir := t.TempDir()
	acknowledged := 0
	// Up to and beyond the number after which etcd first drops entries (100).
	for _, writes := range []int{1, 90, 150, 260, 3} {
		acknowledged += writeAndKill(t, dir, writes)
		e, err := Open(t.Context(), Config{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		got, err := e.Client.KV.Get(t.Context(), "/k/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			t.Fatal(err)
		}
		// A write may be stored although its acknowledgement was lost.
		if got.Count < int64(acknowledged) {
			t.Fatalf("%d of %d acknowledged writes are there", got.Count, acknowledged)
		}
		acknowledged = int(got.Count)
		e.Close()
	}
}

// writeAndKill kills a process that writes, after so many acknowledged writes, and counts all of
// them.
func writeAndKill(t *testing.T, dir string, writes int) int {
	t.Helper()
	child := exec.Command(os.Args[0], "-test.run=^TestWriteUntilKilled$")
	child.Env = append(os.Environ(), childDir+"="+dir)
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	n := 0
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if lines.Text() != "stored" {
			t.Errorf("the writer says: %s", lines.Text())
			break
		}
		if n++; n == writes {
			if err := child.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	_ = child.Wait() // killed
	if n < writes {
		t.Fatalf("the writer ended after %d writes", n)
	}
	return n
}
