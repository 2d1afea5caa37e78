package eviction

// UsageLimit is the usage of memory, in bytes as the kernel counts it now, at which the next threshold of
// memory.available is reached if nothing else changes: usage is what is used now, o what is available. ok is
// false if no threshold lies ahead: there is none, or all are reached (S11.75).
func UsageLimit(c Config, o Observation, usage int64) (limit int64, ok bool) {
	for _, t := range c.Thresholds {
		if t.Signal != MemoryAvailable {
			continue
		}
		if left := o.Available - t.Min.Of(o.Capacity); left >= 0 && (!ok || usage+left < limit) {
			limit, ok = usage+left, true
		}
	}
	return limit, ok
}

// Passed reports whether a threshold of memory.available lies between two observations of the memory.
func Passed(c Config, before, after Observation) bool {
	for _, t := range c.Thresholds {
		if t.Signal == MemoryAvailable && before.Available >= t.Min.Of(before.Capacity) &&
			after.Available < t.Min.Of(after.Capacity) {
			return true
		}
	}
	return false
}
