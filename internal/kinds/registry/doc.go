// Package registry builds the storage of a kind from its descriptor, a Resource: one generic
// strategy for create, update, and delete, one for the status, and /scale. The packages of the API
// groups define descriptors; package apiserver builds them once at the start. A descriptor must
// never do I/O: dependencies of a kind are passed in.
package registry
