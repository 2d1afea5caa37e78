package routing

import "slices"

// Measure is a metric value of a pool for autoscalers. Server is empty, or the server that the value
// belongs to.
type Measure struct {
	Server string
	Value  float64
}

// ServerLoad is the last reported load of a server.
type ServerLoad struct {
	Name    string
	Waiting int
}

// measure is a metric by its name.
type measure struct {
	name string
	// wakes: the metric counts held requests. An autoscaler that reads it can start the first
	// server of a pool.
	wakes bool
	of    func(f *Figures, servers []ServerLoad) []Measure
}

// measures are the metrics of a pool, under the extension's names (2.5), sorted. Averages are missing while no server
// has reported metrics: an autoscaler then does not change the size.
func measures() []measure {
	one := func(value float64) []Measure { return []Measure{{Value: value}} }
	average := func(value float64, f *Figures) []Measure {
		if f.Known == 0 {
			return nil
		}
		return one(value)
	}
	return []measure{
		{"inference_extension_flow_control_pool_saturation", false, func(f *Figures, _ []ServerLoad) []Measure {
			return one(f.Saturation)
		}},
		{"inference_extension_flow_control_queue_size", true, func(f *Figures, _ []ServerLoad) []Measure {
			return one(float64(f.Held))
		}},
		{"inference_pool_average_kv_cache_utilization", false, func(f *Figures, _ []ServerLoad) []Measure {
			return average(f.Cache, f)
		}},
		{"inference_pool_average_queue_size", false, func(f *Figures, _ []ServerLoad) []Measure {
			return average(f.Queue, f)
		}},
		{"inference_pool_average_running_requests", false, func(f *Figures, _ []ServerLoad) []Measure {
			return average(f.Running, f)
		}},
		{"inference_pool_per_pod_queue_size", false, func(_ *Figures, servers []ServerLoad) []Measure {
			var out []Measure
			for _, s := range servers {
				out = append(out, Measure{s.Name, float64(s.Waiting)})
			}
			return out
		}},
		{"inference_pool_queue_size", true, func(f *Figures, _ []ServerLoad) []Measure {
			return one(float64(f.Held + f.Waiting))
		}},
		{"inference_pool_ready_pods", false, func(f *Figures, _ []ServerLoad) []Measure {
			return one(float64(f.Ready))
		}},
		{"inference_pool_requests", true, func(f *Figures, _ []ServerLoad) []Measure {
			return one(float64(f.Held + f.Requests))
		}},
	}
}

// MeasureNames are the names of a pool's metrics, sorted.
func MeasureNames() (out []string) {
	for _, m := range measures() {
		out = append(out, m.name)
	}
	return out
}

// Measures returns the values of a metric; ok is false for an unknown metric. wakes: the metric counts held
// requests, so that an autoscaler that reads it can start the first server of a pool.
func Measures(name string, f *Figures, servers []ServerLoad) (all []Measure, wakes, ok bool) {
	table := measures()
	i := slices.IndexFunc(table, func(m measure) bool { return m.name == name })
	if i < 0 {
		return nil, false, false
	}
	return table[i].of(f, servers), table[i].wakes, true
}
