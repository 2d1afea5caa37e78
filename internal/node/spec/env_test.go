package spec

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func named(name string) corev1.LocalObjectReference { return corev1.LocalObjectReference{Name: name} }

func testNode() *Node {
	return &Node{
		Name: "n1", HostIPs: []string{"192.0.2.1", "2001:db8::1"}, ClusterDNS: []string{"10.96.0.10"},
		ClusterDomain: "cluster.local",
		Resolver: Resolver{Nameservers: []string{"192.0.2.53"}, Searches: []string{"example.com"},
			Options: []string{"timeout:1"}},
		HostsFile:   []byte("127.0.0.1 localhost\n"),
		LogRoot:     "/var/log/pods",
		SeccompRoot: "/data/seccomp",
		Capacity:    corev1.ResourceList{"memory": resource.MustParse("4Gi"), "cpu": resource.MustParse("4")},
		Allocatable: corev1.ResourceList{"memory": resource.MustParse("3Gi"), "cpu": resource.MustParse("3500m")},
	}
}

func testPod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "web", Namespace: "shop", UID: "u-1",
			Labels: map[string]string{"app": "web"}, Annotations: map[string]string{"note": "hi"},
		},
		Spec: corev1.PodSpec{
			NodeName: "n1", ServiceAccountName: "sa",
			Containers: []corev1.Container{{
				Name: "c", Image: "nginx",
				TerminationMessagePath:   "/dev/termination-log",
				TerminationMessagePolicy: corev1.TerminationMessageReadFile,
			}},
		},
	}
}

// api is a Fetcher and Disk over maps.
type api struct {
	maps     map[string]*corev1.ConfigMap
	secrets  map[string]*corev1.Secret
	services []*corev1.Service
	noRead   error
	volumes  map[string]Volume
	files    map[EnvFile]string
	hosts    string
	subPaths []SubPath
	reads    int // of files
}

func (a *api) ConfigMap(_ context.Context, _, name string) (*corev1.ConfigMap, error) {
	if o := a.maps[name]; o != nil {
		return o, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "configmaps"}, name)
}

func (a *api) Secret(_ context.Context, _, name string) (*corev1.Secret, error) {
	if o := a.secrets[name]; o != nil {
		return o, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, name)
}

func (a *api) Services(context.Context, string) ([]*corev1.Service, error) {
	return a.services, a.noRead
}

func (a *api) Volumes(types.UID) map[string]Volume { return a.volumes }

func (a *api) SubPath(_ context.Context, req SubPath) (string, error) {
	a.subPaths = append(a.subPaths, req)
	return fmt.Sprintf("/sub/%s/%d", req.Volume, req.Index), nil
}

func (a *api) HostsFile(_ types.UID, content []byte) (string, error) {
	a.hosts = string(content)
	return "/pods/u-1/etc-hosts", nil
}

func (a *api) TerminationLog(types.UID, string) (string, error) {
	return "/pods/u-1/containers/c/12345678", nil
}

func (a *api) ReadFile(_ types.UID, volume, path string) ([]byte, error) {
	a.reads++
	if text, ok := a.files[EnvFile{volume, path}]; ok {
		return []byte(text), nil
	}
	return nil, errors.New("no such file")
}

func service(ns, name, ip string, ports ...corev1.ServicePort) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name},
		Spec: corev1.ServiceSpec{ClusterIP: ip, Ports: ports}}
}

func envOf(cfg *cri.ContainerConfig) []string {
	var list []string
	for _, kv := range cfg.Envs {
		list = append(list, kv.Key+"="+string(kv.Value))
	}
	return list
}

