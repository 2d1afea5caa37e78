// Package defaulting helps to set the default values of fields. The packages of the groups register
// their functions with it; the scheme calls them for every decoded request body and stored object.
// So each function is cheap, can run twice, and depends only on the object: defaults that depend on
// other objects (service accounts, priority classes, limit ranges) are set by package
// apiserver/admission.
package defaulting
