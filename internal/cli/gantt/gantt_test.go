package gantt

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/cockroachdb/datadriven"

	"carob/internal/base/journal"
)

// TestGantt draws the pods of testdata. A line of input is an offset, a kind, a key, and the
// other fields of the entry: object=, cause=, error=, detail=, uid=, duration=; the last one
// extends to the end of the line.
func TestGantt(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			width, color := 110, d.HasArg("color")
			if d.HasArg("width") {
				d.ScanArgs(t, "width", &width)
			}
			var out bytes.Buffer
			if err := Render(&out, parseEntries(t, d.Input), width, color); err != nil {
				t.Fatal(err)
			}
			return strings.ReplaceAll(out.String(), "\x1b", "^")
		})
	})
}

func parseEntries(t *testing.T, input string) []journal.Entry {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var entries []journal.Entry
	for line := range strings.Lines(input) {
		words := strings.SplitN(strings.TrimSpace(line), " ", 4)
		after, err := time.ParseDuration(words[0])
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		e := journal.Entry{Time: start.Add(after), Namespace: "default", Pod: "web", UID: "u1",
			Kind: journal.Kind(words[1]), Key: strings.Trim(words[2], "-")}
		for len(words) == 4 && words[3] != "" {
			name, value, _ := strings.Cut(words[3], "=")
			words[3] = ""
			switch name {
			case "object", "uid", "duration":
				value, words[3], _ = strings.Cut(value, " ")
			}
			switch name {
			case "object":
				e.Object = value
			case "uid":
				e.UID = value
			case "cause":
				e.Cause = value
			case "error":
				e.Error = value
			case "detail":
				e.Detail = value
			case "duration":
				if e.Duration, err = time.ParseDuration(value); err != nil {
					t.Fatalf("%q: %v", line, err)
				}
			default:
				t.Fatalf("%q: unknown field %q", line, name)
			}
		}
		entries = append(entries, e)
	}
	return entries
}

func TestShortDurations(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0", 900 * time.Nanosecond: "0µs", 40 * time.Microsecond: "40µs", 1500 * time.Microsecond: "1.5ms",
		12 * time.Millisecond:   "12ms",
		1234 * time.Millisecond: "1.23s", 30 * time.Second: "30.0s", 61 * time.Second: "1m01s",
		90 * time.Minute: "1h30m", 50 * time.Hour: "2d02h",
	} {
		if got := short(d); got != want {
			t.Errorf("%v: %q, want %q", d, got, want)
		}
	}
}

func TestShortIDLeavesNamesAlone(t *testing.T) {
	id := strings.Repeat("0a", 32)
	for in, want := range map[string]string{id: id[:12], "web": "web",
		"docker.io/library/nginx:1.27": "docker.io/library/nginx:1.27",
		strings.Repeat("z", 64):        strings.Repeat("z", 64), "": ""} {
		if got := shortID(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

// No line of a chart is longer than the width of the terminal, whatever the width and the names.
func TestGanttFits(t *testing.T) {
	entries := parseEntries(t, `0s schedule ip-10-0-12-34.eu-central-1.compute.internal
1ms action-begin pull/istio-proxy-sidecar object=istio-proxy-sidecar
900ms action-end pull/istio-proxy-sidecar error=a registry that does not answer said nothing for a long time and then hung up
1s event Failed object=spec.containers{istio-proxy-sidecar} detail=Error: ImagePullBackOff of something with a long name
2s action-begin start/istio-proxy-sidecar/0 object=istio-proxy-sidecar cause=the pull is through after a while
3s action-end start/istio-proxy-sidecar/0
3600s status phase detail=Running`)
	for width := leastWidth; width <= 130; width++ {
		var out bytes.Buffer
		if err := Render(&out, entries, width, false); err != nil {
			t.Fatal(err)
		}
		for i, l := range strings.Split(out.String(), "\n") {
			if n := utf8.RuneCountInString(l); n > width && (i > 0 || width < wideTitle) {
				t.Fatalf("width %d: a line of %d columns: %q in\n%s", width, n, l, out.String())
			}
		}
	}
}

// An entry with a damaged key is drawn, whatever its kind.
func TestDamagedKeys(t *testing.T) {
	for _, kind := range []journal.Kind{journal.ActionBegin, journal.ActionEnd, journal.Event, journal.Status,
		journal.Wait, journal.Life} {
		for _, key := range []string{"hook", "hook/", "hook//web", "/", "", "start", "sandbox", "\xff/\xff"} {
			e := journal.Entry{Time: time.Unix(1, 0), Pod: "web", UID: "u", Kind: kind, Key: key}
			if err := Render(&bytes.Buffer{}, []journal.Entry{e, e}, 80, false); err != nil {
				t.Errorf("%s %q: %v", kind, key, err)
			}
			Model([]journal.Entry{e, e}, time.Unix(2, 0))
		}
	}
}

// What a container or a registry has written can't control the terminal, and does not change the entries.
func TestHostileTexts(t *testing.T) {
	const hostile = "\x1b]0;owned\x07\r\u009b2J\x7f\nnext"
	var entries []journal.Entry
	for _, kind := range []journal.Kind{journal.ActionBegin, journal.ActionEnd, journal.Event, journal.Status,
		journal.Wait, journal.API, journal.Schedule, journal.Life, "other"} {
		for _, key := range []string{"probe/" + hostile, "start/web/0", hostile, ""} {
			entries = append(entries, journal.Entry{Time: time.Unix(1, 0), Namespace: hostile, Pod: hostile,
				UID: hostile, Kind: kind, Key: key, Object: hostile, Cause: hostile, Error: hostile, Detail: hostile})
		}
	}
	before := slices.Clone(entries)
	var out bytes.Buffer
	if err := Render(&out, entries, 110, false); err != nil {
		t.Fatal(err)
	}
	if i := strings.IndexFunc(out.String(), func(c rune) bool {
		return c < ' ' && c != '\n' || c >= 0x7f && c < 0xa0
	}); i >= 0 {
		t.Errorf("%q", out.String()[max(i-20, 0):i+20])
	}
	if !slices.Equal(entries, before) {
		t.Error("the entries of the caller have changed")
	}
}
