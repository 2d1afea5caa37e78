package stream

import (
	"testing"
	"time"
)

func TestNodeStats(t *testing.T) {
	n := measureNode("n1", t.TempDir())
	if n.NodeName != "n1" || n.StartTime == nil || n.StartTime.After(time.Now()) || n.CPU == nil ||
		*n.CPU.UsageCoreNanoSeconds == 0 ||
		n.Memory == nil || *n.Memory.WorkingSetBytes == 0 || n.Fs == nil || *n.Fs.CapacityBytes < *n.Fs.UsedBytes ||
		n.Rlimit == nil || *n.Rlimit.CurProc == 0 {
		t.Errorf("%+v", n)
	}
	cpu, boot := processorTimes(
		[]byte("cpu  100 20 30 4000 500 6 7 8 90 10\ncpu0 1 1 1 1 1 1 1 1 1 1\nbtime 1700000000\n"), time.Unix(1, 0))
	if got := *cpu.UsageCoreNanoSeconds; got != 1_710_000_000 || boot.Unix() != 1_700_000_000 {
		t.Errorf("%d ns busy since %v", got, boot)
	}
	m := machineMemory([]byte("MemTotal: 1000 kB\nMemFree: 200 kB\nMemAvailable: 600 kB\nAnonPages: 100 kB\n"),
		time.Unix(1, 0))
	if *m.WorkingSetBytes != 400<<10 || *m.UsageBytes != 800<<10 || *m.AvailableBytes != 600<<10 ||
		*m.RSSBytes != 100<<10 {
		t.Errorf("%+v", m)
	}
	if machineMemory([]byte("MemFree: 1 kB\n"), time.Unix(1, 0)) != nil {
		t.Error("half of the text is enough")
	}
}
