package apiserver

import (
	"net/netip"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"carob/internal/base/testwait"
)

// The kubernetes Service leads to the machine's current address; an address that pods cannot use is
// not accepted.
func TestAdvertise(t *testing.T) {
	s := start(t, t.TempDir())
	admin := s.admin(t)
	w, err := admin.DiscoveryV1().EndpointSlices("default").Watch(t.Context(),
		metav1.ListOptions{FieldSelector: "metadata.name=kubernetes"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	late := time.After(testwait.Limit)
	await := func(want string) {
		t.Helper()
		for {
			select {
			case e := <-w.ResultChan():
				slice, ok := e.Object.(*discoveryv1.EndpointSlice)
				if !ok {
					t.Fatalf("%s %v", e.Type, e.Object)
				}
				if got := slice.Endpoints[0].Addresses[0]; got == want {
					return
				} else if got != "192.0.2.1" {
					t.Errorf("the slice leads to %s", got)
				}
			case <-late:
				t.Fatalf("nothing leads to %s", want)
			}
		}
	}
	await("192.0.2.1")
	for _, wrong := range []string{"127.0.0.1", "2001:db8::1", "192.0.2.1"} {
		s.Advertise(netip.MustParseAddr(wrong))
	}
	s.Advertise(netip.MustParseAddr("198.51.100.3"))
	await("198.51.100.3")
	ep, err := admin.CoreV1().Endpoints("default").Get(t.Context(), "kubernetes",
		metav1.GetOptions{}) //nolint:staticcheck // they are kept, too
	if err != nil {
		t.Fatal(err)
	}
	if got := ep.Subsets[0].Addresses[0].IP; got != "198.51.100.3" {
		t.Errorf("the endpoints lead to %s", got)
	}
}
