package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"

	"carob/internal/base/instance"
	"carob/test/containerd"
)

type options struct {
	carob, images string
	n, burst      int
	writes        int
	idle          time.Duration
}

const (
	image     = "localhost/bench:1"
	namespace = "bench"
	patience  = 5 * time.Minute
)

// bench is one running carob under measurement.
type bench struct {
	options
	in     instance.Instance
	c      kubernetes.Interface
	values map[string]float64
}

func measure(ctx context.Context, o options, runtime string) (res result, err error) {
	dir, err := os.MkdirTemp("", "carob-bench-")
	if err != nil {
		return result{}, err
	}
	defer os.RemoveAll(dir)
	in, err := instance.Derive(instance.Flags{DataDir: filepath.Join(dir, "d")}, "bench-node")
	if err != nil {
		return result{}, err
	}
	b := &bench{options: o, in: in, values: map[string]float64{}}
	args := []string{"up", "--detach", "--data-dir", in.DataDir, "--node-name", "bench-node"}
	archive := filepath.Join(o.images, "bench.tar")
	var daemon *containerd.Daemon
	if runtime == "containerd" {
		daemon, err = containerd.Start(ctx, dir, "cb-ctrd", "10.223.0.0/16", dir, archive,
			filepath.Join(o.images, "pause.tar"))
		if err != nil {
			return result{}, err
		}
		defer func() { err = errors.Join(err, daemon.Close()) }()
		args = append(args, "--runtime-endpoint", daemon.Endpoint)
	}
	down := func() error { return b.carob(ctx, "down", "--pods", "--data-dir", in.DataDir) }
	defer func() { err = errors.Join(err, down()) }()

	// The first start makes the data directory; the second is the boot that is
	// measured, with the image in place and nothing else stored.
	if err := b.carob(ctx, args...); err != nil {
		return result{}, err
	}
	if runtime == "native" {
		if err := b.carob(ctx, "image", "import", "--data-dir", in.DataDir, archive); err != nil {
			return result{}, err
		}
	}
	if err := down(); err != nil {
		return result{}, err
	}
	if err := os.RemoveAll(filepath.Join(in.DataDir, "etcd")); err != nil {
		return result{}, err
	}
	if err := b.boot(ctx, args); err != nil {
		return result{}, err
	}
	for _, step := range []struct {
		name string
		run  func(context.Context) error
	}{{"idle", b.idleUse}, {"one by one", b.serial}, {"burst", b.burstRun}, {"memory per pod", b.perPod},
		{"API", b.api}} {
		if err := step.run(ctx); err != nil {
			return result{}, fmt.Errorf("%s: %w", step.name, err)
		}
	}
	if daemon != nil {
		b.values["rss_daemon"] = memoryMB(daemon.PID(), "VmRSS")
	}
	return result{runtime, b.values}, nil
}

func (b *bench) carob(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, b.options.carob, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("carob %s: %w: %s", strings.Join(args, " "), err, out.String())
	}
	return nil
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// boot starts carob on an empty store and times what a client sees of it.
func (b *bench) boot(ctx context.Context, args []string) error {
	kubeconfig := b.in.Kubeconfig
	start := time.Now()
	up := make(chan error, 1)
	go func() { up <- b.carob(ctx, args...) }()
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	cfg.QPS, cfg.WarningHandler = -1, rest.NoWarnings{}
	cfg.ContentType = "application/vnd.kubernetes.protobuf"
	if b.c, err = kubernetes.NewForConfig(cfg); err != nil {
		return err
	}
	probe := rest.CopyConfig(cfg)
	probe.Timeout = time.Second
	pc, err := kubernetes.NewForConfig(probe)
	if err != nil {
		return err
	}
	for {
		if _, err := pc.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx); err == nil {
			break
		}
		if time.Since(start) > patience {
			return errors.New("the API is never ready")
		}
		time.Sleep(time.Millisecond)
	}
	b.values["boot_ready"] = ms(time.Since(start))
	if err := b.namespaceReady(ctx); err != nil {
		return err
	}
	t, err := b.runOne(ctx, "first", start)
	if err != nil {
		return err
	}
	b.values["boot_pod"] = t.running
	if err := <-up; err != nil {
		return err
	}
	return b.remove(ctx, "first")
}

// namespaceReady makes the namespace and waits for what a pod in it needs.
func (b *bench) namespaceReady(ctx context.Context) error {
	_, err := b.c.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		metav1.CreateOptions{})
	return err
}

func pod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: ptr.To[int64](5),
			Containers: []corev1.Container{{
				Name: "c", Image: image, ImagePullPolicy: corev1.PullIfNotPresent,
				Command: []string{"sh", "-c", `trap "exit 0" TERM; sleep 100000 & wait`},
			}},
		},
	}
}

// times of one pod in milliseconds after the request to create it.
type times struct{ running, ready float64 }

// runOne creates a pod and waits for Ready; times count from start.
func (b *bench) runOne(ctx context.Context, name string, start time.Time) (times, error) {
	w, err := b.watch(ctx)
	if err != nil {
		return times{}, err
	}
	defer w.Stop()
	if start.IsZero() {
		start = time.Now()
	}
	if _, err := b.c.CoreV1().Pods(namespace).Create(ctx, pod(name), metav1.CreateOptions{}); err != nil {
		return times{}, err
	}
	var t times
	err = follow(ctx, w, func(p *corev1.Pod, _ watch.EventType) bool {
		if p.Name != name {
			return false
		}
		if p.Status.Phase == corev1.PodRunning && t.running == 0 {
			t.running = ms(time.Since(start))
		}
		if ready(p) {
			t.ready = ms(time.Since(start))
		}
		return t.ready > 0
	})
	return t, err
}

