package addons

import "testing"

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
