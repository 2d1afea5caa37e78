package routing

import (
	"net/netip"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Labels of a pod that name its engine; the first one takes precedence (2.3). Without them it is vLLM.
const (
	EngineLabel    = "llm-d.ai/engine-type"
	OldEngineLabel = "inference.networking.k8s.io/engine-type"
)

// Endpoint is one model server: a pod's address and one of the pool's target ports. Data-parallel ranks of a pod are
// endpoints of their own.
type Endpoint struct {
	Address netip.AddrPort
	// Pod is the UID of the pod; a new pod with an old address is another endpoint.
	Pod types.UID
	// Name of the pod.
	Name types.NamespacedName
	// Rank is the index of the port in the pool's targetPorts.
	Rank int
	// Labels of the pod. They are not changed after SetEndpoints.
	Labels map[string]string
	// Ready: the pod takes requests.
	Ready bool
	// Draining means that the pod is being deleted; it gets no new request, and its requests
	// continue.
	Draining bool
}

// Session is the value that brings a session back to the endpoint (Request.Session): namespace/name of the pod, as
// upstream's, with the rank if it is not the first.
func (e *Endpoint) Session() string {
	if e.Rank == 0 {
		return e.Name.String()
	}
	return e.Name.String() + "-rank-" + strconv.Itoa(e.Rank)
}

// Stats are the metrics of a model server. The parser omits implausible numbers.
type Stats struct {
	// At is when the scrape began; zero: never scraped.
	At time.Time
	// Waiting and Running are numbers of requests.
	Waiting, Running int
	// CacheUse is the used part of the KV cache, 0 to 1.
	CacheUse float64
	// Active and Queued are the adapters that are loaded and used, and those for which requests wait; MaxAdapters is
	// how many can be loaded at once, 0 for a server without adapters.
	Active, Queued []string
	MaxAdapters    int
	// BlockTokens and Blocks describe the KV cache; 0: unknown.
	BlockTokens, Blocks int
}

// Ref names an endpoint of a Pool. It stays valid while the endpoint is in the pool; later it is invalid.
type Ref struct {
	slot int32
	gen  uint32
}
