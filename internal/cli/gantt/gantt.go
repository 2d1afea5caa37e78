// Package gantt draws the journal of a pod as a chart for a terminal. `carob timeline` and `carob demo` print it. It is
// pure: the same entries and width give the same text.
package gantt

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"carob/internal/base/journal"
	"carob/internal/cli/terminal"
)

// Render draws the life of a pod for a terminal of the given width: one row for each thing
// that took time, by container, above a list of events, causes, and failures. The time axis is
// stretched where much happens and compressed where nothing happens, so that a start of 15 ms and
// an hour of running fit on one line. With several pods of one name it draws the newest. It is a
// pure function of its arguments.
func Render(w io.Writer, entries []journal.Entry, width int, color bool) error {
	entries, older := newest(entries)
	if len(entries) == 0 {
		_, err := fmt.Fprintln(w, "no entries for this pod")
		return err
	}
	printable(entries)
	g := &gantt{entries: named(entries), color: color, width: max(width, leastWidth)}
	width = g.width
	g.collect()
	label := 0
	for _, r := range g.rows {
		label = max(label, utf8.RuneCountInString(r.group)+1+utf8.RuneCountInString(r.name))
	}
	// In a narrow terminal, bars take precedence over labels, and labels over notes.
	g.label = min(label, max(width-noteWidth-leastBars, width/2-2)) + 1
	g.axis = newAxis(g.instants(), max(width-g.label-noteWidth, min(leastBars, width-g.label-1)))
	var b strings.Builder
	g.title(&b, older)
	g.ruler(&b)
	for i, r := range g.rows {
		g.row(&b, r, i > 0 && g.rows[i-1].group == r.group)
	}
	g.list(&b, width)
	_, err := io.WriteString(w, b.String())
	return err
}

// printable replaces what a terminal would take for more than text: outputs of probes and messages of registries are
// part of entries.
func printable(entries []journal.Entry) {
	for i := range entries {
		e := &entries[i]
		for _, text := range []*string{&e.Namespace, &e.Pod, &e.UID, &e.Key, &e.Object, &e.Cause, &e.Error, &e.Detail} {
			*text = terminal.PrintableLine(*text)
		}
	}
}

const (
	noteWidth  = 14 // columns right of the bars, for durations
	leastBars  = 20 // minimum columns for bars, except in very narrow terminals
	wideTitle  = 60 // minimum width: in narrower terminals, long titles wrap
	leastWidth = 30 // minimum width: in narrower terminals, lines wrap
)

// clip shortens a text to a number of columns.
func clip(s string, room int) string {
	r := []rune(s)
	if len(r) <= room {
		return s
	}
	if room <= 1 {
		return ""
	}
	return string(r[:room-1]) + "…"
}

// newest keeps the entries of the pod that was seen last and counts the other pods of the same
// name. Entries without UID belong to all of them.
func newest(entries []journal.Entry) (kept []journal.Entry, older int) {
	entries = slices.Clone(entries)
	slices.SortStableFunc(entries, func(a, b journal.Entry) int { return a.Time.Compare(b.Time) })
	var uids []string
	for _, e := range entries {
		if e.UID != "" {
			uids = slices.DeleteFunc(uids, func(u string) bool { return u == e.UID })
			uids = append(uids, e.UID)
		}
	}
	if len(uids) == 0 {
		return entries, 0
	}
	last := uids[len(uids)-1]
	kept = slices.DeleteFunc(entries, func(e journal.Entry) bool { return e.UID != "" && e.UID != last })
	return kept, len(uids) - 1
}

// named adds the container to every entry: the end of an action has only the action's key, an event
// only a path into the spec.
func named(entries []journal.Entry) []journal.Entry {
	objects := map[string]string{}
	for i := range entries {
		e := &entries[i]
		switch e.Kind {
		case journal.ActionBegin:
			objects[e.Key] = e.Object
		case journal.ActionEnd:
			e.Object = or(e.Object, objects[e.Key])
		case journal.Event:
			if _, name, ok := strings.Cut(e.Object, "{"); ok {
				e.Object = strings.TrimSuffix(name, "}")
			}
		case journal.Status, journal.Life, journal.Wait, journal.API, journal.Schedule:
		}
	}
	return entries
}

// style is the look of a bar: a rune without colours, an SGR code with colours.
type style struct {
	fill rune
	sgr  string
}

// The styles of bars and marks.
var (
	styleWork    = style{'█', "34"}
	styleRunning = style{'▓', "32"}
	stylePending = style{'░', "33"}
	styleHook    = style{'▒', "35"}
	styleStop    = style{'▚', "36"}
	styleFailed  = style{'█', "31"}
)

