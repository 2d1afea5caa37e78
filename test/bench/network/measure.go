package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
)

const (
	inPodPath = "/bench/program"
	image     = "carob.local/demo:1"
)

func measure(ctx context.Context, o options, name string) (map[string]float64, error) {
	n, err := start(ctx, o, name)
	if err != nil {
		return nil, err
	}
	defer n.stop()
	values := map[string]float64{}
	for _, step := range []func(context.Context, map[string]float64) error{n.disk, n.lifecycle, n.paths, n.changes,
		n.questions} {
		if err := step(ctx, values); err != nil {
			return nil, err
		}
	}
	return values, nil
}

// pod is a server with this program; its name is what it answers.
func (n *node) pod(name, app string) *corev1.Pod {
	grace := int64(5)
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": app}},
		Spec: corev1.PodSpec{TerminationGracePeriodSeconds: &grace,
			Volumes: []corev1.Volume{{Name: "bench", VolumeSource: corev1.VolumeSource{
				HostPath: &corev1.HostPathVolumeSource{Path: filepath.Dir(n.self)}}}},
			Containers: []corev1.Container{{Name: "c", Image: image, ImagePullPolicy: corev1.PullIfNotPresent,
				Command:      []string{inPodPath, "serve", name},
				VolumeMounts: []corev1.VolumeMount{{Name: "bench", MountPath: filepath.Dir(inPodPath), ReadOnly: true}},
				ReadinessProbe: &corev1.Probe{PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{
					TCPSocket: &corev1.TCPSocketAction{Port: intstr.Parse(namePort)}}}}}}}
}

// ready creates a pod and returns when a watch reports that it is Ready.
func (n *node) ready(ctx context.Context, p *corev1.Pod) (at time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	pods := n.c.CoreV1().Pods(namespace)
	if p, err = pods.Create(ctx, p, metav1.CreateOptions{}); err != nil {
		return at, err
	}
	w, err := pods.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + p.Name,
		ResourceVersion: p.ResourceVersion})
	if err != nil {
		return at, err
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		now, ok := e.Object.(*corev1.Pod)
		if !ok || e.Type == watch.Deleted {
			return at, fmt.Errorf("pod %s: %v", p.Name, e)
		}
		for _, c := range now.Status.Conditions {
			if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
				return time.Now(), nil
			}
		}
	}
	return at, fmt.Errorf("pod %s is not Ready: %w", p.Name, ctx.Err())
}

// service creates a Service and returns its address.
func (n *node) service(ctx context.Context, name string, selector map[string]string) (string, error) {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{Selector: selector,
		Ports: []corev1.ServicePort{{Name: "name", Port: 80, TargetPort: intstr.Parse(namePort)},
			{Name: "sink", Port: 81, TargetPort: intstr.Parse(sinkPort)}}}}
	s, err := n.c.CoreV1().Services(namespace).Create(ctx, s, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return s.Spec.ClusterIP, nil
}

// respondingPod opens a connection and reads which pod responds.
func respondingPod(to string) (string, error) {
	c, err := dial(to, time.Second)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if err := c.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
		return "", err
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	return strings.TrimSpace(line), err
}

// first opens connections until a pod responds and returns when the last one began.
func first(ctx context.Context, to, pod string) (time.Time, error) {
	for end := time.Now().Add(patience); time.Now().Before(end) && ctx.Err() == nil; {
		began := time.Now()
		if name, err := respondingPod(to); err == nil && name == pod {
			return began, nil
		}
	}
	return time.Time{}, fmt.Errorf("pod %s never answered at %s", pod, to)
}

// settled is how many connections in a row must reach the other pod: with two, by chance, once in 2⁵⁰ times.
const settled = 50

// lifecycle creates and deletes pods. Each comes alone behind one Service, so that no connection goes elsewhere by
// chance; it goes from behind another Service which has a pod that stays.
func (n *node) lifecycle(ctx context.Context, values map[string]float64) error {
	come, err := n.service(ctx, "comes", map[string]string{"app": "comes"})
	if err != nil {
		return err
	}
	leave, err := n.service(ctx, "cycle", map[string]string{"app": "cycle"})
	if err != nil {
		return err
	}
	come, leave = net.JoinHostPort(come, "80"), net.JoinHostPort(leave, "80")
	if _, err := n.ready(ctx, n.pod("stays", "cycle")); err != nil {
		return err
	}
	if _, err := first(ctx, leave, "stays"); err != nil {
		return err
	}
	listed, err := n.listed(ctx, "comes")
	if err != nil {
		return err
	}
	var inSlice, came, went []time.Duration
	failed := 0
	for i := range n.n {
		p := n.pod(fmt.Sprint("cycle-", i), "comes")
		ready, err := n.ready(ctx, p)
		if err != nil {
			return err
		}
		began, err := first(ctx, come, p.Name)
		if err != nil {
			return err
		}
		came = append(came, max(0, began.Sub(ready)))
		at, err := listed(p.Name)
		if err != nil {
			return err
		}
		inSlice = append(inSlice, max(0, at.Sub(ready)))
		took, lost, err := n.leaves(ctx, p.Name, leave)
		if err != nil {
			return err
		}
		went, failed = append(went, took), failed+lost
	}
	for name, took := range map[string][]time.Duration{"slice": inSlice, "ready": came, "gone": went} {
		values[name+"_p50"], values[name+"_p99"] = ms(quantile(took, 0.5)), ms(quantile(took, 0.99))
	}
	values["lost"] = float64(failed) / float64(n.n)
	return ctx.Err()
}

