package audit

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/klog/v2"
)

// everything also has the stage before a request is served.
const everything = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n"

// A full disk refuses no request.
func TestFullDisk(t *testing.T) {
	a, err := New(Config{PolicyFile: file(t, "policy.yaml", everything), LogPath: "/dev/full"})
	if err != nil {
		t.Fatal(err)
	}
	served := 0
	send(a.Requests(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		served++
		answer(w, r)
	}), long), "/api/v1/pods", "/api/v1/nodes")
	if served != 2 {
		t.Errorf("%d requests were served, want 2", served)
	}
}

// disk has room for a number of bytes.
type disk struct {
	text strings.Builder
	room int
}

func (d *disk) Write(p []byte) (int, error) {
	n := min(len(p), d.room)
	d.room -= n
	d.text.Write(p[:n])
	if n < len(p) {
		return n, syscall.ENOSPC
	}
	return n, nil
}

// Whenever the disk is full, and however much of an event it still took: each event that was written whole is a line of
// its own, in order, and the events after the disk has room again are all there.
func TestDiskFillsAndEmpties(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		d := &disk{}
		l := newFileLog(d, false)
		var want []string
		for i := range 30 {
			if i%3 == 0 {
				d.room = r.IntN(1500)
			}
			if i >= 25 {
				d.room = 1 << 20 // there is room again
				want = append(want, fmt.Sprint(i))
			}
			if !l.ProcessEvents(&auditinternal.Event{AuditID: "x", RequestURI: fmt.Sprint(i)}) {
				t.Fatal("the request is refused")
			}
		}
		var got []string
		for line := range strings.Lines(d.text.String()) {
			var e auditinternal.Event
			if json.Unmarshal([]byte(line), &e) == nil {
				got = append(got, e.RequestURI)
			}
		}
		if len(got) < len(want) || strings.Join(got[len(got)-len(want):], " ") != strings.Join(want, " ") {
			t.Fatalf("the file has %v, want %v at the end\n%s", got, want, d.text.String())
		}
	}
}

// The loss of events is reported once a minute with their number, and its end once.
func TestReportsOfLoss(t *testing.T) {
	var log strings.Builder
	defer klog.CaptureState().Restore()
	klog.SetLogger(funcr.New(func(_, args string) { log.WriteString(args + "\n") }, funcr.Options{}))
	d := &disk{}
	l := newFileLog(d, false)
	now := time.Unix(1e9, 0)
	l.now = func() time.Time { return now }
	for range 300 {
		l.ProcessEvents(&auditinternal.Event{})
		now = now.Add(time.Second)
	}
	d.room = 1 << 20
	l.ProcessEvents(&auditinternal.Event{})
	l.ProcessEvents(&auditinternal.Event{})
	text := log.String()
	if got := strings.Count(text, "no space left on device"); got != 5 {
		t.Errorf("%d reports in five minutes:\n%s", got, text)
	}
	if !strings.Contains(text, "(241 events are lost)") || strings.Count(text, "can be written again") != 1 ||
		!strings.Contains(text, `"lostEvents"=300`) {
		t.Error(text)
	}
}

// An event does not continue half a line that an earlier run has left.
func TestHalfALine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	for _, before := range []string{"", "{}\n", `{"kind":"Ev`} {
		if err := os.WriteFile(path, []byte(before), 0o600); err != nil {
			t.Fatal(err)
		}
		a, err := New(Config{PolicyFile: file(t, "policy.yaml", metadataPolicy), LogPath: path})
		if err != nil {
			t.Fatal(err)
		}
		send(a.Requests(answer, long), "/api/v1/pods")
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		rest := strings.TrimPrefix(string(text), before)
		if before == `{"kind":"Ev` {
			rest = strings.TrimPrefix(rest, "\n")
		}
		if !json.Valid([]byte(rest)) || strings.Count(rest, "\n") != 1 || strings.HasPrefix(rest, "\n") {
			t.Errorf("after %q the file has %q", before, text)
		}
	}
}
