package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/client-go/kubernetes"
)

var (
	requestTotal = regexp.MustCompile(`(?m)^apiserver_request_total\{(.*)\} (\S+)$`)
	label        = regexp.MustCompile(`(\w+)="([^"]*)"`)
)

// requests are how many requests the API server has answered, by verb, resource, and code if that is an error.
func requests(ctx context.Context, client kubernetes.Interface) (map[string]int, error) {
	text, err := client.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return nil, err
	}
	all := map[string]int{}
	for _, m := range requestTotal.FindAllStringSubmatch(string(text), -1) {
		labels := map[string]string{}
		for _, l := range label.FindAllStringSubmatch(m[1], -1) {
			labels[l[1]] = l[2]
		}
		if labels["verb"] == "WATCH" {
			continue
		}
		what := labels["verb"] + " " + labels["resource"]
		if labels["subresource"] != "" {
			what += "/" + labels["subresource"]
		}
		if !strings.HasPrefix(labels["code"], "2") {
			what += " " + labels["code"]
		}
		n, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			return nil, err
		}
		all[what] += int(n)
	}
	return all, nil
}

// since prints what was requested since before, most first.
func since(before, now map[string]int) string {
	for what, n := range before {
		if now[what] -= n; now[what] <= 0 {
			delete(now, what)
		}
	}
	names := slices.SortedFunc(maps.Keys(now), func(a, b string) int {
		return cmp.Or(cmp.Compare(now[b], now[a]), cmp.Compare(a, b))
	})
	var text []string
	for _, name := range names {
		text = append(text, fmt.Sprintf("%d %s", now[name], name))
	}
	return strings.Join(text, ", ")
}
