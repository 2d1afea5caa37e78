package native

import _ "embed"

//go:embed csrc/bin/arm64/monitor
var monitorProgram []byte

//go:embed csrc/bin/arm64/helper
var helperProgram []byte
