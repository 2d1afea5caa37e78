package admission

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"

	"carob/internal/base/errkind"
)

// The built-in plugins that Kubernetes v1.37 enables by default, and NodeRestriction, in its order.
// PodGroupProtection is missing: its kind is alpha. Webhooks, policies, and ResourceQuota come
// after them. VerticalPodAutoscaler is ours: upstream's is a webhook.
var upstreamOrder = []string{
	"NamespaceLifecycle", "LimitRanger", "ServiceAccount", "NodeRestriction", "TaintNodesByCondition", "PodSecurity",
	"Priority", "DefaultTolerationSeconds",
	"DefaultStorageClass", "StorageObjectInUseProtection", "PersistentVolumeClaimResize", "RuntimeClass",
	"CertificateApproval", "CertificateSigning",
	"ClusterTrustBundleAttest", "CertificateSubjectRestriction", "DefaultIngressClass", "PodTopologyLabels",
	"NodeDeclaredFeatureValidator", "PodResizeValidator", "VerticalPodAutoscaler",
}

func TestOrder(t *testing.T) {
	all, err := plugins(Config{Reader: usual(), Authorizer: authorizerfactory.NewAlwaysDenyAuthorizer()})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range all {
		got = append(got, p.name)
	}
	if !slices.Equal(got, upstreamOrder) {
		t.Errorf("order %v\nwant  %v", got, upstreamOrder)
	}
}

func loaded(t *testing.T, plugins string, files ...string) (Configuration, error) {
	t.Helper()
	dir := t.TempDir()
	for i := 0; i < len(files); i += 2 {
		if err := os.WriteFile(filepath.Join(dir, files[i]), []byte(files[i+1]), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(dir, "admission.yaml")
	if err := os.WriteFile(file,
		[]byte("apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n"+plugins),
		0o600); err != nil {
		t.Fatal(err)
	}
	return LoadConfiguration(file)
}

const baseline = "apiVersion: pod-security.admission.config.k8s.io/v1\nkind: PodSecurityConfiguration\ndefaults: {enforce: baseline}\nexemptions: {namespaces: [free]}\n"

func TestPodSecurityIsConfigured(t *testing.T) {
	inline := "- name: PodSecurity\n  configuration:\n    " + strings.ReplaceAll(baseline, "\n", "\n    ")
	for name, load := range map[string]func() (Configuration, error){
		"inline": func() (Configuration, error) { return loaded(t, inline) },
		"own file": func() (Configuration, error) {
			return loaded(t, "- {name: PodSecurity, path: security.yaml}", "security.yaml", baseline)
		},
	} {
		config, err := load()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		chain, err := New(Config{Reader: usual(), Authorizer: authorizerfactory.NewAlwaysDenyAuthorizer(),
			Configuration: config})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for namespace, refused := range map[string]bool{"ns": true, "free": false} {
			p := newTestPod(func(p *corev1.Pod) { p.Spec.HostNetwork = true; p.Spec.ServiceAccountName = "default" })
			err := chain.(admission.ValidationInterface).Validate(t.Context(),
				podAttributes(admission.Create, namespace, p, nil), nil)
			if apierrors.IsForbidden(err) != refused || refused && !strings.Contains(err.Error(), "baseline") {
				t.Errorf("%s: pod with the host's network in %s: %v", name, namespace, err)
			}
		}
	}
}

func podAttributes(op admission.Operation, namespace string, p, old *corev1.Pod) admission.Attributes {
	var before runtime.Object
	if old != nil {
		before = old
	}
	return admission.NewAttributesRecord(p, before, schema.GroupVersionKind{Version: "v1", Kind: "Pod"}, namespace,
		p.Name, schema.GroupVersionResource{Version: "v1", Resource: "pods"}, "", op, nil, false, admin)
}

func TestBadConfiguration(t *testing.T) {
	for name, plugins := range map[string]string{
		"unknown plugin": "- {name: EventRateLimit, path: x}",
		"unknown field":  "- {name: PodSecurity, pth: x}",
		"missing file":   "- {name: PodSecurity, path: nowhere.yaml}",
		"twice":          "- {name: PodSecurity, configuration: {}}\n- {name: PodSecurity, configuration: {}}",
	} {
		if _, err := loaded(t, plugins); err == nil || name != "missing file" && !errkind.Is(err, errkind.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if c, err := LoadConfiguration(""); err != nil || c.For("PodSecurity") != nil {
		t.Errorf("none: %v %v", c, err)
	}
	bad, err := loaded(t,
		"- {name: PodSecurity, configuration: {apiVersion: pod-security.admission.config.k8s.io/v1, kind: PodSecurityConfiguration, defaults: {enforce: strict}}}")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := New(Config{Reader: usual(), Authorizer: authorizerfactory.NewAlwaysDenyAuthorizer(),
		Configuration: bad}); err == nil {
		t.Error("a level that does not exist was taken")
	}
}

func TestQuotaMayBeNeeded(t *testing.T) {
	config, err := loaded(t, `- name: ResourceQuota
  configuration:
    apiVersion: apiserver.config.k8s.io/v1
    kind: ResourceQuotaConfiguration
    limitedResources:
    - {resource: pods, matchContains: [pods]}
`)
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	defer close(stop)
	for needed, config := range map[bool]Configuration{true: config, false: nil} {
		quota, err := NewQuota(usual(), nil, config.For("ResourceQuota"), stop)
		if err != nil {
			t.Fatal(err)
		}
		err = quota.(admission.ValidationInterface).Validate(t.Context(),
			podAttributes(admission.Create, "ns", newTestPod(nil), nil), nil)
		if apierrors.IsForbidden(err) != needed {
			t.Errorf("needed %v: %v", needed, err)
		}
	}
}

// L1.34
func TestNodeDeclaresWhatAnUpdateNeeds(t *testing.T) {
	resized := func(cpu string) *corev1.Pod {
		return newTestPod(func(p *corev1.Pod) {
			p.Spec.NodeName = "n1"
			p.Spec.Resources = &corev1.ResourceRequirements{Requests: amounts(cpu, "1Mi")}
		})
	}
	for _, c := range []struct {
		name     string
		declared []string
		same     bool
		refused  bool
	}{
		{"declared", []string{"InPlacePodLevelResourcesVerticalScaling"}, false, false},
		{"not declared", nil, false, true},
		{"not of the spec", nil, true, false},
	} {
		world := usual()
		world["nodes"][0].(*corev1.Node).Status.DeclaredFeatures = c.declared
		p, old := resized("1"), resized("500m")
		if old.Generation = 1; c.same {
			p.Generation = 1
		} else {
			p.Generation = 2
		}
		err := send(world, request{kind: "Pod", resource: "pods", sub: "resize", namespace: "ns", name: "p",
			op: admission.Update, obj: p, old: old})
		if apierrors.IsForbidden(err) != c.refused || c.refused &&
			!strings.Contains(err.Error(), `which are not available on node "n1"`) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
