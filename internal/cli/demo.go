package cli

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"carob/internal/cli/terminal"
)

// dist contains the demo's image; `make build` puts it there.
//
//go:embed all:dist
var dist embed.FS

const (
	demoImage = "carob.local/demo:1"
	demoName  = "carob-demo"

	demoPatience = 2 * time.Minute
	// demoCleanup limits the deletion of a pod after the demo was interrupted.
	demoCleanup = 15 * time.Second
)

func (r *root) demoCommand() *cobra.Command {
	var keep bool
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run a pod through its whole life and show each step with its time",
		Long: `Run a pod through its whole life on a running cluster: init container, postStart
hook, probes, a request, logs, preStop hook, graceful deletion. Each line is an
event of a watch on the pod, with the time since the pod was created. The image is
part of carob; nothing is downloaded.`,
		Example: `  carob demo
  carob demo --keep && carob timeline pod/` + demoName,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), demoPatience)
			defer cancel()
			c, err := r.client()
			if err != nil {
				return err
			}
			if err := r.ensureDemoImage(ctx); err != nil {
				return err
			}
			// `carob demo | head` must not end this process before it has deleted its pod.
			signal.Ignore(syscall.SIGPIPE)
			d := &demo{c: c, out: r.out, stop: cancel, next: r.try("kubectl get pod " + demoName + " -o wide")}
			err = d.run(ctx, keep)
			switch {
			case d.outputErr != nil:
				return Exit{exitFailed}
			case errors.Is(err, context.DeadlineExceeded):
				return fmt.Errorf("demo: the pod made no progress within %v; inspect it with `%s`", demoPatience,
					r.try("kubectl describe node"))
			case err != nil:
				return fmt.Errorf("demo: %w", err)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&keep, "keep", false, "keep the pod running at the end")
	return cmd
}

// ensureDemoImage imports the embedded image unless the node has it.
func (r *root) ensureDemoImage(ctx context.Context) error {
	list, err := r.listImages(ctx, "")
	if err != nil {
		return err
	}
	for _, im := range list.Images {
		if slices.Contains(im.Tags, demoImage) {
			return nil
		}
	}
	archive, err := dist.ReadFile("dist/demo.tar")
	if err != nil {
		return errors.New("this binary was built without the demo image: build it with `make build`")
	}
	return r.importImage(ctx, "", demoImage, bytes.NewReader(archive), false)
}

// demo runs one pod and prints what a watch shows.
type demo struct {
	c     kubernetes.Interface
	out   io.Writer
	start time.Time
	next  string // the command to inspect the pod
	// stop ends the demo when its output has no reader any more; outputErr is the reason.
	stop      func()
	outputErr error
}

func (d *demo) printf(format string, args ...any) {
	d.write("%6d ms  %s\n", time.Since(d.start).Milliseconds(), terminal.PrintableLine(fmt.Sprintf(format, args...)))
}

func (d *demo) write(format string, args ...any) {
	if _, err := fmt.Fprintf(d.out, format, args...); err != nil && d.outputErr == nil {
		d.outputErr = err
		d.stop()
	}
}

