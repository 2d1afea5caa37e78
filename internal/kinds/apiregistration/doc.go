// Package apiregistration is the group apiregistration.k8s.io: APIServices, each a group version
// served by another API server. Package apiserver/aggregation proxies requests to them. The
// validation is upstream's library.
package apiregistration
