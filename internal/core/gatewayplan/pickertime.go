package gatewayplan

import (
	"fmt"
	"time"
)

// PickerTimeout is the annotation of an InferencePool that limits how long its own picker may take for a decision: a
// duration such as 5s. A picker whose server responds is not known to hang otherwise: it may hold the request until a
// model server has room.
const PickerTimeout = "carob.dev/picker-timeout"

// The limits without the annotation. Who lets requests through when the picker fails prefers any server to a long wait;
// otherwise the limit is longer than what llm-d's picker holds a request for by default, which is 60 s.
const (
	openTime     = 10 * time.Second
	closedTime   = 90 * time.Second
	mostPickTime = time.Hour
)

// readTimeout sets the picker's time for a decision.
func (p *Pool) readTimeout(annotations map[string]string) {
	if p.Picker == nil {
		return
	}
	p.Picker.Timeout = closedTime
	if p.Picker.FailOpen {
		p.Picker.Timeout = openTime
	}
	text, ok := annotations[PickerTimeout]
	if !ok {
		return
	}
	switch d, err := time.ParseDuration(text); {
	case err != nil:
		p.PickerProblem = fmt.Sprintf("the annotation %s has no effect: %v", PickerTimeout, err)
	case d <= 0 || d > mostPickTime:
		p.PickerProblem = fmt.Sprintf("the annotation %s has no effect: %q is not between 0s and %s", PickerTimeout, text,
			mostPickTime)
	default:
		p.Picker.Timeout = d
	}
}
