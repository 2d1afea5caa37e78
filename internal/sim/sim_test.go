package sim

import (
	"os"
	"runtime/debug"
	"testing"
)

func TestMain(m *testing.M) {
	debug.SetGCPercent(800) // runs are short and leave nothing behind
	os.Exit(m.Run())
}

// The same seed gives the same run, down to the last line of its log.
func TestSameSeedSameLog(t *testing.T) {
	for seed := range uint64(20) {
		o := Options{Seed: seed, Digest: true}
		first, err := Run(o)
		if err != nil {
			t.Fatal(err)
		}
		if second, err := Run(o); err != nil || second != first {
			t.Errorf("seed %d: two runs differ: %+v, %+v, %v", seed, first, second, err)
		}
	}
}
