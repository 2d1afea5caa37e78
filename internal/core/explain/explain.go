// Package explain describes the state of an object in sentences, and why it does not work as specified. Its input is
// the object, its status, and the engine's own state of it. `carob explain` prints them. It decides nothing.
package explain

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Line is a sentence. Problem marks a sentence about something that fails or waits.
type Line struct {
	Problem bool   `json:"problem"`
	Text    string `json:"text"`
}

// Lines describe an object, the most important line first.
type Lines []Line

func (l *Lines) info(format string, args ...any) {
	*l = append(*l, Line{false, fmt.Sprintf(format, args...)})
}
func (l *Lines) warn(format string, args ...any) {
	*l = append(*l, Line{true, fmt.Sprintf(format, args...)})
}

// Problems reports whether any line is a problem.
func (l Lines) Problems() bool { return slices.ContainsFunc(l, func(o Line) bool { return o.Problem }) }

// ago is how long something was before now, in a readable unit.
func ago(now, at time.Time) string {
	switch d := max(now.Sub(at), 0); {
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 3*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	default:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	}
}

// counted formats a number with its noun.
func counted(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// conditions adds a problem for each condition that is not True; of is the owner of the condition.
func (l *Lines) conditions(of string, all []metav1.Condition) {
	for _, c := range all {
		if c.Status != metav1.ConditionTrue {
			l.warn("%s: %s is %s: %s", of, c.Type, strings.ToLower(string(c.Status)), because(c.Reason, c.Message))
		}
	}
}

// because formats a reason with its message.
func because(reason, message string) string {
	switch {
	case message == "":
		return reason
	case reason == "":
		return message
	}
	return message + " (" + reason + ")"
}

// after puts text behind a separator; nothing if there is no text.
func after(separator, text string) string {
	if text == "" {
		return ""
	}
	return separator + text
}
