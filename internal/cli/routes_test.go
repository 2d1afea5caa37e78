package cli

import (
	"strings"
	"testing"

	"carob/internal/base/routeapi"
)

func TestPrintRoutes(t *testing.T) {
	list := &routeapi.List{Routes: []routeapi.Route{
		{Address: "127.0.0.1:80", Protocol: "HTTP", Kind: "HTTPRoute", Namespace: "shop", Name: "web", Host: "*",
			Path: "/", Match: []string{"method GET"}, Filters: []string{"rewrite"}, Backends: []routeapi.Backend{
				{Service: "shop/a:80", Weight: 9, Endpoints: []string{"10.0.0.1:8080"}},
				{Service: "shop/b:80", Weight: 1, Problem: "no endpoint is ready: requests get 503"}}},
		{Address: "127.0.0.1:80", Protocol: "HTTP", Kind: "Ingress", Namespace: "shop", Name: "old",
			Host: "x.example\x1b[31m", Path: "=/\tx", Answer: "308"},
	}, Problems: []routeapi.Problem{{Kind: "HTTPRoute", Namespace: "shop", Name: "bad", Reason: "BackendNotFound",
		Message: "ResolvedRefs: Service shop/c does not exist"}}}
	var b strings.Builder
	if err := printRoutes(&b, &table{output: "wide"}, list, false); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"ADDRESS PROTOCOL HOST PATH ROUTE BACKENDS READY MATCH FILTERS ENDPOINTS",
		"127.0.0.1:80 HTTP * / httproute/web a:80 ×9, b:80 (no endpoint is ready: requests get 503) ×1 1 method GET " +
			"rewrite 10.0.0.1:8080",
		"127.0.0.1:80 HTTP x.example\uFFFD[31m =/\uFFFDx ingress/old answers 308 - - - -",
		"",
		"PROBLEM OF REASON MESSAGE",
		"httproute/bad BackendNotFound ResolvedRefs: Service shop/c does not exist",
	}
	expectTable(t, &b, want)
	b.Reset()
	if err := printRoutes(&b, &table{noHeaders: true}, list, true); err != nil {
		t.Fatal(err)
	}
	expectTable(t, &b, []string{
		"shop 127.0.0.1:80 HTTP * / httproute/web shop/a:80 ×9, shop/b:80 (no endpoint is ready: requests get 503) ×1 1",
		"shop 127.0.0.1:80 HTTP x.example\uFFFD[31m =/\uFFFDx ingress/old answers 308 -",
		"",
		"shop httproute/bad BackendNotFound ResolvedRefs: Service shop/c does not exist",
	})
}

// expectTable compares the lines of a table, with one blank between two columns.
func expectTable(t *testing.T, b *strings.Builder, want []string) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	squeeze := func(s string) string { return strings.Join(strings.Fields(s), " ") }
	if len(lines) != len(want) {
		t.Fatalf("%q", lines)
	}
	for i := range want {
		if squeeze(lines[i]) != want[i] {
			t.Errorf("line %d: %q, want %q", i, squeeze(lines[i]), want[i])
		}
	}
}
