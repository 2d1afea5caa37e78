package explain

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Parent is the entry of a Gateway in the status of an object.
type Parent struct {
	Name       string             `json:"name"` // of the Gateway
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// PoolState is the gateway's state of an InferencePool that it serves.
type PoolState struct {
	Group     string `json:"group"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Picker is the Service of the endpoint picker, NAMESPACE/NAME:PORT; empty: carob's own picker.
	Picker        string `json:"picker,omitempty"`
	FailOpen      bool   `json:"failOpen,omitempty"`
	DrainProblem  string `json:"drainProblem,omitempty"`  // why the annotation for deleted pods has no effect
	PickerProblem string `json:"pickerProblem,omitempty"` // why the annotation for its time has no effect
	// PickerEmpty: the Service of the endpoint picker has no ready endpoint.
	PickerEmpty bool `json:"pickerEmpty,omitempty"`
	// Unconfigured is the ConfigMap that the pool names for carob's picker, which has no configuration; empty: it has,
	// or none is named.
	Unconfigured string `json:"unconfigured,omitempty"`
	// Models are the model names in InferenceModels and rewrites; nil: there are none, and any name is forwarded.
	Models []string `json:"models,omitempty"`
	// Shed means that requests for models without an InferenceModel are refused first under load.
	Shed bool `json:"shed,omitempty"`
	// The rest is set only for carob's own picker.
	Ready      int      `json:"ready"`
	Held       int      `json:"held"`
	HeldBytes  int      `json:"heldBytes"`
	Requests   int      `json:"requests"` // on servers
	Waiting    int      `json:"waiting"`  // of Requests, those in the servers' queues
	Refused    int64    `json:"refused"`  // by the picker, since it began to serve the pool
	Saturation float64  `json:"saturation"`
	Starting   bool     `json:"starting,omitempty"` // requests wait for the first server
	Servers    []Server `json:"servers,omitempty"`
	// TokenProblem is why prompts cannot be compared with KV events; empty: they can be, or need not be.
	TokenProblem string `json:"tokenProblem,omitempty"`
}

// Server is the picker's state of a model server.
type Server struct {
	Name     string     `json:"name"`
	Address  string     `json:"address"`
	Engine   string     `json:"engine,omitempty"`
	Waiting  int        `json:"waiting"`
	Running  int        `json:"running"`
	Cache    float64    `json:"cache"` // used share, 0 to 1
	InFlight int        `json:"inFlight"`
	Adapters []string   `json:"adapters,omitempty"`
	Seen     *time.Time `json:"seen,omitempty"`    // time of its newest metrics; nil: none yet
	Problem  string     `json:"problem,omitempty"` // of the last request for metrics
	Events   *Events    `json:"events,omitempty"`  // nil: the pool does not follow KV events
}

// Events is the state of a server's cache according to its KV events.
type Events struct {
	Blocks   int    `json:"blocks"`
	Received bool   `json:"received"` // a message has arrived on this connection
	Whole    bool   `json:"whole"`    // nothing was missed
	Full     bool   `json:"full,omitempty"`
	Gaps     int    `json:"gaps,omitempty"`
	Wrong    int    `json:"wrong,omitempty"` // expected tokens of a block if its blocks differ; else 0
	Problem  string `json:"problem,omitempty"`
}

// PickerKey is the key of a configuration of carob's picker in its ConfigMap.
const PickerKey = "endpoint-picker-config.yaml"

// staleAfter is the age after which metrics are ignored. A pool without requests is scraped every 5 s.
const staleAfter = 15 * time.Second

// mostNamed is the maximum number of pods or servers that are listed.
const mostNamed = 8

// Pool is an InferencePool and the objects and states that explain it.
type Pool struct {
	Selector map[string]string
	Parents  []Parent
	Pods     []*corev1.Pod // that the selector matches
	State    *PoolState    // nil: the gateway does not serve it
	Unknown  string        // why the gateway's state could not be read; empty: it was
	Model    string        // a model to explain, too; empty: none
}

// InferencePool explains a pool.
func InferencePool(p *Pool, now time.Time) (out Lines) {
	out.parents(p)
	switch s := p.State; {
	case p.Unknown != "":
		out.warn("cannot read the gateway's state of it: %s", p.Unknown)
	case s == nil && len(p.Parents) == 0:
		out.warn("no Gateway of carob serves it: no HTTPRoute that a Gateway has accepted leads to it")
	case s == nil:
		out.warn("the gateway does not serve it")
	default:
		if len(p.Parents) == 0 {
			out.warn("no HTTPRoute that a Gateway has accepted leads to it: only gateways that call carob's picker use it")
		}
		out.pool(s)
	}
	if p.State == nil || p.State.Ready == 0 && p.State.Picker == "" {
		out.pods(p, now)
	}
	if p.State != nil {
		out.servers(p.State, now)
		out.cacheEvents(p.State)
		out.models(p.State, p.Model)
	}
	return out
}

func (l *Lines) parents(p *Pool) {
	for _, parent := range p.Parents {
		l.conditions("Gateway "+parent.Name, parent.Conditions)
	}
}

func (l *Lines) pool(s *PoolState) {
	for _, problem := range []string{s.DrainProblem, s.PickerProblem} {
		if problem != "" {
			l.warn("%s", problem)
		}
	}
	if s.Picker != "" {
		instead := "get 503"
		if s.FailOpen {
			instead = "go to any server"
		}
		if s.PickerEmpty {
			l.warn("the endpoint picker %s has no ready endpoint: requests %s", s.Picker, instead)
			return
		}
		l.info("the endpoint picker %s chooses its servers; if it does not answer, requests %s", s.Picker, instead)
		return
	}
	if s.Unconfigured != "" {
		l.info("carob's picker has its default configuration: no ConfigMap %s has the key %s", s.Unconfigured, PickerKey)
	}
	switch {
	case s.Ready > 0:
		l.info("%s requests; %s at work, %s", counted(s.Ready, "ready server")+verb(s.Ready, " takes", " take"),
			counted(s.Requests-s.Waiting, "request"), counted(s.Waiting, "request")+" waiting")
	case s.Starting:
		l.warn("no ready server: requests wait for the first one (%d do), because an autoscaler reads how many wait",
			s.Held)
	default:
		l.warn("no ready server: requests get 503 (rejected-no-endpoints)")
	}
	if s.Ready > 0 && s.Saturation >= 1 {
		l.warn("saturated: no server has room; requests with a priority below 0 get 429 (rejected-saturated)")
	}
	if s.Held > 0 && s.Ready > 0 {
		l.warn("%s held until a server has room (%d bytes)", counted(s.Held, "request")+verb(s.Held, " is", " are"),
			s.HeldBytes)
	}
}

func verb(n int, one, several string) string {
	if n == 1 {
		return one
	}
	return several
}

// pods explains why no pod is ready.
func (l *Lines) pods(p *Pool, now time.Time) {
	if len(p.Pods) == 0 {
		l.warn("no pod matches its selector %s", labelsText(p.Selector))
		return
	}
	for i, pod := range p.Pods {
		if i == mostNamed {
			l.warn("and %s more", counted(len(p.Pods)-i, "pod"))
			return
		}
		if about := Pod(pod, Beside{}, now); about.Problems() {
			j := slices.IndexFunc(about, func(o Line) bool { return o.Problem })
			l.warn("pod %s: %s", pod.Name, about[j].Text)
		} else {
			l.info("pod %s: %s", pod.Name, about[0].Text)
		}
	}
}

func labelsText(set map[string]string) string {
	var all []string
	for k, v := range set { // any order: sorted
		all = append(all, k+"="+v)
	}
	slices.Sort(all)
	return strings.Join(all, ",")
}

func (l *Lines) servers(s *PoolState, now time.Time) {
	for i := range s.Servers {
		server := &s.Servers[i]
		if i == mostNamed {
			l.info("and %s more", counted(len(s.Servers)-i, "server"))
			return
		}
		load := fmt.Sprintf("%d running, %d waiting, %.0f %% of the cache used", server.Running, server.Waiting,
			server.Cache*100)
		switch {
		case server.Seen == nil && server.Problem == "":
			l.info("server %s: its metrics have not been read yet", server.Name)
		case server.Seen == nil:
			l.warn("server %s: metrics missing, only its %s from this gateway count: %s", server.Name,
				counted(server.InFlight, "request"), server.Problem)
		case now.Sub(*server.Seen) > staleAfter:
			l.warn("server %s: metrics are %s old and ignored: %s", server.Name, ago(now, *server.Seen),
				because("", server.Problem))
		case server.Problem != "":
			l.warn("server %s: %s; %s", server.Name, load, server.Problem)
		default:
			l.info("server %s: %s", server.Name, load)
		}
	}
}

// cacheEvents lists the servers whose KV events are not used, and why.
func (l *Lines) cacheEvents(s *PoolState) {
	used, followed := 0, 0
	for i := range s.Servers {
		e := s.Servers[i].Events
		if e == nil {
			continue
		}
		if followed++; followed > mostNamed {
			continue
		}
		name := s.Servers[i].Name
		switch {
		case e.Problem != "":
			l.warn("server %s: no KV events, its cache is estimated from the requests sent to it: %s", name, e.Problem)
			continue
		case !e.Received:
			l.info("server %s: has published no KV event yet, its cache is estimated from the requests sent to it", name)
			continue
		case e.Wrong > 0:
			l.warn("server %s: its blocks do not have %d tokens as those of the pool, its cache is estimated from the requests sent to it",
				name, e.Wrong)
			continue
		case e.Full:
			l.warn("server %s: has more blocks than carob stores (%d)", name, e.Blocks)
		case !e.Whole:
			l.info("server %s: %s known from KV events; it may have more, stored before carob subscribed or in events that were lost",
				name, counted(e.Blocks, "block"))
		}
		used++
	}
	if used > 0 && s.TokenProblem != "" {
		l.warn("KV events cannot be used, caches are estimated from the requests sent to the servers: %s", s.TokenProblem)
	} else if used > 0 {
		l.info("KV events of %s are compared with prompts", counted(used, "server"))
	}
}

func (l *Lines) models(s *PoolState, model string) {
	if model == "" {
		if len(s.Models) > 0 {
			l.info("models with rules: %s", strings.Join(s.Models, ", "))
		}
		return
	}
	switch {
	case slices.Contains(s.Models, model):
		l.info("model %s: an InferenceModel or InferenceModelRewrite applies to its requests", model)
	case s.Shed:
		l.warn("model %s: no InferenceModel has this name; its requests are the first to be refused when no "+
			"server has room", model)
	default:
		l.info("model %s: no rule applies to it, its requests keep the name", model)
	}
	if slices.ContainsFunc(s.Servers, func(o Server) bool { return slices.Contains(o.Adapters, model) }) {
		l.info("model %s: a server has it loaded as an adapter", model)
	}
}
