package gantt

import (
	"slices"
	"strings"
	"time"

	"carob/internal/base/journal"
)

// Chart is the life of a pod for a program that draws it. Times are microseconds since 1970.
type Chart struct {
	UID   string `json:"uid,omitempty"`
	Older int    `json:"older,omitempty"` // pods that had the name earlier
	First int64  `json:"first"`
	Last  int64  `json:"last"`
	Rows  []Row  `json:"rows"`
	Items []Item `json:"items"`          // oldest first
	Left  int    `json:"left,omitempty"` // items that were left out, the oldest
}

// Row is what took time, of one kind and one container.
type Row struct {
	Group string `json:"group"`
	Name  string `json:"name"`
	Note  string `json:"note,omitempty"`
	Spans []Span `json:"spans,omitempty"`
	Marks []Mark `json:"marks,omitempty"`
}

// Span is a bar.
type Span struct {
	From   int64  `json:"from"`
	To     int64  `json:"to"`
	Look   string `json:"look"` // work, running, pending, hook, stop, failed
	Failed bool   `json:"failed,omitempty"`
	Open   bool   `json:"open,omitempty"` // it had not ended at the last entry
}

// Mark is a moment.
type Mark struct {
	At   int64 `json:"at"`
	Good bool  `json:"good"`
}

// Item is an entry of the list of causes, events, and failures.
type Item struct {
	At   int64  `json:"at"`
	Who  string `json:"who,omitempty"`
	What string `json:"what"`
	Text string `json:"text,omitempty"`
	Tone string `json:"tone,omitempty"` // bad, good, wait, event
}

// Limits of a chart.
const (
	mostItems   = 500
	mostOfRow   = 500 // bars and marks, the newest
	mostOfChart = 200 // rows
)

// Model returns the chart that Render draws; what has not ended lasts until now.
func Model(entries []journal.Entry, now time.Time) Chart {
	entries, older := newest(entries)
	if len(entries) == 0 {
		return Chart{Rows: []Row{}, Items: []Item{}}
	}
	g := &gantt{entries: named(entries), end: now}
	g.collect()
	out := Chart{UID: entries[len(entries)-1].UID, Older: older, First: entries[0].Time.UnixMicro(),
		Last: max(now.UnixMicro(), entries[len(entries)-1].Time.UnixMicro()), Rows: []Row{}, Items: []Item{}}
	looks := map[style]string{styleWork: "work", styleRunning: "running", stylePending: "pending", styleHook: "hook",
		styleStop: "stop", styleFailed: "failed"}
	for _, r := range g.rows[:min(len(g.rows), mostOfChart)] {
		row := Row{Group: r.group, Name: r.name, Note: r.text()}
		for _, s := range r.spans[max(len(r.spans)-mostOfRow, 0):] {
			row.Spans = append(row.Spans, Span{s.from.UnixMicro(), s.to.UnixMicro(), looks[s.style], s.failed, s.open})
		}
		for _, m := range r.marks[max(len(r.marks)-mostOfRow, 0):] {
			row.Marks = append(row.Marks, Mark{m.at.UnixMicro(), m.sgr == "32"})
		}
		out.Rows = append(out.Rows, row)
	}
	tones := map[string]string{"31": "bad", "32": "good", "33": "wait", "36": "event"}
	g.described(func(e journal.Entry, who, what, text, sgr string) {
		out.Items = append(out.Items, Item{e.Time.UnixMicro(), who, what, strings.TrimSpace(text), tones[sgr]})
	})
	out.Left = max(len(out.Items)-mostItems, 0)
	out.Items = slices.Delete(out.Items, 0, out.Left)
	return out
}
