package app

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
)

// The Node object gets the ranges of --pod-cidr and keeps what others wrote into it. It is not
// changed if the ranges are the same, if it has none yet, or if it does not exist.
func TestFollowPodCIDR(t *testing.T) {
	node := func(ranges ...string) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "old", Labels: map[string]string{"team": "a"},
			Annotations: map[string]string{"x": "y"}},
			Spec: corev1.NodeSpec{PodCIDRs: ranges, Unschedulable: true,
				Taints: []corev1.Taint{{Key: "k", Effect: "NoSchedule"}}}}
		if len(ranges) > 0 {
			n.Spec.PodCIDR = ranges[0]
		}
		return n
	}
	stuck := node("10.1.0.0/16")
	stuck.Finalizers = []string{"x/y"}
	for name, tt := range map[string]struct {
		stored *corev1.Node
		writes []string
		fails  bool
	}{
		"not there":          {nil, nil, false},
		"no range":           {node(), nil, false},
		"the same":           {node("10.2.0.0/16", "fd00::/64"), nil, false},
		"another":            {node("10.1.0.0/16"), []string{"delete", "create"}, false},
		"one family before":  {node("10.2.0.0/16"), []string{"delete", "create"}, false},
		"kept by finalizers": {stuck, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset()
			client.PrependReactor("create", "nodes", func(a ktesting.Action) (bool, runtime.Object, error) {
				c, ok := a.(ktesting.CreateActionImpl)
				return ok && len(c.CreateOptions.DryRun) > 0, nil, nil // the fake client would store it
			})
			if tt.stored != nil {
				if err := client.Tracker().Add(tt.stored); err != nil {
					t.Fatal(err)
				}
			}
			file := filepath.Join(t.TempDir(), replacedNode)
			if err := followPodCIDR(t.Context(), client, "n1",
				[]string{"10.2.0.0/16", "fd00::/64"}, file); (err != nil) != tt.fails {
				t.Fatal(err)
			}
			if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
				t.Error("the file of the node is left:", err)
			}
			var writes []string
			for _, a := range client.Actions() {
				if c, ok := a.(ktesting.CreateActionImpl); a.GetVerb() != "get" &&
					!(ok && len(c.CreateOptions.DryRun) > 0) {
					writes = append(writes, a.GetVerb())
				}
			}
			if !slices.Equal(writes, tt.writes) {
				t.Errorf("writes %v, want %v", writes, tt.writes)
			}
			if len(tt.writes) == 0 {
				return
			}
			got, err := client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got.Spec.PodCIDRs, []string{"10.2.0.0/16", "fd00::/64"}) ||
				got.Spec.PodCIDR != "10.2.0.0/16" || got.UID == "old" {
				t.Errorf("ranges %v, uid %s", got.Spec.PodCIDRs, got.UID)
			}
			if !maps.Equal(got.Labels, tt.stored.Labels) || !maps.Equal(got.Annotations, tt.stored.Annotations) ||
				!got.Spec.Unschedulable || len(got.Spec.Taints) != 1 {
				t.Errorf("kept %+v, %+v", got.ObjectMeta, got.Spec)
			}
		})
	}
}

// A start that ends between the deletion and the creation of the Node object loses nothing of it: the next start, with
// whatever ranges, creates it.
func TestFollowPodCIDRInterrupted(t *testing.T) {
	client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "old",
		Labels: map[string]string{"team": "a"}},
		Spec: corev1.NodeSpec{PodCIDRs: []string{"10.1.0.0/16"}, PodCIDR: "10.1.0.0/16",
			Taints: []corev1.Taint{{Key: "k", Effect: "NoSchedule"}}}})
	ends := true
	client.PrependReactor("create", "nodes", func(a ktesting.Action) (bool, runtime.Object, error) {
		if c, ok := a.(ktesting.CreateActionImpl); ok && len(c.CreateOptions.DryRun) > 0 {
			return true, nil, nil
		}
		return ends, nil, errors.New("carob is killed")
	})
	file := filepath.Join(t.TempDir(), replacedNode)
	if err := followPodCIDR(t.Context(), client, "n1", []string{"10.2.0.0/16"}, file); err == nil {
		t.Fatal("no error")
	}
	ends = false
	for range 2 {
		if err := followPodCIDR(t.Context(), client, "n1", []string{"10.3.0.0/16"}, file); err != nil {
			t.Fatal(err)
		}
		got, err := client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got.Labels["team"] != "a" || len(got.Spec.Taints) != 1 || got.Spec.PodCIDR != "10.3.0.0/16" {
			t.Errorf("%+v, %+v", got.ObjectMeta, got.Spec)
		}
	}
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		t.Error("the file of the node is left:", err)
	}
}
