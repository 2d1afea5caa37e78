package oom

import (
	"context"
	"io"
	"os"
	"slices"
	"syscall"
	"testing"
)

const (
	global = "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/user.slice,task=stress,pid=4711,uid=1000"
	group  = "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=c,mems_allowed=0,oom_memcg=/kubepods/p,task_memcg=/kubepods/p/c,task=web,pid=12,uid=0"
)

// L10.76: the machine's own shortages count, those of one cgroup do not, and what
// processes write into the log is not the kernel's word.
func TestParse(t *testing.T) {
	for record, want := range map[string]Victim{
		"3,1042,5140900,-;" + global + "\n SUBSYSTEM=memory\n":   {"stress", 4711},
		"3,1,1,-;" + group + "\n":                                {},
		"11,1,1,-;" + global + "\n":                              {}, // of facility user
		"-1,1,1,-;" + global + "\n":                              {},
		"6,1,1,-;eth0: link up\n":                                {},
		"6,1,1,-;note: oom-kill: ,global_oom,task=a,pid=1,uid=0": {},
		"3,1,1,-;oom-kill:constraint=CONSTRAINT_NONE,global_oom,task_memcg=/,task=a,pid=7,uid=0,pid=8,uid=0": {"a,pid=7,uid=0", 8},
		"3,1,1,-;oom-kill:constraint=CONSTRAINT_NONE,global_oom,task_memcg=/,task=a,pid=x,uid=0":             {},
		"3,1,1,-;oom-kill:constraint=CONSTRAINT_NONE,global_oom,task_memcg=/,task=,pid=7,uid=0":              {},
		"3,1,1,-;oom-kill:constraint=CONSTRAINT_NONE,global_oom,task_memcg=/":                                {},
		"": {}, ";": {}, "3;": {},
	} {
		if got, ok := parse(record); ok != (want != Victim{}) || ok && got != want {
			t.Errorf("%q: %+v, %v", record, got, ok)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("3,1042,5140900,-;" + global)
	f.Add("3,1,1,-;" + group)
	f.Fuzz(func(t *testing.T, record string) {
		if v, ok := parse(record); ok && (v.PID <= 0 || v.Process == "") {
			t.Errorf("%q: %+v", record, v)
		}
	})
}

// tape is a log of records; after the last one it waits until it is closed.
type tape struct {
	records []any // string or error
	closed  chan struct{}
}

func (l *tape) Read(p []byte) (int, error) {
	if len(l.records) == 0 {
		<-l.closed
		return 0, os.ErrClosed
	}
	r := l.records[0]
	l.records = l.records[1:]
	if err, ok := r.(error); ok {
		return 0, err
	}
	return copy(p, r.(string)), nil
}

func (l *tape) Close() error { close(l.closed); return nil }

// Records that were overwritten don't end the watch; the context, and the log's end, do.
func TestWatch(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	log := &tape{records: []any{"3,1,1,-;" + global, syscall.EPIPE, "3,2,1,-;" + group, "3,3,1,-;" + global},
		closed: make(chan struct{})}
	var got []int
	Watch(ctx, log, func(v Victim) {
		if got = append(got, v.PID); len(got) == 2 {
			cancel()
		}
	})
	if !slices.Equal(got, []int{4711, 4711}) {
		t.Errorf("victims %v", got)
	}
	<-log.closed
	ended := &tape{records: []any{io.EOF}, closed: make(chan struct{})}
	Watch(t.Context(), ended, func(Victim) { t.Error("a victim") })
	<-ended.closed
}

// The kernel's own log can be followed, and ends with its context also while nothing is written.
func TestOpen(t *testing.T) {
	log, err := Open()
	if err != nil {
		t.Skip(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		Watch(ctx, log, func(v Victim) { t.Logf("%+v", v) })
	}()
	cancel()
	<-done
}