func (d *demo) run(ctx context.Context, keep bool) (err error) {
	pods := d.c.CoreV1().Pods(metav1.NamespaceDefault)
	if err := d.removeOld(ctx); err != nil {
		return err
	}
	w, err := pods.Watch(ctx,
		metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", demoName).String()})
	if err != nil {
		return fmt.Errorf("watch the pod: %w", err)
	}
	defer w.Stop()
	d.start = time.Now()
	defer func() {
		if err != nil && !keep {
			d.deletePod(ctx)
		}
	}()
	if _, err := pods.Create(ctx, demoPod(), metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create the pod: %w", err)
	}
	d.printf("created: the API server has stored the pod")
	last, err := d.follow(ctx, w, &corev1.Pod{}, func(p *corev1.Pod) bool { return p != nil && podReady(p) })
	if err != nil {
		return err
	}
	answer, err := d.c.CoreV1().RESTClient().Get().Namespace(metav1.NamespaceDefault).Resource("pods").Name(demoName +
		":8080").SubResource("proxy").DoRaw(ctx)
	if err != nil {
		return fmt.Errorf("send a request to the pod: %w", err)
	}
	d.printf("a request through the API server is answered: %s", firstLine(answer))
	logs, err := pods.GetLogs(demoName, &corev1.PodLogOptions{Container: "web"}).DoRaw(ctx)
	if err != nil {
		return fmt.Errorf("read the pod's log: %w", err)
	}
	d.printf("its log:")
	for l := range strings.Lines(string(logs)) {
		d.write("           | %s", l)
	}
	if keep {
		d.printf("still running: %s", d.next)
		return nil
	}
	if err := pods.Delete(ctx, demoName, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("delete the pod: %w", err)
	}
	_, err = d.follow(ctx, w, last, func(p *corev1.Pod) bool { return p == nil })
	return err
}

// deletePod deletes the pod of an interrupted demo.
func (d *demo) deletePod(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), demoCleanup)
	defer cancel()
	err := d.c.CoreV1().Pods(metav1.NamespaceDefault).Delete(ctx, demoName,
		metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](1)})
	if err != nil && !apierrors.IsNotFound(err) {
		d.printf("the pod was not deleted: %v", err)
	}
}

func (d *demo) removeOld(ctx context.Context) error {
	pods := d.c.CoreV1().Pods(metav1.NamespaceDefault)
	w, err := pods.Watch(ctx,
		metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", demoName).String()})
	if err != nil {
		return fmt.Errorf("watch the pod: %w", err)
	}
	defer w.Stop()
	err = pods.Delete(ctx, demoName, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](1)})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove the pod of an earlier demo: %w", err)
	}
	for ev := range w.ResultChan() {
		if ev.Type == watch.Deleted {
			return nil
		}
	}
	return errors.New("the pod of an earlier demo was not deleted in time")
}

// follow prints the changes in each version of the pod until done; nil stands for a deleted pod.
func (d *demo) follow(ctx context.Context, w watch.Interface, last *corev1.Pod,
	done func(*corev1.Pod) bool) (*corev1.Pod, error) {
	for {
		select {
		case <-ctx.Done():
			return last, fmt.Errorf("timed out: %w", ctx.Err())
		case ev, ok := <-w.ResultChan():
			if !ok {
				return last, errors.New("the watch was closed")
			}
			pod, isPod := ev.Object.(*corev1.Pod)
			if !isPod {
				return last, fmt.Errorf("watch: %w", apierrors.FromObject(ev.Object))
			}
			for _, n := range podChanges(last, pod) {
				d.printf("%s", n)
			}
			if why := unschedulable(pod); why != "" && why != unschedulable(last) {
				d.printf("the pod cannot be scheduled: %s", why)
				d.printNodeProblems(ctx)
			}
			last = pod
			if ev.Type == watch.Deleted {
				d.printf("gone")
				pod = nil
			}
			if done(pod) {
				return last, nil
			}
		}
	}
}

// unschedulable is the reason why no node can run the pod; "" if there is none, or the scheduler
// has not tried yet.
func unschedulable(p *corev1.Pod) string {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return c.Message
		}
	}
	return ""
}

// printNodeProblems prints the conditions of nodes that report a problem.
func (d *demo) printNodeProblems(ctx context.Context) {
	nodes, err := d.c.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		d.printf("list the nodes: %v", err)
		return
	}
	for _, n := range nodes.Items {
		for _, c := range n.Status.Conditions {
			if (c.Type == corev1.NodeReady) != (c.Status == corev1.ConditionTrue) {
				d.printf("node %s: %s is %s: %s", n.Name, c.Type, c.Status, c.Message)
			}
		}
	}
}

