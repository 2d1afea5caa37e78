// Package archtest keeps the architecture: who may import whom, what the
// decisions under internal/core may touch, and which packages must have a
// comment. It is run by `go test`; it holds no product code.
package archtest
