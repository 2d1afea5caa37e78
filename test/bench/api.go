package main

import (
	"context"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/test/bench/processor"
)

const (
	writers = 16
	watches = 1000
	// quiet is how long carob takes after a burst to give back memory, and some more.
	quiet = 15 * time.Second
	table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
)

// api measures writes of pods that are not scheduled, by several clients on one connection, and the cost of idle
// watches.
func (b *bench) api(ctx context.Context) error {
	if b.writes == 0 {
		return nil
	}
	pid, err := b.pid()
	if err != nil {
		return err
	}
	pods := b.c.CoreV1().Pods(namespace)
	for _, op := range []struct {
		key string
		do  func(i int) error
	}{
		{"create", func(i int) error {
			p := pod(fmt.Sprint("api-", i))
			p.Spec.SchedulerName = "nobody"
			_, err := pods.Create(ctx, p, metav1.CreateOptions{})
			return err
		}},
		{"patch", func(i int) error {
			_, err := pods.Patch(ctx, fmt.Sprint("api-", i), types.MergePatchType,
				[]byte(`{"metadata":{"labels":{"x":"y"}}}`), metav1.PatchOptions{})
			return err
		}},
	} {
		cpu, start := processor.Time(pid), time.Now()
		if err := parallel(b.writes, op.do); err != nil {
			return fmt.Errorf("%s: %w", op.key, err)
		}
		took := time.Since(start)
		b.values["api_"+op.key] = float64(b.writes) / took.Seconds()
		b.values["cpu_"+op.key] = float64((processor.Time(pid) - cpu).Microseconds()) / float64(b.writes)
	}
	if _, err := b.deleteAll(ctx, b.writes); err != nil {
		return err
	}
	return b.idleWatches(ctx, pid)
}

// parallel calls do for each number below n, from several goroutines, and returns the first error.
func parallel(n int, do func(i int) error) error {
	var next atomic.Int64
	failed := make(chan error, writers)
	for range writers {
		go func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= n {
					failed <- nil
					return
				}
				if err := do(i); err != nil {
					failed <- err
					return
				}
			}
		}()
	}
	var err error
	for range writers {
		if e := <-failed; err == nil {
			err = e
		}
	}
	return err
}

// idleWatches opens watches, half of them as kubectl does, the others as
// controllers do, and compares the memory before and after.
func (b *bench) idleWatches(ctx context.Context, pid int) error {
	ctx, stop := context.WithCancel(ctx)
	var open sync.WaitGroup
	defer func() { stop(); open.Wait() }()
	if err := b.watchOnce(ctx, &open, 2*len(kinds)); err != nil { // what the first of each kind makes is not theirs
		return err
	}
	if err := pause(ctx, quiet); err != nil {
		return err
	}
	before := memoryMB(pid, "RssAnon")
	if err := b.watchOnce(ctx, &open, watches); err != nil {
		return err
	}
	if err := pause(ctx, quiet); err != nil {
		return err
	}
	b.values["rss_watches"] = memoryMB(pid, "RssAnon") - before
	return nil
}

var kinds = []string{"pods", "configmaps", "services", "endpoints", "secrets", "serviceaccounts", "nodes", "events"}

// watchOnce opens n watches that last until ctx ends.
func (b *bench) watchOnce(ctx context.Context, open *sync.WaitGroup, n int) error {
	c := b.c.CoreV1().RESTClient()
	return parallel(n, func(i int) error {
		r := c.Get().Resource(kinds[i/2%len(kinds)]).VersionedParams(&metav1.ListOptions{Watch: true,
			AllowWatchBookmarks: true, ResourceVersion: "0"}, metav1.ParameterCodec)
		if i%2 == 0 {
			r.SetHeader("Accept", table)
		}
		body, err := r.Stream(ctx)
		if err != nil {
			return err
		}
		open.Go(func() {
			defer body.Close()
			_, _ = io.Copy(io.Discard, body) // ends with the context
		})
		return nil
	})
}