// podChanges describes what changed between two versions of a pod.
func podChanges(old, pod *corev1.Pod) []string {
	var news []string
	add := func(format string, args ...any) { news = append(news, fmt.Sprintf(format, args...)) }
	if old.Spec.NodeName == "" && pod.Spec.NodeName != "" {
		add("scheduled to node %s", pod.Spec.NodeName)
	}
	if old.DeletionTimestamp == nil && pod.DeletionTimestamp != nil {
		add("deletion requested: preStop hook, then SIGTERM, grace period %d s",
			ptr.Deref(pod.DeletionGracePeriodSeconds, 0))
	}
	if old.Status.PodIP == "" && pod.Status.PodIP != "" {
		add("sandbox is running with address %s", pod.Status.PodIP)
	}
	news = append(news, containerNews("init container", old.Status.InitContainerStatuses,
		pod.Status.InitContainerStatuses)...)
	news = append(news, containerNews("container", old.Status.ContainerStatuses, pod.Status.ContainerStatuses)...)
	if old.Status.Phase != pod.Status.Phase {
		add("phase %s", pod.Status.Phase)
	}
	if podReady(old) != podReady(pod) {
		if podReady(pod) {
			add("ready: the readiness probe succeeded")
		} else {
			add("no longer ready")
		}
	}
	return news
}

func containerNews(what string, old, now []corev1.ContainerStatus) []string {
	var news []string
	for _, s := range now {
		var before corev1.ContainerStatus
		if i := slices.IndexFunc(old, func(o corev1.ContainerStatus) bool { return o.Name == s.Name }); i >= 0 {
			before = old[i]
		}
		switch {
		case s.State.Running != nil && (before.State.Running == nil || before.ContainerID != s.ContainerID):
			news = append(news, fmt.Sprintf("%s %s is running", what, s.Name))
		case s.State.Terminated != nil && before.State.Terminated == nil:
			news = append(news,
				fmt.Sprintf("%s %s ended: %s, exit code %d", what, s.Name, s.State.Terminated.Reason,
					s.State.Terminated.ExitCode))
		case s.State.Waiting != nil && s.State.Waiting.Message != "" &&
			(before.State.Waiting == nil || before.State.Waiting.Message != s.State.Waiting.Message):
			news = append(news,
				fmt.Sprintf("%s %s is waiting: %s: %s", what, s.Name, s.State.Waiting.Reason, s.State.Waiting.Message))
		}
	}
	return news
}

func podReady(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func firstLine(b []byte) string {
	s, _, _ := strings.Cut(string(b), "\n")
	return s
}

// demoPod goes through every stage of a pod's life in a second or two.
func demoPod() *corev1.Pod {
	probe := func(path string) *corev1.Probe {
		return &corev1.Probe{
			ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path,
				Port: intstr.FromString("http")}},
			PeriodSeconds: 1,
		}
	}
	hook := func(name string) *corev1.LifecycleHandler {
		return &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"/demo", "hook", name}}}
	}
	mount := []corev1.VolumeMount{{Name: "shared", MountPath: "/shared"}}
	env := []corev1.EnvVar{
		{Name: "POD_NAMESPACE",
			ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.namespace"}}},
		{Name: "GREETING", Value: "/shared/greeting"},
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: demoName, Labels: map[string]string{"app": demoName}},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: ptr.To[int64](10),
			SecurityContext:               &corev1.PodSecurityContext{FSGroup: ptr.To[int64](65532)},
			Volumes: []corev1.Volume{{Name: "shared",
				VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
			InitContainers: []corev1.Container{{
				Name: "prepare", Image: demoImage, ImagePullPolicy: corev1.PullIfNotPresent,
				Args: []string{"prepare", "/shared/greeting"}, Env: env, VolumeMounts: mount,
			}},
			Containers: []corev1.Container{{
				Name: "web", Image: demoImage, ImagePullPolicy: corev1.PullIfNotPresent,
				Args: []string{"serve", ":8080"}, Env: env, VolumeMounts: mount,
				Ports:          []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}},
				ReadinessProbe: probe("/readyz"),
				LivenessProbe:  probe("/livez"),
				Lifecycle:      &corev1.Lifecycle{PostStart: hook("postStart"), PreStop: hook("preStop")},
			}},
		},
	}
}
