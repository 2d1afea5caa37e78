package selinuxlabel

import "testing"

// The label of the files has the pod's user and level; the rest is the container policy's (S4.74).
func TestLabels(t *testing.T) {
	for _, tc := range []struct {
		o              Options
		process, files string
	}{
		{Options{}, "", ""},
		{Options{User: "u", Role: "r"}, "", ""},
		{Options{Level: "s0:c1,c2"}, "system_u:system_r:container_t:s0:c1,c2",
			"system_u:object_r:container_file_t:s0:c1,c2"},
		{Options{User: "u", Role: "r", Type: "spc_t", Level: "s1"}, "u:r:spc_t:s1", "u:object_r:container_file_t:s1"},
	} {
		if p, f, err := Labels(tc.o); p != tc.process || f != tc.files || err != nil {
			t.Errorf("%v: %q, %q, %v", tc.o, p, f, err)
		}
	}
	for _, o := range []Options{{Level: `s0",suid,x="`}, {User: "a,b", Level: "s0"}, {Type: "t\x00"}, {Role: "r:s"}} {
		if p, f, err := Labels(o); err == nil {
			t.Errorf("%q makes %q, %q", o, p, f)
		}
	}
	if got := MountOption("a:b:c:s0:c1,c2"); got != `context="a:b:c:s0:c1,c2"` {
		t.Error(got)
	}
}
