package inference

import (
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"carob/internal/core/modelbody"
	"carob/internal/core/routing"
)

// Passes reports whether a body is passed through: it is not JSON, such as that of gRPC, or of an audio file. A type
// that servers may interpret differently is read as JSON: vLLM ignores what comes after the first semicolon, valid or
// not, and of two fields some servers use the first and others the last. Of a type that Connection names the server
// gets nothing, and may assume JSON. Otherwise a client could hide the model from the policies of the pool.
func Passes(h http.Header) bool {
	kinds := h["Content-Type"]
	if len(kinds) != 1 || httpguts.HeaderValuesContainsToken(h["Connection"], "Content-Type") {
		return false
	}
	media, _, _ := strings.Cut(kinds[0], ";")
	media = strings.ToLower(strings.Trim(media, " \t"))
	kind, of, ok := strings.Cut(media, "/")
	if !ok || !httpguts.ValidHeaderFieldName(kind) || !httpguts.ValidHeaderFieldName(of) { // both are tokens
		return false
	}
	switch media {
	case "application/json", "text/json", "text/plain",
		"application/x-www-form-urlencoded": // curl's --data sets it
		return false
	}
	return !strings.HasSuffix(of, "+json")
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
		Streaming:  facts.Stream,
		TTFT:       milliseconds(header(h, "X-Llm-D-Slo-Ttft-Ms", "X-Slo-Ttft-Ms")),
		TPOT:       milliseconds(header(h, "X-Llm-D-Slo-Tpot-Ms", "X-Slo-Tpot-Ms"))}
	if name := p.sessionHeader(); name != "" {
		if session, err := base64.StdEncoding.DecodeString(h.Get(name)); err == nil {
			r.Session = string(session)
		}
	}
	if !facts.Prompt[2].Empty() {
		var prompt [3][]byte
		for i, s := range facts.Prompt {
			prompt[i] = s.Of(body)
		}
		r.Prefix = p.Hasher().Hash(nil, target, facts.Salt, prompt[:]...)
	}
	return r
}

// header returns the first value of the first field that has one. The names are canonical.
func header(h http.Header, names ...string) string {
	for _, n := range names {
		if v := h[n]; len(v) > 0 && v[0] != "" {
			return v[0]
		}
	}
	return ""
}

func milliseconds(text string) time.Duration {
	if text == "" {
		return 0
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || !(n > 0 && n < 1e9) {
		return 0
	}
	return time.Duration(n * float64(time.Millisecond))
}
