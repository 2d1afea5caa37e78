package gctuning

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const smaps = `00400000-02d51000 r-xp 00000000 fe:00 9979136                            /bin/carob
Size:              42308 kB
Anonymous:             0 kB
02d51000-0637e000 r--p 02951000 fe:00 9979136                            /bin/carob
Anonymous:             0 kB
0637e000-06670000 rw-p 05f7e000 fe:00 9979136                            /bin/carob
Anonymous:             0 kB
06670000-06680000 r--p 05f7e000 fe:00 9979136                            /bin/carob
Anonymous:             8 kB
7000-8000 r--p 00000000 fe:00 17                                         /lib/other
Anonymous:             0 kB
c000000000-c000400000 rw-p 00000000 00:00 0
Anonymous:             0 kB
7fa6a1000000-7fa8e1000000 r--s 00000000 fe:00 5317250                    /data/db
Anonymous:             0 kB
7fa8f1000000-7fa8f1001000 rw-s 00000000 fe:00 5317250                    /data/db
Anonymous:             0 kB
7ffe0000-7ffe1000 r--p 00000000 00:00 0                                  [vvar]
Anonymous:             0 kB
`

func TestOnlyUnchangedPagesOfTheProgram(t *testing.T) {
	want := []span{{0x400000, 0x2d51000}, {0x2d51000, 0x637e000}}
	if got := unchanged([]byte(smaps), "/bin/carob"); !slices.Equal(got, want) {
		t.Errorf("%x, want %x", got, want)
	}
	want = []span{{0x7fa6a1000000, 0x7fa8e1000000}}
	if got := shared([]byte(smaps), "/data/db"); !slices.Equal(got, want) {
		t.Errorf("%x, want %x", got, want)
	}
}

// The pages of a file leave the process and are there again when they are read.
func TestReleaseMapped(t *testing.T) {
	const size = 1 << 20
	f, err := os.Create(filepath.Join(t.TempDir(), "db"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	content := bytes.Repeat([]byte("carob"), size/5+1)[:size]
	if _, err := f.Write(content); err != nil {
		t.Fatal(err)
	}
	m, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(m) //nolint:errcheck // of the test's own mapping
	resident := func() (kB int) {
		maps, err := os.ReadFile("/proc/self/smaps")
		if err != nil {
			t.Fatal(err)
		}
		_, after, _ := strings.Cut(string(maps), f.Name()+"\n")
		_, after, _ = strings.Cut(after, "Rss:")
		if _, err := fmt.Sscan(after, &kB); err != nil {
			t.Fatal(err)
		}
		return kB
	}
	if !bytes.Equal(m, content) || resident() != size>>10 {
		t.Fatalf("%d kB are resident", resident())
	}
	if err := ReleaseMapped(f.Name()); err != nil {
		t.Fatal(err)
	}
	if left := resident(); left != 0 {
		t.Errorf("%d kB are left", left)
	}
	if !bytes.Equal(m, content) {
		t.Error("the content has changed")
	}
}

func TestSettle(t *testing.T) {
	t.Setenv("GOGC", "")
	if err := Settle(); err != nil {
		t.Fatal(err)
	}
	if got := debug.SetGCPercent(startPercent); got != settledPercent {
		t.Errorf("GC percent %d, want %d", got, settledPercent)
	}
	t.Setenv("GOGC", "77")
	setPercent(1)
	if got := debug.SetGCPercent(startPercent); got != startPercent {
		t.Errorf("the user's setting is overridden: %d", got)
	}
}

// recurse uses much stack, and then waits with little.
//
//go:noinline
func recurse(n int) (sum int) {
	var frame [64]int
	if n == 0 {
		return 0
	}
	for i := range frame {
		frame[i] = n
	}
	return recurse(n-1) + frame[n%len(frame)]
}

// Goroutines that once had deep calls give their stacks back, which one collection only halves.
func TestSettleReleasesStacks(t *testing.T) {
	const (
		n     = 200
		grown = 64 << 10 // more than half of it is used
	)
	deep, end := make(chan int), make(chan struct{})
	defer close(end)
	for range n {
		go func() {
			deep <- recurse(80)
			<-end
		}()
	}
	for range n {
		<-deep
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if err := Settle(); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if before.StackInuse < n*grown {
		t.Fatalf("only %d bytes of stacks to release", before.StackInuse)
	}
	if after.StackInuse > n*grown/3 {
		t.Errorf("%d bytes of stacks, %d before", after.StackInuse, before.StackInuse)
	}
}