// watcher sees every version of every pod from its start on.
type watcher struct {
	c       kubernetes.Interface
	version string // of the newest object seen
	w       watch.Interface
}

func (b *bench) watch(ctx context.Context) (*watcher, error) {
	list, err := b.c.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	w := &watcher{c: b.c, version: list.ResourceVersion}
	return w, w.open(ctx)
}

func (w *watcher) open(ctx context.Context) (err error) {
	w.w, err = w.c.CoreV1().Pods(namespace).Watch(ctx, metav1.ListOptions{ResourceVersion: w.version})
	return err
}

func (w *watcher) Stop() { w.w.Stop() }

func ready(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// follow calls see for each version of each pod until it returns true.
//
// An API server ends a watch whose client falls behind, as upstream's does; the
// next one goes on where it ended.
func follow(ctx context.Context, w *watcher, see func(*corev1.Pod, watch.EventType) bool) error {
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	for {
		select {
		case ev, ok := <-w.w.ResultChan():
			if !ok {
				if err := w.open(ctx); err != nil {
					return fmt.Errorf("watch again: %w", err)
				}
				continue
			}
			p, isPod := ev.Object.(*corev1.Pod)
			if !isPod {
				return fmt.Errorf("watch: %w", apierrors.FromObject(ev.Object))
			}
			w.version = p.ResourceVersion
			if see(p, ev.Type) {
				return nil
			}
		case <-timeout.C:
			return errors.New("gave up waiting for pods")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// remove deletes a pod and waits until it is gone.
func (b *bench) remove(ctx context.Context, name string) error {
	_, err := b.timeRemove(ctx, name)
	return err
}

func (b *bench) timeRemove(ctx context.Context, name string) (float64, error) {
	w, err := b.watch(ctx)
	if err != nil {
		return 0, err
	}
	defer w.Stop()
	start := time.Now()
	if err := b.c.CoreV1().Pods(namespace).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return 0, err
	}
	err = follow(ctx, w, func(p *corev1.Pod, t watch.EventType) bool { return p.Name == name && t == watch.Deleted })
	return ms(time.Since(start)), err
}

func (b *bench) serial(ctx context.Context) error {
	var running, readyMS, gone []float64
	for i := range b.n {
		name := fmt.Sprintf("serial-%d", i)
		t, err := b.runOne(ctx, name, time.Time{})
		if err != nil {
			return err
		}
		running, readyMS = append(running, t.running), append(readyMS, t.ready)
		d, err := b.timeRemove(ctx, name)
		if err != nil {
			return err
		}
		gone = append(gone, d)
	}
	b.values["running_p50"], b.values["running_p99"] = quantile(running, 0.5), quantile(running, 0.99)
	b.values["ready_p50"] = quantile(readyMS, 0.5)
	b.values["delete_p50"], b.values["delete_p99"] = quantile(gone, 0.5), quantile(gone, 0.99)
	return nil
}

func quantile(v []float64, q float64) float64 {
	s := slices.Sorted(slices.Values(v))
	return s[min(len(s)-1, int(q*float64(len(s))))]
}

func (b *bench) burstRun(ctx context.Context) error {
	took, err := b.createMany(ctx, "burst", b.burst)
	if err != nil {
		return err
	}
	b.values["burst_rate"] = float64(b.burst) / took.Seconds()
	took, err = b.deleteAll(ctx, b.burst)
	if err != nil {
		return err
	}
	b.values["burst_delete"] = float64(b.burst) / took.Seconds()
	return nil
}

func (b *bench) createMany(ctx context.Context, prefix string, n int) (time.Duration, error) {
	w, err := b.watch(ctx)
	if err != nil {
		return 0, err
	}
	defer w.Stop()
	start := time.Now()
	failed := make(chan error, n)
	for i := range n {
		go func() {
			_, err := b.c.CoreV1().Pods(namespace).Create(ctx, pod(fmt.Sprintf("%s-%d", prefix, i)),
				metav1.CreateOptions{})
			failed <- err
		}()
	}
	running := map[string]bool{}
	if err := follow(ctx, w, func(p *corev1.Pod, _ watch.EventType) bool {
		if p.Status.Phase == corev1.PodRunning {
			running[p.Name] = true
		}
		return len(running) == n
	}); err != nil {
		return 0, err
	}
	took := time.Since(start)
	for range n {
		if err := <-failed; err != nil {
			return 0, err
		}
	}
	return took, nil
}

func (b *bench) deleteAll(ctx context.Context, n int) (time.Duration, error) {
	w, err := b.watch(ctx)
	if err != nil {
		return 0, err
	}
	defer w.Stop()
	start := time.Now()
	if err := b.c.CoreV1().Pods(namespace).DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{}); err != nil {
		return 0, err
	}
	gone := 0
	err = follow(ctx, w, func(_ *corev1.Pod, t watch.EventType) bool {
		if t == watch.Deleted {
			gone++
		}
		return gone == n
	})
	return time.Since(start), err
}
