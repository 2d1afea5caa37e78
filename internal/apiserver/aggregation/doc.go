// Package aggregation lets other API servers stand behind this one: the proxy to the servers that APIServices name
// (package kinds/apiregistration), the look whether they are there, and their parts of discovery and OpenAPI. The API
// server drives it. A cluster without foreign API servers pays for the stored objects only; nothing here may poll until
// there is one.
package aggregation
