package audit

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/audit"
	auditlog "k8s.io/apiserver/plugin/pkg/audit/log"
	"k8s.io/klog/v2"
)

// reportEach is how often the loss of events is reported while it lasts.
const reportEach = time.Minute

// fileLog writes each event as one line before its request goes on. An event that cannot be written, because the disk
// is full, is lost and reported; its request is served, as in upstream's mode "blocking", which is the default.
type fileLog struct {
	encoder runtime.Encoder
	now     func() time.Time

	mu       sync.Mutex
	out      io.Writer
	half     bool // the file does not end with a whole line
	lost     int  // events since the last one that was written
	reported time.Time
}

func newFileLog(out io.Writer, half bool) *fileLog {
	return &fileLog{encoder: audit.Codecs.LegacyCodec(auditv1.SchemeGroupVersion), now: time.Now, out: out, half: half}
}

// endsHalf reports whether a file does not end with a whole line: its disk was full, or its writer was killed.
func endsHalf(f *os.File) bool {
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil || size == 0 {
		return false
	}
	last := make([]byte, 1)
	_, err = f.ReadAt(last, size-1)
	return err == nil && last[0] != '\n'
}

// ProcessEvents implements audit.Backend.
func (l *fileLog) ProcessEvents(events ...*auditinternal.Event) bool {
	for _, e := range events {
		line, err := runtime.Encode(l.encoder, e)
		if err != nil {
			audit.HandlePluginError(l.String(), err, e)
			continue
		}
		l.write(e, line)
	}
	return true
}

// write writes a line, which ends with a newline. What follows a half of one begins on a line of its own.
func (l *fileLog) write(e *auditinternal.Event, line []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.half {
		line = append([]byte{'\n'}, line...)
	}
	n, err := l.out.Write(line)
	if n > 0 {
		l.half = line[n-1] != '\n'
	}
	if err == nil {
		if l.lost > 0 {
			klog.InfoS("The audit log can be written again", "lostEvents", l.lost)
			l.lost, l.reported = 0, time.Time{}
		}
		return
	}
	l.lost++
	if now := l.now(); now.Sub(l.reported) >= reportEach {
		l.reported = now
		audit.HandlePluginError(l.String(), fmt.Errorf("%w (%d events are lost)", err, l.lost), e)
	}
}

// Run implements audit.Backend.
func (*fileLog) Run(<-chan struct{}) error { return nil }

// Shutdown implements audit.Backend.
func (*fileLog) Shutdown() {}

// String implements audit.Backend.
func (*fileLog) String() string { return auditlog.PluginName }

// openForEnd opens a file for appending, and reports whether it ends with half a line.
func openForEnd(path string) (half bool, err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if errors.Is(err, os.ErrPermission) { // it need not be readable
		f, err = os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	}
	if err != nil {
		return false, err
	}
	half = endsHalf(f)
	return half, f.Close()
}
