package apiserver

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"
)

// upstreamURL is a kube-apiserver with the ranges of one scenario (hack/reference-apiserver DIR
// PORT RANGES NODEPORTS), from which -rewrite records the answers; TOKEN=… is its token.
var upstreamURL = flag.String("upstream", "", "TestUpstreamServices: ask this upstream API server instead of carob")

// serviceClusters are the clusters of testdata/services, by file.
var serviceClusters = map[string]struct {
	ranges string
	ports  [2]int
}{
	"four":     {ranges: "10.96.0.0/16"},
	"dual":     {ranges: "10.96.0.0/16,fd00:96::/112"},
	"six":      {ranges: "fd00:96::/112,10.96.0.0/16"},
	"requests": {ranges: "10.96.0.0/16"},
	"own":      {ranges: "10.96.0.0/16,fd00:96::/112"},
	"tiny":     {ranges: "10.96.0.0/29", ports: [2]int{30000, 30003}},
}

// Services get, keep, and release addresses and ports, and are rejected, as by upstream's API
// server: the answers in testdata/services are its own.
func TestUpstreamServices(t *testing.T) {
	for name, cluster := range serviceClusters {
		t.Run(name, func(t *testing.T) {
			var c kubernetes.Interface
			if *upstreamURL != "" {
				var err error
				if c, err = kubernetes.NewForConfig(&restclient.Config{Host: *upstreamURL,
					BearerToken: os.Getenv("TOKEN"), QPS: -1,
					TLSClientConfig: restclient.TLSClientConfig{Insecure: true}}); err != nil {
					t.Fatal(err)
				}
			} else {
				cfg := newConfig(t, t.TempDir())
				cfg.NodePorts = cluster.ports
				for r := range strings.SplitSeq(cluster.ranges, ",") {
					cfg.ServiceCIDRs = append(cfg.ServiceCIDRs, netip.MustParsePrefix(r))
				}
				if cfg.ServiceCIDRs[0].Addr().Is6() {
					cfg.AdvertiseAddress = netip.MustParseAddr("2001:db8::1")
				}
				c = startWith(t, cfg).admin(t)
			}
			s := &serviceScenario{api: c, names: map[string]string{}, tiny: name == "tiny"}
			s.clear(t)
			datadriven.RunTest(t, filepath.Join("testdata", "services", name+".txt"), s.run)
		})
	}
}

// serviceScenario sends requests to one API server. Each value that the server chose gets a name.
type serviceScenario struct {
	api      kubernetes.Interface
	literals []string
	names    map[string]string
	counts   [3]int
	tiny     bool // there are so few values that the same one comes again
}

func (s *serviceScenario) clear(t *testing.T) {
	t.Helper()
	list, err := s.api.CoreV1().Services("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range list.Items {
		if o.Name != "kubernetes" {
			_ = s.api.CoreV1().Services("default").Delete(t.Context(), o.Name, metav1.DeleteOptions{})
		}
	}
}

