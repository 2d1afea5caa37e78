package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"carob/test/csidriver"
)

// hostpath serves csidriver in place of csi-driver-host-path.
func hostpath(ctx context.Context, flags map[string]string) error {
	data := flags["statedir"]
	if data == "" {
		data = "/csi-data-dir"
	}
	limit := int64(0)
	if l := flags["maxvolumespernode"]; l != "" {
		var err error
		if limit, err = strconv.ParseInt(l, 10, 64); err != nil {
			return fmt.Errorf("--maxvolumespernode: %w", err)
		}
	}
	d, err := csidriver.Serve(csidriver.Config{Name: flags["drivername"], Node: flags["nodeid"], Data: data,
		Limit: limit, Mutable: strings.Split(flags["accepted-mutable-parameter-names"], ",")}, path(flags["endpoint"]))
	if err != nil {
		return err
	}
	<-ctx.Done()
	d.Stop()
	return nil
}
