package sim

import (
	"os"
	"strconv"
	"testing"
)

// TestSeeds runs many seeds, some of them twice: the same seed must do the same.
// SIM_SEEDS sets how many, SIM_HOURS how long each; SIM_SEED runs one with its log.
func TestSeeds(t *testing.T) {
	hours, _ := strconv.ParseFloat(os.Getenv("SIM_HOURS"), 64)
	if s, err := strconv.ParseUint(os.Getenv("SIM_SEED"), 10, 64); err == nil {
		if _, err := Run(Options{Seed: s, Hours: hours, Log: os.Stderr}); err != nil {
			t.Fatal(err)
		}
		return
	}
	seeds := uint64(150)
	if n, err := strconv.ParseUint(os.Getenv("SIM_SEEDS"), 10, 64); err == nil {
		seeds = n
	}
	var total Result
	for seed := range seeds {
		r, err := Run(Options{Seed: seed, Hours: hours})
		if err != nil {
			t.Fatal(err)
		}
		if seed%10 == 0 {
			if again, err := Run(Options{Seed: seed, Hours: hours}); err != nil || again != r {
				t.Fatalf("seed %d: two runs differ: %+v, %+v, %v", seed, r, again, err)
			}
		}
		total.Pods += r.Pods
		total.Steps += r.Steps
		total.Starts += r.Starts
		total.Crashes += r.Crashes
		total.Virtual += r.Virtual
	}
	t.Logf("%d seeds: %d pods, %d steps, %d starts, %d crashes, %v of virtual time", seeds, total.Pods, total.Steps, total.Starts, total.Crashes, total.Virtual)
	if total.Starts == 0 || total.Crashes == 0 {
		t.Fatal("nothing happened")
	}
}
