// Package addons contains the add-ons that ship with carob and are off by default: for each one
// the objects that it needs, one of which is its switch. The command line stores them; app watches the API server for
// changes of a switch. It must never act on a cluster.
package addons

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"errors"
	"fmt"
	"io"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
)

// Label is on each object of an add-on and names it. State is on its switch, a definition of a
// custom resource, so that a cluster without add-ons has nothing to watch: Enabled or anything else.
const (
	Label   = "carob.dev/addon"
	State   = "carob.dev/addon-state"
	Enabled = "enabled"
	// Disabled is the state of an add-on that is off although its objects are kept.
	Disabled = "disabled"
)

// VPA is the add-on that runs VerticalPodAutoscalers. Gateway has the kinds of the Gateway API; a cluster that was
// started with an address for the gateway has it from the start. Inference has the kinds of pools of model servers,
// which the gateway serves. Snapshots has the kinds and the controller of snapshots of volumes; unlike the others, this
// controller is no part of carob.
const (
	VPA       = "vpa"
	Gateway   = "gateway"
	Inference = "inference"
	Snapshots = "snapshots"
)

// Addon is one add-on.
type Addon struct {
	Name, Description string
	// Switch is the name of the definition that turns it on.
	Switch string
	// Kept describes what stays in the cluster when it is disabled.
	Kept string
	// Objects are what users create for it: resources of the group in version v1, or
	// resource.version.group.
	Group   string
	Objects []string
	text    []byte
	// gzip-compressed, because they are large; appended to text
	definitions []byte
}

//go:embed vpa.yaml
var vpa []byte

//go:embed gateway.yaml
var gateway []byte

//go:generate ../../../hack/gateway-crds
//go:embed gateway-crds.json.gz
var gatewayDefinitions []byte

//go:embed inference.yaml
var inference []byte

//go:generate ../../../hack/inference-crds
//go:embed inference-crds.json.gz
var inferenceDefinitions []byte

//go:embed snapshots.yaml
var snapshots []byte

//go:generate ../../../hack/snapshot-crds
//go:embed snapshot-crds.json.gz
var snapshotDefinitions []byte

// All are the add-ons, by name.
func All() []Addon {
	return []Addon{{Name: Gateway, Description: "Gateway API: routes to Services by HTTP host, path, and header",
		Switch: "gateways.gateway.networking.k8s.io", Group: "gateway.networking.k8s.io",
		Kept:    "Services and Ingresses stay as they are",
		Objects: []string{"gateways", "httproutes", "grpcroutes", "tlsroutes", "tcproutes", "udproutes"}, text: gateway,
		definitions: gatewayDefinitions,
	}, {Name: Inference, Description: "InferencePools: requests for models to the server that answers soonest",
		Switch: "inferencepools.inference.networking.k8s.io", Group: "inference.networking.k8s.io",
		Kept: "model servers and routes stay as they are",
		Objects: []string{"inferencepools", "inferencepools.v1alpha2.inference.networking.x-k8s.io",
			"inferencemodels.v1alpha2.inference.networking.x-k8s.io",
			"inferenceobjectives.v1alpha2.inference.networking.x-k8s.io",
			"inferencemodelrewrites.v1alpha2.inference.networking.x-k8s.io",
			"inferenceobjectives.v1alpha2.llm-d.ai", "inferencemodelrewrites.v1alpha2.llm-d.ai"}, text: inference, definitions: inferenceDefinitions,
	}, {Name: Snapshots, Description: "VolumeSnapshots of CSI drivers: their kinds and their controller",
		Switch: "volumesnapshots.snapshot.storage.k8s.io", Group: "snapshot.storage.k8s.io",
		Kept:    "drivers keep snapshots by their deletionPolicy",
		Objects: []string{"volumesnapshots", "volumesnapshotcontents", "volumesnapshotclasses"}, text: snapshots,
		definitions: snapshotDefinitions,
	}, {Name: VPA, Description: "VerticalPodAutoscaler: sets the requests of pods by what they use",
		Switch: "verticalpodautoscalers.autoscaling.k8s.io", Group: "autoscaling.k8s.io",
		Kept:    "pods keep the requests that they have",
		Objects: []string{"verticalpodautoscalers", "verticalpodautoscalercheckpoints"}, text: vpa}}
}

// Find returns an add-on by its name.
func Find(name string) (Addon, bool) {
	for _, a := range All() {
		if a.Name == name {
			return a, true
		}
	}
	return Addon{}, false
}

// On reports whether a definition with these labels is the switch of an add-on, and turns it on.
func (a Addon) On(definition string, labels map[string]string) bool {
	return definition == a.Switch && labels[Label] == a.Name && labels[State] == Enabled
}

// Manifests are the objects of an add-on in the order in which they are stored, the switch last.
func (a Addon) Manifests() ([]*unstructured.Unstructured, error) {
	read := func(text io.Reader) (out []*unstructured.Unstructured, err error) {
		for d := utilyaml.NewYAMLOrJSONDecoder(text, 4096); ; {
			o := &unstructured.Unstructured{}
			if err := d.Decode(&o.Object); errors.Is(err, io.EOF) {
				return out, nil
			} else if err != nil {
				return nil, fmt.Errorf("read the objects of add-on %s: %w", a.Name, err)
			}
			if len(o.Object) > 0 {
				out = append(out, o)
			}
		}
	}
	out, err := read(bytes.NewReader(a.text))
	if err != nil || a.definitions == nil {
		return out, err
	}
	text, err := gzip.NewReader(bytes.NewReader(a.definitions))
	if err != nil {
		return nil, fmt.Errorf("read the definitions of add-on %s: %w", a.Name, err)
	}
	more, err := read(text)
	return append(out, more...), err
}
