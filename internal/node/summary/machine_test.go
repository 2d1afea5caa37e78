package summary

import (
	"testing"
	"time"
)

func TestNodeStats(t *testing.T) {
	n := MeasureNode("n1")
	n.measureRest()
	if n.NodeName != "n1" || n.StartTime == nil || n.StartTime.After(time.Now()) || n.CPU == nil ||
		*n.CPU.UsageCoreNanoSeconds == 0 ||
		n.Memory == nil || *n.Memory.WorkingSetBytes == 0 || *n.Memory.PageFaults == 0 ||
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

// The machine's interfaces without those of pods; only eth0 is its default one (S12.48).
func TestInterfaces(t *testing.T) {
	const counts = ": 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n"
	n := interfaces([]byte("Inter-|\n face |\n    lo"+counts+"  eth1"+counts+"vethab"+counts+"docker0"+counts+"  eth0"+
		counts), time.Unix(1, 0))
	if n.Name != "eth0" || *n.RxBytes != 1 || *n.RxErrors != 3 || *n.TxBytes != 9 || *n.TxErrors != 11 ||
		len(n.Interfaces) != 2 || n.Interfaces[0].Name != "eth1" {
		t.Errorf("%+v", n)
	}
	if n = interfaces([]byte("eth1: 1 2\nens3"+counts), time.Unix(1, 0)); n.Name != "" || n.RxBytes != nil ||
		len(n.Interfaces) != 1 {
		t.Errorf("%+v", n)
	}
}

func TestMachineSwap(t *testing.T) {
	s := machineSwap([]byte("SwapTotal: 10 kB\nSwapFree: 4 kB\n"), time.Unix(1, 0))
	if *s.AvailableBytes != 4<<10 || *s.UsageBytes != 6<<10 ||
		machineSwap([]byte("SwapFree: 1 kB\n"), time.Now()) != nil {
		t.Errorf("%+v", s)
	}
}

func TestPressure(t *testing.T) {
	p := parsePressure("some avg10=1.50 avg60=2.00 avg300=3.25 total=44\n" +
		"full avg10=0.00 avg60=0.00 avg300=0.00 total=5\n" +
		"full avg10=nothing\nother avg10=1 avg60=1 avg300=1 total=1\n")
	if p.Some != (PSIData{44, 1.5, 2, 3.25}) || p.Full != (PSIData{Total: 5}) {
		t.Errorf("%+v", p)
	}
}
