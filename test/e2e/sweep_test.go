package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"
)

// sweepStep sets the interval of interruptions, instead of only a few: CAROB_SWEEP=1ms.
const sweepStep = "CAROB_SWEEP"

// sweepPods is the range of all clusters here, one after the other: they are more than there are ranges.
const sweepPods = "10.253.0.0/16"

// fewPoints are interruptions of a start for each signal, as a rule.
const fewPoints = 5

var stopSignals = []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGKILL}

// TestFirstStartInterrupted: whenever the first start of a cluster is ended, the next one works.
func TestFirstStartInterrupted(t *testing.T) {
	measured, err := newCluster(tempDir(t), "--pod-cidr", sweepPods)
	if err != nil {
		t.Fatal(err)
	}
	took := measured.timeUp(t)
	if err := measured.end(); err != nil {
		t.Fatal(err)
	}
	sweep(t, took, func(t *testing.T, after time.Duration, sig syscall.Signal) {
		c, err := newCluster(tempDir(t), "--pod-cidr", sweepPods)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := c.end(); err != nil {
				t.Error(err)
			}
		}()
		c.interruptedUp(t, after, sig)
		if err := c.up(); err != nil {
			t.Error(err)
		}
	})
}

// TestLaterStartInterrupted: the same with a cluster that has a pod, which goes on.
func TestLaterStartInterrupted(t *testing.T) {
	nativeOnly(t, "the demo image is imported")
	c := startCluster(t, "--pod-cidr", sweepPods)
	c.carob(t, "demo", "--keep")
	before := c.pod(t, "carob-demo")
	down := func(t *testing.T) {
		if _, err := run(carobBin, "down", "--data-dir", c.DataDir); err != nil {
			t.Fatal(err)
		}
	}
	down(t)
	took := c.timeUp(t)
	down(t)
	sweep(t, took, func(t *testing.T, after time.Duration, sig syscall.Signal) {
		c.interruptedUp(t, after, sig)
		if err := c.up(); err != nil {
			t.Fatal(err)
		}
		defer down(t)
		now := c.pod(t, "carob-demo")
		is, was := now.Status.ContainerStatuses[0], before.Status.ContainerStatuses[0]
		if now.UID != before.UID || is.ContainerID != was.ContainerID || is.RestartCount != was.RestartCount ||
			is.State.Running == nil {
			t.Errorf("the pod changed:\nbefore %+v\nafter  %+v", was, is)
		}
	})
}

// sweep calls try for interruptions from the first moment up to a bit beyond the whole of a start.
func sweep(t *testing.T, took time.Duration, try func(*testing.T, time.Duration, syscall.Signal)) {
	step := took * 6 / 5 / fewPoints
	if all := os.Getenv(sweepStep); all != "" {
		var err error
		if step, err = time.ParseDuration(all); err != nil || step <= 0 {
			t.Fatalf("%s=%s is not a duration: %v", sweepStep, all, err)
		}
	}
	t.Logf("a start takes %v; interrupted every %v", took, step)
	for i, sig := range stopSignals {
		// Signals are shifted against each other, so that few points are not the same for all.
		for after := step * time.Duration(i) / 3; after < took*6/5; after += step {
			t.Run(fmt.Sprintf("%v after %v", sig, after), func(t *testing.T) { try(t, after, sig) })
		}
	}
}

// timeUp starts a cluster and returns how long it took.
func (c *cluster) timeUp(t *testing.T) time.Duration {
	t.Helper()
	begin := time.Now()
	if err := c.up(); err != nil {
		t.Fatal(err)
	}
	return time.Since(begin)
}

// interruptedUp ends a start in the foreground by a signal. It must end without an error.
func (c *cluster) interruptedUp(t *testing.T, after time.Duration, sig syscall.Signal) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, carobBin, append([]string{"up"}, c.args...)...)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	// A shell that runs tests in the background may ignore interrupts, and children would, too.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	err := cmd.Start()
	signal.Stop(signals)
	if err != nil {
		t.Fatal(err)
	}
	<-time.After(after)
	_ = cmd.Process.Signal(sig) // it may have failed before
	err = cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == sig {
		err = nil // killed, or signalled before it handles signals
	}
	if err != nil || strings.Contains(output.String(), "goroutine ") {
		t.Errorf("up, ended by %v after %v: %v\n%s", sig, after, err, output.String())
	}
}
