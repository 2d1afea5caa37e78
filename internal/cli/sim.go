package cli

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// Simulation is what to simulate.
type Simulation struct {
	Of      string  // SimulatePods, SimulateCluster, or SimulateAutoscaler
	Seed    uint64  // the first seed
	Seeds   uint64  // how many seeds
	Hours   float64 // virtual hours per seed before everything is deleted
	Without []int   // elements of one seed to omit
	Log     bool    // print what happens; for one seed
	All     bool    // continue after a violated invariant
	Break   string  // an invariant to violate on purpose
	List    bool    // only list the invariants
}

// What can be simulated.
const (
	SimulatePods       = "pods"       // pods on one node
	SimulateCluster    = "cluster"    // controllers, scheduler, and nodes together
	SimulateAutoscaler = "autoscaler" // a HorizontalPodAutoscaler and its Deployment
)

func (r *root) simCommand() *cobra.Command {
	var s Simulation
	cmd := &cobra.Command{
		Use:   "sim",
		Short: "Simulate pods, a cluster, or an autoscaler with faults, and check that the decisions are right",
		Long: `Run the code that decides about pods against a simulated runtime, node, and API
server, in virtual time: hours take milliseconds. Pods, users' actions, and faults
are random. The same seed always produces the same run, to the last line of its log.

With --of cluster, run the controllers, the scheduler, and several nodes together:
watches are late, answers get lost, carob ends between any two writes, nodes join,
are drained, and leave. With --of autoscaler, run a HorizontalPodAutoscaler and its
Deployment, with metrics that are late, missing, or wrong.

If an invariant is violated, the command prints the shortest violating
run it found (of pods; otherwise the seed), the steps that led to it, and the command
that repeats it, and exits with 1. The simulation does not affect this machine.`,
		Example: `  # Run many seeds on all processors
  carob sim --seeds 10000 --hours 3

  # Run one seed and print everything that happens
  carob sim --seed 7 --log

  # Report each violated invariant once
  carob sim --seeds 10000 --all

  # List the invariants, and show what a violation looks like
  carob sim --invariants
  carob sim --seeds 100 --break back-off-kept

  # Run whole clusters, and autoscalers
  carob sim --of cluster --seeds 300
  carob sim --of cluster --seeds 30 --break surge
  carob sim --of autoscaler --seeds 1000`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := s.check(); err != nil {
				return err
			}
			begin := time.Now()
			ok, err := r.engine.Simulate(cmd.Context(), s, r.out, r.errOut)
			if err != nil {
				return err
			}
			if !ok {
				return Exit{Code: 1}
			}
			if s.List {
				return nil
			}
			_, err = io.WriteString(r.out, fmt.Sprintf("took %v\n", time.Since(begin).Round(10*time.Millisecond)))
			return err
		},
	}
	fl := cmd.Flags()
	s.Of = SimulatePods
	addChoice(cmd, &s.Of, "of", "", "what to simulate", SimulatePods, SimulateCluster, SimulateAutoscaler)
	fl.Uint64Var(&s.Seed, "seed", 0, "the first seed")
	fl.Uint64Var(&s.Seeds, "seeds", 1, "number of seeds")
	fl.Float64Var(&s.Hours, "hours", 1,
		"virtual hours of users' actions and faults per seed; recovery and the end of all pods come in addition")
	fl.IntSliceVar(&s.Without, "without", nil,
		"numbers of pods, faults, and users' actions to omit, as printed for a violation")
	fl.BoolVar(&s.Log, "log", false, "print everything that happens")
	fl.BoolVar(&s.All, "all", false, "continue after a violated invariant, and report how often each was violated")
	fl.StringVar(&s.Break, "break", "", "violate this invariant on purpose, to see that it is detected")
	_ = cmd.RegisterFlagCompletionFunc("break",
		func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
			var list bytes.Buffer
			_, _ = r.engine.Simulate(cmd.Context(), Simulation{Of: s.Of, List: true}, &list, io.Discard)
			var names []string
			for line := range strings.Lines(list.String()) {
				if name, _, ok := strings.Cut(line, " "); ok {
					names = append(names, name)
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		})
	fl.BoolVar(&s.List, "invariants", false, "only list the invariants and their clauses")
	return cmd
}

// maxHours is more than anyone waits for, and fits into a time.Duration.
const maxHours = 100_000

// check refuses options that do not go together.
func (s *Simulation) check() error {
	switch s.Of {
	case SimulateCluster, SimulateAutoscaler:
		if len(s.Without) > 0 || s.All {
			return usagef("--without and --all are for --of pods")
		}
		if s.Log && s.Of == SimulateAutoscaler {
			return usagef("--log is for --of pods and --of cluster")
		}
	}
	if s.Seeds == 0 {
		return usagef("--seeds must be at least 1")
	}
	if !(s.Hours > 0 && s.Hours <= maxHours) { // also not NaN
		return usagef("--hours must be more than 0, and at most %d", maxHours)
	}
	if (s.Log || len(s.Without) > 0) && s.Seeds > 1 {
		return usagef("--log and --without require a single seed")
	}
	if (s.Log || len(s.Without) > 0) && s.All {
		return usagef("--all requires more than one seed")
	}
	return nil
}
