// Package apiextensions is the group apiextensions.k8s.io: how CustomResourceDefinitions are stored
// and encoded. The validation is upstream's library; package apiserver/crds serves the defined
// kinds.
package apiextensions
