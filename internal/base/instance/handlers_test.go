package instance

import (
	"strings"
	"testing"
)

func TestRuntimeHandlers(t *testing.T) {
	for flag, want := range map[string]RuntimeHandler{
		"gvisor=unix:///run/containerd/containerd.sock#runsc": {"gvisor", "unix:///run/containerd/containerd.sock", "runsc"},
		"kata=/run//crio/crio.sock":                           {"kata", "unix:///run/crio/crio.sock", ""},
	} {
		in, err := Derive(Flags{DataDir: t.TempDir(), RuntimeHandlers: []string{flag}}, "n")
		if err != nil || len(in.Handlers) != 1 || in.Handlers[0] != want {
			t.Errorf("%s: %+v, %v", flag, in.Handlers, err)
		}
	}
	own := "/run/carob/cri.sock"
	for _, flags := range [][]string{{"gvisor"}, {"=unix:///x"}, {"Gvisor=unix:///x"}, {"a/b=unix:///x"}, {"a=tcp://x"},
		{"a=x.sock"}, {"a=unix:///x#"}, {"a=unix:///x#-r"}, {"a=unix:///x\n"},
		{"a=unix:///" + strings.Repeat("x", 200)},
		{"carob=unix:///x"}, {"a=unix:///x", "a=unix:///y"}, {"a=" + own}} {
		in, err := Recorded(Flags{DataDir: DefaultDataDir, RuntimeHandlers: flags}, "n")
		if err == nil || !strings.Contains(err.Error(), "--runtime-handler") {
			t.Errorf("%q: %+v, %v", flags, in.Handlers, err)
		}
	}
	alone := Flags{DataDir: t.TempDir(), Standalone: true, RuntimeHandlers: []string{"a=/x"}}
	if _, err := Derive(alone, "n"); err == nil {
		t.Error("a handler without RuntimeClasses is accepted")
	}
}

// A socket with pods cannot be dropped; its handlers can have other names, and others can come.
func TestChangedRuntimeHandlers(t *testing.T) {
	facts := Facts{PodsAt: map[string]int{"unix:///x": 2}}
	for _, c := range []struct {
		old, now []string
		refused  bool
	}{
		{[]string{"a=/x"}, nil, true},
		{[]string{"a=/x"}, []string{"a=/y"}, true},
		{[]string{"a=/x"}, []string{"b=unix:///x#r", "c=/y"}, false},
		{[]string{"a=/y"}, nil, false}, // no pods there
		{nil, []string{"a=/x"}, false},
	} {
		got := Change(Flags{RuntimeHandlers: c.old}, Flags{RuntimeHandlers: c.now}, facts)
		if (len(got) == 1) != c.refused || c.refused && got[0].Flag != "--runtime-handler" {
			t.Errorf("%q → %q: %+v", c.old, c.now, got)
		}
	}
}
