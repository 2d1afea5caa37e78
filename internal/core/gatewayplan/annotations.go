package gatewayplan

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	networkingv1 "k8s.io/api/networking/v1"

	"carob/internal/core/httproute"
)

// nginx is the prefix of ingress-nginx's annotations.
const nginx = "nginx.ingress.kubernetes.io/"

// annotations are the annotations of ingress-nginx with one value.
type annotations struct {
	rewrite                 *httproute.Rewrite
	regex                   bool
	maxBody                 int64
	read, connect           time.Duration
	redirect, forceRedirect bool
	tls                     bool
	protocol                httproute.Protocol
}

// tuning lists annotations that only tune nginx: an Ingress is served without them.
func tuning(name string) bool {
	switch name {
	case "proxy-buffering", "proxy-buffer-size", "proxy-buffers-number", "proxy-busy-buffers-size",
		"proxy-max-temp-file-size", "proxy-http-version", "proxy-next-upstream", "proxy-next-upstream-timeout",
		"proxy-next-upstream-tries", "proxy-request-buffering", "proxy-send-timeout", "client-body-buffer-size",
		"connection-proxy-header", "enable-access-log", "enable-rewrite-log", "load-balance", "service-upstream",
		"upstream-hash-by", "upstream-vhost-resync", "websocket-services":
		return true
	}
	return false
}

// annotationsOf reads the annotations of an Ingress. An Ingress with an unknown annotation that may
// protect something is not served, because serving it without this protection is worse than not
// serving it.
func annotationsOf(in *networkingv1.Ingress) (*annotations, []Problem, bool) {
	a := &annotations{}
	var problems []Problem
	ok := true
	for _, key := range slices.Sorted(maps.Keys(in.Annotations)) {
		name, ours := strings.CutPrefix(key, nginx)
		if !ours {
			continue
		}
		known, err := a.read1(name, in.Annotations[key])
		switch {
		case err != nil:
			ok = false
			problems = append(problems, Problem{"InvalidAnnotation",
				fmt.Sprintf("%s: %v; the Ingress is not served", key, err)})
		case known:
		case tuning(name):
			problems = append(problems, Problem{"IgnoredAnnotation", key + " has no effect in carob"})
		default:
			ok = false
			problems = append(problems, Problem{"UnsupportedAnnotation",
				key + " is not supported: the Ingress is not served until it is removed"})
		}
	}
	if a.rewrite != nil && a.regex {
		a.rewrite.Path.Kind = httproute.ReplaceGroups
	}
	return a, problems, ok
}

func (a *annotations) read1(name, value string) (known bool, err error) {
	value = strings.TrimSpace(value)
	switch name {
	case "rewrite-target":
		if value == "" {
			return true, nil
		}
		a.rewrite = &httproute.Rewrite{Path: httproute.PathChange{Kind: httproute.ReplaceFull, Value: value}}
		if strings.Contains(value, "$") {
			a.regex = true // as nginx: groups need an expression
		}
	case "use-regex":
		on, err := strconv.ParseBool(value)
		a.regex = a.regex || on
		return true, err
	case "ssl-redirect":
		a.redirect, err = strconv.ParseBool(value)
	case "force-ssl-redirect":
		a.forceRedirect, err = strconv.ParseBool(value)
	case "proxy-body-size":
		a.maxBody, err = bodySize(value)
	case "proxy-read-timeout":
		a.read, err = seconds(value)
	case "proxy-connect-timeout":
		a.connect, err = seconds(value)
	case "backend-protocol":
		switch strings.ToUpper(value) {
		case "HTTP", "AUTO_HTTP":
		case "HTTPS":
			a.tls = true
		case "GRPC":
			a.protocol = httproute.H2C
		case "GRPCS":
			a.tls, a.protocol = true, httproute.H2C
		default:
			return true, fmt.Errorf("%q is none of HTTP, HTTPS, GRPC, GRPCS", value)
		}
	default:
		return false, nil
	}
	return true, err
}

func seconds(text string) (time.Duration, error) {
	n, err := strconv.Atoi(strings.TrimSuffix(text, "s"))
	if err != nil || n < 1 || n > 86400*365 {
		return 0, fmt.Errorf("%q is not a number of seconds", text)
	}
	return time.Duration(n) * time.Second, nil
}

// bodySize reads a size of nginx: bytes, or with k, m, or g. 0 is not a limit.
func bodySize(text string) (int64, error) {
	number, unit := strings.ToLower(text), int64(1)
	for suffix, n := range map[string]int64{"k": 1 << 10, "m": 1 << 20, "g": 1 << 30} { // any order: one fits
		if cut, ok := strings.CutSuffix(number, suffix); ok {
			number, unit = cut, n
			break
		}
	}
	n, err := strconv.ParseInt(number, 10, 32)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%q is not a size such as 8m", text)
	}
	return n * unit, nil
}

// apply sets the properties of a backend that annotations define for all backends.
func (a *annotations) apply(b *httproute.Backend) {
	if a.protocol != httproute.HTTP1 {
		b.Protocol = a.protocol
	}
	if a.tls {
		b.TLS = &httproute.BackendTLS{Insecure: true, H2: b.Protocol == httproute.H2C}
	}
}

// rule makes the rule of a path.
func (a *annotations) rule(m httproute.Match, b httproute.Backend) httproute.Rule {
	r := httproute.Rule{Matches: []httproute.Match{m}, Backends: []httproute.Backend{b}, MaxBody: a.maxBody,
		ReadTimeout: a.read, ConnectTimeout: a.connect}
	if a.rewrite != nil && (a.rewrite.Path.Kind != httproute.ReplaceGroups || m.Path.Kind == httproute.Regex) {
		r.Filters.Rewrite = a.rewrite
	}
	return r
}
