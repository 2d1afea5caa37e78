package rules

import (
	"testing"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Only what the stored object has may keep a form that is no longer valid.
func TestLegacyAddresses(t *testing.T) {
	at, kept := field.NewPath("x"), sets.New("010.0.0.1", "010.0.0.0/8")
	for value, valid := range map[string]bool{"10.0.0.1": true, "010.0.0.1": true, "010.0.0.2": false, "": false,
		"10.0.0.1\x00": false} {
		if errs := LegacyIP(at, value, kept); (len(errs) == 0) != valid {
			t.Errorf("%q: %v", value, errs)
		}
	}
	for value, valid := range map[string]bool{"10.0.0.0/8": true, "010.0.0.0/8": true, "10.0.0.0/08": false,
		"": false} {
		if errs := LegacyCIDR(at, value, kept); (len(errs) == 0) != valid {
			t.Errorf("%q: %v", value, errs)
		}
	}
	if errs := LegacyIP(at, "010.0.0.1", nil); len(errs) == 0 {
		t.Error("an old form in a new object")
	}
}