// span is a bar: something that took time.
type span struct {
	from, to time.Time
	style    style
	failed   bool
	open     bool // still running at the last entry
}

// mark is something that took no time.
type mark struct {
	at  time.Time
	r   rune
	sgr string
}

// row is one line of the chart.
type row struct {
	group, name string
	spans       []span
	marks       []mark
	note        string // instead of the durations
}

type gantt struct {
	entries []journal.Entry
	end     time.Time // until when bars that have not ended are drawn
	color   bool
	rows    []*row
	width   int
	label   int
	axis    axis
}

// groups in drawing order; containers follow in order of appearance.
var firstGroups = []string{"pod", "volumes", "sandbox"}

// rowNames in drawing order within a group.
var rowNames = []string{"scheduled", "phase", "prepare", "pull", "create", "start", "running", "postStart", "probes",
	"back-off", "resize", "preStop", "stop", "remove", "delete"}

func (g *gantt) rowOf(group, name string) *row {
	for _, r := range g.rows {
		if r.group == group && r.name == name {
			return r
		}
	}
	r := &row{group: group, name: name}
	g.rows = append(g.rows, r)
	return r
}

// begun is an action that has not ended yet.
type begun struct {
	key, group, name string
	at               time.Time
}

// collect turns entries into rows.
func (g *gantt) collect() {
	end := g.entries[len(g.entries)-1].Time
	if g.end.After(end) {
		end = g.end
	}
	var open []begun
	take := func(key string) (begun, bool) {
		for i, b := range slices.Backward(open) {
			if b.key == key {
				open = slices.Delete(open, i, i+1)
				return b, true
			}
		}
		return begun{}, false
	}
	var phases []journal.Entry
	for _, e := range g.entries {
		switch e.Kind {
		case journal.ActionBegin:
			group, name := place(e)
			open = append(open, begun{e.Key, group, name, e.Time})
		case journal.ActionEnd:
			group, name := place(e)
			if b, ok := take(e.Key); ok {
				g.action(b, e)
			} else if name == "probes" {
				g.probe(group, e)
			} else if e.Duration > 0 {
				g.action(begun{e.Key, group, name, e.Time.Add(-e.Duration)}, e)
			}
		case journal.Schedule:
			g.schedule(e)
		case journal.Status:
			if e.Key == "phase" {
				phases = append(phases, e)
			}
		case journal.Event, journal.Life, journal.Wait, journal.API:
		}
	}
	for _, b := range open {
		r := g.rowOf(b.group, b.name)
		r.spans = append(r.spans, span{from: b.at, to: end, style: barStyle(b.name), open: true})
	}
	g.phases(phases, end)
	g.running(end)
	g.backOff(end)
	g.sort()
}

// place returns the row of an action, by its key: "start/web/3", "sandbox/create/0".
func place(e journal.Entry) (group, name string) {
	steps := strings.Split(e.Key, "/")
	for len(steps) < 3 {
		steps = append(steps, "")
	}
	object := e.Object
	switch steps[0] {
	case "volumes", "sandbox", "pod":
		return steps[0], steps[1]
	case "pull", "start":
		return or(object, steps[1]), steps[0]
	case "probe":
		return or(object, steps[1]), "probes"
	case "hook":
		name := steps[1]
		if name != "" { // it is empty in a damaged entry
			name = strings.ToLower(name[:1]) + name[1:]
		}
		return or(object, steps[2]), name
	default: // stop, remove, resize: the key has an ID, Object the name
		return or(object, steps[1]), steps[0]
	}
}

