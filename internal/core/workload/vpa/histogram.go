package vpa

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Buckets grow by 5 %: bucket n is first × 1.05^n wide (W9.22).
const growth = 1.05

// least is the smallest weight that counts; smaller ones are ignored.
const least = 0.0001

// halfLife is the time after which a sample has half its weight (W9.23).
const halfLife = 24 * time.Hour

// farthest is the largest exponent of a weight before all weights are rescaled (W9.23).
const farthest = 100

// heaviest is the weight of the heaviest bucket of a checkpoint.
const heaviest = 10_000

// scale are the buckets of a histogram.
type scale struct {
	first   float64 // width of bucket 0
	buckets int
}

// cpuScale is in cores, memoryScale in bytes.
func cpuScale() scale    { return newScale(0.01, 1000) }
func memoryScale() scale { return newScale(1e7, 1e12) }

func newScale(first, most float64) scale {
	return scale{first, int(math.Ceil(logGrowth(most*(growth-1)/first+1))) + 1}
}

func logGrowth(x float64) float64 { return math.Log(x) / math.Log(growth) }

// find returns the bucket of a value; too large values are in the last one.
func (s scale) find(value float64) int {
	if !(value >= s.first) { // also what is not a number
		return 0
	}
	return int(min(logGrowth(value*(growth-1)/s.first+1), float64(s.buckets-1)))
}

// start is the lower border of a bucket.
func (s scale) start(bucket int) float64 {
	if bucket == 0 {
		return 0
	}
	return s.first * (math.Pow(growth, float64(bucket)) - 1) / (growth - 1)
}

// histogram counts samples by value, with more weight for newer ones. Make it with newHistogram.
type histogram struct {
	scale     scale
	weights   []float64
	total     float64
	low, high int // first and last bucket with weight; low > high or the ends if there is none
	reference time.Time
}

func newHistogram(s scale) *histogram {
	return &histogram{scale: s, weights: make([]float64, s.buckets), low: s.buckets - 1}
}

func (h *histogram) empty() bool { return h.weights[h.low] < least }

// add adds a sample taken at a time.
func (h *histogram) add(value, weight float64, at time.Time) {
	weight *= h.factor(at)
	b := h.scale.find(value)
	h.weights[b] += weight
	h.total += weight
	if h.weights[b] >= least {
		h.low, h.high = min(h.low, b), max(h.high, b)
	}
}

// subtract removes a sample that was added.
func (h *histogram) subtract(value, weight float64, at time.Time) {
	weight *= h.factor(at)
	b := h.scale.find(value)
	h.total = less(h.total, weight)
	h.weights[b] = less(h.weights[b], weight)
	h.trim()
}

func less(a, b float64) float64 {
	if a -= b; a < least {
		return 0
	}
	return a
}

// trim moves low and high to buckets with weight.
func (h *histogram) trim() {
	for h.low < len(h.weights)-1 && h.weights[h.low] < least {
		h.low++
	}
	for h.high > 0 && h.weights[h.high] < least {
		h.high--
	}
}

// factor returns the weight of a sample taken at a time, relative to one at the reference time.
func (h *histogram) factor(at time.Time) float64 {
	if at.After(h.reference.Add(halfLife * farthest)) {
		h.shift(at)
	}
	return math.Exp2(float64(at.Sub(h.reference)) / float64(halfLife))
}

// shift makes a time the reference, rounded to half-lives.
func (h *histogram) shift(to time.Time) {
	to = to.Round(halfLife)
	by := math.Ldexp(1, int(math.Floor(float64(h.reference.Sub(to))/float64(halfLife)+0.5)))
	for i := h.low; i <= h.high; i++ {
		h.weights[i] *= by
	}
	h.total *= by
	h.reference = to
	h.trim()
}

// merge adds the samples of another histogram of the same scale.
func (h *histogram) merge(o *histogram) {
	other := &histogram{scale: o.scale, weights: slices.Clone(o.weights), total: o.total, low: o.low, high: o.high,
		reference: o.reference}
	switch {
	case h.reference.Before(other.reference):
		h.shift(other.reference)
	case other.reference.Before(h.reference):
		other.shift(h.reference)
	}
	for i := other.low; i <= other.high; i++ {
		h.weights[i] += other.weights[i]
	}
	h.total += other.total
	h.low, h.high = min(h.low, other.low), max(h.high, other.high)
}

// percentile returns the upper border of the bucket in which the cumulative weight reaches a share;
// for the last bucket, which has none, its lower border. 0 when there is no sample (W9.26).
func (h *histogram) percentile(share float64) float64 {
	if h.empty() {
		return 0
	}
	sum, wanted, b := 0.0, share*h.total, h.low
	for ; b < h.high; b++ {
		if sum += h.weights[b]; sum >= wanted {
			break
		}
	}
	return h.scale.start(min(b+1, h.scale.buckets-1))
}

// save converts the histogram to a checkpoint (W9.37).
func (h *histogram) save() HistogramCheckpoint {
	out := HistogramCheckpoint{ReferenceTimestamp: metav1.NewTime(h.reference), TotalWeight: h.total}
	most := 0.0
	for i := h.low; i <= h.high; i++ {
		most = max(most, h.weights[i])
	}
	for i := h.low; i <= h.high; i++ {
		if w := uint32(math.Floor(h.weights[i]*(heaviest/most) + 0.5)); most > 0 && w > 0 {
			if out.BucketWeights == nil {
				out.BucketWeights = map[int]uint32{}
			}
			out.BucketWeights[i] = w
		}
	}
	return out
}

// loadHistogram reads a checkpoint. It is not trusted, because users may write checkpoints.
func loadHistogram(s scale, c *HistogramCheckpoint) (*histogram, error) {
	h := newHistogram(s)
	if !(c.TotalWeight >= 0) || math.IsInf(c.TotalWeight, 0) {
		return nil, fmt.Errorf("total weight %v", c.TotalWeight)
	}
	sum := 0.0
	for _, b := range slices.Sorted(maps.Keys(c.BucketWeights)) {
		if b < 0 || b >= s.buckets {
			return nil, fmt.Errorf("bucket %d of %d", b, s.buckets)
		}
		sum += float64(c.BucketWeights[b])
	}
	h.reference = c.ReferenceTimestamp.Time
	if sum == 0 {
		return h, nil
	}
	for _, b := range slices.Sorted(maps.Keys(c.BucketWeights)) {
		h.weights[b] = float64(c.BucketWeights[b]) * (c.TotalWeight / sum)
		h.low, h.high = min(h.low, b), max(h.high, b)
	}
	h.total = c.TotalWeight
	h.trim()
	return h, nil
}
