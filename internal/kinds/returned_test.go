package kinds

import (
	"slices"
	"testing"
)

// A deletion of these kinds of the core group returns the object, as upstream, not a Status.
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
