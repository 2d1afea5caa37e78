// render prints the manifests of a chart: render CHART VERSION RELEASE NAMESPACE VALUES.
package main

import (
	"fmt"
	"os"
	"sort"
	"strings"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	"sigs.k8s.io/yaml"
)

func main() {
	c, err := loader.LoadDir(os.Args[1])
	check(err)
	c.Metadata.Version, c.Metadata.AppVersion = os.Args[2], os.Args[2]
	var values map[string]any
	check(yaml.Unmarshal([]byte(os.Args[5]), &values))
	v, err := util.ToRenderValues(c, values,
		common.ReleaseOptions{Name: os.Args[3], Namespace: os.Args[4], IsInstall: true}, nil)
	check(err)
	out, err := engine.Engine{}.Render(c, v)
	check(err)
	var names []string
	for n := range out {
		if strings.HasSuffix(n, ".yaml") && strings.TrimSpace(out[n]) != "" {
			names = append(names, n)
		}
	}
	sort.Strings(names)
	for _, n := range names {
		fmt.Printf("---\n# Source: %s\n%s\n", n, out[n])
	}
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
