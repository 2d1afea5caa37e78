package gantt

import (
	"testing"
	"time"

	"carob/internal/base/journal"
)

func TestModel(t *testing.T) {
	at := func(second int64) time.Time { return time.Unix(second, 0) }
	entries := []journal.Entry{
		{Time: at(1), UID: "old", Kind: journal.Schedule, Key: "n1"},
		{Time: at(2), UID: "u", Kind: journal.Schedule, Key: "n1"},
		{Time: at(3), UID: "u", Kind: journal.ActionBegin, Key: "start/c/0", Object: "c", Cause: "it is new"},
		{Time: at(4), UID: "u", Kind: journal.ActionEnd, Key: "start/c/0"},
	}
	c := Model(entries, at(9))
	if c.Older != 1 || c.UID != "u" || c.First != 2e6 || c.Last != 9e6 || len(c.Rows) != 3 {
		t.Fatalf("%+v", c)
	}
	if s := c.Rows[2].Spans; c.Rows[2].Name != "running" || len(s) != 1 || s[0].To != 9e6 || !s[0].Open ||
		s[0].Look != "running" {
		t.Errorf("what runs does not last until now: %+v", c.Rows[2])
	}
	if s := c.Rows[1].Spans[0]; s.From != 3e6 || s.To != 4e6 || s.Look != "work" || s.Failed {
		t.Errorf("%+v", s)
	}
	for i := range 2 * mostItems {
		entries = append(entries, journal.Entry{Time: at(10 + int64(i)), UID: "u", Kind: journal.Event, Key: "x"})
	}
	if c = Model(entries, at(9)); len(c.Items) != mostItems || c.Left == 0 || c.Last != at(9+2*mostItems).UnixMicro() {
		t.Errorf("%d items, %d left out, until %d", len(c.Items), c.Left, c.Last)
	}
	if c = Model(nil, at(9)); c.Rows == nil || c.Items == nil {
		t.Error("without entries: null instead of empty lists")
	}
}
