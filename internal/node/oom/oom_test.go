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
	full   = "nf_conntrack: nf_conntrack: table full, dropping packet\n SUBSYSTEM=net\n"
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

// A full table counts if it is that of this host: pods may fill their own, and write what they want into the log.
func TestConntrackFull(t *testing.T) {
	for record, want := range map[string]bool{
		"4,1,1,-;" + full: true,
		"4,1,1,-;nf_conntrack: nf_conntrack: table full in netns 4026531840, dropping packet": true,
		"4,1,1,-;nf_conntrack: nf_conntrack: table full in netns 4026532999, dropping packet": false,
		"4,1,1,-;nf_conntrack: nf_conntrack: table full in netns 40265318401, dropping":       false,
		"12,1,1,-;" + full: false, // of facility user
		"4,1,1,-;nf_conntrack: default automatic helper assignment has been turned off": false,
		"4,1,1,-;web[1]: nf_conntrack: table full, dropping packet":                     false,
		"": false, "4;nf_conntrack: table full in netns ": false,
	} {
		if got := conntrackFull(record, 4026531840); got != want {
			t.Errorf("%q: %v", record, got)
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
	log := &tape{records: []any{"3,1,1,-;" + global, "4,2,1,-;" + full, syscall.EPIPE, "3,2,1,-;" + group,
		"3,3,1,-;" + global}, closed: make(chan struct{})}
	var got []int
	refused := 0
	Watch(ctx, log, 7, func(v Victim) {
		if got = append(got, v.PID); len(got) == 2 {
			cancel()
		}
	}, func() { refused++ })
	if !slices.Equal(got, []int{4711, 4711}) || refused != 1 {
		t.Errorf("victims %v, full %d times", got, refused)
	}
	<-log.closed
	ended := &tape{records: []any{io.EOF}, closed: make(chan struct{})}
	Watch(t.Context(), ended, 7, func(Victim) { t.Error("a victim") }, func() { t.Error("full") })
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
		Watch(ctx, log, 7, func(v Victim) { t.Logf("%+v", v) }, func() { t.Log("full") })
	}()
	cancel()
	<-done
}
