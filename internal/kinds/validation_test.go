package kinds_test

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"carob/internal/kinds"
	"carob/internal/kinds/rules"
	"carob/internal/kinds/scheme"
)

// decode reads a manifest and defaults it like the server. Tests set only kind, apiVersion, and the
// relevant fields.
func decode(t *testing.T, set *scheme.Set, manifest string) runtime.Object {
	t.Helper()
	text, err := yaml.YAMLToJSON([]byte(manifest))
	if err != nil {
		t.Fatalf("%s: %v", manifest, err)
	}
	obj, _, err := set.Codecs.UniversalDeserializer().Decode(text, nil, nil)
	if err != nil {
		t.Fatalf("%s: %v", manifest, err)
	}
	set.Scheme.Default(obj)
	return obj
}

func rulesFor(t *testing.T, set *scheme.Set, obj runtime.Object) rules.Rules {
	t.Helper()
	gvks, _, err := set.External.ObjectKinds(obj)
	if err != nil {
		t.Fatal(err)
	}
	r, ok := kinds.RulesOf(gvks[0].GroupKind())
	if !ok {
		t.Fatalf("%v has no rules", gvks[0])
	}
	return r
}

func lines(errs field.ErrorList) []string {
	out := make([]string, len(errs))
	for i, e := range errs {
		out[i] = e.Error()
	}
	return out
}

// sameErrors compares errors in any order; the wanted text may omit the end of a line.
func sameErrors(got, want []string) bool {
	if len(got) != len(want) {
		return false
	}
	got, want = slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))
	for i := range got {
		if !strings.HasPrefix(got[i], want[i]) {
			return false
		}
	}
	return true
}

const (
	ingressHead = `{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: a, namespace: b}, spec: `
	policyHead  = `{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: a, namespace: b}, spec: `
	serviceHead = `{apiVersion: v1, kind: Service, metadata: {name: a, namespace: b}, spec: `
	scalerHead  = `{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, metadata: {name: a, namespace: b}, spec: `
	scalerSpec  = `scaleTargetRef: {kind: Deployment, name: d, apiVersion: apps/v1}, maxReplicas: 3`
	claimHead   = `{apiVersion: resource.k8s.io/v1, kind: ResourceClaim, metadata: {name: a, namespace: b}, spec: {devices: `
)

