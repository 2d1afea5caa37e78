package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sort"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// side is one of the two servers.
type side struct {
	host      string
	client    *http.Client
	namespace string
	kept      map[string]string
}

type answer struct {
	status int
	header http.Header
	raw    []byte
	values []any // decoded bodies: one, or the events of a watch
	err    error
}

func (a answer) String() string {
	if a.err != nil {
		return a.err.Error()
	}
	return fmt.Sprintf("%d %v\n%s", a.status, a.header, bytes.TrimSpace(a.raw))
}

func dial(kubeconfig string) (*side, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	config.DisableCompression = true
	config.QPS = -1
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &side{host: strings.TrimSuffix(config.Host, "/"), client: client}, nil
}

// begin makes the namespace of a file, with the service account that pods need.
func (s *side) begin(namespace, suffix string) {
	s.namespace = namespace
	s.kept = map[string]string{"NS": namespace, "X": suffix}
	for _, r := range []request{
		{method: "POST", path: "/api/v1/namespaces", body: `{"metadata":{"name":"$NS"}}`},
		{method: "POST", path: "/api/v1/namespaces/$NS/serviceaccounts", body: `{"metadata":{"name":"default"}}`},
	} {
		s.send(context.Background(), r)
	}
}

func (s *side) end(ctx context.Context) {
	s.send(ctx, request{method: "DELETE", path: "/api/v1/namespaces/$NS"})
}

// fill puts what was kept in place of $name, the longest names first.
func (s *side) fill(text string) string {
	keys := make([]string, 0, len(s.kept))
	for k := range s.kept {
		keys = append(keys, k)
	}
	sort.Slice(keys, func(i, j int) bool { return len(keys[i]) > len(keys[j]) })
	for _, k := range keys {
		text = strings.ReplaceAll(text, "$"+k, s.kept[k])
	}
	return text
}

func (s *side) send(ctx context.Context, r request) answer {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, r.method, s.host+"/", strings.NewReader(s.fill(r.body)))
	if err != nil {
		return answer{err: err}
	}
	path, query, _ := strings.Cut(s.fill(r.path), "?")
	req.URL.Opaque, req.URL.RawQuery = "//"+req.URL.Host+path, query
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "differential")
	if r.body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for _, h := range r.header {
		req.Header.Del(h[0])
		if h[1] != "-" {
			req.Header.Add(h[0], s.fill(h[1]))
		}
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return answer{err: err}
	}
	defer func() { _ = resp.Body.Close() }()
	a := answer{status: resp.StatusCode, header: resp.Header}
	if r.until != "" && resp.StatusCode == http.StatusOK {
		lines := bufio.NewReader(resp.Body)
		for {
			line, err := lines.ReadBytes('\n')
			a.raw = append(a.raw, line...)
			if err != nil || bytes.Contains(line, []byte(s.fill(r.until))) {
				break
			}
		}
	} else if a.raw, err = io.ReadAll(resp.Body); err != nil {
		a.err = err
	}
	decoder := json.NewDecoder(bytes.NewReader(a.raw))
	decoder.UseNumber()
	for {
		var v any
		if err := decoder.Decode(&v); err != nil {
			if err != io.EOF {
				a.values = nil
			}
			break
		}
		a.values = append(a.values, v)
	}
	for _, k := range r.keep {
		if h, ok := strings.CutPrefix(k[1], "header "); ok {
			s.kept[k[0]] = resp.Header.Get(h)
		} else {
			s.kept[k[0]] = field(a.values, k[1])
		}
	}
	for i, v := range a.values {
		if r.allocates {
			v = allocated(v)
		}
		a.values[i] = mark("", v)
	}
	a.raw = []byte(plain(string(a.raw)))
	return a
}

// field reads a.b.0.c of the last value.
func field(values []any, path string) string {
	if len(values) == 0 {
		return ""
	}
	v := values[len(values)-1]
	for step := range strings.SplitSeq(path, ".") {
		switch at := v.(type) {
		case map[string]any:
			v = at[step]
		case []any:
			i := 0
			if _, err := fmt.Sscan(step, &i); err != nil || i >= len(at) {
				return ""
			}
			v = at[i]
		default:
			return ""
		}
	}
	if v == nil {
		return ""
	}
	return fmt.Sprint(v)
}
