package flow

import (
	"context"
	"errors"
	"testing"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
)

func level(t *testing.T, c *fake.Clientset, name string) *flowcontrolv1.PriorityLevelConfiguration {
	t.Helper()
	o, err := c.FlowcontrolV1().PriorityLevelConfigurations().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func flowSchema(t *testing.T, c *fake.Clientset, name string) *flowcontrolv1.FlowSchema {
	t.Helper()
	o, err := c.FlowcontrolV1().FlowSchemas().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// writes returns the number of writes since the last call.
func writes(c *fake.Clientset) (n int) {
	for _, a := range c.Actions() {
		if a.GetVerb() != "get" {
			n++
		}
	}
	c.ClearActions()
	return n
}

// An empty cluster gets all built-in objects with the autoupdate annotation; a second time writes
// nothing.
func TestBuiltInObjectsAreMade(t *testing.T) {
	c := fake.NewClientset()
	for i, want := range []int{len(bootstrap.MandatoryPriorityLevelConfigurations) +
		len(bootstrap.SuggestedPriorityLevelConfigurations) +
		len(bootstrap.MandatoryFlowSchemas) + len(bootstrap.SuggestedFlowSchemas), 0} {
		if err := ensure(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		if got := writes(c); got != want {
			t.Errorf("time %d: %d writes, want %d", i+1, got, want)
		}
	}
	if got := flowSchema(t, c, "system-nodes").Annotations[flowcontrolv1.AutoUpdateAnnotationKey]; got != "true" {
		t.Errorf("marked %q", got)
	}
}

// What an administrator changed stays, unless the annotation or Kubernetes requires otherwise.
func TestBuiltInObjectsAreUpdated(t *testing.T) {
	for name, tc := range map[string]struct {
		level      string
		generation int64
		annotation string
		changed    bool // by ensure
	}{
		"marked as the server's":      {"workload-low", 5, "true", true},
		"marked as the user's":        {"workload-low", 1, "false", false},
		"never changed":               {"workload-low", 1, "", true},
		"changed by somebody":         {"workload-low", 2, "", false},
		"must be in a fixed form":     {"catch-all", 9, "false", true},
		"an annotation of no meaning": {"workload-low", 2, "perhaps", false},
	} {
		t.Run(name, func(t *testing.T) {
			c := fake.NewClientset()
			if err := ensure(t.Context(), c); err != nil {
				t.Fatal(err)
			}
			o := level(t, c, tc.level)
			want := o.Spec.DeepCopy()
			o.Generation, o.Annotations = tc.generation, nil
			if tc.annotation != "" {
				o.Annotations = map[string]string{flowcontrolv1.AutoUpdateAnnotationKey: tc.annotation}
			}
			o.Spec.Limited.NominalConcurrencyShares = new(int32(77))
			if _, err := c.FlowcontrolV1().PriorityLevelConfigurations().Update(t.Context(), o,
				metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			if err := ensure(t.Context(), c); err != nil {
				t.Fatal(err)
			}
			if got := level(t, c, tc.level); equality.Semantic.DeepEqual(got.Spec, *want) != tc.changed {
				t.Errorf("put right is not %t: %+v", tc.changed, got.Spec.Limited)
			}
		})
	}
}

// An administrator may change how much the exempt level lends, but not that it is exempt.
func TestExemptLevelIsTuned(t *testing.T) {
	c := fake.NewClientset()
	if err := ensure(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	o := level(t, c, "exempt")
	o.Spec.Exempt = &flowcontrolv1.ExemptPriorityLevelConfiguration{LendablePercent: new(int32(50))}
	if _, err := c.FlowcontrolV1().PriorityLevelConfigurations().Update(t.Context(), o,
		metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	writes(c)
	if err := ensure(t.Context(), c); err != nil || writes(c) != 0 {
		t.Errorf("%v, or it was written", err)
	}
	o.Spec = flowcontrolv1.PriorityLevelConfigurationSpec{Type: flowcontrolv1.PriorityLevelEnablementLimited,
		Limited: &flowcontrolv1.LimitedPriorityLevelConfiguration{}}
	if _, err := c.FlowcontrolV1().PriorityLevelConfigurations().Update(t.Context(), o,
		metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := ensure(t.Context(), c); err != nil ||
		level(t, c, "exempt").Spec.Type != flowcontrolv1.PriorityLevelEnablementExempt {
		t.Errorf("%v, or the level is not exempt", err)
	}
}

// A deleted flow schema is created again.
func TestDeletedSchemaComesBack(t *testing.T) {
	c := fake.NewClientset()
	if err := ensure(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if err := c.FlowcontrolV1().FlowSchemas().Delete(t.Context(), "probes", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := ensure(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	flowSchema(t, c, "probes")
}

// A concurrent write of somebody else is not an error; any other rejection is.
func TestBuiltInObjectsAreRefused(t *testing.T) {
	gr := schema.GroupResource{Group: flowcontrolv1.GroupName, Resource: "flowschemas"}
	for name, tc := range map[string]struct {
		err  error
		want bool
	}{
		"made by somebody else": {apierrors.NewAlreadyExists(gr, "x"), false},
		"changed meanwhile":     {apierrors.NewConflict(gr, "x", errors.New("newer")), false},
		"refused":               {apierrors.NewForbidden(gr, "x", nil), true},
		"no answer":             {context.DeadlineExceeded, true},
	} {
		t.Run(name, func(t *testing.T) {
			c := fake.NewClientset()
			c.PrependReactor("create", "flowschemas",
				func(k8stesting.Action) (bool, runtime.Object, error) { return true, nil, tc.err })
			if err := ensure(t.Context(), c); (err != nil) != tc.want {
				t.Error(err)
			}
		})
	}
}
