package app

import (
	"errors"
	"strings"
	"testing"
	"time"

	"carob/internal/base/instance"
)

func TestPressureFlagErrors(t *testing.T) {
	for want, p := range map[string]instance.Pressure{
		"--eviction-hard":                       {Hard: "memory.available=100Mi"},
		"memory.free":                           {Hard: "memory.free<100Mi"},
		"--eviction-soft-grace-period":          {Soft: "memory.available<1Gi", SoftGrace: "memory.available"},
		"needs a grace period":                  {Soft: "memory.available<1Gi"},
		"--image-gc-low-threshold":              {ImageHigh: 50, ImageLow: 60},
		"--shutdown-grace-period-critical-pods": {ShutdownGrace: time.Second, ShutdownCritical: time.Minute},
	} {
		if _, _, err := evictionRules(p); !errors.Is(err, instance.ErrFlag) || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: got %v, want %q", p, err, want)
		}
	}
	rules, images, err := evictionRules(instance.Pressure{})
	if err != nil || len(rules.Thresholds) != 5 || images.High != 92 {
		t.Errorf("defaults: %+v %+v %v", rules, images, err)
	}
	if _, images, err = evictionRules(instance.Pressure{ImageHigh: 60}); err != nil || images.High != 60 ||
		images.Low != 58 {
		t.Errorf("one threshold: %+v %v", images, err)
	}
}
