package main

import (
	"context"
	"fmt"
	"os"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/placement"
	"carob/test/bench/processor"
)

// stages measures what becomes of a pod one part after the other: the decision alone, and then, through the API
// server of this process and without a scheduler, making the pod, its binding, and the event of that. The time of
// the watch cache, which follows each write, is in it.
func (b *bench) stages(ctx context.Context, nodes, pods int, profile string) error {
	end, err := profileTo(profile)
	if err != nil {
		return err
	}
	defer end()
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(out, "stage (%d nodes, %d pods)\tper second\tprocessor time of each\n", nodes, pods)
	stage := func(name string, f func() error) error {
		began, took := time.Now(), processor.Time(os.Getpid())
		if err := f(); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		whole := time.Since(began)
		took = processor.Time(os.Getpid()) - took
		fmt.Fprintf(out, "%s\t%.0f\t%v\n", name, float64(pods)/whole.Seconds(),
			(took / time.Duration(pods)).Round(time.Microsecond))
		return nil
	}
	c := placement.NewCluster()
	for i := range nodes {
		c.SetNode(node(i))
	}
	on, start := make([]string, pods), 0
	err = stage("decision", func() error {
		for i := range pods {
			p := pod(i, "100m", nil)
			p.UID = types.UID(p.Name)
			prepared := placement.Prepare(p)
			d := c.Decide(prepared, start)
			on[i], start = d.Node, d.Next
			c.SetPod(prepared, d.Node)
		}
		return nil
	})
	made := make([]*corev1.Pod, pods)
	for _, s := range []struct {
		name string
		call func(i int) error
	}{
		{"pod created", func(i int) (err error) {
			made[i], err = b.client.CoreV1().Pods(namespace).Create(ctx, pod(i, "100m", nil), metav1.CreateOptions{})
			return err
		}},
		{"pod bound", func(i int) error {
			return b.client.CoreV1().Pods(namespace).Bind(ctx, &corev1.Binding{
				ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: made[i].Name, UID: made[i].UID},
				Target:     corev1.ObjectReference{Kind: "Node", Name: on[i]}}, metav1.CreateOptions{})
		}},
		{"event written", func(i int) error {
			_, err := b.client.EventsV1().Events(namespace).Create(ctx, event(made[i], on[i]), metav1.CreateOptions{})
			return err
		}},
	} {
		if err == nil {
			err = stage(s.name, func() error { return parallel(pods, s.call) })
		}
	}
	if err != nil {
		return err
	}
	return out.Flush()
}

func event(p *corev1.Pod, on string) *eventsv1.Event {
	return &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: p.Name + ".1"},
		EventTime:  metav1.NowMicro(), ReportingController: "default-scheduler",
		ReportingInstance: "default-scheduler-host", Action: "Binding", Reason: "Scheduled", Type: corev1.EventTypeNormal,
		Regarding: corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: namespace, Name: p.Name, UID: p.UID,
			ResourceVersion: p.ResourceVersion},
		Note: "Successfully assigned " + namespace + "/" + p.Name + " to " + on,
	}
}
