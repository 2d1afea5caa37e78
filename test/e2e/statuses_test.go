package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	watchtools "k8s.io/client-go/tools/watch"

	"carob/internal/core/podstatus"
)

// statuses watches the pods of a namespace and checks every published status against the contract.
type statuses struct {
	t    *testing.T
	last map[types.UID]*corev1.Pod
	seen int
	bad  int
}

func (s *statuses) take(e watch.Event) {
	pod, ok := e.Object.(*corev1.Pod)
	if !ok {
		s.t.Errorf("the watch brought %v", e.Object)
		return
	}
	if e.Type == watch.Deleted {
		delete(s.last, pod.UID)
		return
	}
	s.seen++
	found := podstatus.Check(pod)
	if before := s.last[pod.UID]; before != nil {
		found = append(found, podstatus.CheckChange(before, pod)...)
	}
	s.last[pod.UID] = pod
	for _, b := range found {
		if s.bad++; s.bad <= 20 {
			s.t.Errorf("%s/%s, version %s: %s", pod.Namespace, pod.Name, pod.ResourceVersion, b)
		}
	}
}

// follow handles the events of a watch until ctx ends, or done returns true.
func (s *statuses) follow(ctx context.Context, c kubernetes.Interface, namespace string,
	done func(watch.Event) bool) error {
	list, err := c.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range list.Items {
		s.take(watch.Event{Type: watch.Added, Object: &list.Items[i]})
	}
	w, err := watchtools.NewRetryWatcherWithContext(ctx, list.ResourceVersion, podWatcher{c, namespace})
	if err != nil {
		return err
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		s.take(e)
		if done(e) {
			return nil
		}
	}
	return ctx.Err()
}

type podWatcher struct {
	client    kubernetes.Interface
	namespace string
}

func (p podWatcher) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return p.client.CoreV1().Pods(p.namespace).Watch(ctx, o)
}

// Every status of every pod is one that the contract allows, whatever the pod does:
// STATUS_PODS random pods, other ones for each STATUS_SEED, live and are deleted while a watch sees
// all of it. With STATUS_KUBECONFIG only the pods of that cluster are watched, for STATUS_MINUTES.
func TestStatusesOfRandomPods(t *testing.T) {
	setting := func(name string, def int) int {
		n, err := strconv.Atoi(os.Getenv(name))
		if err != nil {
			return def
		}
		return n
	}
	s := &statuses{t: t, last: map[types.UID]*corev1.Pod{}}
	if file := os.Getenv("STATUS_KUBECONFIG"); file != "" {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(setting("STATUS_MINUTES", 1))*time.Minute)
		defer cancel()
		_ = s.follow(ctx, clientOf(t, file), metav1.NamespaceAll, func(watch.Event) bool { return false })
		t.Logf("%d statuses, %d breaches", s.seen, s.bad)
		return
	}
	n, beside := setting("STATUS_PODS", 60), 10
	c := clientOf(t, shared.Kubeconfig)
	shared.kubectl(t, "create", "namespace", "statuses")
	t.Cleanup(func() { shared.kubectl(t, "delete", "namespace", "statuses", "--wait") })
	shared.kubectl(t, "wait", "serviceaccount/default", "-n", "statuses", "--for=create", "--timeout=60s")

	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(n)*time.Second+5*patience)
	defer cancel()
	room := make(chan struct{}, beside)
	failed := make(chan error, 1)
	go func() {
		err := makePods(ctx, c, setting("STATUS_SEED", 1), n, room)
		if failed <- err; err != nil {
			cancel() // the rest will not come
		}
	}()
	gone := 0
	err := s.follow(ctx, c, "statuses", func(e watch.Event) bool {
		if e.Type == watch.Deleted {
			gone++
			<-room
		}
		return gone == n
	})
	if err != nil {
		t.Errorf("%d of %d pods lived to their end: %v", gone, n, err)
	}
	cancel()
	if err := <-failed; err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	t.Logf("%d pods, %d statuses, %d breaches", gone, s.seen, s.bad)
	if s.seen < 4*n && err == nil {
		t.Errorf("only %d statuses of %d pods were seen", s.seen, n)
	}
}

func clientOf(t *testing.T, kubeconfig string) kubernetes.Interface {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	c, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// makePods makes n random pods, as many at a time as there is room for, and deletes each some time
// later. Meanwhile some are resized, or get an ephemeral container.
func makePods(ctx context.Context, c kubernetes.Interface, seed, n int, room chan struct{}) error {
	r := rand.New(rand.NewPCG(uint64(seed), 2))
	for i := range n {
		select {
		case room <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		pod, lives, grace := randomPod(r, i)
		if _, err := c.CoreV1().Pods("statuses").Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create %s: %w", pod.Name, err)
		}
		if change := randomChange(r, pod); change != nil {
			time.AfterFunc(lives/2, func() {
				_, err := c.CoreV1().Pods("statuses").Patch(ctx, pod.Name, types.StrategicMergePatchType, change.patch,
					metav1.PatchOptions{}, change.subresource)
				if err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
					panic(err) // nothing would end the test
				}
			})
		}
		time.AfterFunc(lives, func() {
			err := c.CoreV1().Pods("statuses").Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &grace})
			if err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
				panic(err) // nothing would end the test
			}
		})
	}
	return nil
}

