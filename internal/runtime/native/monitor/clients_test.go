package monitor

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
)

// TestClients: what the clients of an interactive container receive, however much time passes. The time is the
// script's: t10 lets ten seconds pass, o3a is an output of three times the letter a, a0 attaches the first client, r0
// lets it read what there is, and e ends the container. 1:3a is that output; 3 is the packet for a client that is too
// slow.
func TestClients(t *testing.T) {
	h := newHarness(t, "clients")
	much := "a0 " + strings.Repeat("o16000a ", 14) // more than a socket takes, less than with the container's pipe
	for _, tc := range []struct{ name, script, want string }{
		{"at once", "o3a a0 o2b r0 e r0", "attached 1:3a 1:2b end "},
		{"ten seconds later", "o3a t10 a0 r0 e r0", "attached 1:3a end "},
		{"long after the start, a moment after the output", "t3600 o3a t10 a0 r0 e r0", "attached 1:3a end "},
		{"only the recent output", "o3a t15 o2b t9 a0 r0 e r0", "attached 1:2b end "},
		{"none is recent", "o3a t30 a0 r0 e r0", "attached end "},
		{"output that goes on", "o3a t8 o2b t8 o1c t8 a0 r0 e r0", "attached 1:1c end "},
		{"more than is held", "o60000a t11 o9000b a0 r0 e r0", "attached 1:43616a 1:9000b end "},
		{"old output beside more than is held", "o16384a t11 o40000b t3 o20003b t8 a0 r0", "attached 1:60003b "},
		{"after the end of one that ran long", "t3600 o3a e t9 a0 r0", "attached 1:3a end "},
		{"what was recent at the end", "t3600 o3a t9 e t10 a0 r0", "attached 1:3a end "},
		{"after the end of one that wrote nothing", "t3600 e t9 a0 r0", "attached end "},
		{"too late after the end", "o3a e t12 a0 r0", "refused "},
		{"the second client", "o3a a0 r0 a1 o2b r0 r1 e r0 r1",
			"attached 1:3a 1:2b attached 1:2b end end "},
		{"the second client after the end", "o3a e a0 r0 a1 r1", "attached 1:3a end refused "},
		{"a slow client", much + "t9 r0 e r0", "attached 1:224000a end "},
		{"a client that is slow at the end", much + "t3 e t6 r0", "attached 1:224000a end "},
	} {
		if got := clients(t, h, tc.script); got != tc.want {
			t.Errorf("%s: %s: got %q, want %q", tc.name, tc.script, got, tc.want)
		}
	}
	for _, script := range []string{much + "t12 r0", much + "e t12 r0", "a1 " + much + "e t12 r0"} {
		got := clients(t, h, script) // how much fits into a socket is the kernel's choice
		if !strings.HasPrefix(got, "attached 1:") || strings.Contains(got, "1:224000a") ||
			!strings.HasSuffix(got, "a 3 end ") {
			t.Errorf("a client that is too slow: %s: got %q", script, got)
		}
	}
}

// clients runs a script and returns what its clients received.
func clients(t *testing.T, h *harness, text string) string {
	t.Helper()
	const size = 8000
	script := binary.LittleEndian.AppendUint16(nil, size)
	for step := range strings.FieldsSeq(text) {
		var n uint16
		var letter string
		if len(step) > 1 {
			if _, err := fmt.Sscanf(step[1:]+" ", "%d%s", &n, &letter); err != nil && letter != "" {
				t.Fatal(step, err)
			}
		}
		script = binary.LittleEndian.AppendUint16(append(script, step[0]), n)
		script = append(script, letter...)
	}
	return strings.TrimRight(string(h.feed(t, script, size)), "\x00")
}
