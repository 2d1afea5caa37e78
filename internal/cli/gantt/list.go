package gantt

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"carob/internal/base/journal"
	"carob/internal/cli/terminal"
)

// list prints causes, events, failures, and waits.
func (g *gantt) list(b *strings.Builder, width int) {
	b.WriteByte('\n')
	type line struct{ offset, what, text, sgr string }
	var lines []line
	offset, middle := 0, 0
	g.described(func(e journal.Entry, who, what, text, sgr string) {
		l := line{"+" + precise(e.Time.Sub(g.start())), strings.TrimSpace(who + " " + what), text, sgr}
		offset, middle = max(offset, utf8.RuneCountInString(l.offset)), max(middle, utf8.RuneCountInString(l.what))
		lines = append(lines, l)
	})
	const indent = 4
	for _, l := range lines {
		head := fmt.Sprintf("%*s  %-*s  ", offset, l.offset, middle, l.what)
		if width-offset-middle-indent < terminal.MinWidth { // no room beside it: on the next line
			b.WriteString(g.paint(l.sgr, clip(l.offset+"  "+l.what, width)) + "\n")
			head = strings.Repeat(" ", indent)
			if l.text == "" {
				continue
			}
		}
		for _, text := range terminal.Wrap(l.text, width-utf8.RuneCountInString(head)) {
			b.WriteString(g.paint(l.sgr, strings.TrimRight(head+text, " ")) + "\n")
			head = strings.Repeat(" ", utf8.RuneCountInString(head))
		}
	}
}

// described passes the entries that have a description, with whom each is about.
func (g *gantt) described(each func(e journal.Entry, who, what, text, sgr string)) {
	for _, e := range g.entries {
		what, text, sgr := describe(e)
		if what == "" {
			continue
		}
		who := e.Object
		if e.Kind == journal.ActionBegin || e.Kind == journal.ActionEnd {
			who, _ = place(e)
		}
		each(e, shortID(who), what, text, sgr)
	}
}

// shortID shortens the long IDs of the runtime, which would push all texts to the right.
func shortID(s string) string {
	const long, enough = 64, 12
	if len(s) == long && strings.Trim(s, "0123456789abcdef") == "" {
		return s[:enough]
	}
	return s
}

// describe returns the type of an entry in a word, and its text; nothing for entries that the chart
// shows well enough.
func describe(e journal.Entry) (what, text, sgr string) {
	join := func(parts ...string) string {
		return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), ": ")
	}
	_, name := place(e)
	switch e.Kind {
	case journal.ActionBegin:
		if e.Cause == "" {
			return "", "", ""
		}
		return name, "because " + e.Cause, ""
	case journal.ActionEnd:
		switch {
		case e.Error != "":
			return name + " failed", e.Error, "31"
		case name == "probes" && !strings.HasPrefix(e.Detail, "success"):
			return "probe", e.Detail, "31"
		case name == "probes":
			return "probe", e.Detail, "32"
		}
		return "", "", ""
	case journal.Event:
		return "event", join(e.Key, e.Detail), "36"
	case journal.Status:
		return e.Key, join(e.Detail, e.Cause), ""
	case journal.Wait:
		return "waits", join("for "+e.Key, e.Cause), "33"
	case journal.API:
		return "API", join(e.Key, e.Detail), ""
	case journal.Schedule:
		if e.Key == "" {
			return "no node", e.Detail, "31"
		}
		return "scheduled", "to " + e.Key, ""
	case journal.Life:
		return "life", e.Key, ""
	default:
		return string(e.Kind), join(e.Key, e.Detail), ""
	}
}

func (g *gantt) paint(sgr, s string) string {
	if !g.color || sgr == "" || s == "" {
		return s
	}
	return "\x1b[" + sgr + "m" + s + "\x1b[0m"
}

// short formats a duration with about three digits.
func short(d time.Duration) string {
	switch {
	case d <= 0:
		return "0"
	case d < time.Millisecond:
		return fmt.Sprintf("%dµs", d.Microseconds())
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.1fms", float64(d)/float64(time.Millisecond))
	case d < time.Second:
		return fmt.Sprintf("%dms", d.Milliseconds())
	case d < 10*time.Second:
		return fmt.Sprintf("%.2fs", d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	default:
		return fmt.Sprintf("%dd%02dh", int(d.Hours())/24, int(d.Hours())%24)
	}
}

// precise formats a duration in milliseconds.
func precise(d time.Duration) string {
	if d < time.Second {
		return short(d)
	}
	d = d.Round(time.Millisecond)
	h, m, sec := int(d.Hours()), int(d.Minutes())%60, (d % time.Minute).Seconds()
	switch {
	case h > 0:
		return fmt.Sprintf("%dh%02dm%06.3fs", h, m, sec)
	case m > 0:
		return fmt.Sprintf("%dm%06.3fs", m, sec)
	default:
		return fmt.Sprintf("%.3fs", sec)
	}
}
