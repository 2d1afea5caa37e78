package explain

import (
	"strings"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
)

// What is printed of a log.
const (
	LogLines = 3    // the last ones
	LogBytes = 4096 // more are not read
	mostLine = 300  // bytes of one line
)

// LogRef names the log of a container.
type LogRef struct {
	Pod, Container string
	Previous       bool // of the run before the current one, as in `kubectl logs --previous`
}

// Log is the end of a log.
type Log struct {
	LogRef
	Text string
}

// FailedLog returns the log of the program that failed last in any of the pods; nil if none did. A program that could
// not be started has none.
func FailedLog(pods ...*corev1.Pod) *LogRef {
	var out *LogRef
	var newest time.Time
	consider := func(p *corev1.Pod, container string, t *corev1.ContainerStateTerminated, previous bool) {
		if t == nil || t.ExitCode == 0 || t.StartedAt.IsZero() || t.Reason == "StartError" ||
			t.Reason == "ContainerStatusUnknown" || out != nil && !t.FinishedAt.After(newest) {
			return
		}
		out, newest = &LogRef{p.Name, container, previous}, t.FinishedAt.Time
	}
	for _, p := range pods {
		for _, all := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
			for i := range all {
				consider(p, all[i].Name, all[i].State.Terminated, false)
				consider(p, all[i].Name, all[i].LastTerminationState.Terminated, true)
			}
		}
	}
	return out
}

// log adds the last lines of a log. explained is the pod whose name need not be repeated.
func (l *Lines) log(log *Log, explained string) {
	if log == nil {
		return
	}
	of := "container " + log.Container
	if log.Pod != explained {
		of = "pod " + log.Pod + ", " + of
	}
	lines := strings.Split(strings.TrimSpace(log.Text), "\n")
	for _, line := range lines[max(len(lines)-LogLines, 0):] {
		if line = strings.TrimSpace(line); line != "" {
			l.info("log of %s: %s", of, cut(line))
		}
	}
}

// cut shortens a line to mostLine bytes, between characters.
func cut(line string) string {
	if len(line) <= mostLine {
		return line
	}
	end := mostLine
	for end > 0 && !utf8.RuneStart(line[end]) {
		end--
	}
	return line[:end] + "…"
}
