package accesslog

// Time is the form of times.
const Time = "2006-01-02T15:04:05.000000Z"

// Line is one line about a request. A query may have secrets: it is not written.
type Line struct {
	Time      string  `json:"time"` // when the request began
	Client    string  `json:"client"`
	Protocol  string  `json:"protocol"`
	Method    string  `json:"method"`
	Host      string  `json:"host"`
	Path      string  `json:"path"`
	Status    int     `json:"status"` // 0: the client left before an answer
	BytesIn   int64   `json:"bytesIn"`
	BytesOut  int64   `json:"bytesOut"`
	Seconds   float64 `json:"seconds"`
	Route     string  `json:"route,omitempty"` // KIND/NAMESPACE/NAME
	Rule      string  `json:"rule,omitempty"`
	Backend   string  `json:"backend,omitempty"` // NAMESPACE/NAME:PORT
	Endpoint  string  `json:"endpoint,omitempty"`
	Attempts  int     `json:"attempts,omitempty"`
	UserAgent string  `json:"userAgent,omitempty"`
	Trace     string  `json:"trace,omitempty"` // of the W3C header traceparent
	Inferred
}

// Inferred are the additional fields of a line about an inference request.
type Inferred struct {
	Model string `json:"model,omitempty"` // that the client requested
	// Target is the model in the request to the server, if it is another.
	Target string `json:"targetModel,omitempty"`
	// InputTokens, OutputTokens, and CachedTokens are what the server counted; 0: not reported.
	InputTokens  int `json:"inputTokens,omitempty"`
	OutputTokens int `json:"outputTokens,omitempty"`
	CachedTokens int `json:"cachedTokens,omitempty"`
	// Reason is why the request was refused, as in the header x-llm-d-request-dropped-reason.
	Reason string `json:"reason,omitempty"`
}
