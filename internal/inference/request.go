package inference

import (
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"carob/internal/core/modelbody"
	"carob/internal/core/routing"
)

// Passes reports whether a body is passed through: it is not JSON, such as that of gRPC, or of an audio file.
func Passes(h http.Header) bool {
	kind := h.Get("Content-Type")
	media, _, err := mime.ParseMediaType(kind)
	return kind != "" && (err != nil || media != "application/json" && !strings.HasSuffix(media, "+json") &&
		media != "text/plain" && media != "application/x-www-form-urlencoded") // curl's --data sets the last one
}

// Objective is the name of the InferenceObjective that a request has; empty: none.
func Objective(h http.Header) string {
	return header(h, "X-Llm-D-Inference-Objective", "X-Gateway-Inference-Objective")
}

// Request returns the picker's form of a request with this header and body; target is the model's name on the servers.
func (p *Pool) Request(h http.Header, facts *modelbody.Facts, body []byte, target string,
	priority int) *routing.Request {
	r := &routing.Request{Model: facts.Model, Target: target, Priority: priority, Bytes: len(body),
		FairnessID: header(h, "X-Llm-D-Inference-Fairness-Id", "X-Gateway-Inference-Fairness-Id"),
		Session:    h.Get("X-Session-Token"), Streaming: facts.Stream,
		TTFT: milliseconds(header(h, "X-Llm-D-Slo-Ttft-Ms", "X-Slo-Ttft-Ms")),
		TPOT: milliseconds(header(h, "X-Llm-D-Slo-Tpot-Ms", "X-Slo-Tpot-Ms"))}
	if !facts.Prompt[2].Empty() {
		var prompt [3][]byte
		for i, s := range facts.Prompt {
			prompt[i] = s.Of(body)
		}
		r.Prefix = p.Hasher().Hash(nil, target, facts.Salt, prompt[:]...)
	}
	return r
}

func header(h http.Header, names ...string) string {
	for _, n := range names {
		if v := h.Get(n); v != "" {
			return v
		}
	}
	return ""
}

func milliseconds(text string) time.Duration {
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || !(n > 0 && n < 1e9) {
		return 0
	}
	return time.Duration(n * float64(time.Millisecond))
}
