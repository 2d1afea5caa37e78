// Package apiregistration is the group apiregistration.k8s.io: APIServices, each a group version that another API
// server answers. Package apiserver/aggregation passes requests on to them. The validation is upstream's library.
package apiregistration
