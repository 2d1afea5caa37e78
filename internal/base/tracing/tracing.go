// Package tracing reads the configuration file of --tracing-config-file and exports spans (OpenTelemetry, OTLP by gRPC)
// accordingly. Without a file nothing of it runs.
package tracing

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/sdk/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/install"
	basetracing "k8s.io/component-base/tracing"
	tracingapi "k8s.io/component-base/tracing/api/v1"
	"k8s.io/klog/v2"
)

// Provider makes tracers. Shutdown exports the spans that have ended.
type Provider = basetracing.TracerProvider

// Config is the content of a file.
type Config = tracingapi.TracingConfiguration

// flushTime is how long a stop waits for a collector.
const flushTime = 2 * time.Second

// Read reads a TracingConfiguration (apiserver.config.k8s.io) as kube-apiserver does: unknown and repeated fields,
// rates outside of 0 to 1,000,000, and endpoints of other schemes than dns, unix, and unix-abstract are errors.
func Read(file string) (*Config, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the tracing configuration: %w", err)
	}
	scheme := runtime.NewScheme()
	install.Install(scheme)
	codecs := serializer.NewCodecFactory(scheme, serializer.EnableStrict)
	var out apiserver.TracingConfiguration
	if err := runtime.DecodeInto(codecs.UniversalDecoder(), data, &out); err != nil {
		return nil, fmt.Errorf("read the tracing configuration %s: %w", file, err)
	}
	if errs := tracingapi.ValidateTracingConfiguration(&out.TracingConfiguration, nil, nil); len(errs) > 0 {
		return nil, fmt.Errorf("the tracing configuration %s is not valid: %w", file, errs.ToAggregate())
	}
	return &out.TracingConfiguration, nil
}

var settings sync.Once

// New exports the spans of one service of this process. A missing collector delays nothing: 2,048 spans wait, more are
// dropped.
func New(ctx context.Context, c *Config, service, instance string) (Provider, error) {
	settings.Do(func() {
		// Otherwise libraries would keep metrics of each address that are never read.
		otel.SetMeterProvider(noop.NewMeterProvider())
		otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
			klog.Background().Error(err, "Cannot export traces")
		}))
	})
	p, err := basetracing.NewProvider(context.WithoutCancel(ctx), c, nil, []resource.Option{resource.WithAttributes(
		attribute.String("service.name", service), attribute.String("service.instance.id", instance))})
	if err != nil {
		return nil, fmt.Errorf("export traces of %s: %w", service, err)
	}
	return p, nil
}

// Close exports what has ended, for at most two seconds.
func Close(p Provider) error {
	ctx, cancel := context.WithTimeout(context.Background(), flushTime)
	defer cancel()
	if err := p.Shutdown(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("export the last traces: %w", err)
	}
	return nil
}