// Each case is a manifest and all of its errors.
func TestCreateKinds(t *testing.T) {
	set, err := scheme.New(kinds.RegisterDefaults)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		manifest string
		want     []string
	}{
		{ingressHead + `{defaultBackend: {service: {name: s, port: {number: 80}}}}}`, nil},
		{ingressHead + `{}}`,
			[]string{"spec: Invalid value: null: either `defaultBackend` or `rules` must be specified"}},
		{ingressHead + `{defaultBackend: {service: {name: s, port: {number: 80, name: h}}}}}`,
			[]string{`spec.defaultBackend: Invalid value: "": cannot set both port name & port number`}},
		{ingressHead + `{defaultBackend: {service: {name: s}}}}`,
			[]string{`spec.defaultBackend: Required value: port name or number is required`}},
		{ingressHead + `{defaultBackend: {}}}`,
			[]string{`spec.defaultBackend: Invalid value: "": resource or service backend is required`}},
		{ingressHead +
			`{rules: [{host: 1.2.3.4, http: {paths: [{path: a//b, pathType: Prefix, backend: {service: {name: s, port: {name: h}}}}]}}]}}`, []string{
			`spec.rules[0].host: Invalid value: "1.2.3.4": must be a DNS name, not an IP address`,
			`spec.rules[0].http.paths[0].path: Invalid value: "a//b": must be an absolute path`,
			`spec.rules[0].http.paths[0].path: Invalid value: "a//b": must not contain '//'`}},
		{ingressHead + `{rules: [{host: "*.example.com", http: {paths: []}}]}}`,
			[]string{`spec.rules[0].http.paths: Required value`}},
		{ingressHead + `{rules: [{http: {paths: [{path: /, backend: {service: {name: s, port: {number: 1}}}}]}}]}}`,
			[]string{`spec.rules[0].http.paths[0].pathType: Required value: pathType must be specified`}},
		{`{apiVersion: networking.k8s.io/v1, kind: IngressClass, metadata: {name: a}, spec: {controller: example.com/c, parameters: {kind: K, name: nn, scope: Namespace}}}`,
			[]string{"spec.parameters.namespace: Required value: `parameters.scope` is set to 'Namespace'"}},

		{policyHead +
			`{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}}], ports: [{port: 80, endPort: 90}]}]}}`, nil},
		{policyHead +
			`{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8, except: [11.0.0.0/16]}}, {}], ports: [{port: 80, endPort: 8}, {endPort: 1}]}]}}`, []string{
			"spec.ingress[0].from[0].ipBlock.except[0]: Invalid value: \"11.0.0.0/16\": must be a strict subset of `cidr`",
			"spec.ingress[0].from[1]: Required value: must specify a peer",
			"spec.ingress[0].ports[0].endPort: Invalid value: 8: must be greater than or equal to `port`",
			"spec.ingress[0].ports[1].endPort: Invalid value: 1: may not be specified when `port` is not specified"}},
		{`{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {name: a}, spec: {cidrs: [10.0.0.0/8, 11.0.0.0/8]}}`,
			[]string{`spec.cidrs: Invalid value: ["10.0.0.0/8","11.0.0.0/8"]: may specify no more than one IP for each IP family`}},
		{`{apiVersion: networking.k8s.io/v1, kind: IPAddress, metadata: {name: 10.0.0.1}, spec: {parentRef: {resource: a/b}}}`,
			[]string{`spec.parentRef.name: Required value`, `spec.parentRef.resource: Invalid value: "a/b"`}},

		{serviceHead + `{ports: [{port: 80}], clusterIP: 010.0.0.1, clusterIPs: [010.0.0.1]}}`,
			[]string{`spec.clusterIPs[0]: Invalid value: "010.0.0.1": must not have leading 0s`}},
		{serviceHead + `{ports: [{port: 80}], trafficDistribution: Far}}`,
			[]string{`spec.trafficDistribution: Unsupported value: "Far"`}},
		{serviceHead + `{type: LoadBalancer, loadBalancerClass: "a b", ports: [{port: 80}]}}`,
			[]string{`spec.loadBalancerClass: Invalid value: "a b"`}},
		{serviceHead + `{type: LoadBalancer, externalTrafficPolicy: Local, ports: [{port: 80}]}}`,
			[]string{`spec.healthCheckNodePort: Required value`}},
		{serviceHead + `{ports: [{port: 80}], externalTrafficPolicy: Local}}`,
			[]string{`spec.externalTrafficPolicy: Invalid value: "Local": may only be set for externally-accessible services`}},

		{`{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: a}, provisioner: "", reclaimPolicy: Recycle}`,
			[]string{`provisioner: Required value`,
				`reclaimPolicy: Unsupported value: "Recycle": supported values: "Delete", "Retain"`}},
		{`{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: a}, provisioner: p, allowedTopologies: [{matchLabelExpressions: [{key: z, values: [a, a]}, {key: z, values: []}]}]}`, []string{
			`allowedTopologies[0].matchLabelExpressions[0].values[1]: Duplicate value: "a"`,
			`allowedTopologies[0].matchLabelExpressions[1].key: Duplicate value: "z"`,
			`allowedTopologies[0].matchLabelExpressions[1].values: Required value`}},
		{`{apiVersion: storage.k8s.io/v1, kind: VolumeAttachment, metadata: {name: a}, spec: {attacher: d.example.com, nodeName: nn, source: {}}}`,
			[]string{`spec.source: Required value: must specify exactly one of inlineVolumeSpec and persistentVolumeName`}},
		{`{apiVersion: storage.k8s.io/v1, kind: CSIDriver, metadata: {name: a}, spec: {tokenRequests: [{audience: a, expirationSeconds: 1}, {audience: a}]}}`,
			[]string{`spec.tokenRequests[0].expirationSeconds: Invalid value: 1: may not specify a duration less than 10 minutes`, `spec.tokenRequests[1].audience: Duplicate value: "a"`}},
		{`{apiVersion: storage.k8s.io/v1, kind: CSINode, metadata: {name: a}, spec: {drivers: [{name: d, nodeID: nn}, {name: d, nodeID: ""}]}}`,
			[]string{`spec.drivers[1].name: Duplicate value: "d"`, `spec.drivers[1].nodeID: Required value`}},
		{`{apiVersion: storage.k8s.io/v1, kind: VolumeAttributesClass, metadata: {name: a}, driverName: d}`,
			[]string{`parameters: Required value: must contain at least one key/value pair`}},

		{scalerHead + `{` + scalerSpec + `}}`, nil},
		{scalerHead + `{scaleTargetRef: {kind: Deployment, name: d, apiVersion: v1}, maxReplicas: 0}}`, []string{
			`spec.maxReplicas: Required value: must be set and greater than 0`,
			"spec.maxReplicas: Invalid value: 0: must be greater than or equal to `minReplicas`",
			`spec.scaleTargetRef.apiVersion: Invalid value: "v1": apiVersion must specify API group`}},
		{scalerHead + `{` + scalerSpec + `, minReplicas: 0}}`,
			[]string{`spec.metrics: Forbidden: must specify at least one Object or External metric to support scaling to zero replicas`}},
		{scalerHead + `{` + scalerSpec +
			`, metrics: [{type: Pods, resource: {name: cpu, target: {type: Utilization, averageUtilization: 0}}}]}}`,
			[]string{
				`spec.metrics[0].pods: Required value: must populate information for the given metric source`,
				`spec.metrics[0].resource.target.averageUtilization: Invalid value: 0: must be greater than 0`}},
		{scalerHead + `{` + scalerSpec +
			`, behavior: {scaleUp: {stabilizationWindowSeconds: 4000, policies: [{type: Pods, value: 0, periodSeconds: 2000}]}}}}`, []string{
			`spec.behavior.scaleUp.stabilizationWindowSeconds: Invalid value: 4000: must be less than or equal to 3600`,
			`spec.behavior.scaleUp.policies[0].value: Invalid value: 0: must be greater than zero`,
			`spec.behavior.scaleUp.policies[0].periodSeconds: Invalid value: 2000: must be less than or equal to 1800`}},

		{`{apiVersion: certificates.k8s.io/v1, kind: CertificateSigningRequest, metadata: {name: "A:b"}, spec: {request: eA==, signerName: kubernetes.io/legacy-unknown, usages: [fly, fly], expirationSeconds: 5}}`, []string{
			`spec.request: Invalid value: "eA==": PEM block type must be CERTIFICATE REQUEST`,
			`spec.usages[0]: Unsupported value: "fly"`, `spec.usages[1]: Unsupported value: "fly"`,
			`spec.usages[1]: Duplicate value: "fly"`,
			`spec.signerName: Invalid value: "kubernetes.io/legacy-unknown": the legacy signerName is not allowed via this API version`,
			`spec.expirationSeconds: Invalid value: 5: may not specify a duration less than 600 seconds (10 minutes)`}},
		{`{apiVersion: certificates.k8s.io/v1, kind: ClusterTrustBundle, metadata: {name: a}, spec: {signerName: example.com/s, trustBundle: ""}}`, []string{
			`metadata.name: Invalid value: "a": ClusterTrustBundle for signerName example.com/s must be named with prefix example.com:s:`,
			`spec.trustBundle: Invalid value: "<value omitted>": at least one trust anchor must be provided`}},
		{`{apiVersion: storagemigration.k8s.io/v1, kind: StorageVersionMigration, metadata: {name: a}, spec: {resource: {group: "", resource: ""}}}`,
			[]string{`spec.resource.resource: Required value: resource is required to be set`}},

		{claimHead + `{requests: [{name: r, exactly: {deviceClassName: c}}]}}}`, nil},
		{claimHead +
			`{requests: [{name: r, exactly: {deviceClassName: c, allocationMode: All, count: 2}}, {name: s}], constraints: [{requests: [t], matchAttribute: a.example.com/x}]}}}`, []string{
			`spec.devices.requests[0].exactly.count: Invalid value: 2: must not be specified when allocationMode is 'All'`,
			"spec.devices.requests[1]: Required value: exactly one of `exactly` or `firstAvailable` is required",
			`spec.devices.constraints[0].requests[0]: Invalid value: "t": must be the name of a request in the claim`}},
	} {
		obj := decode(t, set, c.manifest)
		if got := lines(rulesFor(t, set, obj).Create(t.Context(), obj)); !sameErrors(got, c.want) {
			t.Errorf("%s:\n got %s\nwant %s", c.manifest, strings.Join(got, "\n     "), strings.Join(c.want, "\n     "))
		}
	}
}

