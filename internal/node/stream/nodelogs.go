package stream

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"regexp/syntax"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// NodeLogs are the logs of the machine that /logs/ serves (S12.30 to S12.32).
type NodeLogs struct {
	Dir   string // /var/log; nothing outside of it is served, also not through links
	Query bool   // ?query= reads logs of services, too
	// Journal is the program that reads the journal; empty: journalctl.
	Journal string
}

// The limits of a query (S12.31, S12.32).
const (
	maxLogLines    = 100000
	maxServiceName = 256
	maxLogServices = 4
	maxPattern     = 4096 // bytes
	queryTimeout   = 30 * time.Second
)

// unsafeName matches characters that are invalid in the name of a service, because the name becomes an argument of a
// program.
var unsafeName = regexp.MustCompile(`[^a-zA-Z\-_.:0-9@]`)

// nodeLogs serves the files below a directory, and queries.
func (s *Server) nodeLogs(w http.ResponseWriter, req *http.Request) {
	l := s.cfg.Logs
	if l == nil {
		http.Error(w, "logs endpoint is disabled.", http.StatusMethodNotAllowed)
		return
	}
	// A log may contain anything, for example HTML with scripts that a browser would run.
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Content-Security-Policy", "sandbox")
	root, err := os.OpenRoot(l.Dir)
	if err != nil {
		http.Error(w, "the node has no directory of logs", http.StatusNotFound)
		return
	}
	defer func() { _ = root.Close() }()
	path := strings.TrimLeft(strings.TrimPrefix(req.URL.Path, "/logs"), "/")
	if l.Query {
		q, errs := parseNodeLogQuery(req.URL.Query())
		if q != nil && len(errs) == 0 {
			if path != "" {
				http.Error(w, "path not allowed in query mode", http.StatusNotAcceptable)
				return
			}
			errs = q.check(root)
		}
		switch {
		case len(errs) > 0:
			http.Error(w, errs.ToAggregate().Error(), http.StatusBadRequest)
			return
		case q != nil && len(q.services) > 0:
			l.answer(w, req, root, q)
			return
		case q != nil:
			path = strings.Trim(q.files[0], "/")
		}
	}
	clean := req.Clone(req.Context())
	clean.URL.Path = "/" + path
	http.FileServerFS(readable{root}).ServeHTTP(w, clean)
}

// readable are the regular files and directories below a directory: reading a pipe or device could block forever.
type readable struct{ root *os.Root }

