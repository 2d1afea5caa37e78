package sim

import (
	"os"
	"runtime/debug"
	"strconv"
	"testing"
)

func TestMain(m *testing.M) {
	debug.SetGCPercent(800) // runs are short and leave nothing behind
	os.Exit(m.Run())
}

// number reads a number from the environment.
func number[T any](t *testing.T, name string, def T, parse func(string) (T, error)) T {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return def
	}
	n, err := parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func toUint(s string) (uint64, error)   { return strconv.ParseUint(s, 10, 64) }
func toFloat(s string) (float64, error) { return strconv.ParseFloat(s, 64) }

// TestSeeds runs the seeds of every push. SIM_SEEDS sets their number, SIM_HOURS their length;
// "carob sim" runs more and shows what led to a failure.
func TestSeeds(t *testing.T) {
	total, err := RunSeeds(t.Context(),
		Seeds{Count: number(t, "SIM_SEEDS", 150, toUint), Hours: number(t, "SIM_HOURS", 1, toFloat)})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", total)
	if total.Starts == 0 || total.Crashes == 0 || total.Reboots == 0 || total.Faulty == 0 ||
		total.Faulty == int(total.Runs) {
		t.Fatal("something never happens")
	}
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
