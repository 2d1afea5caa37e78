package cluster

import (
	"slices"
	"strings"
	"testing"

	"carob/internal/sim/fakeapi"
	"carob/internal/sim/simtest"
	"carob/internal/sim/storage"
)

func run(seed uint64, sabotage Sabotage) error {
	_, err := Run(Options{Seed: seed, Hours: 0.4, Sabotage: sabotage})
	return err
}

// CLUSTER_SEEDS=N runs N seeds.
func TestSeeds(t *testing.T) {
	simtest.Seeds(t, "CLUSTER_SEEDS", 3, func(seed uint64) error { return run(seed, Sabotage{}) })
}

// Seeds with claims, of which TestSeeds runs none by default.
func TestStateful(t *testing.T) {
	for seed := range uint64(3) {
		if err := run(stateful(seed), Sabotage{}); err != nil {
			t.Errorf("seed %d: %v", stateful(seed), err)
		}
	}
}

// stateful returns the seeds of worlds with claims.
func stateful(n uint64) uint64 { return 45 + n/15*60 + n%15 }

// Seeds with an autoscaler, of which TestSeeds runs none by default.
func TestElastic(t *testing.T) {
	for seed := range uint64(3) {
		if err := run(elastic(seed), Sabotage{}); err != nil {
			t.Errorf("seed %d: %v", elastic(seed), err)
		}
	}
}

// elastic returns the seeds of worlds with an autoscaler.
func elastic(n uint64) uint64 { return 75 + n/15*120 + n%15 }

// Seeds of an hour that once broke an invariant.
func TestSeedsOfFixedBugs(t *testing.T) {
	for _, seed := range []uint64{
		192,  // an agent restarts with running pods, while deleted ones still end there
		195,  // a claim gets its devices, but the response is lost, and another claim gets them (S9.26)
		383,  // a container of a pod that exists only in the runtime vanishes from its list
		695,  // the finalizer of the second pod of an index is removed, but not the pod (W5.43)
		999,  // a Deployment removes a pod that runs on a node whose agent is down, as not available (W2.43)
		1347, // an image is set back; a set still counts a pod that it has deleted (W2.42)
		1467, // the deletion of an old pod fails, and the new set grows as if it had not (W2.41)
	} {
		if _, err := Run(Options{Seed: seed, Hours: 1}); err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
	}
}

// Each invariant can be broken, and the checks report it.
func TestChecksFindSabotage(t *testing.T) {
	sabotages := map[fakeapi.Invariant]Sabotage{
		"no-start-when-over: nothing is started for a pod that ends (L7.28, L12.14)": {Pods: "no-start-when-over"},
	}
	ofClaims := map[fakeapi.Invariant]Sabotage{}
	for _, p := range Invariants() {
		if isElastic(p) {
			continue
		}
		if p.Sabotage.Storage != (storage.Sabotage{}) || p.Sabotage.Sets.In != nil {
			ofClaims[p.Invariant] = p.Sabotage
		} else {
			sabotages[p.Invariant] = p.Sabotage
		}
	}
	simtest.Breaks(t, sabotages, run)
	simtest.Breaks(t, ofClaims, func(n uint64, s Sabotage) error { return run(stateful(n), s) })
}

// Likewise, for the invariants of worlds with an autoscaler.
func TestChecksOfElasticWorldsFindSabotage(t *testing.T) {
	sabotages := map[fakeapi.Invariant]Sabotage{}
	for _, p := range Invariants() {
		if isElastic(p) {
			sabotages[p.Invariant] = p.Sabotage
		}
	}
	simtest.Breaks(t, sabotages, func(n uint64, s Sabotage) error { return run(elastic(n), s) })
}

func isElastic(p Named) bool {
	part, _, _ := strings.Cut(p.Name, "-")
	return slices.Contains([]string{"size", "quota", "claim", "device"}, part)
}