// Open implements fs.FS.
func (r readable) Open(name string) (fs.File, error) {
	f, err := r.root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() && !info.IsDir() {
		_ = f.Close()
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return f, nil
}

// nodeLogQuery is the query of a request.
type nodeLogQuery struct {
	services, files []string
	since, until    *time.Time
	lines, boot     *int
	pattern         string
}

func (q *nodeLogQuery) options() bool {
	return q.since != nil || q.until != nil || q.lines != nil || q.boot != nil || q.pattern != ""
}

// parseNodeLogQuery reads a query; nil: the request has none.
func parseNodeLogQuery(v url.Values) (*nodeLogQuery, field.ErrorList) {
	var errs field.ErrorList
	q := &nodeLogQuery{pattern: v.Get("pattern")}
	for _, s := range v["query"] {
		switch {
		case strings.ContainsAny(s, `/\`):
			q.files = append(q.files, s)
		case strings.TrimSpace(s) != "":
			q.services = append(q.services, s)
		}
	}
	if _, present := v["query"]; present && len(q.files)+len(q.services) == 0 {
		errs = append(errs, field.Invalid(field.NewPath("query"), v["query"], "may not be empty"))
	}
	moment := func(name string) *time.Time {
		text := v.Get(name)
		if text == "" {
			return nil
		}
		t, err := time.Parse(time.RFC3339, text)
		if err != nil {
			errs = append(errs, field.Invalid(field.NewPath(name), text, "invalid time format"))
		}
		return &t
	}
	number := func(name string) *int {
		text := v.Get(name)
		if text == "" {
			return nil
		}
		n, err := strconv.Atoi(text)
		if err != nil {
			errs = append(errs, field.Invalid(field.NewPath(name), text, err.Error()))
		}
		return &n
	}
	q.since, q.until, q.boot, q.lines = moment("sinceTime"), moment("untilTime"), number("boot"), number("tailLines")
	if len(errs) == 0 && len(q.files)+len(q.services) == 0 && !q.options() {
		return nil, nil
	}
	return q, errs
}

// check validates a query (S12.31).
func (q *nodeLogQuery) check(root *os.Root) (errs field.ErrorList) {
	path := field.NewPath("query")
	for _, s := range q.services {
		switch {
		case len(s) > maxServiceName:
			errs = append(errs, field.Invalid(path, s, fmt.Sprintf("length must be less than %d", maxServiceName)))
		case unsafeName.MatchString(s):
			errs = append(errs, field.Invalid(path, s, "input contains unsupported characters"))
		}
	}
	if len(q.services) > maxLogServices {
		errs = append(errs, field.TooMany(path, len(q.services), maxLogServices))
	}
	switch {
	case len(q.files)+len(q.services) == 0:
		errs = append(errs, field.Required(path, "cannot be empty with options"))
	case len(q.files) > 0 && len(q.services) > 0:
		errs = append(errs, field.Invalid(path, fmt.Sprintf("%v, %v", q.files, q.services),
			"cannot specify a file and service"))
	case len(q.files) > 1:
		errs = append(errs, field.Invalid(path, q.files, "cannot specify more than one file"))
	case len(q.files) == 1 && q.options():
		errs = append(errs, field.Invalid(path, q.files, "cannot specify file with options"))
	case len(q.files) == 1:
		if _, err := root.Stat(strings.Trim(q.files[0], "/")); err != nil {
			errs = append(errs, field.Invalid(path, q.files, err.Error()))
		}
	}
	if q.since != nil && q.until != nil && q.since.After(*q.until) {
		errs = append(errs, field.Invalid(field.NewPath("untilTime"), q.until, "must be after `sinceTime`"))
	}
	if q.boot != nil && *q.boot > 0 {
		errs = append(errs, field.Invalid(field.NewPath("boot"), *q.boot, "must be less than 1"))
	}
	if q.lines != nil {
		for _, why := range validation.IsInRange(*q.lines, 0, maxLogLines) {
			errs = append(errs, field.Invalid(field.NewPath("tailLines"), *q.lines, why))
		}
	}
	if _, err := syntax.Parse(q.pattern, syntax.Perl); err != nil {
		errs = append(errs, field.Invalid(field.NewPath("pattern"), q.pattern, err.Error()))
	} else if len(q.pattern) > maxPattern || strings.ContainsRune(q.pattern, 0) {
		errs = append(errs, field.Invalid(field.NewPath("pattern"), "", "is not a pattern or is too long"))
	}
	return errs
}

// answer writes the logs that the query selects: from the journal for services that are in it, else from their files.
func (l *NodeLogs) answer(w http.ResponseWriter, req *http.Request, root *os.Root, q *nodeLogQuery) {
	ctx, cancel := context.WithTimeout(req.Context(), queryTimeout)
	defer cancel()
	w.Header().Set("Content-Type", "text/plain;charset=UTF-8")
	var out io.Writer = w
	if req.Header.Get("Accept-Encoding") == "gzip" {
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		defer func() { _ = z.Close() }()
		out = z
	}
	program := l.Journal
	if program == "" {
		program = "journalctl"
	}
	units, journalErr := exec.CommandContext(ctx, program, "--field", "_SYSTEMD_UNIT").Output()
	var inJournal, others []string
	for _, s := range q.services {
		if journalErr == nil && bytes.Contains(units, []byte(s+".service")) {
			inJournal = append(inJournal, s)
		} else {
			others = append(others, s)
		}
	}
	if len(inJournal) > 0 {
		cmd := exec.CommandContext(ctx, program, q.arguments(inJournal)...)
		cmd.Stdout, cmd.Stderr = out, out
		if err := cmd.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) {
			_, _ = fmt.Fprint(out, "\nerror: journal output not available\n")
		}
	}
	if len(others) > 0 && q.options() {
		_, _ = fmt.Fprintf(out, "\noptions present and query resolved to log files for %v\ntry without specifying options\n",
			others)
		others = nil
	}
	for _, s := range others {
		if copyLog(ctx, out, root, s) {
			continue
		}
		_, _ = fmt.Fprintf(out, "\nlog not found for %s\n", s)
		if errors.Is(journalErr, exec.ErrNotFound) {
			_, _ = fmt.Fprintf(out, "the node has no %s, which reads the journal\n", program)
		}
	}
}

// arguments are those of journalctl.
func (q *nodeLogQuery) arguments(services []string) []string {
	args := []string{"--utc", "--no-pager", "--output=short-precise"}
	const layout = "2006-1-2 15:4:5"
	if q.since != nil {
		args = append(args, "--since="+q.since.UTC().Format(layout))
	}
	if q.until != nil {
		args = append(args, "--until="+q.until.UTC().Format(layout))
	}
	if q.lines != nil {
		args = append(args, fmt.Sprintf("--lines=%d", *q.lines))
	}
	for _, s := range services {
		args = append(args, "--unit="+s)
	}
	if q.pattern != "" {
		args = append(args, "--grep="+q.pattern)
	}
	if q.boot != nil {
		args = append(args, fmt.Sprintf("--boot=%d", *q.boot))
	}
	return args
}

// copyLog writes the log of a service that writes a file; false: there is none.
func copyLog(ctx context.Context, to io.Writer, root *os.Root, service string) bool {
	for _, name := range []string{service, service + ".log", service + "/" + service + ".log"} {
		f, err := readable{root}.Open(name)
		if err != nil {
			continue
		}
		info, err := f.Stat()
		if err == nil && !info.IsDir() {
			stop := context.AfterFunc(ctx, func() { _ = f.Close() }) // ends the copy
			_, _ = io.Copy(to, f)
			stop()
			_ = f.Close()
			return true
		}
		_ = f.Close()
	}
	return false
}
