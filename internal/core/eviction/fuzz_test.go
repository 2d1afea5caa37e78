package eviction

import "testing"

// FuzzThresholds parses arbitrary values of --eviction-hard and the related flags.
func FuzzThresholds(f *testing.F) {
	for _, s := range [][4]string{{"memory.available<100Mi,nodefs.available<10%", "memory.available<1Gi",
		"memory.available=1m30s", "memory.available=50Mi"}, {"imagefs.inodesFree<5.5%", "", "", ""},
		{"pid.available<1e3", "", "", ""},
		{"memory.available<0%", "", "", ""}, {"memory.available<NaN%", "", "", ""}, {"memory.available<-1", "", "", ""},
		{"memory.available<9999999999E", "", "", ""}} {
		f.Add(s[0], s[1], s[2], s[3])
	}
	f.Fuzz(func(t *testing.T, hard, soft, grace, reclaim string) {
		var s Settings
		for text, into := range map[*string]*map[string]string{&hard: &s.Hard, &soft: &s.Soft} {
			*into, _ = ParseList(*text, "<")
		}
		s.SoftGrace, _ = ParseList(grace, "=")
		s.MinReclaim, _ = ParseList(reclaim, "=")
		all, err := Parse(s)
		if err != nil {
			return
		}
		for _, x := range all {
			for _, a := range []Amount{x.Min, x.Reclaim} {
				if !(a.Share >= 0 && a.Share < 1) || a.Quantity != nil && a.Quantity.Sign() < 0 {
					t.Errorf("%+v: %+v", s, x)
				}
			}
			if x.Grace < 0 {
				t.Errorf("%+v: %+v", s, x)
			}
		}
	})
}
