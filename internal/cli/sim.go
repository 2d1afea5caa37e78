package cli

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
)

// Simulation says what to simulate.
type Simulation struct {
	Seed    uint64  // the first one
	Seeds   uint64  // how many
	Hours   float64 // virtual hours of each before everything is deleted
	Without []int   // elements of one seed to leave out
	Log     bool    // print what happens; for one seed
	All     bool    // go on after a broken promise
	Break   string  // a promise to break on purpose
	List    bool    // only list the promises
}

func (r *root) simCommand() *cobra.Command {
	var s Simulation
	cmd := &cobra.Command{
		Use:   "sim",
		Short: "Run the decisions about pods against a simulated world",
		Long: `Run the machine that decides about pods against a simulated runtime, node and
API server in virtual time: hours in milliseconds, with random pods, users and
faults. A seed does the same each time, to the last line of its log.

When a promise breaks, it prints the shortest run found that breaks it, what led
there, and the command that repeats it, and exits with 1. Nothing of this
machine is touched.`,
		Example: `  # many seeds on all processors
  carob sim --seeds 10000 --hours 3

  # one, with all that happens
  carob sim --seed 7 --log

  # all that is broken in many seeds, each promise once
  carob sim --seeds 10000 --all

  # what is promised, and what a broken promise looks like
  carob sim --promises
  carob sim --seeds 100 --break back-off-kept`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if s.Seeds == 0 {
				return usagef("--seeds must be at least 1")
			}
			if s.Hours <= 0 {
				return usagef("--hours must be more than 0")
			}
			if (s.Log || len(s.Without) > 0) && s.Seeds > 1 {
				return usagef("--log and --without are for one seed")
			}
			if (s.Log || len(s.Without) > 0) && s.All {
				return usagef("--all is for many seeds")
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
	fl.Uint64Var(&s.Seed, "seed", 0, "the first seed")
	fl.Uint64Var(&s.Seeds, "seeds", 1, "how many seeds")
	fl.Float64Var(&s.Hours, "hours", 1, "virtual hours of users and faults in each; recovery and the end of all pods come on top")
	fl.IntSliceVar(&s.Without, "without", nil, "numbers of pods, faults and deeds of users to leave out, as a failure prints them")
	fl.BoolVar(&s.Log, "log", false, "print what happens")
	fl.BoolVar(&s.All, "all", false, "go on after a broken promise, and say how often each was broken")
	fl.StringVar(&s.Break, "break", "", "break this promise on purpose, to see that it is noticed")
	fl.BoolVar(&s.List, "promises", false, "list what is checked and the clauses it comes from, and do nothing else")
	return cmd
}
