package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"carob/test/csidriver"
)

// hostpath serves csidriver in place of csi-driver-host-path.
func hostpath(ctx context.Context, flags map[string]string) error {
	data := flags["statedir"]
	if data == "" {
		data = "/csi-data-dir"
	}
	limit := int64(0)
	for _, name := range []string{"maxvolumespernode", "attach-limit"} {
		if flags[name] == "" {
			continue
		}
		var err error
		if limit, err = strconv.ParseInt(flags[name], 10, 64); err != nil {
			return fmt.Errorf("--%s: %w", name, err)
		}
	}
	d, err := csidriver.Serve(csidriver.Config{Name: flags["drivername"], Node: flags["nodeid"], Data: data,
		State: filepath.Join(data, flags["drivername"]+".json"), Topology: "topology.hostpath.csi/node", Limit: limit,
		With:      []csi.NodeServiceCapability_RPC_Type{csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER},
		Mutable:   strings.Split(flags["accepted-mutable-parameter-names"], ","),
		Lifecycle: flags["check-volume-lifecycle"] == "true", Called: logged}, path(flags["endpoint"]))
	if err != nil {
		return err
	}
	<-ctx.Done()
	d.Stop()
	return nil
}

// logged writes a call to the log, where upstream's tests look for it.
func logged(c csidriver.Call) {
	line := struct {
		Method  string
		Request any
		Error   string
	}{Method: "/" + c.Method, Request: c.Request}
	if c.Err != nil {
		line.Error = c.Err.Error()
	}
	text, err := json.Marshal(line)
	if err != nil {
		log.Printf("a call of %s: %v", c.Method, err)
		return
	}
	log.Printf("gRPCCall: %s", text)
}
