package app

import (
	"errors"
	"fmt"
	"maps"
	"time"

	"carob/internal/base/instance"
	"carob/internal/core/eviction"
)

// evictionRules parses the eviction flags; errors name the flag.
func evictionRules(p instance.Pressure) (*eviction.Config, *eviction.ImagePolicy, error) {
	var s eviction.Settings
	var errs []error
	wrong := func(flag string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%w --%s: %w", instance.ErrFlag, flag, err))
		}
	}
	for _, l := range []struct {
		flag, text, sign string
		to               *map[string]string
	}{
		{"eviction-hard", p.Hard, "<", &s.Hard}, {"eviction-soft", p.Soft, "<", &s.Soft},
		{"eviction-soft-grace-period", p.SoftGrace, "=", &s.SoftGrace},
		{"eviction-minimum-reclaim", p.MinReclaim, "=", &s.MinReclaim},
	} {
		list, err := eviction.ParseList(l.text, l.sign)
		wrong(l.flag, err)
		*l.to = list
	}
	if len(errs) > 0 {
		return nil, nil, errors.Join(errs...)
	}
	if p.MergeHard && s.Hard != nil {
		merged := eviction.DefaultHard()
		maps.Copy(merged, s.Hard)
		s.Hard = merged
	}
	thresholds, err := eviction.Parse(s)
	wrong("eviction-hard and related flags", err)
	rules := &eviction.Config{Thresholds: thresholds, MaxGrace: time.Duration(p.MaxPodGrace) * time.Second,
		Transition: eviction.DefaultTransition}
	if p.Transition > 0 {
		rules.Transition = p.Transition
	}
	images := eviction.DefaultImagePolicy()
	if p.ImageHigh > 0 {
		images.High = p.ImageHigh
		images.Low = max(min(images.Low, p.ImageHigh-2), 0)
	}
	if p.ImageLow > 0 {
		images.Low = p.ImageLow
	}
	if p.ImageMinAge > 0 {
		images.MinAge = p.ImageMinAge
	}
	switch {
	case images.High > 100 || images.Low < 0 || images.Low >= images.High:
		wrong("image-gc-low-threshold",
			fmt.Errorf("%d%% is not below --image-gc-high-threshold, %d%%", images.Low, images.High))
	case p.ShutdownCritical > p.ShutdownGrace:
		wrong("shutdown-grace-period-critical-pods",
			fmt.Errorf("%s is more than --shutdown-grace-period, %s", p.ShutdownCritical, p.ShutdownGrace))
	}
	return rules, &images, errors.Join(errs...)
}
