// workloads measures controllers, scheduler and API server with many Deployments, as the
// product runs them: in one process, which is this one. Nodes are objects only: each pod
// that is bound to one is made ready at once, and their leases are renewed.
//
//	go run ./test/bench/workloads [-deployments 1000 -replicas 10 -nodes 100]
//
// It prints how long it takes until all pods are available, what that took of the
// processors, which requests the API server answered, and what the process needs before and
// afterwards, while nothing happens.
// The processor time and memory of the nodes, which write status, are part of it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"carob/internal/base/gctuning"
	"carob/internal/controllers"
	"carob/internal/kinds/apps"
	"carob/internal/scheduler"
	"carob/test/bench/command"
	"carob/test/bench/processor"
	"carob/test/bench/standalone"
)

func main() { command.Main("workloads", run) }

const namespace = "bench"

func run(ctx context.Context) error {
	deployments := flag.Int("deployments", 1000, "how many Deployments")
	replicas := flag.Int("replicas", 10, "how many pods in each")
	nodes := flag.Int("nodes", 100, "how many nodes")
	idle := flag.Duration("idle", 5*time.Second, "how long to look at a process that has nothing to do")
	limit := flag.Duration("limit", 5*time.Minute, "longest time until all are available")
	profiles := flag.String("profiles", "", "folder for profiles: cpu, heap before and after, goroutines at the end")
	flag.Parse()
	if *profiles != "" {
		runtime.MemProfileRate = 8 << 10 // what a few Deployments need
	}
	dir, err := os.MkdirTemp("", "workloads-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithTimeout(ctx, *limit)
	defer cancel()
	server, stop, err := standalone.Start(ctx, dir)
	if err != nil {
		return err
	}
	defer stop()
	as := func(name string) *rest.Config { return server.ClientConfig(name, user.SystemPrivilegedGroup) }
	client, err := kubernetes.NewForConfig(as("bench"))
	if err != nil {
		return err
	}
	if _, err := client.CoreV1().Namespaces().Create(ctx,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
		return err
	}
	agents, err := makeNodes(ctx, client, *nodes)
	if err != nil {
		return err
	}
	manager, err := controllers.New(as("controllers"), controllers.Options{DefaultStatefulSet: apps.DefaultStatefulSet})
	if err != nil {
		return err
	}
	places, err := scheduler.New(as("scheduler"), scheduler.Options{})
	if err != nil {
		return err
	}
	parts := make(chan error, 2)
	partsCtx, end := context.WithCancel(ctx)
	go func() { parts <- manager.Run(partsCtx) }()
	go func() { parts <- places.Run(partsCtx) }()
	defer func() { end(); <-parts; <-parts }()
	<-manager.Synced()
	k := newKubelets(client, *deployments**replicas)
	if err := k.begin(partsCtx); err != nil {
		return err
	}
	select {
	case <-k.account(partsCtx):
	case <-ctx.Done():
		return ctx.Err()
	}
	go agents.renew(partsCtx)
	follow := make(chan error, 1)
	go func() { follow <- gctuning.Follow(partsCtx) }()
	defer func() { end(); <-follow }()
	before, err := look(*idle)
	if err != nil {
		return err
	}
	if err := profile(*profiles, "heap", "heap-before"); err != nil {
		return err
	}
	done, err := profileCPU(*profiles)
	if err != nil {
		return err
	}
	defer done()
	counted, err := requests(ctx, client)
	if err != nil {
		return err
	}
	began, took := time.Now(), processor.Time(os.Getpid())
	for i := range *deployments {
		if _, err := client.AppsV1().Deployments(namespace).Create(ctx, deployment(i, *replicas),
			metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	created := time.Since(began)
	err = k.wait(ctx)
	if err == nil {
		err = available(ctx, client, *deployments, int32(*replicas)) //nolint:gosec // a small number
	}
	if err != nil {
		answered, failed := requests(context.WithoutCancel(ctx), client)
		fmt.Printf("requests until then: %s\n", since(counted, answered))
		return errors.Join(err, failed, profile(*profiles, "goroutine", "goroutines"))
	}
	whole := time.Since(began)
	took = processor.Time(os.Getpid()) - took
	time.Sleep(2 * time.Second) // what is written later, such as events
	answered, err := requests(ctx, client)
	if err != nil {
		return err
	}
	done()
	after, err := look(*idle)
	if err != nil {
		return err
	}
	if err := profile(*profiles, "heap", "heap-after"); err != nil {
		return err
	}
	fmt.Printf("%d Deployments of %d pods on %d nodes\n", *deployments, *replicas, *nodes)
	fmt.Printf("created in %v, all available after %v, %v of the processors\n", created.Round(time.Millisecond),
		whole.Round(time.Millisecond), took.Round(time.Millisecond))
	fmt.Printf("requests: %s\n", since(counted, answered))
	fmt.Printf("idle before: %s\nidle after:  %s\n", before, after)
	return nil
}

func deployment(i, replicas int) *appsv1.Deployment {
	name := fmt.Sprint("d-", i)
	labels := map[string]string{"app": name}
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: appsv1.DeploymentSpec{Replicas: new(int32(replicas)),
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
				Containers: []corev1.Container{{Name: "c", Image: "registry.example/none:1"}}}}}}
}

// available waits until all Deployments report that they are available: it watches them, which costs little.
func available(ctx context.Context, client kubernetes.Interface, deployments int, replicas int32) error {
	all, cancel := context.WithCancel(ctx)
	defer cancel()
	there := map[string]bool{}
	informer := cache.NewSharedIndexInformer(cache.NewListWatchFromClient(client.AppsV1().RESTClient(), "deployments",
		namespace, fields.Everything()), &appsv1.Deployment{}, 0, nil)
	note := func(o any) {
		if d, ok := o.(*appsv1.Deployment); ok {
			if there[d.Name] = d.Status.AvailableReplicas == replicas; !there[d.Name] {
				delete(there, d.Name)
			}
			if len(there) == deployments {
				cancel()
			}
		}
	}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: note,
		UpdateFunc: func(_, o any) { note(o) }}); err != nil {
		return err
	}
	informer.RunWithContext(all)
	if ctx.Err() != nil {
		return fmt.Errorf("not all Deployments are available: %w", ctx.Err())
	}
	return nil
}
