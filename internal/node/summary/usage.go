package summary

import (
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func number(v *cri.UInt64Value) *uint64 {
	if v == nil {
		return nil
	}
	return &v.Value
}

func cpuOf(c *cri.CpuUsage) *CPU {
	if c == nil {
		return nil
	}
	return &CPU{Time: time.Unix(0, c.Timestamp), UsageNanoCores: number(c.UsageNanoCores),
		UsageCoreNanoSeconds: number(c.UsageCoreNanoSeconds), PSI: psiOf(c.Psi)}
}

// memoryOf leaves out what is available without a limit, for which runtimes have zero (S12.43).
func memoryOf(m *cri.MemoryUsage, limited bool) *Memory {
	if m == nil {
		return nil
	}
	out := &Memory{
		Time: time.Unix(0, m.Timestamp), AvailableBytes: number(m.AvailableBytes), UsageBytes: number(m.UsageBytes),
		WorkingSetBytes: number(m.WorkingSetBytes), RSSBytes: number(m.RssBytes),
		PageFaults: number(m.PageFaults), MajorPageFaults: number(m.MajorPageFaults), PSI: psiOf(m.Psi),
	}
	if a := out.AvailableBytes; !limited && a != nil && *a == 0 {
		out.AvailableBytes = nil
	}
	return out
}

func ioOf(i *cri.IoUsage) *IO {
	if i.GetPsi() == nil {
		return nil
	}
	return &IO{Time: time.Unix(0, i.Timestamp), PSI: psiOf(i.Psi)}
}

func swapOf(s *cri.SwapUsage) *Swap {
	if s == nil {
		return nil
	}
	return &Swap{Time: time.Unix(0, s.Timestamp), AvailableBytes: number(s.SwapAvailableBytes),
		UsageBytes: number(s.SwapUsageBytes)}
}

func psiOf(p *cri.PsiStats) *PSI {
	if p == nil {
		return nil
	}
	of := func(d *cri.PsiData) PSIData {
		return PSIData{Total: d.GetTotal(), Avg10: d.GetAvg10(), Avg60: d.GetAvg60(), Avg300: d.GetAvg300()}
	}
	return &PSI{Full: of(p.Full), Some: of(p.Some)}
}

func networkOf(n *cri.NetworkUsage) *Network {
	if n == nil {
		return nil
	}
	of := func(i *cri.NetworkInterfaceUsage) Interface {
		return Interface{Name: i.GetName(), RxBytes: number(i.GetRxBytes()), RxErrors: number(i.GetRxErrors()),
			TxBytes: number(i.GetTxBytes()), TxErrors: number(i.GetTxErrors())}
	}
	out := &Network{Time: time.Unix(0, n.Timestamp)}
	if n.DefaultInterface != nil {
		out.Interface = of(n.DefaultInterface)
		out.Interfaces = append(out.Interfaces, out.Interface)
	}
	for _, i := range n.Interfaces {
		if i.GetName() != out.Name {
			out.Interfaces = append(out.Interfaces, of(i))
		}
	}
	return out
}

func processesOf(p *cri.ProcessUsage) *Processes {
	if p.GetProcessCount() == nil {
		return nil
	}
	return &Processes{Count: number(p.ProcessCount)}
}

// swapOfAll is the swap of a pod: of all its containers together, as CRI has none for pods.
func swapOfAll(containers []Container) *Swap {
	var sum *Swap
	for _, c := range containers {
		if c.Swap == nil {
			continue
		}
		if sum == nil {
			sum = &Swap{}
		}
		if c.Swap.Time.After(sum.Time) {
			sum.Time = c.Swap.Time
		}
		sum.AvailableBytes = plus(sum.AvailableBytes, c.Swap.AvailableBytes)
		sum.UsageBytes = plus(sum.UsageBytes, c.Swap.UsageBytes)
	}
	return sum
}

// plus adds what is known.
func plus(a, b *uint64) *uint64 {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	sum := *a + *b
	return &sum
}
