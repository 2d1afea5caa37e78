package native

import _ "embed"

//go:embed csrc/bin/amd64/monitor
var monitorProgram []byte

//go:embed csrc/bin/amd64/helper
var helperProgram []byte