// run sends one request:
//
//	create|put NAME [dry]     the body is the spec
//	patch NAME [dry] [status] the body is the change of the spec (or of the status)
//	delete|get NAME [dry]
//	raw METHOD [type=…] PATH  the body is YAML
//	pause                     waits for upstream's caches
//	range|unrange NAME [cidrs=…], address|unaddress NAME, addresses
func (s *serviceScenario) run(t *testing.T, d *datadriven.TestData) string {
	s.literals = append(s.literals, value.FindAllString(d.Input, -1)...)
	if d.Cmd == "raw" {
		return s.raw(t, d)
	}
	if !s.tiny {
		s.forget(t)
	}
	var words []string
	dry, status, cidrs := false, false, []string{}
	for _, a := range d.CmdArgs {
		switch a.Key {
		case "dry":
			dry = true
		case "status":
			status = true
		case "cidrs":
			cidrs = a.Vals
		default:
			words = append(words, a.Key)
			s.literals = append(s.literals, a.Key)
		}
	}
	name := ""
	if len(words) > 0 {
		name = words[0]
	}
	ctx, services := t.Context(), s.api.CoreV1().Services("default")
	var dryRun []string
	if dry {
		dryRun = []string{metav1.DryRunAll}
	}
	spec := corev1.ServiceSpec{}
	if d.Cmd != "patch" {
		if err := yaml.UnmarshalStrict([]byte(d.Input), &spec); err != nil {
			t.Fatalf("%s: %v", d.Pos, err)
		}
	}
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
	var out runtime.Object
	var err error
	switch d.Cmd {
	case "create":
		out, err = services.Create(ctx, svc, metav1.CreateOptions{DryRun: dryRun})
	case "put":
		out, err = services.Update(ctx, svc, metav1.UpdateOptions{DryRun: dryRun})
	case "patch":
		body, e := yaml.YAMLToJSON([]byte(d.Input))
		if e != nil {
			t.Fatalf("%s: %v", d.Pos, e)
		}
		part, sub := "spec", []string{}
		if status {
			part, sub = "status", []string{"status"}
		}
		out, err = services.Patch(ctx, name, types.MergePatchType, fmt.Appendf(nil, `{%q:%s}`, part, body),
			metav1.PatchOptions{DryRun: dryRun}, sub...)
	case "get":
		out, err = services.Get(ctx, name, metav1.GetOptions{})
	case "delete":
		if err = services.Delete(ctx, name, metav1.DeleteOptions{DryRun: dryRun}); err == nil {
			return "ok"
		}
	case "range":
		_, err = s.api.NetworkingV1().ServiceCIDRs().Create(ctx,
			&networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: name},
				Spec: networkingv1.ServiceCIDRSpec{CIDRs: cidrs}}, metav1.CreateOptions{})
	case "unrange":
		err = s.api.NetworkingV1().ServiceCIDRs().Delete(ctx, name, metav1.DeleteOptions{})
	case "address":
		_, err = s.api.NetworkingV1().IPAddresses().Create(ctx,
			&networkingv1.IPAddress{ObjectMeta: metav1.ObjectMeta{Name: name},
				Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{Group: "example.com",
					Resource: "things", Name: "thing"}}}, metav1.CreateOptions{})
	case "unaddress":
		err = s.api.NetworkingV1().IPAddresses().Delete(ctx, name, metav1.DeleteOptions{})
	case "pause":
		if *upstreamURL != "" {
			time.Sleep(2 * time.Second)
		}
		return "ok"
	case "addresses":
		return s.addresses(t)
	default:
		t.Fatalf("%s: unknown request %q", d.Pos, d.Cmd)
	}
	if err != nil {
		return s.generalize(refusal(err), dry)
	}
	if svc, ok := out.(*corev1.Service); ok {
		if *upstreamURL != "" {
			// Otherwise its next write would start from its cache.
			_, _ = services.Get(ctx, name, metav1.GetOptions{ResourceVersion: svc.ResourceVersion})
		}
		return s.generalize(show(svc), dry)
	}
	return "ok"
}

