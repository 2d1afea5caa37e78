package audit

import (
	"fmt"
	"io"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/audit"
	auditlog "k8s.io/apiserver/plugin/pkg/audit/log"
	"k8s.io/klog/v2"

	"carob/internal/base/linefile"
)

// reportEach is how often the loss of events is reported while it lasts.
const reportEach = time.Minute

// fileLog writes each event as one line before its request goes on. An event that cannot be written, because the disk
// is full, is lost and reported; its request is served, as in upstream's mode "blocking", which is the default.
type fileLog struct {
	encoder runtime.Encoder
	now     func() time.Time

	mu       sync.Mutex
	out      linefile.Writer
	lost     int // events since the last one that was written
	reported time.Time
}

func newFileLog(out io.Writer, half bool) *fileLog {
	return &fileLog{encoder: audit.Codecs.LegacyCodec(auditv1.SchemeGroupVersion), now: time.Now,
		out: linefile.Writer{To: out, Half: half}}
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

// write writes a line, which ends with a newline.
func (l *fileLog) write(e *auditinternal.Event, line []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, err := l.out.Write(line)
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
