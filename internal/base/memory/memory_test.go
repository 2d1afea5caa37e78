package memory

import (
	"runtime/debug"
	"slices"
	"testing"
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
7ffe0000-7ffe1000 r--p 00000000 00:00 0                                  [vvar]
Anonymous:             0 kB
`

func TestOnlyUnchangedPagesOfTheProgram(t *testing.T) {
	want := []span{{0x400000, 0x2d51000}, {0x2d51000, 0x637e000}}
	if got := unchanged([]byte(smaps), "/bin/carob"); !slices.Equal(got, want) {
		t.Errorf("%x, want %x", got, want)
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
	pace(1)
	if got := debug.SetGCPercent(startPercent); got != startPercent {
		t.Errorf("the user's setting is overridden: %d", got)
	}
}
