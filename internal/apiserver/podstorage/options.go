package podstorage

import (
	"fmt"
	"net/url"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
)

// registerOptions makes the scheme decode the query parameters of the streaming subresources of
// pods, nodes, and services.
func registerOptions(s *runtime.Scheme) error {
	for _, r := range []struct {
		into any
		read func(q *query, into any)
	}{
		{(*corev1.PodLogOptions)(nil), func(q *query, into any) { q.log(into.(*corev1.PodLogOptions)) }},
		{(*corev1.PodExecOptions)(nil), func(q *query, into any) { q.exec(into.(*corev1.PodExecOptions)) }},
		{(*corev1.PodAttachOptions)(nil), func(q *query, into any) { q.attach(into.(*corev1.PodAttachOptions)) }},
		{(*corev1.PodPortForwardOptions)(nil),
			func(q *query, into any) { q.ports(into.(*corev1.PodPortForwardOptions)) }},
		{(*corev1.PodProxyOptions)(nil),
			func(q *query, into any) { into.(*corev1.PodProxyOptions).Path = q.text("path") }},
		{(*corev1.NodeProxyOptions)(nil),
			func(q *query, into any) { into.(*corev1.NodeProxyOptions).Path = q.text("path") }},
		{(*corev1.ServiceProxyOptions)(nil),
			func(q *query, into any) { into.(*corev1.ServiceProxyOptions).Path = q.text("path") }},
	} {
		err := s.AddConversionFunc((*url.Values)(nil), r.into, func(in, into any, _ conversion.Scope) error {
			q := query{values: *in.(*url.Values)}
			r.read(&q, into)
			return q.err
		})
		if err != nil {
			return fmt.Errorf("register query parameters: %w", err)
		}
	}
	return nil
}

// query parses parameters and keeps the first error.
type query struct {
	values url.Values
	err    error
}

func (q *query) text(name string) string { return q.values.Get(name) }

// flag is true for any value but "false" and "0", also for none ("?follow").
func (q *query) flag(name string) bool {
	v, ok := q.values[name]
	return ok && (len(v) == 0 || v[0] != "false" && v[0] != "0")
}

func (q *query) integer(name string) *int64 {
	text := q.values.Get(name)
	if text == "" {
		return nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil && q.err == nil {
		q.err = fmt.Errorf("query parameter %s: %q is not an integer", name, text)
	}
	return &n
}

func (q *query) log(o *corev1.PodLogOptions) {
	o.Container = q.text("container")
	o.Follow, o.Previous, o.Timestamps = q.flag("follow"), q.flag("previous"), q.flag("timestamps")
	o.SinceSeconds, o.TailLines, o.LimitBytes = q.integer("sinceSeconds"), q.integer("tailLines"),
		q.integer("limitBytes")
	o.InsecureSkipTLSVerifyBackend = q.flag("insecureSkipTLSVerifyBackend")
	if text := q.text("sinceTime"); text != "" {
		t, err := time.Parse(time.RFC3339, text)
		if err != nil && q.err == nil {
			q.err = fmt.Errorf("query parameter sinceTime: %q is not a time in RFC 3339 format", text)
		}
		o.SinceTime = &metav1.Time{Time: t}
	}
	if text := q.text("stream"); text != "" {
		o.Stream = &text
	}
}

func (q *query) exec(o *corev1.PodExecOptions) {
	o.Stdin, o.Stdout, o.Stderr, o.TTY = q.flag("stdin"), q.flag("stdout"), q.flag("stderr"), q.flag("tty")
	o.Container, o.Command = q.text("container"), q.values["command"]
}

func (q *query) attach(o *corev1.PodAttachOptions) {
	o.Stdin, o.Stdout, o.Stderr, o.TTY = q.flag("stdin"), q.flag("stdout"), q.flag("stderr"), q.flag("tty")
	o.Container = q.text("container")
}

func (q *query) ports(o *corev1.PodPortForwardOptions) {
	for _, text := range q.values["ports"] {
		port, err := strconv.ParseInt(text, 10, 32)
		if err != nil && q.err == nil {
			q.err = fmt.Errorf("query parameter ports: %q is not a port", text)
		}
		o.Ports = append(o.Ports, int32(port))
	}
}
