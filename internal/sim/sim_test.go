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

// Seeds that broke an invariant once, with what was wrong.
func TestMendedSeeds(t *testing.T) {
	for _, tc := range []struct {
		seed  uint64
		hours float64
		was   string
	}{
		{807319, 1, "the assumed end of an init container was lost while its next start failed"},
		{809927, 1, "a cancelled start left the crash back-off of the instance before"},
		{811625, 1, "the simulator took no snapshot when a damaged image could be read again"},
		{823218, 1, "a status named an older instance, which had never started, after the newest vanished"},
		{842209, 1, "a sidecar that was unknown after a restart of the agent waited beside the containers that run after it"},
		{843345, 1, "a container that had vanished waited for another event after a restart of all containers"},
		{862988, 1, "an end that was assumed stayed beside the decision by the observed one: the pod ran for ever"},
		{899656, 3, "a static pod of which nothing was left to run did not fail at its active deadline"},
	} {
		if _, err := Run(Options{Seed: tc.seed, Hours: tc.hours}); err != nil {
			t.Errorf("%s: %v", tc.was, err)
		}
	}
}