// randomPod draws a pod with what its life may meet, for how long it lives and with
// which grace it goes.
func randomPod(r *rand.Rand, i int) (pod *corev1.Pod, lives time.Duration, grace int64) {
	const image = "busybox:1.32.0"
	script := func(code int) []string {
		lines := []string{"exit " + strconv.Itoa(code), "sleep 0.05; exit " + strconv.Itoa(code),
			"sleep 1; exit " + strconv.Itoa(code),
			"trap 'exit 0' TERM; sleep 600 & wait", "exec sleep 600"}
		return []string{"sh", "-c", lines[r.IntN(len(lines))]}
	}
	probe := func() *corev1.Probe {
		command := []string{"true", "true", "false"}[r.IntN(3)]
		return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{command}}},
			PeriodSeconds: 1, FailureThreshold: 2}
	}
	policy := []corev1.RestartPolicy{corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure,
		corev1.RestartPolicyNever}[r.IntN(3)]
	pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("random-%d", i), Namespace: "statuses"},
		Spec: corev1.PodSpec{RestartPolicy: policy}}
	always := corev1.ContainerRestartPolicyAlways
	for k := range max(0, r.IntN(5)-2) {
		name := fmt.Sprintf("init%d", k)
		if r.IntN(3) == 0 {
			pod.Spec.InitContainers = append(pod.Spec.InitContainers,
				corev1.Container{Name: name, Image: image, Command: []string{"sleep", "600"}, RestartPolicy: &always})
			continue
		}
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, corev1.Container{Name: name, Image: image,
			Command: []string{"sh", "-c", fmt.Sprintf("sleep 0.%d; exit %d", r.IntN(3), max(0, r.IntN(6)-4))}})
	}
	for k := range 1 + r.IntN(3) {
		c := corev1.Container{Name: fmt.Sprintf("app%d", 9-k), Image: image, Command: script(r.IntN(2))}
		switch r.IntN(12) {
		case 0:
			c.Command = []string{"/no/such/program"}
		case 1:
			c.Image, c.ImagePullPolicy = "never.invalid/image:1", corev1.PullNever
		case 2:
			c.EnvFrom = []corev1.EnvFromSource{
				{ConfigMapRef: &corev1.ConfigMapEnvSource{
					LocalObjectReference: corev1.LocalObjectReference{Name: "missing"}}}}
		case 3:
			c.Lifecycle = &corev1.Lifecycle{
				PostStart: &corev1.LifecycleHandler{
					Exec: &corev1.ExecAction{Command: []string{[]string{"true", "false"}[r.IntN(2)]}}}}
		case 4:
			c.ReadinessProbe = probe()
		case 5:
			c.LivenessProbe = probe()
		case 6:
			c.StartupProbe = probe()
		}
		switch rules := func(action corev1.ContainerRestartRuleAction) []corev1.ContainerRestartRule {
			return []corev1.ContainerRestartRule{{Action: action, ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{
				Operator: corev1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{1}}}}
		}; r.IntN(8) {
		case 0:
			never := corev1.ContainerRestartPolicyNever
			c.RestartPolicy, c.RestartPolicyRules = &never, rules(corev1.ContainerRestartRuleActionRestart)
		case 1:
			failure := corev1.ContainerRestartPolicyOnFailure
			c.RestartPolicy = &failure
			c.RestartPolicyRules = rules(corev1.ContainerRestartRuleActionRestartAllContainers)
		case 2:
			c.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("5m"),
				corev1.ResourceMemory: resource.MustParse("8Mi")}
			if policy == corev1.RestartPolicyAlways && r.IntN(2) == 0 {
				c.ResizePolicy = []corev1.ContainerResizePolicy{
					{ResourceName: corev1.ResourceCPU, RestartPolicy: corev1.RestartContainer}}
			}
		}
		pod.Spec.Containers = append(pod.Spec.Containers, c)
	}
	if r.IntN(10) == 0 {
		pod.Spec.ActiveDeadlineSeconds = new(int64(1 + r.IntN(3)))
	}
	return pod, time.Duration(r.IntN(4000)) * time.Millisecond, int64(r.IntN(3))
}

// podChange is a change of a pod through one of its subresources.
type podChange struct {
	subresource string
	patch       []byte
}

// randomChange draws what happens to a pod while it lives; nil: nothing.
func randomChange(r *rand.Rand, pod *corev1.Pod) *podChange {
	for i := range pod.Spec.Containers {
		if c := &pod.Spec.Containers[i]; len(c.Resources.Requests) > 0 && r.IntN(4) > 0 {
			return &podChange{"resize", fmt.Appendf(nil,
				`{"spec":{"containers":[{"name":%q,"resources":{"requests":{"cpu":"7m"}}}]}}`, c.Name)}
		}
	}
	if r.IntN(8) > 0 {
		return nil
	}
	return &podChange{"ephemeralcontainers", fmt.Appendf(nil, `{"spec":{"ephemeralContainers":[{"name":"debug",`+
		`"image":"busybox:1.32.0","command":["sh","-c","sleep 0.%d"]}]}}`, r.IntN(10))}
}

// The rules would notice the status that upstream's test met once in 92 runs.
func TestStatusRulesFail(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a"}}},
		Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{
			{Name: "a", ContainerID: "carob://x",
				State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}}}}}}
	var found []string
	for _, b := range podstatus.Check(pod) {
		found = append(found, b.String())
	}
	contains(t, "what is found", strings.Join(found, "\n"), string(podstatus.WaitReason))
}
