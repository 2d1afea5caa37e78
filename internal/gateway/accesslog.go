package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"k8s.io/klog/v2"
)

// telemetry is what is seen of requests.
type telemetry struct {
	figures *figures
	log     *accessLog // nil: off
}

// Limits of the access log.
const (
	logQueue = 8192 // lines that wait for the file; more are dropped and counted
	logText  = 2048 // bytes of a text that a client chooses
	logCheck = time.Second
)

// Stdout as the path of an access log is the standard output.
const Stdout = "-"

// accessLog writes one line of JSON for each request. A slow file never delays a request.
type accessLog struct {
	path    string
	lines   chan []byte
	figures *figures
}

func newAccessLog(path string, f *figures) *accessLog {
	if path == "" {
		return nil
	}
	return &accessLog{path: path, lines: make(chan []byte, logQueue), figures: f}
}

// accessLine is one line. A query may have secrets: it is not written.
type accessLine struct {
	Time      string  `json:"time"` // when the request began
	Client    string  `json:"client"`
	Protocol  string  `json:"protocol"`
	Method    string  `json:"method"`
	Host      string  `json:"host"`
	Path      string  `json:"path"`
	Status    int     `json:"status"` // 0: the client left before an answer
	BytesIn   int64   `json:"bytesIn"`
	BytesOut  int64   `json:"bytesOut"`
	Seconds   float64 `json:"seconds"`
	Route     string  `json:"route,omitempty"` // KIND/NAMESPACE/NAME
	Rule      string  `json:"rule,omitempty"`
	Backend   string  `json:"backend,omitempty"` // NAMESPACE/NAME:PORT
	Endpoint  string  `json:"endpoint,omitempty"`
	Attempts  int     `json:"attempts,omitempty"`
	UserAgent string  `json:"userAgent,omitempty"`
	Trace     string  `json:"trace,omitempty"` // of the W3C header traceparent
}

func cut(text string) string {
	if len(text) > logText {
		text = text[:logText]
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

func (l *accessLog) write(rec *seenRequest, r *http.Request, took time.Duration, trace string) {
	line := accessLine{Time: rec.began.UTC().Format("2006-01-02T15:04:05.000000Z"), Client: r.RemoteAddr,
		Protocol: r.Proto, Method: cut(r.Method), Host: cut(r.Host), Path: cut(r.URL.EscapedPath()), Status: rec.status,
		BytesIn: rec.received.n.Load(), BytesOut: rec.sent, Seconds: took.Seconds(), Rule: rec.rule,
		Endpoint: rec.endpoint, Attempts: rec.attempts, UserAgent: cut(r.Header.Get("User-Agent")), Trace: trace}
	if rec.source != nil {
		line.Route = rec.source.Kind + "/" + rec.source.Namespace + "/" + rec.source.Name
	}
	if rec.backend.Name != "" {
		line.Backend = rec.backend.String()
	}
	out, err := json.Marshal(&line)
	if err != nil {
		l.figures.lost.Inc()
		return
	}
	select {
	case l.lines <- append(out, '\n'):
	default:
		l.figures.lost.Inc()
	}
}

// run writes until ctx ends, then what waits.
func (l *accessLog) run(ctx context.Context) {
	out := &logFile{path: l.path}
	defer out.close()
	for {
		select {
		case line := <-l.lines:
			l.store(ctx, out, line)
		case <-ctx.Done():
			for {
				select {
				case line := <-l.lines:
					l.store(ctx, out, line)
				default:
					return
				}
			}
		}
		if len(l.lines) == 0 {
			l.told(ctx, out, out.flush())
		}
	}
}

func (l *accessLog) store(ctx context.Context, out *logFile, line []byte) {
	if err := out.write(line); err != nil {
		l.figures.lost.Inc()
		l.told(ctx, out, err)
	}
}

// told logs once that the file cannot be written, until it can be again.
func (l *accessLog) told(ctx context.Context, out *logFile, err error) {
	if err != nil && !out.failing {
		klog.FromContext(ctx).Error(err, "The access log of the gateway cannot be written; its lines are lost")
	}
	out.failing = err != nil
}

// logFile is a file that may be renamed or removed by who rotates logs: then it is made again.
type logFile struct {
	path    string
	file    *os.File
	buf     *bufio.Writer
	checked time.Time
	failing bool
}

func (f *logFile) open() error {
	if f.path == Stdout {
		f.buf = bufio.NewWriterSize(os.Stdout, 64<<10)
		return nil
	}
	file, err := os.OpenFile(f.path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o640)
	if err != nil {
		return fmt.Errorf("open the access log: %w", err)
	}
	f.file, f.buf = file, bufio.NewWriterSize(file, 64<<10)
	return nil
}

func (f *logFile) write(line []byte) error {
	if now := time.Now(); f.path != Stdout && now.Sub(f.checked) > logCheck {
		f.checked = now
		if f.file != nil && f.moved() {
			f.close()
		}
	}
	if f.buf == nil {
		if err := f.open(); err != nil {
			return err
		}
	}
	if _, err := f.buf.Write(line); err != nil {
		f.close() // a bufio.Writer keeps its first error
		return fmt.Errorf("write the access log: %w", err)
	}
	return nil
}

// moved reports whether another file has the path, or none.
func (f *logFile) moved() bool {
	have, err := f.file.Stat()
	if err != nil {
		return true
	}
	there, err := os.Stat(f.path)
	return errors.Is(err, os.ErrNotExist) || err == nil && !os.SameFile(have, there)
}

func (f *logFile) flush() error {
	if f.buf == nil {
		return nil
	}
	if err := f.buf.Flush(); err != nil {
		f.close()
		return fmt.Errorf("write the access log: %w", err)
	}
	return nil
}

func (f *logFile) close() {
	if f.buf != nil {
		_ = f.buf.Flush()
	}
	if f.file != nil {
		_ = f.file.Close()
	}
	f.file, f.buf = nil, nil
}
