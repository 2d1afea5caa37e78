package main

import (
	"context"
	"fmt"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1ac "k8s.io/client-go/applyconfigurations/coordination/v1"
	"k8s.io/client-go/kubernetes"
)

// nodes are Node objects with leases, without anything behind them.
type nodes struct {
	client kubernetes.Interface
	names  []string
}

// leaseSeconds is how long a lease of a node lasts; a kubelet renews it four times as often.
const leaseSeconds = 40

func makeNodes(ctx context.Context, client kubernetes.Interface, n int) (*nodes, error) {
	all := &nodes{client: client}
	room := corev1.ResourceList{"cpu": resource.MustParse("64"), "memory": resource.MustParse("256Gi"),
		"pods": resource.MustParse("500")}
	for i := range n {
		name := fmt.Sprintf("node-%04d", i)
		made, err := client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name},
			Status: corev1.NodeStatus{Allocatable: room, Capacity: room, Conditions: []corev1.NodeCondition{
				{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}}, metav1.CreateOptions{})
		if err != nil {
			return nil, err
		}
		made.Spec.Taints = nil // of a node that is not ready yet
		if _, err := client.CoreV1().Nodes().Update(ctx, made, metav1.UpdateOptions{}); err != nil {
			return nil, err
		}
		if err := all.lease(ctx, name); err != nil {
			return nil, err
		}
		all.names = append(all.names, name)
	}
	return all, nil
}

// renew renews the leases as agents do, one after the other, until ctx ends. The node lifecycle controller counts from
// the last renewal that it has seen, independent of the time in a lease, and makes the pods of a silent node not ready.
func (n *nodes) renew(ctx context.Context) {
	every := time.NewTicker(leaseSeconds * time.Second / 4 / time.Duration(max(len(n.names), 1)))
	defer every.Stop()
	for i := 0; len(n.names) > 0; i++ {
		select {
		case <-ctx.Done():
			return
		case <-every.C:
		}
		if err := n.lease(ctx, n.names[i%len(n.names)]); err != nil && ctx.Err() == nil {
			fmt.Fprintln(os.Stderr, "renew a lease:", err)
		}
	}
}

func (n *nodes) lease(ctx context.Context, name string) error {
	lease := coordinationv1ac.Lease(name, corev1.NamespaceNodeLease).WithSpec(coordinationv1ac.LeaseSpec().
		WithHolderIdentity(name).WithLeaseDurationSeconds(leaseSeconds).WithRenewTime(metav1.NowMicro()))
	_, err := n.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Apply(ctx, lease,
		metav1.ApplyOptions{FieldManager: "bench"})
	return err
}
