// Package aggregation is the aggregation layer: the proxy to the API servers that APIServices name
// (package kinds/apiregistration), the check of their availability, and their parts of discovery
// and OpenAPI. The API server drives it. A cluster without such API servers pays only for the
// stored objects; nothing here may poll until there is one.
package aggregation