// leaves puts a pod behind the Service which has one that stays, and deletes it; it returns how long after that the
// pod got a connection, and how many failed.
func (n *node) leaves(ctx context.Context, pod, to string) (took time.Duration, failed int, err error) {
	pods := n.c.CoreV1().Pods(namespace)
	if _, err := pods.Patch(ctx, pod, types.MergePatchType, []byte(`{"metadata":{"labels":{"app":"cycle"}}}`),
		metav1.PatchOptions{}); err != nil {
		return 0, 0, err
	}
	if _, err := first(ctx, to, pod); err != nil {
		return 0, 0, err
	}
	if err := pods.Delete(ctx, pod, metav1.DeleteOptions{}); err != nil {
		return 0, 0, err
	}
	deleted := time.Now()
	last := deleted
	for row := 0; row < settled && ctx.Err() == nil; row++ {
		began := time.Now()
		name, err := respondingPod(to)
		if err != nil {
			failed++
		}
		if name != "stays" {
			last, row = began, -1
		}
	}
	return last.Sub(deleted), failed, nil
}

// listed follows the EndpointSlices of a Service; what it returns waits until a pod is ready in one, and returns when
// the watch showed that.
func (n *node) listed(ctx context.Context, service string) (at func(pod string) (time.Time, error), err error) {
	w, err := n.c.DiscoveryV1().EndpointSlices(namespace).Watch(ctx, metav1.ListOptions{
		LabelSelector: discoveryv1.LabelServiceName + "=" + service})
	if err != nil {
		return nil, err
	}
	type seen struct {
		pod string
		at  time.Time
	}
	came := make(chan seen, n.n) // each pod once
	go func() {
		defer close(came)
		defer w.Stop()
		known := map[string]bool{}
		for e := range w.ResultChan() {
			s, ok := e.Object.(*discoveryv1.EndpointSlice)
			if !ok {
				return
			}
			now := time.Now()
			for _, e := range s.Endpoints {
				if e.TargetRef != nil && e.Conditions.Ready != nil && *e.Conditions.Ready && !known[e.TargetRef.Name] {
					known[e.TargetRef.Name] = true
					came <- seen{e.TargetRef.Name, now}
				}
			}
		}
	}()
	return func(pod string) (time.Time, error) {
		limit := time.After(patience)
		for {
			select {
			case s, open := <-came:
				if !open {
					return time.Time{}, errors.New("the watch of EndpointSlices ended")
				}
				if s.pod == pod {
					return s.at, nil
				}
			case <-limit:
				return time.Time{}, fmt.Errorf("pod %s is in no EndpointSlice", pod)
			case <-ctx.Done():
				return time.Time{}, ctx.Err()
			}
		}
	}, nil
}

// paths compares the ways from one pod to another.
func (n *node) paths(ctx context.Context, values map[string]float64) error {
	for _, name := range []string{"one", "other"} {
		if _, err := n.ready(ctx, n.pod(name, name)); err != nil {
			return err
		}
	}
	p, err := n.c.CoreV1().Pods(namespace).Get(ctx, "other", metav1.GetOptions{})
	if err != nil {
		return err
	}
	ip, err := n.service(ctx, "other", map[string]string{"app": "other"})
	if err != nil {
		return err
	}
	if _, err := first(ctx, net.JoinHostPort(ip, "80"), "other"); err != nil {
		return err
	}
	took, err := n.inPod(ctx, "one", "connect", net.JoinHostPort(p.Status.PodIP, namePort), net.JoinHostPort(ip, "80"))
	if err != nil {
		return err
	}
	values["connect_pod"], values["connect_ratio"] = took[0], took[1]/took[0]
	for key, to := range map[string]string{"loopback": "loopback", "pod": net.JoinHostPort(p.Status.PodIP, sinkPort),
		"service": net.JoinHostPort(ip, "81")} {
		rate, err := n.inPod(ctx, "one", "stream", to, n.seconds.String())
		if err != nil {
			return err
		}
		values["stream_"+key] = rate[0]
	}
	return nil
}

// parallel calls do for each number from one to another, by several goroutines.
func parallel(from, to int, do func(i int) error) error {
	const writers = 16
	var next atomic.Int64
	next.Store(int64(from))
	errs := make(chan error, writers)
	for range writers {
		go func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= to {
					errs <- nil
					return
				}
				if err := do(i); err != nil {
					errs <- err
					return
				}
			}
		}()
	}
	var all error
	for range writers {
		all = errors.Join(all, <-errs)
	}
	return all
}

