package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/pprof"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"carob/test/bench/processor"
)

const namespace = "bench"

// kind is one of the schedulers.
type kind struct {
	name    string
	command []string // nil: in this process
	metrics string   // URL; empty: of this process, or none
	profile string
}

// profileTo writes a profile of this process to a file until end is called; none if the name is empty.
func profileTo(name string) (end func(), err error) {
	if name == "" {
		return func() {}, nil
	}
	file, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(file); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return func() {
		pprof.StopCPUProfile()
		_ = file.Close()
	}, nil
}

// run starts a scheduler.
func (b *bench) run(ctx context.Context, k kind, log *os.File) (pid int, ended chan error, end func(), err error) {
	ended = make(chan error, 1)
	if k.command == nil {
		profiled, err := profileTo(k.profile)
		if err != nil {
			return 0, nil, nil, err
		}
		ctx, cancel := context.WithCancel(ctx)
		go func() { ended <- b.inside(ctx) }()
		return os.Getpid(), ended, func() {
			cancel()
			<-ended
			ended <- nil
			profiled()
		}, nil
	}
	process := exec.Command(k.command[0], k.command[1:]...)
	process.Stdout, process.Stderr = log, log
	process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := process.Start(); err != nil {
		return 0, nil, nil, err
	}
	go func() { ended <- process.Wait() }()
	return process.Process.Pid, ended, func() { _ = process.Process.Kill(); <-ended; ended <- nil }, nil
}

// result is what one case took.
type result struct {
	bound int
	rate  float64       // pods/s between the first and the last binding
	whole float64       // pods/s from the start of the scheduler to the last binding
	each  time.Duration // of the scheduler's processor time, for one pod

	decisions decisions
}

// parallel calls f for 0…n-1 from 32 goroutines, and returns the first error.
func parallel(n int, f func(i int) error) error {
	var next atomic.Int64
	var group sync.WaitGroup
	errs := make([]error, 32)
	for w := range errs {
		group.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && errs[w] == nil; i = int(next.Add(1)) - 1 {
				errs[w] = f(i)
			}
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

func (b *bench) makeNodes(ctx context.Context, n int) error {
	if _, err := b.client.CoreV1().Namespaces().Create(ctx,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
		return err
	}
	if _, err := b.client.CoreV1().ServiceAccounts(namespace).Create(ctx,
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}); err != nil {
		return err
	}
	return parallel(n, func(i int) error {
		made, err := b.client.CoreV1().Nodes().Create(ctx, node(i), metav1.CreateOptions{})
		if err != nil || len(made.Spec.Taints) == 0 {
			return err
		}
		made.Spec.Taints = nil // its readiness is not checked
		_, err = b.client.CoreV1().Nodes().Update(ctx, made, metav1.UpdateOptions{})
		return err
	})
}

// measure runs one case with one scheduler, and leaves the nodes empty.
func (b *bench) measure(ctx context.Context, k kind, c workload, pods int, limit time.Duration) (r result, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	defer func() { err = errors.Join(err, b.clear()) }()
	if c.before != nil {
		nodes, err := b.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			return r, err
		}
		list := c.before(len(nodes.Items))
		if err := parallel(len(list), func(i int) error { return b.make(ctx, list[i]) }); err != nil {
			return r, err
		}
	}
	want := 0
	for i := range pods {
		if c.waits == nil || !c.waits(i) {
			want++
		}
	}
	if err := parallel(pods, func(i int) error { return b.make(ctx, c.pod(i)) }); err != nil {
		return r, err
	}
	seen, err := b.follow(ctx, want)
	if err != nil {
		return r, err
	}
	log, err := os.Create(filepath.Join(b.dir, k.name+".log"))
	if err != nil {
		return r, err
	}
	defer log.Close()
	before, err := b.countEvents(ctx)
	if err != nil {
		return r, err
	}
	var decided decisions
	if k.command == nil {
		if decided, err = readDecisions(ctx, ""); err != nil {
			return r, err
		}
	}
	began, started := processor.Time(os.Getpid()), time.Now()
	pid, ended, end, err := b.run(ctx, k, log)
	if err != nil {
		return r, err
	}
	defer end()
	if k.command != nil {
		began = 0
	}
	if c.churn {
		stop := b.churn(ctx)
		defer stop()
	}
	select {
	case err := <-ended:
		ended <- nil
		return r, fmt.Errorf("%s ended: %w\n%s", k.name, err, tail(log.Name()))
	case got := <-seen:
		if got.err != nil {
			return r, fmt.Errorf("%d of %d pods bound: %w\n%s", got.bound, want, got.err, tail(log.Name()))
		}
		took := got.last.Sub(got.first)
		if err := b.eventsOf(ctx, before, got.bound); err != nil {
			return r, err
		}
		r = result{bound: got.bound, rate: float64(got.bound-1) / took.Seconds(),
			whole: float64(got.bound) / got.last.Sub(started).Seconds(),
			each:  (processor.Time(pid) - began) / time.Duration(got.bound)}
		if k.metrics != "" || k.command == nil {
			now, err := readDecisions(ctx, k.metrics)
			if err != nil {
				return r, err
			}
			r.decisions = now.since(decided)
		}
		return r, nil
	}
}

