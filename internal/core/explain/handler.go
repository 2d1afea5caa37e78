package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Reasons of events about a Node: the container runtime of a RuntimeClass handler cannot be used any more, or answers
// again.
const (
	handlerNotReady = "RuntimeHandlerNotReady"
	handlerReady    = "RuntimeHandlerReady"
)

const (
	cannotBeUsed = " cannot be used: "
	answersAgain = " answers again"
	// mostOfCause is the maximum length in bytes of what an event repeats of a message of another process.
	mostOfCause = 512
)

// HandlerEvent is the event about a Node when the container runtime at a socket, which serves these RuntimeClass
// handlers, cannot be used for the cause, or answers again (no cause). The cause may come from that runtime: it may
// have any length and any bytes.
func HandlerEvent(handlers []string, endpoint, cause string) (kind, reason, message string) {
	message = fmt.Sprintf("The container runtime of handler %s at %s", strings.Join(handlers, ", "), endpoint)
	if cause == "" {
		return corev1.EventTypeNormal, handlerReady, message + answersAgain
	}
	if len(cause) > mostOfCause {
		cause = cause[:mostOfCause] + "…"
	}
	return corev1.EventTypeWarning, handlerNotReady, message + cannotBeUsed + strings.ToValidUTF8(cause, "�")
}

// handlers adds the newest event about each runtime of RuntimeClass handlers that cannot be used.
func (l *Lines) handlers(events []corev1.Event) {
	newest := map[string]*corev1.Event{} // by the runtime
	for i := range events {
		e := &events[i]
		end := map[string]string{handlerNotReady: cannotBeUsed, handlerReady: answersAgain}[e.Reason]
		if end == "" {
			continue
		}
		which, _, _ := strings.Cut(e.Message, end)
		old := newest[which]
		if old == nil || eventTime(old).Before(eventTime(e)) ||
			eventTime(old).Equal(eventTime(e)) && e.Reason == handlerReady { // times of events are whole seconds
			newest[which] = e
		}
	}
	var down []*corev1.Event
	for _, e := range newest { // any order: they are sorted below
		if e.Reason == handlerNotReady {
			down = append(down, e)
		}
	}
	slices.SortFunc(down, func(a, b *corev1.Event) int { return cmp.Compare(a.Message, b.Message) })
	for _, e := range down {
		l.warn("%s", because(e.Reason, e.Message))
	}
}

// MissingHandler is the RuntimeClass handler of a pod if the pod's node does not list it: no container runtime of the
// node serves it now. It is empty if the node lists it, or does not list handlers.
func MissingHandler(n *corev1.Node, handler string) string {
	if len(n.Status.RuntimeHandlers) == 0 || slices.ContainsFunc(n.Status.RuntimeHandlers,
		func(h corev1.NodeRuntimeHandler) bool { return h.Name == handler }) {
		return ""
	}
	return handler
}
