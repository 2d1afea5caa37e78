package endpoints

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/record"

	"carob/internal/controllers/controllertest"
	"carob/internal/controllers/source"
	"carob/internal/core/netplan/endpoints"
)

func service(name string, selector map[string]string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Spec: corev1.ServiceSpec{ClusterIP: "10.0.0.9", Selector: selector,
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports:      []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}}}}
}

// byHand returns Endpoints that a user created, or this controller if made is set.
func byHand(name string, made bool) *corev1.Endpoints {
	e := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	if made {
		e.Labels = map[string]string{endpoints.LabelManagedBy: endpoints.ManagedBy}
	}
	return e
}

func start(t *testing.T, api *controllertest.API) *record.FakeRecorder {
	t.Helper()
	events := record.NewFakeRecorder(100)
	services, pods, stored := source.Services(api), source.Pods(api), source.Endpoints(api)
	c, err := New(api, events, services, pods, stored)
	if err != nil {
		t.Fatal(err)
	}
	controllertest.Run(t, c, services, pods, stored)
	return events
}

func names(api *controllertest.API) string {
	var out []string
	for _, e := range controllertest.All[*corev1.Endpoints](api) {
		out = append(out, e.Name)
	}
	return strings.Join(out, " ")
}

// Endpoints that users created without a Service stay; those of a Service are deleted with it, independent of
// their creator (N1.49).
func TestEndpointsAreDeletedWithTheirService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		selects := map[string]string{"app": "web"}
		api := controllertest.New(service("web", selects), service("manual", nil), byHand("manual", false),
			byHand("alone", false), byHand("left", true)) // stale: its Service was deleted while carob did not run
		start(t, api)
		expect := func(what, want string) {
			t.Helper()
			time.Sleep(time.Second)
			if got := names(api); got != want {
				t.Errorf("%s: Endpoints %q, want %q", what, got, want)
			}
		}
		expect("at the start", "alone manual web")
		api.Remove(byHand("web", false))
		expect("deleted by somebody", "alone manual web")
		refused := false
		api.Before = func(verb string, _ schema.GroupVersionResource, _ metav1.Object) error {
			if verb == "delete" && !refused {
				refused = true
				return apierrors.NewNotFound(corev1.Resource("endpoints"), "web") // of a webhook
			}
			return nil
		}
		api.Remove(service("web", nil))
		api.Remove(service("manual", nil))
		expect("without the Services", "alone")
		api.Put(byHand("manual", false))
		expect("made again without a Service", "alone manual")
	})
}

// A rejected write is reported and retried.
func TestRejectedWriteIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := controllertest.New(service("web", map[string]string{"app": "web"}))
		refused := true
		api.Before = func(string, schema.GroupVersionResource, metav1.Object) error {
			if refused {
				return errors.New("no")
			}
			return nil
		}
		events := start(t, api)
		time.Sleep(30 * time.Millisecond)
		controllertest.Equal(t, "events", controllertest.Events(events),
			"Warning FailedToCreateEndpoint Failed to create endpoint for service ns/web: no")
		refused = false
		time.Sleep(time.Minute)
		if got := names(api); got != "web" {
			t.Errorf("Endpoints %q", got)
		}
	})
}
