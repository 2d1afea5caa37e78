// Package spans makes the spans of requests that the gateway serves, with the names and attributes of OpenTelemetry for
// HTTP. The gateway drives it; a nil span does nothing, so that requests cost the same while tracing is off. Texts of
// clients are truncated as in the access log, and are never names of spans.
package spans

import (
	"maps"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"carob/internal/gateway/accesslog"
)

// Tracer returns the tracer of requests; nil: tracing is off.
func Tracer(p trace.TracerProvider) trace.Tracer {
	if p == nil {
		return nil
	}
	return p.Tracer("carob/gateway")
}

// Request is the span of a request. A nil one does nothing.
type Request struct {
	span   trace.Span
	tracer trace.Tracer
}

// Attempt is the span of an attempt at an endpoint. A nil one does nothing.
type Attempt struct{ span trace.Span }

// Begin begins the span of a request, whose parent is the one in the client's W3C header traceparent. It returns the
// request with the span in its context. A request without a valid parent gets the header, so that all servers behind
// the gateway decide alike; a parent that is not recorded is passed on unchanged.
func Begin(tracer trace.Tracer, in *http.Request, began time.Time) (*Request, *http.Request) {
	ctx := propagation.TraceContext{}.Extract(in.Context(), propagation.HeaderCarrier(in.Header))
	parent := trace.SpanContextFromContext(ctx).IsValid()
	scheme := "http"
	if in.TLS != nil {
		scheme = "https"
	}
	s := &Request{tracer: tracer}
	ctx, s.span = tracer.Start(ctx, methodName(in.Method), trace.WithSpanKind(trace.SpanKindServer),
		trace.WithTimestamp(began))
	if s.span.IsRecording() {
		s.span.SetAttributes(attribute.String("http.request.method", methodName(in.Method)),
			attribute.String("url.scheme", scheme), attribute.String("url.path", accesslog.Text(in.URL.EscapedPath())),
			attribute.String("server.address", accesslog.Text(in.Host)),
			attribute.String("client.address", in.RemoteAddr),
			attribute.String("network.protocol.version", strings.TrimPrefix(in.Proto, "HTTP/")),
			attribute.String("user_agent.original", accesslog.Text(in.UserAgent())))
	}
	in = in.WithContext(ctx)
	if s.span.IsRecording() || !parent {
		in.Header = maps.Clone(in.Header)
		propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(in.Header)) // for copies of the request
	}
	return s, in
}

// methodName is a method, or _OTHER: the name of a span must not be a text that clients choose.
func methodName(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete,
		http.MethodConnect, http.MethodOptions, http.MethodTrace:
		return method
	}
	return "_OTHER"
}

// TraceID is the trace of the span, or "".
func (s *Request) TraceID() string {
	if s == nil || !s.span.SpanContext().HasTraceID() {
		return ""
	}
	return s.span.SpanContext().TraceID().String()
}

// Outcome is the result of a request that has ended.
type Outcome struct {
	Status  int    // 0: the client left before a response
	Route   string // KIND/NAMESPACE/NAME; these are empty if nothing matched
	Rule    string
	Backend string // NAMESPACE/NAME:PORT
}

// End ends the span.
func (s *Request) End(o Outcome) {
	if s == nil {
		return
	}
	for key, v := range map[string]string{"carob.route": o.Route, "carob.rule": o.Rule, "carob.backend": o.Backend} {
		if v != "" {
			s.span.SetAttributes(attribute.String(key, v))
		}
	}
	if o.Status == 0 {
		s.span.SetAttributes(attribute.String("error.type", "client_left"))
	} else {
		s.span.SetAttributes(attribute.Int("http.response.status_code", o.Status))
	}
	if o.Status >= http.StatusInternalServerError {
		s.span.SetStatus(otelcodes.Error, "")
	}
	s.span.End()
}

// Recording reports whether anything that is added to the span is exported.
func (s *Request) Recording() bool { return s != nil && s.span.IsRecording() }

// pickedEndpoints is how many endpoints of a pick a span names.
const pickedEndpoints = 8

// Picked records which endpoints a picker chose for an inference request, the best one first. The time of the event
// minus the span's is how long the body and the pick took.
func (s *Request) Picked(model string, endpoints []netip.AddrPort) {
	if !s.Recording() {
		return
	}
	var list []string
	for _, at := range endpoints[:min(len(endpoints), pickedEndpoints)] {
		list = append(list, at.String())
	}
	s.span.AddEvent("picked", trace.WithAttributes(attribute.String("gen_ai.request.model", accesslog.Text(model)),
		attribute.StringSlice("carob.inference.endpoints", list)))
}

// Refused records why an inference request gets no endpoint.
func (s *Request) Refused(reason string) {
	if s.Recording() {
		s.span.AddEvent("refused", trace.WithAttributes(attribute.String("carob.inference.reason", reason)))
	}
}

// Attempt begins the span of an attempt at an endpoint, and sends its context to the endpoint instead of the request's.
// If the trace is not recorded, the endpoint gets the client's header.
func (s *Request) Attempt(req *http.Request, at netip.AddrPort, others int) (*http.Request, *Attempt) {
	if !s.Recording() {
		return req, nil
	}
	ctx, span := s.tracer.Start(trace.ContextWithSpan(req.Context(), s.span), methodName(req.Method),
		trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(
			attribute.String("http.request.method", methodName(req.Method)),
			attribute.String("server.address", at.Addr().String()),
			attribute.Int("server.port", int(at.Port()))))
	if others > 0 {
		span.SetAttributes(attribute.Int("http.request.resend_count", others))
	}
	out := req.WithContext(ctx)
	out.Header = maps.Clone(out.Header) // the previous attempt may still be sending its header
	propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(out.Header))
	return out, &Attempt{span}
}

// Failed ends an attempt without a response.
func (s *Attempt) Failed(err error) {
	if s == nil {
		return
	}
	s.span.SetStatus(otelcodes.Error, err.Error())
	s.span.End()
}

// Answered records the status of a response, whose body follows.
func (s *Attempt) Answered(status int) {
	if s == nil {
		return
	}
	s.span.SetAttributes(attribute.Int("http.response.status_code", status))
	if status >= http.StatusBadRequest {
		s.span.SetStatus(otelcodes.Error, "")
	}
}

// End ends an attempt whose response has been read.
func (s *Attempt) End() {
	if s != nil {
		s.span.End()
	}
}

// TraceID is the trace of a W3C traceparent header (version-trace-parent-flags), or "".
func TraceID(header string) string {
	if len(header) < 55 || header[2] != '-' || header[35] != '-' || header[52] != '-' || header[:2] == "ff" ||
		len(header) > 55 && (header[:2] == "00" || header[55] != '-') {
		return ""
	}
	zero := true
	for i, c := range []byte(header[:55]) {
		switch {
		case i == 2 || i == 35 || i == 52:
		case '0' <= c && c <= '9' || 'a' <= c && c <= 'f':
			zero = zero && (c == '0' || i < 3 || i > 34)
		default:
			return ""
		}
	}
	if zero {
		return ""
	}
	return header[3:35]
}