// The environment: order, precedence, sources and what goes wrong (L3.130–136).
func TestEnvironment(t *testing.T) {
	world := func() *api {
		return &api{
			maps: map[string]*corev1.ConfigMap{"cm": {Data: map[string]string{"b": "2", "a": "1",
				"un-usual.key": "3"}}},
			secrets: map[string]*corev1.Secret{"s": {Data: map[string][]byte{"pw": []byte("hush")}}},
			volumes: map[string]Volume{"files": {HostPath: "/v"}},
			files:   map[EnvFile]string{{"files", "env"}: "A='1'\nE=\n", {"files", "bad"}: "A=1\n"},
		}
	}
	value := func(name, value string) corev1.EnvVar { return corev1.EnvVar{Name: name, Value: value} }
	from := func(name string, src corev1.EnvVarSource) corev1.EnvVar {
		return corev1.EnvVar{Name: name, ValueFrom: &src}
	}
	field := func(name, path string) corev1.EnvVar {
		return from(name, corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}})
	}
	file := func(volume, path, key string, optional bool) corev1.EnvVar {
		return from("F",
			corev1.EnvVarSource{FileKeyRef: &corev1.FileKeySelector{VolumeName: volume, Path: path, Key: key,
				Optional: &optional}})
	}
	limit := func(name, res, divisor string) corev1.EnvVar {
		return from(name,
			corev1.EnvVarSource{ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: res,
				Divisor: resource.MustParse(divisor)}})
	}
	tests := []struct {
		name   string
		clause string
		env    []corev1.EnvVar
		from   []corev1.EnvFromSource
		change func(*corev1.Pod, *api)
		want   []string
		err    string
	}{
		{name: "later wins", clause: "L3.130",
			from: []corev1.EnvFromSource{{Prefix: "P_",
				ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: named("cm")}},
				{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: named("s")}}},
			env:  []corev1.EnvVar{value("P_a", "own"), value("x", "1"), value("x", "2")},
			want: []string{"P_a=own", "P_b=2", "P_un-usual.key=3", "pw=hush", "x=2"}},
		{name: "expansion", clause: "L3.131",
			env:  []corev1.EnvVar{value("A", "1"), value("B", "$(A) $$(A) $(C) $(B) $A $( $"), value("C", "$(B)")},
			want: []string{"A=1", "B=1 $(A) $(C) $(B) $A $( $", "C=1 $(A) $(C) $(B) $A $( $"}},
		{name: "services", clause: "L3.132",
			change: func(_ *corev1.Pod, a *api) {
				a.services = []*corev1.Service{
					service("shop", "my-db", "10.0.0.7",
						corev1.ServicePort{Name: "sql-x", Port: 5432, Protocol: corev1.ProtocolTCP},
						corev1.ServicePort{Port: 53, Protocol: corev1.ProtocolUDP}),
					service("shop", "headless", corev1.ClusterIPNone, corev1.ServicePort{Port: 1}),
					service("default", "kubernetes", "10.96.0.1",
						corev1.ServicePort{Name: "https", Port: 443, Protocol: corev1.ProtocolTCP}),
					service("default", "other", "10.96.0.9", corev1.ServicePort{Port: 1}),
				}
			},
			env: []corev1.EnvVar{value("URL", "$(MY_DB_SERVICE_HOST):$(MY_DB_SERVICE_PORT)"),
				value("KUBERNETES_PORT", "mine")},
			want: []string{
				"KUBERNETES_SERVICE_HOST=10.96.0.1", "KUBERNETES_SERVICE_PORT=443", "KUBERNETES_SERVICE_PORT_HTTPS=443",
				"KUBERNETES_PORT=mine", "KUBERNETES_PORT_443_TCP=tcp://10.96.0.1:443",
				"KUBERNETES_PORT_443_TCP_PROTO=tcp",
				"KUBERNETES_PORT_443_TCP_PORT=443", "KUBERNETES_PORT_443_TCP_ADDR=10.96.0.1",
				"MY_DB_SERVICE_HOST=10.0.0.7", "MY_DB_SERVICE_PORT=5432", "MY_DB_SERVICE_PORT_SQL_X=5432",
				"MY_DB_PORT=tcp://10.0.0.7:5432", "MY_DB_PORT_5432_TCP=tcp://10.0.0.7:5432",
				"MY_DB_PORT_5432_TCP_PROTO=tcp",
				"MY_DB_PORT_5432_TCP_PORT=5432", "MY_DB_PORT_5432_TCP_ADDR=10.0.0.7",
				"MY_DB_PORT_53_UDP=udp://10.0.0.7:53", "MY_DB_PORT_53_UDP_PROTO=udp", "MY_DB_PORT_53_UDP_PORT=53",
				"MY_DB_PORT_53_UDP_ADDR=10.0.0.7",
				"URL=10.0.0.7:5432",
			}},
		{name: "no service links", clause: "L3.132",
			change: func(p *corev1.Pod, a *api) {
				p.Spec.EnableServiceLinks = new(false)
				a.services = []*corev1.Service{service("shop", "db", "10.0.0.7", corev1.ServicePort{Port: 1})}
			}},
		{name: "services unknown", clause: "L3.134",
			change: func(_ *corev1.Pod,
				a *api) {
				a.noRead = errors.New("services have not yet been read at least once")
			},
			err: "services have not yet been read at least once"},
		{name: "fields", clause: "L3.133",
			env: []corev1.EnvVar{field("N", "metadata.name"), field("NS", "metadata.namespace"),
				field("U", "metadata.uid"), field("L", "metadata.labels['app']"),
				field("A", "metadata.annotations['note']"), field("NO", "metadata.labels['no']"),
				field("NODE", "spec.nodeName"), field("SA", "spec.serviceAccountName"),
				field("H", "status.hostIP"), field("HS", "status.hostIPs"), field("P", "status.podIP"),
				field("PS", "status.podIPs")},
			want: []string{"N=web", "NS=shop", "U=u-1", "L=web", "A=hi", "NO=", "NODE=n1", "SA=sa", "H=192.0.2.1",
				"HS=192.0.2.1,2001:db8::1", "P=10.1.0.2", "PS=10.1.0.2,fd00::2"}},
		{name: "resources", clause: "L3.135",
			change: func(p *corev1.Pod, _ *api) {
				p.Spec.Containers[0].Resources = corev1.ResourceRequirements{
					Limits: corev1.ResourceList{"cpu": resource.MustParse("1100m")},
					Requests: corev1.ResourceList{"cpu": resource.MustParse("250m"),
						"memory": resource.MustParse("1500Ki")},
				}
			},
			env: []corev1.EnvVar{limit("L", "limits.cpu", "0"), limit("LM", "limits.cpu", "1m"),
				limit("R", "requests.cpu", "0"), limit("M", "limits.memory", "1Gi"),
				limit("RM", "requests.memory", "1Mi")},
			want: []string{"L=2", "LM=1100", "R=1", "M=3", "RM=2"}},
		{name: "pod-level limit", clause: "L3.135",
			change: func(p *corev1.Pod, _ *api) {
				p.Spec.Resources = &corev1.ResourceRequirements{
					Limits: corev1.ResourceList{"memory": resource.MustParse("2Gi")}}
			},
			env: []corev1.EnvVar{limit("M", "limits.memory", "1Gi")}, want: []string{"M=2"}},
		{name: "keys", clause: "L3.133",
			env: []corev1.EnvVar{from("C",
				corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: named("cm"),
					Key: "a"}}),
				from("S", corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: named("s"),
					Key: "pw"}}),
				from(
					"O", corev1.EnvVarSource{
						SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: named("none"), Key: "pw",
							Optional: new(true)}})},
			want: []string{"C=1", "S=hush"}},
		{name: "missing config map", clause: "L3.134",
			env: []corev1.EnvVar{from("C",
				corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: named("x"),
					Key: "a"}})}, err: `configmap "x" not found`},
		{name: "missing secret", clause: "L3.134",
			from: []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: named("x")}}},
			err:  `secret "x" not found`},
		{name: "missing optional source", clause: "L3.130",
			from: []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: named("x"),
				Optional: new(true)}}}},
		{name: "missing key", clause: "L3.134",
			env: []corev1.EnvVar{from("C",
				corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: named("cm"),
					Key: "z"}})}, err: "couldn't find key z in ConfigMap shop/cm"},
		{name: "missing secret key", clause: "L3.134",
			env: []corev1.EnvVar{from("C",
				corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: named("s"),
					Key: "z"}})}, err: "couldn't find key z in Secret shop/s"},
		{name: "env file", clause: "L3.136", env: []corev1.EnvVar{file("files", "env", "A", false)},
			want: []string{"F=1"}},
		{name: "env file without key", clause: "L3.136", env: []corev1.EnvVar{file("files", "env", "B", false)},
			err: `environment variable key "B" not found in file "env"`},
		{name: "empty value", clause: "L3.136", env: []corev1.EnvVar{file("files", "env", "E", false)},
			err: `environment variable key "E" not found in file "env"`},
		{name: "optional key", clause: "L3.136", env: []corev1.EnvVar{file("files", "env", "B", true)}},
		{name: "bad env file", clause: "L3.136", env: []corev1.EnvVar{file("files", "bad", "A", true)},
			err: "couldn't parse env file: line 1: value not in single quotes"},
		{name: "no env file", clause: "L3.136", env: []corev1.EnvVar{file("files", "none", "A", true)},
			err: "couldn't parse env file: no such file"},
		{name: "no volume", clause: "L3.136", env: []corev1.EnvVar{file("nope", "env", "A", false)},
			err: `cannot find the volume "nope" referenced by FileKeyRef`},
	}
	for _, tc := range tests {
		t.Run(tc.clause+" "+tc.name, func(t *testing.T) {
			pod, a := testPod(), world()
			c := &pod.Spec.Containers[0]
			c.Env, c.EnvFrom = tc.env, tc.from
			if tc.change != nil {
				tc.change(pod, a)
			}
			cfg, err := Assemble(t.Context(),
				ContainerInput{Pod: pod, Container: c, Node: testNode(), PodIPs: []string{"10.1.0.2", "fd00::2"}}, a, a)
			if tc.err != "" {
				if err == nil || err.Error() != tc.err {
					t.Fatalf("got %v, want %s", err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, envOf(cfg)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestEnvFile(t *testing.T) {
	tests := []struct{ text, key, want, err string }{
		{text: "A='1'", key: "A", want: "1"},
		{text: "# c\n\n  A='1' # c\nB='2'\n", key: "B", want: "2"},
		{text: "A='x\ny # z\n' \nB='2'", key: "A", want: "x\ny # z\n"},
		{text: "A='x\ny'\nB='2'", key: "B", want: "2"},
		{text: "A='$X \\n \"q\"'", key: "A", want: `$X \n "q"`},
		{text: "A='1'\nA='2'", key: "A", want: "1"},
		{text: "A= \nB='2'", key: "A", want: ""},
		{text: "A =1", key: "A", err: "line 1: want KEY='value'"},
		{text: "A='1'\nA", key: "A", err: "line 2: want KEY='value'"},
		{text: "A='1' b", key: "A", err: "line 1: text after the closing quote"},
		{text: "A='1", key: "A", err: "line 1: no closing quote"},
		{text: "A=\"1\"", key: "A", err: "line 1: value not in single quotes"},
		{text: "A='x\ny'\nB=2", key: "A", err: "line 3: value not in single quotes"},
	}
	for _, tc := range tests {
		values, err := parseEnvFile(tc.text)
		got := values[tc.key]
		if tc.err != "" {
			if err == nil || !strings.HasSuffix(err.Error(), tc.err) {
				t.Errorf("%q: got %v, want %s", tc.text, err, tc.err)
			}
		} else if err != nil || got != tc.want {
			t.Errorf("%q: got %q %v, want %q", tc.text, got, err, tc.want)
		}
	}
}

func FuzzEnvFile(f *testing.F) {
	f.Add("A='1'\n# c\nB='x\ny' # z\nC=\n", "B")
	f.Fuzz(func(t *testing.T, text, key string) {
		values, err := parseEnvFile(text)
		if err != nil && len(values) > 0 {
			t.Errorf("values %q with err=%v", values, err)
		}
		v := values[key]
		if strings.Contains(v, "'") {
			t.Errorf("a value holds a quote: %q", v)
		}
	})
}

// References to references cannot make the agent use memory without end: 40 variables, each of two references to the
// one before, are terabytes.
func TestExpansionHasALimit(t *testing.T) {
	many := strings.Repeat("$(BIG)", 100_000)
	big := corev1.EnvVar{Name: "BIG", Value: strings.Repeat("x", 100_000)}
	doubled := []corev1.EnvVar{{Name: "V0", Value: "xxxxxxxxxxxxxxxx"}}
	for i := 1; i <= 40; i++ {
		ref := fmt.Sprintf("$(V%d)", i-1)
		doubled = append(doubled, corev1.EnvVar{Name: fmt.Sprintf("V%d", i), Value: ref + ref})
	}
	for name, change := range map[string]func(*corev1.Container, *api){
		"variables": func(c *corev1.Container, _ *api) { c.Env = doubled },
		"command":   func(c *corev1.Container, _ *api) { c.Env, c.Command = []corev1.EnvVar{big}, []string{many} },
		"args":      func(c *corev1.Container, _ *api) { c.Env, c.Args = []corev1.EnvVar{big}, []string{"sh", many} },
		"sub-path": func(c *corev1.Container, a *api) {
			a.volumes = map[string]Volume{"v": {HostPath: "/v"}}
			c.Env = []corev1.EnvVar{big}
			c.VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v", SubPathExpr: many}}
		},
		"one ConfigMap by many prefixes": func(c *corev1.Container, a *api) {
			a.maps = map[string]*corev1.ConfigMap{"cm": {Data: map[string]string{"k": strings.Repeat("x", 1_000_000)}}}
			for i := range 10_000 {
				c.EnvFrom = append(c.EnvFrom, corev1.EnvFromSource{Prefix: fmt.Sprintf("P%d_", i),
					ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: named("cm")}})
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			pod, a := testPod(), &api{}
			c := &pod.Spec.Containers[0]
			change(c, a)
			if _, err := Assemble(t.Context(), ContainerInput{Pod: pod, Container: c, Node: testNode()}, a,
				a); !errors.Is(err, errExpanded) {
				t.Error(err)
			}
		})
	}
	if _, err := ExecProbeCommand([]string{many}, map[string]string{"BIG": big.Value}); !errors.Is(err, errExpanded) {
		t.Errorf("a probe: %v", err)
	}
}

// Users may write any number of resolver options; comparing each with all others would take minutes.
func TestManyResolverOptions(t *testing.T) {
	pod := testPod()
	pod.Spec.DNSConfig = &corev1.PodDNSConfig{}
	for i := range 400_000 {
		pod.Spec.DNSConfig.Options = append(pod.Spec.DNSConfig.Options,
			corev1.PodDNSConfigOption{Name: fmt.Sprintf("o%d", i/2), Value: new(fmt.Sprint(i))})
	}
	dns, _, err := dnsConfig(pod, testNode())
	if err != nil || len(dns.Options) != 200_001 || dns.Options[1] != "o0:1" {
		t.Error(len(dns.Options), err)
	}
}

// A file is read and parsed once, however many variables name it: a pod may have ten thousand of a file of 64 KiB.
func TestEnvFileIsReadOnce(t *testing.T) {
	name := EnvFile{"files", "env"}
	c := &corev1.Container{Name: "c"}
	for _, key := range []string{"A", "B", "A"} {
		c.Env = append(c.Env, corev1.EnvVar{Name: "V" + key, ValueFrom: &corev1.EnvVarSource{
			FileKeyRef: &corev1.FileKeySelector{VolumeName: name.Volume, Path: name.Path, Key: key}}})
	}
	a := &api{files: map[EnvFile]string{name: "A='1'\nB='2'\n"}}
	in := ContainerInput{Pod: &corev1.Pod{}, Container: c, Node: testNode(),
		Files: Files{Volumes: map[string]Volume{name.Volume: {HostPath: "/v"}}}}
	src, err := fetch(t.Context(), &in, a, a)
	if err != nil || a.reads != 1 {
		t.Errorf("%d reads, %v", a.reads, err)
	}
	in.Sources = src
	var env environment
	if v, _, err := env.value(&in, &c.Env[0]); v != "1" || err != nil {
		t.Errorf("%q, %v", v, err)
	}
	delete(src.EnvFiles, name) // so that a second look at the text fails
	if v, _, err := env.value(&in, &c.Env[1]); v != "2" || err != nil {
		t.Errorf("%q, %v", v, err)
	}
}
