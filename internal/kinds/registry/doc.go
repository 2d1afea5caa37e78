// Package registry makes the storage of a kind from its descriptor, a Resource: one generic strategy for create,
// update and delete, one for the status, and /scale. The packages of the API groups make descriptors, package apiserver
// builds them once at its start. A descriptor must never do I/O: what a kind needs from elsewhere is handed in.
package registry