// slice is the only EndpointSlice of a Service without a selector.
func slice(service, address string) *discoveryv1.EndpointSlice {
	name, sink, yes, tcp := "name", "sink", true, corev1.ProtocolTCP
	first, second := port(namePort), port(sinkPort)
	return &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: service,
		Labels: map[string]string{discoveryv1.LabelServiceName: service}}, AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{address},
			Conditions: discoveryv1.EndpointConditions{Ready: &yes}}},
		Ports: []discoveryv1.EndpointPort{{Name: &name, Port: &first, Protocol: &tcp},
			{Name: &sink, Port: &second, Protocol: &tcp}}}
}

func port(text string) int32 {
	n, _ := strconv.Atoi(text) // a constant
	return int32(n)
}

// changes leads a Service to the one and the other pod by turns, with more and more Services beside it.
func (n *node) changes(ctx context.Context, values map[string]float64) error {
	addresses := map[string]string{}
	for _, name := range []string{"one", "other"} {
		p, err := n.c.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		addresses[name] = p.Status.PodIP
	}
	var err error
	if values["memory"], err = n.memory(ctx); err != nil {
		return err
	}
	for made, i := 0, 0; i < len(n.services); i++ {
		err := parallel(made, n.services[i], func(i int) error { return n.fill(ctx, i, addresses["other"]) })
		if err != nil {
			return err
		}
		made = n.services[i]
		took, after, err := n.flip(ctx, addresses)
		if err != nil {
			return err
		}
		values[fmt.Sprint("change_p50_", made)] = ms(quantile(took, 0.5))
		values[fmt.Sprint("change_p99_", made)] = ms(quantile(took, 0.99))
		values[fmt.Sprint("change_after_", made)] = ms(quantile(after, 0.5))
	}
	values["memory_services"], err = n.memory(ctx)
	return err
}

func serviceName(i int) string { return fmt.Sprint("s", i) }

func (n *node) fill(ctx context.Context, i int, address string) error {
	if _, err := n.service(ctx, serviceName(i), nil); err != nil {
		return err
	}
	_, err := n.c.DiscoveryV1().EndpointSlices(namespace).Create(ctx, slice(serviceName(i), address),
		metav1.CreateOptions{})
	return err
}

// flip changes the endpoint of the first Service; each time is from the request to the API to the beginning of the
// first connection that reaches the other pod, and from the API's answer to the same moment. Connections are tried from
// the request on, not from its answer: the packets of clients do not wait for that.
func (n *node) flip(ctx context.Context, addresses map[string]string) (took, after []time.Duration, err error) {
	s, err := n.c.CoreV1().Services(namespace).Get(ctx, serviceName(0), metav1.GetOptions{})
	if err != nil {
		return nil, nil, err
	}
	to := net.JoinHostPort(s.Spec.ClusterIP, "80")
	const before = 2 // everybody has what the others wrote
	for i := range n.flips + before {
		whole, rest, err := n.change(ctx, to, []string{"one", "other"}[i%2], addresses)
		if err != nil {
			return nil, nil, err
		}
		if i >= before {
			took, after = append(took, whole), append(after, rest)
		}
	}
	return took, after, nil
}

// change leads the first Service to a pod; it returns how long after the request and after its answer the first
// connection began that reached the pod.
func (n *node) change(ctx context.Context, to, pod string, addresses map[string]string) (took, after time.Duration,
	err error) {
	patch, err := json.Marshal(map[string]any{"endpoints": slice("", addresses[pod]).Endpoints})
	if err != nil {
		return 0, 0, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		at  time.Time
		err error
	}
	reached := make(chan result, 1)
	sent := time.Now()
	go func() {
		at, err := first(ctx, to, pod)
		reached <- result{at, err}
	}()
	if _, err := n.c.DiscoveryV1().EndpointSlices(namespace).Patch(ctx, serviceName(0), types.MergePatchType, patch,
		metav1.PatchOptions{}); err != nil {
		return 0, 0, err
	}
	answered := time.Now()
	r := <-reached
	return r.at.Sub(sent), max(0, r.at.Sub(answered)), r.err
}

// disk measures what each write to the API waits for at least: a small write that is synced, beside which the disk has
// nothing to do for carob.
func (n *node) disk(ctx context.Context, values map[string]float64) error {
	f, err := os.Create(filepath.Join(n.dir, "sync"))
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	block := make([]byte, 1<<10)
	took := make([]time.Duration, n.n)
	for i := range took {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		began := time.Now()
		if _, err := f.Write(block); err != nil {
			return err
		}
		if err := f.Sync(); err != nil {
			return err
		}
		took[i] = time.Since(began)
	}
	values["sync_p50"], values["sync_p99"] = ms(quantile(took, 0.5)), ms(quantile(took, 0.99))
	return nil
}
