package cniplugin

import (
	"bytes"
	"encoding/json"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"carob/internal/base/cniapi"
)

func environment(command string) func(string) string {
	env := map[string]string{"CNI_COMMAND": command, "CNI_CONTAINERID": "c1", "CNI_NETNS": "/var/run/netns/x",
		"CNI_IFNAME": "eth0", "CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAMESPACE=n;K8S_POD_NAME=p;K8S_POD_UID=u"}
	return func(key string) string { return env[key] }
}

// run calls the plugin, and returns what it printed.
func called(t *testing.T, command, config string) (printed map[string]any, ok bool) {
	t.Helper()
	var out bytes.Buffer
	ok = Run(t.Context(), environment(command), strings.NewReader(config), &out)
	if out.Len() == 0 {
		return nil, ok
	}
	if err := json.Unmarshal(out.Bytes(), &printed); err != nil {
		t.Fatalf("printed %q: %v", out.String(), err)
	}
	return printed, ok
}

// server answers requests with a reply, and passes on the last one.
func server(t *testing.T, reply string) (socket string, last func() cniapi.Request) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan cniapi.Request, 10)
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var req cniapi.Request
		if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
			t.Error(err)
		}
		got <- req
		_, _ = w.Write([]byte(reply))
	})}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close() })
	return socket, func() cniapi.Request { return <-got }
}

func TestAdd(t *testing.T) {
	socket, last := server(t, `{"IPs":["10.88.0.7","fd00::7"],"Gateways":["10.88.0.1","fd00::1"],"MAC":"0a:58:00:00:00:01"}`)
	for _, version := range Versions {
		got, ok := called(t, "ADD", `{"cniVersion":"`+version+`","name":"n","type":"carob-cni","socket":"`+socket+
			`","runtimeConfig":{"portMappings":[{"hostPort":80,"containerPort":8080,"protocol":"tcp"}],`+
			`"bandwidth":{"ingressRate":1000000}}}`)
		if !ok || got["cniVersion"] != version {
			t.Errorf("%s: %v", version, got)
		}
		if ips, _ := got["ips"].([]any); len(ips) != 2 || ips[0].(map[string]any)["address"] != "10.88.0.7/32" ||
			ips[0].(map[string]any)["gateway"] != "10.88.0.1" || ips[0].(map[string]any)["interface"] != 0.0 {
			t.Errorf("%s: %v", version, got)
		}
		req := last()
		if req.Container != "c1" || req.Args != (cniapi.Args{Namespace: "n", Name: "p", UID: "u"}) ||
			len(req.Ports) != 1 || req.Ports[0].HostPort != 80 || req.Bandwidth.IngressRate != 1_000_000 {
			t.Errorf("%s: request %+v", version, req)
		}
	}
}

func TestCheckPassesTheAddresses(t *testing.T) {
	socket, last := server(t, `{}`)
	got, ok := called(t, "CHECK", `{"cniVersion":"1.0.0","socket":"`+socket+
		`","prevResult":{"ips":[{"address":"10.88.0.7/32"},{"address":"192.0.2.1/24"}]}}`)
	if req := last(); !ok || got != nil || len(req.IPs) != 1 || req.IPs[0].String() != "10.88.0.7" {
		t.Errorf("%v, %v, %+v", got, ok, req)
	}
}

func TestVersion(t *testing.T) {
	got, ok := called(t, "VERSION", `{"cniVersion":"9.9.9"}`)
	if versions, _ := got["supportedVersions"].([]any); !ok || len(versions) != len(Versions) {
		t.Errorf("%v", got)
	}
}

// Each failure is an error in the form of CNI, with its code.
func TestErrors(t *testing.T) {
	refusing, _ := server(t, `{"Error":{"code":11,"msg":"no address is free"}}`)
	broken, _ := server(t, `{`)
	none := filepath.Join(t.TempDir(), "nobody")
	for name, c := range map[string]struct {
		command, config string
		code            float64
		message         string
	}{
		"carob is not running":  {"ADD", `{"cniVersion":"1.0.0","socket":"` + none + `"}`, 11, "carob is not running"},
		"DEL without carob":     {"DEL", `{"cniVersion":"1.0.0","socket":"` + none + `"}`, 11, "carob is not running"},
		"STATUS without carob":  {"STATUS", `{"cniVersion":"1.1.0","socket":"` + none + `"}`, 50, "carob is not running"},
		"carob refuses":         {"ADD", `{"cniVersion":"1.0.0","socket":"` + refusing + `"}`, 11, "no address is free"},
		"carob ends meanwhile":  {"ADD", `{"cniVersion":"1.0.0","socket":"` + broken + `"}`, 11, "did not answer"},
		"no socket":             {"ADD", `{"cniVersion":"1.0.0"}`, 7, "socket"},
		"relative socket":       {"ADD", `{"cniVersion":"1.0.0","socket":"run/x"}`, 7, "socket"},
		"version":               {"ADD", `{"cniVersion":"0.1.0"}`, 1, "0.1.0"},
		"no JSON":               {"ADD", `cniVersion`, 6, "configuration"},
		"too long":              {"ADD", `{"x":"` + strings.Repeat("a", cniapi.MaxBytes) + `"}`, 7, "bytes"},
		"command":               {"EXEC", `{"cniVersion":"1.0.0","socket":"` + none + `"}`, 4, "EXEC"},
		"not the first plugin":  {"ADD", `{"cniVersion":"1.0.0","socket":"` + none + `","prevResult":{"ips":[]}}`, 7, "first"},
		"CHECK of another form": {"CHECK", `{"cniVersion":"1.0.0","socket":"` + none + `","prevResult":{"ips":7}}`, 6, "prev"},
	} {
		got, ok := called(t, c.command, c.config)
		msg, _ := got["msg"].(string)
		if ok || got["code"] != c.code || !strings.Contains(msg, c.message) {
			t.Errorf("%s: %v, want code %v and %q", name, got, c.code, c.message)
		}
	}
}
