package apiserver

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestOrderOfGroups: the highest priority first, then by name; replaced and removed groups leave
// nothing.
func TestOrderOfGroups(t *testing.T) {
	l := newAPIGroupList(nil)
	for _, g := range []struct {
		name     string
		priority int32
	}{{"b.example.com", 1000}, {"apps", 17800}, {"a.example.com", 1000}, {"moves", 5}, {"gone", 9}} {
		l.AddGroup(metav1.APIGroup{Name: g.name}, g.priority)
	}
	l.AddGroup(metav1.APIGroup{Name: "moves"}, 20000)
	l.RemoveGroup("gone")
	var got []string
	for _, g := range l.list().Groups {
		got = append(got, g.Name)
	}
	if want := []string{"moves", "apps", "a.example.com", "b.example.com"}; !slices.Equal(got, want) {
		t.Errorf("order of groups: %v, want %v", got, want)
	}
}
