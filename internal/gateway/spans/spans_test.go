package spans

import (
	"strings"
	"testing"
)

func TestTraceID(t *testing.T) {
	const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	id := traceparent[3:35]
	for header, want := range map[string]string{
		traceparent: id, "01" + traceparent[2:] + "-more": id, "": "", traceparent[:54]: "",
		traceparent + "-more": "", "ff" + traceparent[2:]: "", strings.ToUpper(traceparent): "",
		strings.Replace(traceparent, id, strings.Repeat("0", 32), 1): "",
		strings.Replace(traceparent, "-", "_", 1):                    "", strings.Repeat("\xff", 55): "",
	} {
		if got := TraceID(header); got != want {
			t.Errorf("TraceID(%q) = %q, want %q", header, got, want)
		}
	}
}
