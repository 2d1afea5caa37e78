package sim

import "carob/internal/core/podlife"

// turn is Step, or Step with something wrong.
type turn func(*owner, podlife.State, podlife.Input) (podlife.State, podlife.Output)

func plain(_ *owner, s podlife.State, in podlife.Input) (podlife.State, podlife.Output) {
	return podlife.Step(s, in)
}

func (w *world) sabotage(name string) error { return nil }
