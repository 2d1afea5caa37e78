package cniapi

import (
	"strings"
	"testing"
)

func good() Request {
	return Request{Command: "ADD", Container: "df0671", NetNS: "/var/run/netns/cni-1", Device: "eth0",
		Args:  Args{Namespace: "default", Name: "web.0", UID: "ca620014-fdb1"},
		Ports: []PortMapping{{HostPort: 80, ContainerPort: 8080, Protocol: "TCP", HostIP: "127.0.0.1"}}}
}

// Whatever a caller sends that is not in its form is refused.
func TestCheck(t *testing.T) {
	long := strings.Repeat("a", 5000)
	for name, c := range map[string]struct {
		change func(*Request)
		code   uint // 0: accepted
	}{
		"as it should be":       {func(*Request) {}, 0},
		"no pod":                {func(r *Request) { r.Args = Args{} }, 0},
		"DEL without namespace": {func(r *Request) { r.Command, r.NetNS = "DEL", "" }, 0},
		"STATUS has no pod":     {func(r *Request) { *r = Request{Command: "STATUS"} }, 0},
		"no container port yet": {func(r *Request) { r.Ports[0].HostPort = 0 }, 0},
		"command":               {func(r *Request) { r.Command = "EXEC" }, CodeBadEnvironment},
		"no container":          {func(r *Request) { r.Container = "" }, CodeBadEnvironment},
		"container a path":      {func(r *Request) { r.Container = "../x" }, CodeBadEnvironment},
		"container an option":   {func(r *Request) { r.Container = "-x" }, CodeBadEnvironment},
		"container with a line": {func(r *Request) { r.Container = "a\nb" }, CodeBadEnvironment},
		"long container":        {func(r *Request) { r.Container = long }, CodeBadEnvironment},
		"device":                {func(r *Request) { r.Device = "eth1" }, CodeBadEnvironment},
		"ADD without namespace": {func(r *Request) { r.NetNS = "" }, CodeBadEnvironment},
		"relative path":         {func(r *Request) { r.NetNS = "netns/x" }, CodeBadEnvironment},
		"unclean path":          {func(r *Request) { r.NetNS = "/run/netns/../x" }, CodeBadEnvironment},
		"path with NUL":         {func(r *Request) { r.NetNS = "/run/\x00" }, CodeBadEnvironment},
		"long path":             {func(r *Request) { r.NetNS = "/" + long }, CodeBadEnvironment},
		"namespace":             {func(r *Request) { r.Args.Namespace = "a/b" }, CodeBadEnvironment},
		"name":                  {func(r *Request) { r.Args.Name = "A b" }, CodeBadEnvironment},
		"UID":                   {func(r *Request) { r.Args.UID = "../../etc" }, CodeBadEnvironment},
		"port":                  {func(r *Request) { r.Ports[0].HostPort = 65536 }, CodeBadConfig},
		"container port":        {func(r *Request) { r.Ports[0].ContainerPort = 0 }, CodeBadConfig},
		"negative port":         {func(r *Request) { r.Ports[0].HostPort = -1 }, CodeBadConfig},
		"protocol":              {func(r *Request) { r.Ports[0].Protocol = "tcp; drop" }, CodeBadConfig},
		"host address":          {func(r *Request) { r.Ports[0].HostIP = "fe80::1%eth0" }, CodeBadConfig},
		"many ports":            {func(r *Request) { r.Ports = make([]PortMapping, 1025) }, CodeBadConfig},
		"bandwidth":             {func(r *Request) { r.Bandwidth.EgressRate = 1 << 60 }, CodeBadConfig},
	} {
		r := good()
		c.change(&r)
		err := r.Check()
		if got := codeOf(err); got != c.code {
			t.Errorf("%s: %v, want code %d", name, err, c.code)
		}
		if err != nil && len(err.Error()) > 300 {
			t.Errorf("%s: a message of %d bytes", name, len(err.Error()))
		}
	}
}

func codeOf(err *Error) uint {
	if err == nil {
		return 0
	}
	return err.Code
}

func TestParseArgs(t *testing.T) {
	for in, want := range map[string]struct {
		args Args
		code uint
	}{
		"": {},
		"IgnoreUnknown=1;K8S_POD_NAMESPACE=n;K8S_POD_NAME=p;K8S_POD_UID=u;K8S_POD_INFRA_CONTAINER_ID=x": {
			args: Args{"n", "p", "u"}},
		"K8S_POD_NAMESPACE=n;K8S_POD_NAME=p": {},
		"nonsense":                           {code: CodeBadEnvironment},
		"K8S_POD_NAMESPACE=N;K8S_POD_NAME=p;K8S_POD_UID=u":   {args: Args{"N", "p", "u"}, code: CodeBadEnvironment},
		"K8S_POD_NAMESPACE=n;K8S_POD_NAME=p;K8S_POD_UID=a=b": {args: Args{"n", "p", "a=b"}, code: CodeBadEnvironment},
		strings.Repeat("a=b;", 2000):                         {code: CodeBadEnvironment},
	} {
		got, err := ParseArgs(in)
		if got != want.args || codeOf(err) != want.code {
			t.Errorf("%.60s: %v, %v", in, got, err)
		}
	}
}

// Nothing that a caller can send gets past the checks with a path, a line, or an option in it.
func FuzzArgs(f *testing.F) {
	f.Add("K8S_POD_NAMESPACE=n;K8S_POD_NAME=p;K8S_POD_UID=u", "c")
	f.Add(";;=;K8S_POD_UID=../x", "../c")
	f.Fuzz(func(t *testing.T, args, container string) {
		a, failure := ParseArgs(args)
		r := good()
		r.Args, r.Container = a, container
		if failure != nil || r.Check() != nil {
			return
		}
		for _, s := range []string{a.Namespace, a.Name, a.UID, container} {
			if strings.ContainsAny(s, "/\n\x00 ;\"'") || strings.HasPrefix(s, "-") || strings.HasPrefix(s, ".") {
				t.Errorf("%q is accepted", s)
			}
		}
	})
}
