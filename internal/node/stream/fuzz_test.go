package stream

import (
	"net/url"
	"testing"
	"time"
)

// FuzzParameters gives the parameters of /containerLogs, /exec and /portForward anything.
func FuzzParameters(f *testing.F) {
	for _, q := range []string{"follow=true&previous=1&timestamps=0&tailLines=5&limitBytes=10&sinceSeconds=3&stream=Stdout", "sinceTime=2026-11-21T00:00:00Z", "sinceSeconds=9223372036854775807",
		"tailLines=-1", "follow=maybe", "command=sh&command=-c&stdin=1&stdout=true&tty=1", "port=80,443&port=1",
		"port=0", "port=65536", "%zz=1"} {
		f.Add(q)
	}
	now := time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, query string) {
		v, err := url.ParseQuery(query)
		if err != nil {
			return
		}
		if q, err := parseLogQuery(v, now); err == nil {
			if v.Get("sinceTime") == "" && q.Since.After(now) {
				t.Errorf("%s: since %v", query, q.Since)
			}
			if q.Tail != nil && *q.Tail < 0 || q.Limit != nil && *q.Limit < 0 || !q.stdout && !q.stderr {
				t.Errorf("%s: %+v", query, q)
			}
		}
		if o, err := parseStreams(v); err == nil && (!o.stdin && !o.stdout && !o.stderr || o.tty && o.stderr) {
			t.Errorf("%s: %+v", query, o)
		}
		ports, err := parsePorts(v)
		for _, p := range ports {
			if err == nil && (p < 1 || p > 65535) {
				t.Errorf("%s: port %d", query, p)
			}
		}
	})
}
