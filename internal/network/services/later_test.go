package services

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2"

	"carob/internal/core/netplan/addresspool"
)

// observed is how long the tests look at repetitions, in virtual time.
const observed = 10 * time.Minute

// repetitions counts how often wake comes, and does what fails each time, after it has failed with each of 40 changes.
func repetitions(wake <-chan struct{}, fail func()) (n int) {
	for range 40 {
		fail()
		time.Sleep(100 * time.Millisecond)
	}
	end := time.After(observed)
	for {
		select {
		case <-wake:
			n++
			fail()
		case <-end:
			return n
		}
	}
}

func quiet(t *testing.T) context.Context { return klog.NewContext(t.Context(), logr.Discard()) }

// A health check whose port stays in use is tried again each half minute, however many changes come meanwhile.
func TestHealthPortIsTriedAtIntervals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHealthPorts("node", func() bool { return true }, func(types.NamespacedName, string) {})
		for i := range 3 {
			name := types.NamespacedName{Name: fmt.Sprint(i)}
			h.servers[name] = &healthServer{name: name, port: 1, local: map[bool]int{false: 1}}
		}
		other := []netip.Addr{netip.MustParseAddr("192.0.2.1")} // no address of this host
		n := repetitions(h.wake, func() { h.listen(quiet(t), other) })
		if most := int(observed/healthAgain) + 1; n == 0 || n > most {
			t.Errorf("tried %d times in %v, not at most %d", n, observed, most)
		}
	})
}

// Addresses that cannot be announced are tried again each half minute, too.
func TestAnnouncementIsTriedAtIntervals(t *testing.T) {
	pool, err := addresspool.Parse("203.0.113.1/32")
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		p := New(Config{Status: fake.NewClientset(), Pool: &pool, Links: []string{"no-such-link"}})
		in := input{}
		in.Name = types.NamespacedName{Namespace: "ns", Name: "balanced"}
		in.Service = &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "balanced", UID: "1"},
			Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer,
				IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}}}
		p.balance.look([]input{in}, nil)
		n := repetitions(p.node, func() { p.announce(quiet(t), nil) })
		if most := int(observed/announceAgain) + 1; n == 0 || n > most {
			t.Errorf("tried %d times in %v, not at most %d", n, observed, most)
		}
	})
}

// Writes that fail are repeated once a second together, not each by the timers of all.
func TestFailedWritesAreRepeatedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := fake.NewClientset()
		writes := 0
		api.PrependReactor("patch", "services", func(kubetesting.Action) (bool, runtime.Object, error) {
			writes++
			time.Sleep(10 * time.Millisecond)
			return true, nil, errors.New("denied by a policy")
		})
		const services = 20
		b := newBalancer(api, nil)
		for i := range services {
			b.todo[types.NamespacedName{Namespace: "ns", Name: fmt.Sprint(i)}] = write{uid: "1"}
		}
		poke(b.wake)
		ctx, cancel := context.WithTimeout(quiet(t), observed)
		defer cancel()
		b.run(ctx)
		if most := services * (int(observed/writeAgain) + 1); writes < services || writes > most {
			t.Errorf("%d writes in %v, not at most %d", writes, observed, most)
		}
	})
}

// A webhook may refuse a status as if the Service did not exist, or as a conflict: it is written again, but not to
// a Service that is gone, or that another one has replaced.
func TestRefusedStatusIsWrittenAgain(t *testing.T) {
	gone := apierrors.NewNotFound(corev1.Resource("services"), "s")
	conflict := apierrors.NewConflict(corev1.Resource("services"), "s", errors.New("the UID is another one"))
	for what, c := range map[string]struct {
		refusal error
		stored  types.UID // empty: the Service is gone
		writes  int
	}{
		"a webhook's NotFound": {gone, "1", 2}, "a webhook's Conflict": {conflict, "1", 2}, "it is gone": {gone, "", 1},
		"it was replaced": {conflict, "2", 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			api := fake.NewClientset()
			if c.stored != "" {
				api = fake.NewClientset(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s",
					UID: c.stored}})
			}
			writes := 0
			api.PrependReactor("patch", "services", func(kubetesting.Action) (bool, runtime.Object, error) {
				if writes++; writes == 1 {
					return true, nil, c.refusal
				}
				return true, &corev1.Service{}, nil
			})
			b := newBalancer(api, nil)
			b.todo[types.NamespacedName{Namespace: "ns", Name: "s"}] = write{uid: "1"}
			poke(b.wake)
			ctx, cancel := context.WithTimeout(quiet(t), observed)
			defer cancel()
			b.run(ctx)
			if writes != c.writes {
				t.Errorf("%s: written %d times", what, writes)
			}
		})
	}
}