// eventsOf waits until there is an event for each pod that was bound, so that processor time counts them, or
// until no more are written: schedulers may drop events.
func (b *bench) eventsOf(ctx context.Context, before, bound int) error {
	for last, same := before, 0; same < 10; same++ {
		now, err := b.countEvents(ctx)
		if err != nil || now-before >= bound {
			return err
		}
		if now != last {
			last, same = now, 0
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(500 * time.Millisecond):
		}
	}
	return nil
}

func (b *bench) countEvents(ctx context.Context) (int, error) {
	list, err := b.client.EventsV1().Events(namespace).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return 0, err
	}
	n := len(list.Items)
	if list.RemainingItemCount != nil {
		n += int(*list.RemainingItemCount)
	}
	return n, nil
}

func tail(file string) string {
	b, _ := os.ReadFile(file)
	return string(b[max(0, len(b)-1000):])
}

func (b *bench) make(ctx context.Context, p *corev1.Pod) error {
	_, err := b.client.CoreV1().Pods(p.Namespace).Create(ctx, p, metav1.CreateOptions{})
	return err
}

// progress is what was seen of bindings.
type progress struct {
	bound       int
	first, last time.Time
	err         error
}

// follow watches until so many pods are bound. No node has to end the pods:
// their grace period is zero, so a deletion removes them at once.
func (b *bench) follow(ctx context.Context, want int) (<-chan progress, error) {
	on := map[string]bool{}
	var p progress
	see := func(pod *corev1.Pod) {
		if pod.Spec.NodeName == "" || on[pod.Name] || pod.Labels["churn"] != "" {
			return
		}
		on[pod.Name] = true
		if p.last = time.Now(); p.bound == 0 {
			p.first = p.last
		}
		p.bound++
	}
	w, err := b.watch(ctx, see)
	if err != nil {
		return nil, err
	}
	p = progress{} // those that were bound before do not count
	out := make(chan progress, 1)
	go func() {
		defer func() { out <- p }()
		for p.bound < want {
			select {
			case <-ctx.Done():
				p.err = ctx.Err()
				return
			case e, ok := <-w.ResultChan():
				if pod, isPod := e.Object.(*corev1.Pod); ok && isPod && e.Type != watch.Deleted {
					see(pod)
				}
				if ok && e.Type != watch.Error {
					continue
				}
				// The server ends a watch that falls behind, as on a busy machine.
				w.Stop()
				if w, p.err = b.watch(ctx, see); p.err != nil {
					return
				}
			}
		}
		w.Stop()
	}()
	return out, nil
}

// watch lists the pods and watches them from there on.
func (b *bench) watch(ctx context.Context, see func(*corev1.Pod)) (watch.Interface, error) {
	list, err := b.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for i := range list.Items {
		see(&list.Items[i])
	}
	return b.client.CoreV1().Pods(namespace).Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
}

// churn lets a node and a pod come and go until stop is called.
func (b *bench) churn(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		zero := int64(0)
		for i := 0; ctx.Err() == nil; i++ {
			n := node(0)
			n.Name = fmt.Sprint("guest-", i)
			n.Labels[corev1.LabelHostname], n.Spec.Unschedulable = n.Name, true
			_, _ = b.client.CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{})
			p := pod(i, "64", map[string]string{"churn": "yes"})
			p.Name = fmt.Sprint("churn-", i)
			_ = b.make(ctx, p)
			select {
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond):
			}
			_ = b.client.CoreV1().Nodes().Delete(context.WithoutCancel(ctx), n.Name, metav1.DeleteOptions{})
			_ = b.client.CoreV1().Pods(namespace).Delete(context.WithoutCancel(ctx), p.Name,
				metav1.DeleteOptions{GracePeriodSeconds: &zero})
		}
	}()
	return func() { cancel(); <-done }
}

// clear removes all pods.
func (b *bench) clear() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	list, err := b.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	zero := int64(0)
	return parallel(len(list.Items), func(i int) error {
		err := b.client.CoreV1().Pods(namespace).Delete(ctx, list.Items[i].Name,
			metav1.DeleteOptions{GracePeriodSeconds: &zero})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
}
