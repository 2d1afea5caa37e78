package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	watchtools "k8s.io/client-go/tools/watch"

	"carob/internal/base/instance"
)

const (
	image     = "localhost/bench:1"
	namespace = "bench"
	nodeName  = "bench-node"
	patience  = 10 * time.Minute // for anything that is waited for
)

// bench is one running carob under measurement.
type bench struct {
	options
	in      instance.Instance
	c       kubernetes.Interface
	agents  []*agent
	agent   *agent // the one that is measured
	figures []figure
}

// start starts a carob with a directory of its own; stop ends it, and removes everything.
func start(ctx context.Context, o options) (b *bench, stop func() error, err error) {
	dir, err := os.MkdirTemp("", "bench-node-")
	if err != nil {
		return nil, nil, err
	}
	in, err := instance.Derive(instance.Flags{DataDir: filepath.Join(dir, "d")}, nodeName)
	if err != nil {
		return nil, nil, err
	}
	b = &bench{options: o, in: in}
	stop = func() error {
		return errors.Join(b.run(context.WithoutCancel(ctx), "down", "--pods"), os.RemoveAll(dir))
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, stop())
		}
	}()
	if err := b.run(ctx, "up", "--detach", "--profiling", "--node-name", nodeName, "--max-pods", "300"); err != nil {
		return nil, nil, err
	}
	if err := b.run(ctx, "image", "import", filepath.Join(o.images, "bench.tar")); err != nil {
		return nil, nil, err
	}
	owner, ok, err := instance.Running(in.LockFile)
	if err != nil || !ok {
		return nil, nil, errors.Join(errors.New("carob does not run"), err)
	}
	b.agent = b.carobAgent(owner.PID)
	b.agents = []*agent{b.agent}
	cfg, err := clientcmd.BuildConfigFromFlags("", in.Kubeconfig)
	if err != nil {
		return nil, nil, err
	}
	cfg.QPS, cfg.WarningHandler = -1, rest.NoWarnings{}
	cfg.ContentType = "application/vnd.kubernetes.protobuf"
	if b.c, err = kubernetes.NewForConfig(cfg); err != nil {
		return nil, nil, err
	}
	_, err = b.c.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		metav1.CreateOptions{})
	return b, stop, err
}

func (b *bench) run(ctx context.Context, args ...string) error {
	args = append(args, "--data-dir", b.in.DataDir)
	if out, err := exec.CommandContext(ctx, b.carob, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("carob %s: %w: %s", args[0], err, out)
	}
	return nil
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// wait calls f until it is true.
func wait(ctx context.Context, f func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		if ok, err := f(); ok || err != nil {
			return err
		}
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// pod waits for a signal and uses the volume, if one is named, at /data.
func pod(name string, volume *corev1.VolumeSource) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: new(int64(5)),
			AutomountServiceAccountToken:  new(volume == nil),
			Containers:                    []corev1.Container{container("c")},
		},
	}
	if volume != nil {
		p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: *volume}}
		p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
	}
	return p
}

func container(name string) corev1.Container {
	return corev1.Container{Name: name, Image: image, ImagePullPolicy: corev1.PullIfNotPresent,
		Command: []string{"sh", "-c", `trap "exit 0" TERM; sleep 100000 & wait`}}
}

// create creates pods and waits until all are Ready; running is the time until the last one was Running.
func (b *bench) create(ctx context.Context, pods ...*corev1.Pod) (running time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	api := b.c.CoreV1().Pods(namespace)
	w, err := b.watch(ctx)
	if err != nil {
		return 0, err
	}
	defer w.Stop()
	began := time.Now()
	missing, unready := map[string]bool{}, map[string]bool{}
	for _, p := range pods {
		missing[p.Name], unready[p.Name] = true, true
		p.Spec.HostNetwork = b.agent.hostNetwork
		p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: b.agent.node}
		if _, err := api.Create(ctx, p, metav1.CreateOptions{}); err != nil {
			return 0, err
		}
	}
	err = follow(ctx, w, func(p *corev1.Pod, _ watch.EventType) bool {
		if p.Status.Phase == corev1.PodRunning && missing[p.Name] {
			delete(missing, p.Name)
			running = time.Since(began)
		}
		if slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		}) {
			delete(unready, p.Name)
		}
		return len(unready) == 0
	})
	return running, err
}

// remove deletes all pods and waits until they are gone.
func (b *bench) remove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	api := b.c.CoreV1().Pods(namespace)
	list, err := api.List(ctx, metav1.ListOptions{})
	if err != nil || len(list.Items) == 0 {
		return err
	}
	w, err := b.watch(ctx)
	if err != nil {
		return err
	}
	defer w.Stop()
	if err := api.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		return err
	}
	left := len(list.Items)
	return follow(ctx, w, func(_ *corev1.Pod, t watch.EventType) bool {
		if t == watch.Deleted {
			left--
		}
		return left == 0
	})
}

// watch sees every change of a pod from now on, and goes on where a watch of the server ended.
func (b *bench) watch(ctx context.Context) (watch.Interface, error) {
	api := b.c.CoreV1().Pods(namespace)
	list, err := api.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return watchtools.NewRetryWatcherWithContext(ctx, list.ResourceVersion, pods{b.c})
}

// pods is what a RetryWatcher watches.
type pods struct{ c kubernetes.Interface }

func (p pods) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return p.c.CoreV1().Pods(namespace).Watch(ctx, o)
}

func follow(ctx context.Context, w watch.Interface, see func(*corev1.Pod, watch.EventType) bool) error {
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for pods: %w", ctx.Err())
		case e, ok := <-w.ResultChan():
			if !ok {
				return errors.New("the watch of pods ended")
			}
			if p, isPod := e.Object.(*corev1.Pod); isPod && see(p, e.Type) {
				return nil
			}
		}
	}
}
