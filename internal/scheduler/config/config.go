// Package config reads a KubeSchedulerConfiguration and converts it to the values that the
// scheduler uses. It makes no decisions about pods and does not depend on an API server; the
// scheduler and app use it.
//
// Contract: docs/spec/pod-lifecycle.md.
package config

import (
	"errors"
	"fmt"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation/field"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"carob/internal/core/placement"
)

// Config is a parsed KubeSchedulerConfiguration.
type Config struct {
	Profiles       map[string]*placement.Profile // by scheduler name; at least one
	InitialBackoff time.Duration                 // of a pod that fits nowhere (L2.3)
	MaxBackoff     time.Duration
	Extenders      []configv1.Extender // checked; in the order of the calls
}

// Default returns the configuration without a file.
func Default() *Config {
	return &Config{
		Profiles:       map[string]*placement.Profile{corev1.DefaultSchedulerName: placement.DefaultProfile()},
		InitialBackoff: time.Second,
		MaxBackoff:     10 * time.Second,
	}
}

// Load reads a file. All errors are reported at once, each with its path.
func Load(path string) (*Config, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the scheduler configuration: %w", err)
	}
	c, err := Parse(data)
	if err != nil {
		return nil, fmt.Errorf("scheduler configuration %s: %w", path, err)
	}
	return c, nil
}

// Parse reads a KubeSchedulerConfiguration of kubescheduler.config.k8s.io/v1, as YAML
// or JSON. Unknown and duplicate fields are errors.
func Parse(data []byte) (*Config, error) {
	scheme := runtime.NewScheme()
	if err := configv1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("register the kinds of the scheduler's configuration: %w", err)
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	obj, kind, err := decoder.Decode(data, nil, nil)
	if runtime.IsMissingKind(err) || runtime.IsMissingVersion(err) {
		return nil, fmt.Errorf("apiVersion must be %s and kind KubeSchedulerConfiguration: %w",
			configv1.SchemeGroupVersion, err)
	}
	if runtime.IsNotRegisteredError(err) {
		return nil, fmt.Errorf("only the kind KubeSchedulerConfiguration of %s is supported: %w",
			configv1.SchemeGroupVersion, err)
	}
	if err != nil {
		return nil, err
	}
	in, ok := obj.(*configv1.KubeSchedulerConfiguration)
	if !ok {
		return nil, fmt.Errorf("kind is %s, want KubeSchedulerConfiguration", kind.Kind)
	}
	for i := range in.Profiles {
		for j := range in.Profiles[i].PluginConfig {
			if args := &in.Profiles[i].PluginConfig[j].Args; args.Raw == nil && args.Object == nil {
				args.Raw = []byte("{}")
			}
		}
	}
	if err := in.DecodeNestedObjects(decoder); err != nil {
		return nil, err
	}
	return convert(in)
}

func convert(in *configv1.KubeSchedulerConfiguration) (*Config, error) {
	c := Default()
	var errs field.ErrorList
	if in.ClientConnection.Kubeconfig != "" {
		errs = append(errs, field.Forbidden(field.NewPath("clientConnection", "kubeconfig"),
			"carob's scheduler always uses carob's own API server; remove this field"))
	}
	if p := in.Parallelism; p != nil && *p <= 0 {
		errs = append(errs, field.Invalid(field.NewPath("parallelism"), *p, "must be greater than 0"))
	}
	seconds := func(name string, given *int64, into *time.Duration) {
		if given != nil {
			if *into = time.Duration(*given) * time.Second; *given <= 0 || *given > 1<<20 {
				errs = append(errs, field.Invalid(field.NewPath(name), *given, "must be between 1 and 1048576"))
			}
		}
	}
	seconds("podInitialBackoffSeconds", in.PodInitialBackoffSeconds, &c.InitialBackoff)
	seconds("podMaxBackoffSeconds", in.PodMaxBackoffSeconds, &c.MaxBackoff)
	if c.MaxBackoff < c.InitialBackoff {
		errs = append(errs, field.Invalid(field.NewPath("podMaxBackoffSeconds"), int64(c.MaxBackoff/time.Second),
			"must not be less than podInitialBackoffSeconds"))
	}
	errs = append(errs, percentage(field.NewPath("percentageOfNodesToScore"), in.PercentageOfNodesToScore)...)
	if len(in.Profiles) > 0 {
		clear(c.Profiles)
	}
	for i := range in.Profiles {
		path := field.NewPath("profiles").Index(i)
		p, more := profile(path, &in.Profiles[i], in.PercentageOfNodesToScore, len(in.Profiles) == 1)
		errs = append(errs, more...)
		if c.Profiles[p.Name] != nil {
			errs = append(errs, field.Duplicate(path.Child("schedulerName"), p.Name))
		}
		c.Profiles[p.Name] = p
	}
	for i := range in.Profiles {
		if in.Profiles[i].Plugins != nil {
			errs = append(errs, binder(field.NewPath("profiles").Index(i), in.Profiles[i].Plugins, in.Extenders)...)
		}
	}
	errs = append(errs, extenders(field.NewPath("extenders"), in.Extenders)...)
	c.Extenders = in.Extenders
	if len(c.Profiles) == 0 {
		return nil, errors.New("no profile")
	}
	for _, p := range c.Profiles {
		for _, e := range in.Extenders {
			for _, r := range e.ManagedResources {
				if r.IgnoredByScheduler {
					p.Fit.Ignored = append(p.Fit.Ignored, corev1.ResourceName(r.Name))
				}
			}
		}
	}
	if err := errs.ToAggregate(); err != nil {
		return nil, err
	}
	return c, nil
}

func percentage(path *field.Path, p *int32) field.ErrorList {
	if p != nil && (*p < 0 || *p > 100) {
		return field.ErrorList{field.Invalid(path, *p, "must be between 0 and 100")}
	}
	return nil
}
