package kinds

import (
	"slices"
	"testing"
)

// A deletion of these kinds of the core group is answered with the object, as by upstream, not with a Status.
func TestReturnDeleted(t *testing.T) {
	want := []string{"namespaces", "persistentvolumeclaims", "persistentvolumes", "podtemplates", "resourcequotas",
		"serviceaccounts"}
	var got []string
	for _, r := range all() {
		if r.Kind.Group == "" && r.ReturnDeleted {
			got = append(got, r.Plural)
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