func or(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

func barStyle(name string) style {
	switch name {
	case "postStart", "preStop":
		return styleHook
	case "stop", "remove", "delete":
		return styleStop
	case "running":
		return styleRunning
	case "back-off":
		return stylePending
	default:
		return styleWork
	}
}

func (g *gantt) action(b begun, e journal.Entry) {
	r := g.rowOf(b.group, b.name)
	r.spans = append(r.spans, span{from: b.at, to: e.Time, style: barStyle(b.name), failed: e.Error != ""})
}

func (g *gantt) probe(group string, e journal.Entry) {
	m := mark{e.Time, '✗', "31"}
	if strings.HasPrefix(e.Detail, "success") {
		m = mark{e.Time, '✓', "32"}
	}
	r := g.rowOf(group, "probes")
	r.marks = append(r.marks, m)
	r.note, _, _ = strings.Cut(e.Detail, ":")
}

func (g *gantt) schedule(e journal.Entry) {
	r := g.rowOf("pod", "scheduled")
	if e.Key == "" {
		r.marks = append(r.marks, mark{e.Time, '✗', "31"})
		r.note = "no node fits"
		return
	}
	r.marks = append(r.marks, mark{e.Time, '◆', "32"})
	r.note = e.Key
}

func (g *gantt) phases(phases []journal.Entry, end time.Time) {
	for i, e := range phases {
		s := span{from: e.Time, to: end, open: true}
		if i+1 < len(phases) {
			s.to, s.open = phases[i+1].Time, false
		}
		switch e.Detail {
		case "Running":
			s.style = styleRunning
		case "Failed":
			s.style, s.open = styleFailed, false
		case "Succeeded":
			s.style, s.open = styleWork, false
		default:
			s.style = stylePending
		}
		r := g.rowOf("pod", "phase")
		r.spans = append(r.spans, s)
		r.note = e.Detail
	}
}

// running draws how long each attempt of a container ran: from the end of its start to the first
// entry that shows its end.
func (g *gantt) running(end time.Time) {
	for i, e := range g.entries {
		if e.Kind != journal.ActionEnd || e.Error != "" || !strings.HasPrefix(e.Key, "start/") {
			continue
		}
		container, _ := place(e)
		s := span{from: e.Time, to: end, style: styleRunning, open: true}
		for _, later := range g.entries[i+1:] {
			if ends(later, container) {
				s.to, s.open = later.Time, false
				break
			}
		}
		r := g.rowOf(container, "running")
		r.spans = append(r.spans, s)
	}
}

// ends reports whether the entry shows that a container no longer runs.
func ends(e journal.Entry, container string) bool {
	group, name := place(e)
	switch e.Kind {
	case journal.ActionEnd:
		return group == container && name == "stop"
	case journal.ActionBegin:
		return group == container && (name == "start" || name == "remove")
	case journal.Wait:
		return e.Object == container && e.Key == "back-off"
	case journal.Status:
		return e.Key == "phase" && (e.Detail == "Succeeded" || e.Detail == "Failed") || e.Key == "exit" &&
			e.Object == container
	case journal.Life:
		return e.Key == "terminated" || e.Key == "finished"
	default:
		return false
	}
}

// backOff draws how long containers waited for their next start.
func (g *gantt) backOff(end time.Time) {
	for i, e := range g.entries {
		if e.Kind != journal.Wait || e.Key != "back-off" {
			continue
		}
		s := span{from: e.Time, to: end, style: stylePending, open: true}
		for _, later := range g.entries[i+1:] {
			group, _ := place(later)
			same := later.Kind == journal.Wait && later.Key == e.Key && later.Object == e.Object
			if same || later.Kind == journal.ActionBegin && group == e.Object || later.Kind == journal.Life {
				s.to, s.open = later.Time, false
				break
			}
		}
		r := g.rowOf(or(e.Object, "pod"), "back-off")
		r.spans = append(r.spans, s)
	}
}

// sort orders the rows: the pod, then containers in order of appearance.
func (g *gantt) sort() {
	var groups []string
	for _, r := range g.rows {
		if !slices.Contains(firstGroups, r.group) && !slices.Contains(groups, r.group) {
			groups = append(groups, r.group)
		}
	}
	groups = append(slices.Clone(firstGroups), groups...)
	rank := func(list []string, s string) int {
		if i := slices.Index(list, s); i >= 0 {
			return i
		}
		return len(list)
	}
	slices.SortStableFunc(g.rows, func(a, b *row) int {
		if a.group != b.group {
			return rank(groups, a.group) - rank(groups, b.group)
		}
		return rank(rowNames, a.name) - rank(rowNames, b.name)
	})
}

func (g *gantt) instants() []time.Time {
	all := []time.Time{g.entries[0].Time, g.entries[len(g.entries)-1].Time}
	for _, r := range g.rows {
		for _, s := range r.spans {
			all = append(all, s.from, s.to)
		}
		for _, m := range r.marks {
			all = append(all, m.at)
		}
	}
	slices.SortFunc(all, time.Time.Compare)
	return slices.CompactFunc(all, time.Time.Equal)
}

// axis maps instants to columns. The distance between two adjacent instants grows with the
// logarithm of the time between them.
type axis struct {
	instants []time.Time
	at       []float64 // of each instant, 0–1
	columns  int
}

func newAxis(instants []time.Time, columns int) axis {
	const unit = float64(time.Millisecond) // shorter intervals are drawn in proportion
	a := axis{instants: instants, at: make([]float64, len(instants)), columns: columns}
	for i := 1; i < len(instants); i++ {
		a.at[i] = a.at[i-1] + math.Log1p(float64(instants[i].Sub(instants[i-1]))/unit)
	}
	if total := a.at[len(a.at)-1]; total > 0 {
		for i := range a.at {
			a.at[i] /= total
		}
	}
	return a
}

// column of an instant that the axis was created with.
func (a axis) column(t time.Time) int {
	i, _ := slices.BinarySearchFunc(a.instants, t, time.Time.Compare)
	i = min(i, len(a.at)-1)
	return int(math.Round(a.at[i] * float64(a.columns-1)))
}

func (g *gantt) start() time.Time { return g.axis.instants[0] }

func (g *gantt) title(b *strings.Builder, older int) {
	first, last := g.entries[0], g.entries[len(g.entries)-1]
	name := fmt.Sprintf("pod %s/%s", first.Namespace, first.Pod)
	parts := []string{fmt.Sprintf("from %s, %s", first.Time.UTC().Format("2006-01-02 15:04:05.000Z"),
		short(last.Time.Sub(first.Time)))}
	if last.UID != "" {
		parts = slices.Insert(parts, 0, "uid "+last.UID)
	}
	switch older {
	case 0:
	case 1:
		parts = append(parts, "(1 earlier pod had this name)")
	default:
		parts = append(parts, fmt.Sprintf("(%d earlier pods had this name)", older))
	}
	b.WriteString(g.paint("1", clip(name, g.width)))
	used := utf8.RuneCountInString(name)
	for _, p := range parts {
		if used += 2 + utf8.RuneCountInString(p); used <= g.width || g.width >= wideTitle {
			b.WriteString("  " + p)
			continue
		}
		b.WriteString("\n" + clip(p, g.width))
		used = utf8.RuneCountInString(p)
	}
	b.WriteString("\n\n")
}

// ruler draws the axis with as many times as fit.
func (g *gantt) ruler(b *strings.Builder) {
	times := []rune(strings.Repeat(" ", min(g.axis.columns+noteWidth, g.width-g.label-1)))
	line := []rune(strings.Repeat("─", g.axis.columns))
	free := 0
	for _, t := range g.axis.instants {
		column := g.axis.column(t)
		text := []rune(short(t.Sub(g.start())))
		if column < free {
			continue
		}
		copy(times[column:], text)
		line[column] = '┬'
		free = column + len(text) + 2
	}
	fmt.Fprintf(b, "%*s%s\n", g.label+1, "", strings.TrimRight(string(times), " "))
	fmt.Fprintf(b, "%*s%s\n", g.label+1, "", g.paint("2", string(line)))
}

// cell is one column of a row.
type cell struct {
	r   rune
	sgr string
}

func (g *gantt) row(b *strings.Builder, r *row, sameGroup bool) {
	group := r.group
	if sameGroup {
		group = strings.Repeat(" ", utf8.RuneCountInString(group))
	}
	label := clip(group+" "+r.name, g.label)
	var line strings.Builder
	line.WriteString(label + strings.Repeat(" ", g.label-utf8.RuneCountInString(label)) + g.paint("2", "│"))
	cells := make([]cell, g.axis.columns)
	for i := range cells {
		cells[i].r = ' '
	}
	for _, s := range r.spans {
		g.draw(cells, s)
	}
	for _, m := range r.marks {
		cells[g.axis.column(m.at)] = cell{m.r, m.sgr}
	}
	for i := 0; i < len(cells); {
		var run []rune
		from := i
		for ; i < len(cells) && cells[i].sgr == cells[from].sgr; i++ {
			run = append(run, cells[i].r)
		}
		line.WriteString(g.paint(cells[from].sgr, string(run)))
	}
	if note := clip(r.text(), g.width-g.label-g.axis.columns-3); note != "" {
		line.WriteString("  " + note)
	}
	b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
}

func (g *gantt) draw(cells []cell, s span) {
	look := s.style
	if s.failed {
		look.sgr = styleFailed.sgr
	}
	from, to := g.axis.column(s.from), g.axis.column(s.to)
	for i := from; i <= to; i++ {
		cells[i] = cell{look.fill, look.sgr}
	}
	switch {
	case s.failed:
		cells[to] = cell{'✗', styleFailed.sgr}
	case s.open:
		cells[to] = cell{'▶', look.sgr}
	}
}

// text is shown right of the bars: the total duration.
func (r *row) text() string {
	if r.note != "" || len(r.spans) == 0 {
		return r.note
	}
	var total time.Duration
	open := false
	for _, s := range r.spans {
		total += s.to.Sub(s.from)
		open = open || s.open
	}
	text := short(total)
	if len(r.spans) > 1 {
		text = fmt.Sprintf("%d× %s", len(r.spans), text)
	}
	if open {
		text += " …"
	}
	return text
}
