package netdev

import "testing"

// FuzzCounters: whatever the file contains, it is read without a panic, and the loopback interface is left out.
func FuzzCounters(f *testing.F) {
	for _, text := range []string{
		"Inter-|   Receive\n face |bytes\n  eth0: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\nlo: 1 2\n",
		"lo: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n", "eth0:18446744073709551616 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		u := parseUsage([]byte(text))
		if u == nil {
			t.Fatalf("%q: nothing", text)
		}
		for _, i := range u.Interfaces {
			if i.GetName() == "lo" {
				t.Errorf("%q: counts the loopback interface", text)
			}
		}
		for _, i := range parsePackets([]byte(text)) {
			if i.Name == "lo" {
				t.Errorf("%q: counts packets of the loopback interface", text)
			}
		}
	})
}
