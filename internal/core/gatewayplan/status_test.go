package gatewayplan

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

func parentOfRoute(controller gatewayv1.GatewayController, gateway, reason string) gatewayv1.RouteParentStatus {
	return gatewayv1.RouteParentStatus{ControllerName: controller,
		ParentRef: gatewayv1.ParentReference{Name: gatewayv1.ObjectName(gateway)},
		Conditions: []metav1.Condition{{Type: "Accepted", Status: metav1.ConditionTrue, Reason: reason,
			LastTransitionTime: metav1.NewTime(time.Unix(1, 0))}}}
}

func order(all []gatewayv1.RouteParentStatus) string {
	var out strings.Builder
	for _, p := range all {
		fmt.Fprintf(&out, "%s=%s ", p.ParentRef.Name, p.Conditions[0].Reason)
	}
	return out.String()
}

// Entries keep their places between those of other controllers: nothing is written when carob's have not changed,
// wherever they are. Otherwise two controllers that put their own last would write without an end.
func TestSharedStatuses(t *testing.T) {
	const other gatewayv1.GatewayController = "example.com/other"
	ours := func(gateway, reason string) gatewayv1.RouteParentStatus {
		return parentOfRoute(GatewayController, gateway, reason)
	}
	theirs := parentOfRoute(other, "theirs", "x")
	at := metav1.NewTime(time.Unix(2, 0))
	for _, tc := range []struct {
		stored, now []gatewayv1.RouteParentStatus
		want        string
		changed     bool
	}{
		{[]gatewayv1.RouteParentStatus{ours("a", "x"), theirs, ours("b", "x")},
			[]gatewayv1.RouteParentStatus{ours("b", "x"), ours("a", "x")}, "a=x theirs=x b=x ", false},
		{[]gatewayv1.RouteParentStatus{ours("a", "x"), theirs},
			[]gatewayv1.RouteParentStatus{ours("a", "y"), ours("b", "x")}, "a=y theirs=x b=x ", true},
		{[]gatewayv1.RouteParentStatus{ours("a", "x"), theirs, ours("b", "x")},
			[]gatewayv1.RouteParentStatus{ours("b", "x")}, "theirs=x b=x ", true},
		{[]gatewayv1.RouteParentStatus{ours("a", "x"), ours("a", "x")}, []gatewayv1.RouteParentStatus{ours("a", "x")},
			"a=x ", true},
		{nil, nil, "", false},
	} {
		got, changed := Parents(tc.stored, tc.now, at)
		if order(got) != tc.want || changed != tc.changed {
			t.Errorf("%s became %s: %v, want %s", order(tc.stored), order(got), changed, tc.want)
		}
	}
}

// A status that the API would refuse as too long is not written: as many entries of carob's are in it as it holds.
func TestFullStatuses(t *testing.T) {
	var stored, now []gatewayv1.RouteParentStatus
	for i := range 20 {
		stored = append(stored, parentOfRoute("example.com/other", fmt.Sprint("o", i), "x"))
		now = append(now, parentOfRoute(GatewayController, fmt.Sprint("g", i), "x"))
	}
	for range 2 {
		got, changed := Parents(stored, now, metav1.NewTime(time.Unix(2, 0)))
		if len(got) != 32 || changed != (len(stored) == 20) {
			t.Errorf("%d entries, changed: %v", len(got), changed)
		}
		stored = got
	}
}