// Each case is a stored manifest, the new one, and all errors of the update.
func TestUpdateKinds(t *testing.T) {
	set, err := scheme.New(kinds.RegisterDefaults)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		old, manifest string
		want          []string
	}{
		{`{apiVersion: networking.k8s.io/v1, kind: IngressClass, metadata: {name: a}, spec: {controller: a.io/c}}`,
			`{apiVersion: networking.k8s.io/v1, kind: IngressClass, metadata: {name: a}, spec: {controller: a.io/d}}`,
			[]string{`spec.controller: Invalid value: "a.io/d": field is immutable`}},
		{`{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {name: a}, spec: {cidrs: [10.0.0.0/8]}}`,
			`{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {name: a}, spec: {cidrs: [10.0.0.0/8, "fd00::/64"]}}`, nil},
		{`{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {name: a}, spec: {cidrs: [10.0.0.0/8]}}`,
			`{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {name: a}, spec: {cidrs: [11.0.0.0/8]}}`,
			[]string{`spec.cidrs[0]: Invalid value: "11.0.0.0/8": field is immutable`}},
		// A stored value that validation rejects today may stay.
		{policyHead + `{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 10.0.0.1/8}}]}]}}`,
			policyHead + `{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 10.0.0.1/8}}]}]}}`, nil},
		{policyHead + `{podSelector: {}}}`, policyHead +
			`{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 10.0.0.1/8}}]}]}}`,
			[]string{`spec.ingress[0].from[0].ipBlock.cidr: Invalid value: "10.0.0.1/8"`}},
		{serviceHead + `{ports: [{port: 80}], clusterIP: 10.0.0.1, clusterIPs: [10.0.0.1]}}`,
			serviceHead + `{ports: [{port: 80}], clusterIP: 10.0.0.2, clusterIPs: [10.0.0.2]}}`,
			[]string{`spec.clusterIPs[0]: Invalid value: ["10.0.0.2"]: may not change once set`}},
		{serviceHead + `{ports: [{port: 80}], clusterIP: 010.0.0.1, clusterIPs: [010.0.0.1]}}`,
			serviceHead + `{ports: [{port: 81}], clusterIP: 010.0.0.1, clusterIPs: [010.0.0.1]}}`, nil},
		{serviceHead + `{type: LoadBalancer, loadBalancerClass: a, ports: [{port: 80}]}}`,
			serviceHead + `{type: LoadBalancer, loadBalancerClass: b, ports: [{port: 80}]}}`,
			[]string{`spec.loadBalancerClass: Invalid value: "b": may not change once set`}},
		{`{apiVersion: storage.k8s.io/v1, kind: VolumeAttributesClass, metadata: {name: a}, driverName: d, parameters: {a: b}}`, `{apiVersion: storage.k8s.io/v1, kind: VolumeAttributesClass, metadata: {name: a}, driverName: e, parameters: {a: c}}`,
			[]string{`driverName: Forbidden: updates to driverName are forbidden.`,
				`parameters: Forbidden: updates to parameters are forbidden.`}},
		{`{apiVersion: storage.k8s.io/v1, kind: CSINode, metadata: {name: a}, spec: {drivers: [{name: d, nodeID: nn, allocatable: {count: 1}}]}}`, `{apiVersion: storage.k8s.io/v1, kind: CSINode, metadata: {name: a}, spec: {drivers: [{name: d, nodeID: nn, allocatable: {count: 2}}]}}`, nil},
		{scalerHead + `{scaleTargetRef: {kind: Deployment, name: d, apiVersion: v1}, maxReplicas: 3}}`,
			scalerHead + `{scaleTargetRef: {kind: Deployment, name: d, apiVersion: v1}, maxReplicas: 4}}`, nil},
	} {
		old, obj := decode(t, set, c.old), decode(t, set, c.manifest)
		if got := lines(rulesFor(t, set, obj).Update(t.Context(), obj, old)); !sameErrors(got, c.want) {
			t.Errorf("%s:\n got %s\nwant %s", c.manifest, strings.Join(got, "\n     "), strings.Join(c.want, "\n     "))
		}
	}
}
