package gateway

import (
	"context"
	"fmt"
	"net"
	"slices"
	"testing"

	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"carob/internal/gateway/feed"
)

// A port that another program has is reported once, not with each attempt, as is that it can be opened in the end.
func TestTakenPort(t *testing.T) {
	l := newLab(t)
	taken, err := net.Listen("tcp", l.http)
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	l.service("a", "", at(echo(t, "a").URL, "pa"))
	l.ingress("x.example.com", nil, "/=a")
	var log []string
	ctx := klog.NewContext(t.Context(), funcr.New(func(_, args string) { log = append(log, args) }, funcr.Options{}))
	open := func() {
		t.Helper()
		if !l.reopen(ctx) {
			t.Fatal("a new plan is needed")
		}
	}
	snapshot := &feed.Snapshot{World: l.world, Services: map[name]*corev1.Service{}, Slices: l.slices}
	l.apply(context.WithoutCancel(ctx), snapshot)
	for range 20 {
		open()
	}
	if len(log) != 1 || !l.anyFailed() {
		t.Errorf("logged %q", log)
	}
	log = nil
	_ = taken.Close()
	open()
	open()
	want := fmt.Sprintf("\"level\"=0 \"msg\"=\"The gateway listens now\" \"address\"=\"%s\"", l.http)
	if !slices.Equal(log, []string{want}) || l.anyFailed() {
		t.Errorf("logged %q, want %q", log, want)
	}
}
