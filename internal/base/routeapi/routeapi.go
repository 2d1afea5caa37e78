// Package routeapi defines the node agent's API for what its gateway serves, which `carob routes` prints; both sides
// share these types. It does nothing by itself.
package routeapi

// Path is where the node agent serves the routes of its gateway, behind the API server's nodes/proxy.
//
//	GET Path?namespace=NAME → List; without a namespace of all
const Path = "carob/routes"

// PoolsPath is where the node agent serves the state of the gateway's InferencePools, for `carob explain`.
//
//	GET PoolsPath?namespace=NAME → a list of core/explain.PoolState
const PoolsPath = "carob/pools"

// List is what a gateway serves.
type List struct {
	Routes []Route `json:"routes"`
	// Problems are the reasons why objects are not served as specified.
	Problems []Problem `json:"problems,omitempty"`
}

// Route is one condition of one rule, at one port.
type Route struct {
	Address   string    `json:"address"` // IP:PORT
	Protocol  string    `json:"protocol"`
	Kind      string    `json:"kind"` // Ingress, HTTPRoute, GRPCRoute, TLSRoute, TCPRoute, UDPRoute
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	Rule      string    `json:"rule,omitempty"` // its name
	Host      string    `json:"host"`           // "*": all
	Path      string    `json:"path,omitempty"` // "=": exact, "~": a regular expression, else a prefix
	Match     []string  `json:"match,omitempty"`
	Filters   []string  `json:"filters,omitempty"`
	Answer    string    `json:"answer,omitempty"` // what a request gets without a backend: an error or a redirect
	Backends  []Backend `json:"backends,omitempty"`
}

// Backend is one of the backends that a rule distributes its requests to.
type Backend struct {
	Service   string   `json:"service"` // NAMESPACE/NAME:PORT
	Weight    int32    `json:"weight"`
	Endpoints []string `json:"endpoints,omitempty"` // ready ones, as IP:PORT
	Problem   string   `json:"problem,omitempty"`
}

// Problem is an error of an object.
type Problem struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	Reason    string `json:"reason"`
	Message   string `json:"message"`
}
