package addons

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Each object of an add-on has its label, and its switch, which is on, comes last.
func TestManifests(t *testing.T) {
	for _, a := range All() {
		objects, err := a.Manifests()
		if err != nil || len(objects) == 0 {
			t.Fatalf("%s: %d objects, %v", a.Name, len(objects), err)
		}
		for i, o := range objects {
			if o.GetLabels()[Label] != a.Name || o.GetKind() == "" {
				t.Errorf("%s: %s %q is not labelled", a.Name, o.GetKind(), o.GetName())
			}
			if last := i == len(objects)-1; a.On(o.GetName(), o.GetLabels()) != last {
				t.Errorf("%s: %s %q is the switch: %v", a.Name, o.GetKind(), o.GetName(), !last)
			}
		}
		if found, ok := Find(a.Name); !ok || found.Switch != a.Switch {
			t.Errorf("%s is not found", a.Name)
		}
		for what, labels := range map[string]map[string]string{"none": nil, "another's": {State: Enabled},
			"disabled": {Label: a.Name, State: Disabled}} {
			if a.On(a.Switch, labels) {
				t.Errorf("%s is on with labels: %s", a.Name, what)
			}
		}
	}
	if _, ok := Find("nosuch"); ok {
		t.Error("an add-on that is none")
	}
}

// W9.1: the names and columns of VerticalPodAutoscalers and their checkpoints.
func TestVerticalPodAutoscalerColumns(t *testing.T) {
	a, _ := Find("vpa")
	objects, err := a.Manifests()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, o := range objects {
		if o.GetKind() != "CustomResourceDefinition" {
			continue
		}
		names, _, _ := unstructured.NestedStringSlice(o.Object, "spec", "names", "shortNames")
		versions, _, _ := unstructured.NestedSlice(o.Object, "spec", "versions")
		for _, v := range versions {
			v, _ := v.(map[string]any)
			line := fmt.Sprintf("%s %v %v served=%v", o.GetName(), names, v["name"], v["served"])
			columns, _, _ := unstructured.NestedSlice(v, "additionalPrinterColumns")
			for _, c := range columns {
				c, _ := c.(map[string]any)
				line += fmt.Sprint(" ", c["name"])
				if p, ok := c["priority"]; ok && p != int64(0) {
					line += fmt.Sprint("/", p)
				}
			}
			got = append(got, line)
		}
	}
	slices.Sort(got)
	want := []string{
		"verticalpodautoscalercheckpoints.autoscaling.k8s.io [vpacheckpoint] v1 served=true",
		"verticalpodautoscalers.autoscaling.k8s.io [vpa] v1 served=true Mode CPU Mem Provided Age MinReplicas/1 OOMSeconds/1",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s", strings.Join(got, "\n"))
	}
}
