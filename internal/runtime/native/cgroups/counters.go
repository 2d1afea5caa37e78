package cgroups

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Counters are what a cgroup has counted. CPU periods are counted while it has a CPU limit.
type Counters struct {
	Periods, ThrottledPeriods uint64
	Throttled                 time.Duration
	Cache, Mapped             uint64 // bytes of memory
	Devices                   []DeviceCounters
}

// DeviceCounters are what was read from and written to one block device.
type DeviceCounters struct {
	Name                    string // such as "/dev/vda"
	Reads, Writes           uint64
	BytesRead, BytesWritten uint64
}

// Scrape reads with read what a cgroup has counted and used, each file once; what the host does not count is zero. The
// usage has no limits, processes, and pressure.
func (c *Hierarchies) Scrape(group string, read func(path string) (string, error)) (Usage, Counters) {
	text := func(path string) stat { s, _ := read(path); return stat(s) } // a missing file is empty
	number := func(path string) uint64 {
		n, _ := strconv.ParseUint(strings.TrimSpace(string(text(path))), 10, 64)
		return n
	}
	cpu, memory := text(c.Of("cpu", group)+"/cpu.stat"), text(c.Of("memory", group)+"/memory.stat")
	u := Usage{at: time.Now().UnixNano()}
	u.addMemory(memory, c.V2)
	out := Counters{Periods: cpu.of("nr_periods"), ThrottledPeriods: cpu.of("nr_throttled")}
	if c.V2 {
		dir := c.Of("memory", group)
		u.CPU = cpu.of("usage_usec") * 1000
		u.Memory, u.Swap = number(dir+"/memory.current"), number(dir+"/memory.swap.current")
		out.Throttled = time.Duration(cpu.of("throttled_usec")) * time.Microsecond //nolint:gosec // 292 years
		out.Cache, out.Mapped = memory.of("file"), memory.of("file_mapped")
		out.Devices = devicesV2(text(c.Of("io", group) + "/io.stat"))
		return u, out
	}
	u.CPU = number(c.Of("cpuacct", group) + "/cpuacct.usage")
	u.Memory = number(c.Of("memory", group) + "/memory.usage_in_bytes")
	out.Throttled = time.Duration(cpu.of("throttled_time")) //nolint:gosec // 292 years
	out.Cache, out.Mapped = memory.of("total_cache"), memory.of("total_mapped_file")
	if dir := c.Of("blkio", group); dir != "" {
		out.Devices = devicesV1(text(dir+"/blkio.throttle.io_serviced_recursive"), func() stat {
			return text(dir + "/blkio.throttle.io_service_bytes_recursive")
		})
	}
	return u, out
}

// devicesV2 reads io.stat: "254:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0".
func devicesV2(text stat) []DeviceCounters {
	var all []DeviceCounters
	for _, f := range rows(text) {
		d := DeviceCounters{Name: deviceName(f[0])}
		for _, pair := range f[1:] {
			key, text, _ := strings.Cut(pair, "=")
			v, _ := strconv.ParseUint(text, 10, 64)
			switch key {
			case "rbytes":
				d.BytesRead = v
			case "wbytes":
				d.BytesWritten = v
			case "rios":
				d.Reads = v
			case "wios":
				d.Writes = v
			}
		}
		all = append(all, d)
	}
	return all
}

// devicesV1 reads two texts with lines such as "254:0 Read 3"; the last line is a total. The second one is of use only
// if the first has lines.
func devicesV1(operations stat, bytes func() stat) []DeviceCounters {
	var all []DeviceCounters
	of := func(number string) *DeviceCounters {
		name := deviceName(number)
		for i := range all {
			if all[i].Name == name {
				return &all[i]
			}
		}
		all = append(all, DeviceCounters{Name: name})
		return &all[len(all)-1]
	}
	for i, list := range []func() stat{func() stat { return operations }, bytes} {
		if i > 0 && all == nil {
			break // no operation, no bytes
		}
		for _, f := range rows(list()) {
			if len(f) != 3 {
				continue
			}
			v, _ := strconv.ParseUint(f[2], 10, 64)
			d := of(f[0])
			switch {
			case f[1] == "Read" && i == 0:
				d.Reads = v
			case f[1] == "Write" && i == 0:
				d.Writes = v
			case f[1] == "Read":
				d.BytesRead = v
			case f[1] == "Write":
				d.BytesWritten = v
			}
		}
	}
	return all
}

// rows are the lines that begin with the number of a device.
func rows(text stat) [][]string {
	var all [][]string
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 1 && strings.Contains(f[0], ":") {
			all = append(all, f)
		}
	}
	return all
}

// deviceName is the path of a block device, or its number if the host does not know it.
func deviceName(number string) string {
	link, err := os.Readlink("/sys/dev/block/" + filepath.Base(number))
	if err != nil {
		return number
	}
	return "/dev/" + filepath.Base(link)
}
