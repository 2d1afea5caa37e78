package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"

	"k8s.io/component-base/metrics/legacyregistry"
)

// decisions is what a scheduler says about its decisions: how many it made, and how long they took in all, without the
// search for victims.
type decisions struct {
	n, seconds float64
}

const decisionMetric = "scheduler_scheduling_algorithm_duration_seconds"

// serveMetrics serves the metrics of this process until it ends.
func serveMetrics(address string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	go func() { _ = http.Serve(l, legacyregistry.Handler()) }()
	return nil
}

// freeAddress is an address of this host that is free now.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// read reads the metrics at a URL, or of this process if it is empty.
func readDecisions(ctx context.Context, url string) (decisions, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return decisions{}, err
	}
	if url == "" {
		answer := httptest.NewRecorder()
		legacyregistry.Handler().ServeHTTP(answer, r)
		return parseDecisions(answer.Body.String())
	}
	// A certificate that the scheduler made itself.
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer client.CloseIdleConnections()
	answer, err := client.Do(r)
	if err != nil {
		return decisions{}, err
	}
	text, err := io.ReadAll(answer.Body)
	if err := errors.Join(err, answer.Body.Close()); err != nil {
		return decisions{}, err
	}
	return parseDecisions(string(text))
}

func parseDecisions(text string) (d decisions, err error) {
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		into := &d.n
		switch name {
		case decisionMetric + "_sum":
			into = &d.seconds
		case decisionMetric + "_count":
		default:
			continue
		}
		if *into, err = strconv.ParseFloat(value, 64); err != nil {
			return d, fmt.Errorf("%s: %w", line, err)
		}
	}
	return d, nil
}

func (d decisions) since(before decisions) decisions {
	return decisions{d.n - before.n, d.seconds - before.seconds}
}

// rate is decisions per second of the time that they took; 0 if none were made.
func (d decisions) rate() float64 {
	if d.seconds == 0 {
		return 0
	}
	return d.n / d.seconds
}
