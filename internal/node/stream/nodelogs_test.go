package stream

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// logDir is a directory of logs, with what a pod that can write to it may leave there.
func logDir(t *testing.T) (dir, journal string) {
	t.Helper()
	top := t.TempDir()
	dir = filepath.Join(top, "log")
	for path, text := range map[string]string{"log/syslog": "a line\n", "log/app/app.log": "of app\n",
		"log/page.html": "<script>alert(1)</script>", "secret": "the secret"} {
		path = filepath.Join(top, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{"out": "../secret", "abs": filepath.Join(top, "secret"), "up": ".."} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	journal = filepath.Join(top, "journalctl")
	script := "#!/bin/sh\n[ \"$1\" = --field ] && echo web.service && exit\necho \"$@\"\n"
	if err := os.WriteFile(journal, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return dir, journal
}

func requested(s *Server, target string) (int, string) {
	rec := httptest.NewRecorder()
	s.routes().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, target, nil))
	body, _ := io.ReadAll(rec.Result().Body)
	return rec.Code, string(body)
}

// Files below the directory are served, and nothing else, whatever the path looks like (S12.30).
func TestNodeLogFiles(t *testing.T) {
	dir, _ := logDir(t)
	s := &Server{cfg: Config{Logs: &NodeLogs{Dir: dir}}}
	if code, body := requested(s, "/logs/"); code != http.StatusOK || !strings.Contains(body, "syslog") {
		t.Errorf("the list: %d, %s", code, body)
	}
	for _, path := range []string{"/logs/syslog", "/logs/app/app.log"} {
		if code, body := requested(s, path); code != http.StatusOK || !strings.HasSuffix(body, "\n") {
			t.Errorf("%s: %d, %s", path, code, body)
		}
	}
	for _, path := range []string{"/logs/out", "/logs/abs", "/logs/up/secret", "/logs/pipe", "/logs/%2e%2e/secret",
		"/logs/..%2fsecret", "/logs/app/..%2f..%2fsecret", "/logs//../secret", "/logs/syslog%00", "/logs/missing",
		"/logs/?query=/../secret", "/logs/?query=/out"} {
		for _, query := range []bool{false, true} {
			s.cfg.Logs.Query = query
			if code, body := requested(s, path); strings.Contains(body, "the secret") ||
				code == http.StatusOK && !strings.Contains(path, "?") {
				t.Errorf("%s, with queries %v: %d, %s", path, query, code, body)
			}
		}
	}
	rec := httptest.NewRecorder()
	s.routes().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/logs/page.html", nil))
	h := rec.Header()
	if h.Get("Content-Security-Policy") != "sandbox" || h.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("a browser would run a log: %v", h)
	}
	s.cfg.Logs = nil
	code, body := requested(s, "/logs/syslog")
	if code != http.StatusMethodNotAllowed || !strings.Contains(body, "disabled") {
		t.Errorf("switched off: %d, %s", code, body)
	}
}

// Queries are parsed and validated, with upstream's messages (S12.31, S12.32).
func TestNodeLogQuery(t *testing.T) {
	dir, journal := logDir(t)
	s := &Server{cfg: Config{Logs: &NodeLogs{Dir: dir, Query: true, Journal: journal}}}
	for query, want := range map[string]string{
		"query=syslog":            "a line",
		"query=app":               "of app",
		"query=app&query=syslog":  "of app\na line",
		"query=/syslog":           "a line",
		"query=nobody":            "log not found for nobody",
		"query=pipe":              "log not found for pipe",
		"query=out":               "log not found for out",
		"query=app&tailLines=3":   "options present and query resolved to log files for [app]\ntry without specifying options",
		"query=web":               "--utc --no-pager --output=short-precise --unit=web\n",
		"query=web&boot=-1":       "--unit=web --boot=-1",
		"query=web&pattern=-x%20": "--unit=web --grep=-x ",
		"query=web&sinceTime=2026-01-02T03:04:06Z&untilTime=2026-01-02T04:04:05%2B01:00": "must be after `sinceTime`",
		"query=web&tailLines=5&sinceTime=2026-01-02T03:04:05Z":                           "--since=2026-1-2 03:4:5 --lines=5",
	} {
		if _, body := requested(s, "/logs/?"+query); !strings.Contains(body, want) {
			t.Errorf("%s: %s, want %s", query, body, want)
		}
	}
	for query, want := range map[string]string{
		"query=+":                                 "query: Invalid value: [\" \"]: may not be empty",
		"tailLines=1":                             "query: Required value: cannot be empty with options",
		"query=a&query=/syslog":                   "cannot specify a file and service",
		"query=/syslog&query=/x":                  "cannot specify more than one file",
		"query=/syslog&boot=0":                    "cannot specify file with options",
		"query=a&sinceTime=now":                   "invalid time format",
		"query=a&boot=1":                          "must be less than 1",
		"query=a&tailLines=100001":                "must be between 0 and 100000",
		"query=a&tailLines=x":                     "invalid syntax",
		"query=" + strings.Repeat("a", 257):       "length must be less than 256",
		"query=" + url.QueryEscape("a;reboot"):    "input contains unsupported characters",
		"query=" + url.QueryEscape("a\nb"):        "input contains unsupported characters",
		"query=a&query=b&query=c&query=d&query=e": "must have at most 4 items",
		"query=a&pattern=(":                       "missing closing )",
		"query=/../secret":                        "escapes",
		"query=/abs":                              "escapes",
	} {
		if code, body := requested(s, "/logs/?"+query); code != http.StatusBadRequest || !strings.Contains(body, want) {
			t.Errorf("%.60s: %d, %s, want %s", query, code, body, want)
		}
	}
	if code, _ := requested(s, "/logs/app?query=app"); code != http.StatusNotAcceptable {
		t.Errorf("a path with a query: %d", code)
	}
	s.cfg.Logs.Journal = "no-such-journalctl"
	if _, body := requested(s, "/logs/?query=web"); !strings.Contains(body, "the node has no no-such-journalctl") {
		t.Errorf("without journalctl: %s", body)
	}
}

// The right to read metrics does not include logs: each path requires its own right (S12.14 to S12.21).
func TestRightsOfPaths(t *testing.T) {
	for path, want := range map[string]string{"/logs/syslog": "log", "/logs": "log", "/logsx": "proxy",
		"/runningpods/": "pods proxy", "/statusz": "statusz", "/debug/pprof/heap": "proxy"} {
		if got := strings.Join(subresources(path), " "); got != want {
			t.Errorf("%s asks for %s, want %s", path, got, want)
		}
	}
}
