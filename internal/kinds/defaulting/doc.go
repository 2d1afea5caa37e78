// Package defaulting helps to fill in fields that a client left out. The packages of the groups register with it
// what they fill in; the scheme calls that on every decode of a request body and of a stored object. So each function
// is
// cheap, can run twice, and depends on nothing but the object: what depends on other objects (service accounts,
// priority
// classes, limit ranges) is the work of package apiserver/admission.
package defaulting