// forget releases the names of values that no service has any more: a random choice may return
// them.
func (s *serviceScenario) forget(t *testing.T) {
	list, err := s.api.CoreV1().Services("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	had := map[string]bool{}
	for i := range list.Items {
		for _, v := range value.FindAllString(show(&list.Items[i]), -1) {
			had[v] = true
		}
	}
	maps.DeleteFunc(s.names, func(v, _ string) bool { return !had[v] })
}

// raw sends any request; the answer to a successful one is only its code.
func (s *serviceScenario) raw(t *testing.T, d *datadriven.TestData) string {
	method, path := d.CmdArgs[0].Key, ""
	kind := "application/json"
	for _, a := range d.CmdArgs[1:] {
		if a.Key == "type" {
			kind = a.Vals[0]
		} else {
			path = a.String()
		}
	}
	r := s.api.CoreV1().RESTClient().Verb(method).RequestURI(path)
	if d.Input != "" {
		body, err := yaml.YAMLToJSON([]byte(d.Input))
		if err != nil {
			t.Fatalf("%s: %v", d.Pos, err)
		}
		r.SetHeader("Content-Type", kind).Body(body)
	}
	code := 0
	if err := r.Do(t.Context()).StatusCode(&code).Error(); err != nil {
		return s.generalize(refusal(err), false)
	}
	return fmt.Sprint(code)
}

func refusal(err error) string {
	status, ok := err.(apierrors.APIStatus) //nolint:errorlint // the client returns it as it is
	if !ok {
		return err.Error()
	}
	st := status.Status()
	return fmt.Sprintf("%d %s: %s", st.Code, st.Reason, st.Message)
}

// show formats a service without its usual defaults.
func show(svc *corev1.Service) string {
	raw, _ := json.Marshal(svc.Spec)
	var m map[string]any
	_ = json.Unmarshal(raw, &m)
	for key, usual := range map[string]any{"sessionAffinity": "None", "internalTrafficPolicy": "Cluster"} {
		if m[key] == usual {
			delete(m, key)
		}
	}
	for _, p := range svc.Spec.Ports {
		if p.TargetPort.IntVal != p.Port && p.Name != "https" {
			m["targetPort of "+p.Name] = p.TargetPort.String()
		}
	}
	if list, ok := m["ports"].([]any); ok {
		var flat []string
		for _, p := range list {
			p := p.(map[string]any)
			text := fmt.Sprintf("%v:%v/%v", cmp.Or[any](p["name"], ""), p["port"], p["protocol"])
			if n, ok := p["nodePort"].(float64); ok {
				text += fmt.Sprintf(" node port %d", int(n))
			}
			flat = append(flat, text)
		}
		m["ports"] = flat
	}
	if len(svc.Status.LoadBalancer.Ingress) > 0 {
		m["status"] = svc.Status.LoadBalancer.Ingress[0].IP
	}
	text, _ := yaml.Marshal(m)
	return strings.TrimSpace(string(text))
}

func (s *serviceScenario) addresses(t *testing.T) string {
	t.Helper()
	list, err := s.api.NetworkingV1().IPAddresses().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, a := range list.Items {
		p := a.Spec.ParentRef
		lines = append(lines,
			s.generalize(fmt.Sprintf("%s %s %s/%s by %s", p.Resource, p.Name,
				a.Labels[networkingv1.LabelIPAddressFamily], a.Name, a.Labels[networkingv1.LabelManagedBy]), false))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// value is an address in the scenarios' ranges or a port in the usual range of node ports.
var value = regexp.MustCompile(
	`\b10\.(96|97|98)\.\d+\.\d+(/\d+)?|\bfd00:9[67]::([0-9a-f]{1,4})?(/\d+)?|\b3[0-2]\d\d\d(-\d+)?\b`)

// generalize replaces values that no request has named by names.
func (s *serviceScenario) generalize(text string, dry bool) string {
	return value.ReplaceAllStringFunc(text, func(v string) string {
		if dry && (v == "10.96.0.0" || v == "fd00:96::") {
			return map[bool]string{true: "(ipv4)", false: "(ipv6)"}[strings.Contains(v, ".")]
		}
		if strings.ContainsAny(v, "/-") || slices.Contains(s.literals, v) || v == "10.96.0.1" || v == "fd00:96::1" {
			return v
		}
		kind, i := "port", 2
		switch {
		case strings.Contains(v, "."):
			kind, i = "ipv4", 0
		case strings.Contains(v, ":"):
			kind, i = "ipv6", 1
		}
		if dry {
			return "(" + kind + ")" // none is allocated, and upstream makes one up
		}
		if s.names[v] == "" {
			s.counts[i]++
			s.names[v] = fmt.Sprintf("(%s %d)", kind, s.counts[i])
		}
		return s.names[v]
	})
}
