// Package inferenceapi has the types of the Gateway API inference extension as far as carob reads and writes them, of
// all releases whose manifests are still in use: no release of upstream's module has all of these kinds.
//
// Contract: docs/spec/inference-gateway.md, 1, and the definitions that `carob addon enable inference` installs.
package inferenceapi

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// The groups.
const (
	Group    = "inference.networking.k8s.io"   // v1
	OldGroup = "inference.networking.x-k8s.io" // v1alpha2
	// RouterGroup has objectives and rewrites since they belong to llm-d's router; v1alpha2.
	RouterGroup = "llm-d.ai"
)

// Pool is an InferencePool of v1.
type Pool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              PoolSpec   `json:"spec,omitzero"`
	Status            PoolStatus `json:"status,omitzero"`
}

// PoolSpec selects the pods of a pool, and names the picker that chooses one of them.
type PoolSpec struct {
	Selector struct {
		MatchLabels map[string]string `json:"matchLabels,omitempty"`
	} `json:"selector,omitzero"`
	TargetPorts       []Port  `json:"targetPorts,omitempty"`
	AppProtocol       string  `json:"appProtocol,omitempty"`
	EndpointPickerRef *Picker `json:"endpointPickerRef,omitempty"`
}

// Port is a port of pods, or of the Service of a picker.
type Port struct {
	Number int32 `json:"number,omitempty"`
}

// Picker refers to an endpoint picker.
type Picker struct {
	Group       string `json:"group,omitempty"`
	Kind        string `json:"kind,omitempty"`
	Name        string `json:"name,omitempty"`
	Port        *Port  `json:"port,omitempty"`
	FailureMode string `json:"failureMode,omitempty"`
}

// PoolStatus is the status of a pool at its Gateways.
type PoolStatus struct {
	Parents []Parent `json:"parents,omitempty"`
}

// Parent is the status of a pool at one Gateway. ControllerName is of v1 only.
type Parent struct {
	Conditions     []metav1.Condition `json:"conditions,omitempty"`
	ParentRef      ParentRef          `json:"parentRef,omitzero"`
	ControllerName string             `json:"controllerName,omitempty"`
}

// ParentRef refers to a Gateway.
type ParentRef struct {
	Group     string `json:"group,omitempty"`
	Kind      string `json:"kind,omitempty"`
	Name      string `json:"name,omitempty"`
	Namespace string `json:"namespace,omitempty"`
}

// OldPool is an InferencePool of v1alpha2.
type OldPool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              OldPoolSpec   `json:"spec,omitzero"`
	Status            OldPoolStatus `json:"status,omitzero"`
}

// OldPoolSpec is PoolSpec of v1alpha2.
type OldPoolSpec struct {
	Selector         map[string]string `json:"selector,omitempty"`
	TargetPortNumber int32             `json:"targetPortNumber,omitempty"`
	ExtensionRef     *OldPicker        `json:"extensionRef,omitempty"`
}

// OldPicker is Picker of v1alpha2.
type OldPicker struct {
	Group       string `json:"group,omitempty"`
	Kind        string `json:"kind,omitempty"`
	Name        string `json:"name,omitempty"`
	PortNumber  *int32 `json:"portNumber,omitempty"`
	FailureMode string `json:"failureMode,omitempty"`
}

// OldPoolStatus is PoolStatus of v1alpha2.
type OldPoolStatus struct {
	Parents []Parent `json:"parent,omitempty"`
}

// PoolRef refers to a pool of the same namespace.
type PoolRef struct {
	Group string `json:"group,omitempty"`
	Kind  string `json:"kind,omitempty"`
	Name  string `json:"name,omitempty"`
}

// Status has the conditions of a model, an objective, or a rewrite.
type Status struct {
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Model is an InferenceModel of v1alpha2.
type Model struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              ModelSpec `json:"spec,omitzero"`
	Status            Status    `json:"status,omitzero"`
}

// ModelSpec is the importance of requests for a model, and the names of the model at the servers.
type ModelSpec struct {
	ModelName    string        `json:"modelName,omitempty"`
	Criticality  string        `json:"criticality,omitempty"`
	TargetModels []TargetModel `json:"targetModels,omitempty"`
	PoolRef      PoolRef       `json:"poolRef,omitzero"`
}

// TargetModel is a name of a model at servers, and its share.
type TargetModel struct {
	Name   string `json:"name,omitempty"`
	Weight *int32 `json:"weight,omitempty"`
}

// Objective is an InferenceObjective of v1alpha2.
type Objective struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              ObjectiveSpec `json:"spec,omitzero"`
	Status            Status        `json:"status,omitzero"`
}

// ObjectiveSpec is a priority: higher first; below 0 requests may be refused.
type ObjectiveSpec struct {
	Priority *int32  `json:"priority,omitempty"`
	PoolRef  PoolRef `json:"poolRef,omitzero"`
}

// Rewrite is an InferenceModelRewrite of v1alpha2.
type Rewrite struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              RewriteSpec `json:"spec,omitzero"`
	Status            Status      `json:"status,omitzero"`
}

// RewriteSpec changes the names of models.
type RewriteSpec struct {
	PoolRef PoolRef       `json:"poolRef,omitzero"`
	Rules   []RewriteRule `json:"rules,omitempty"`
}

// RewriteRule gives requests for some models, or for all, other names.
type RewriteRule struct {
	Matches []RewriteMatch  `json:"matches,omitempty"`
	Targets []RewriteTarget `json:"targets,omitempty"`
}

// RewriteMatch is met by a model's name.
type RewriteMatch struct {
	Model *struct {
		Type  string `json:"type,omitempty"`
		Value string `json:"value,omitempty"`
	} `json:"model,omitempty"`
}

// RewriteTarget is a name, and its share.
type RewriteTarget struct {
	Weight       *int32 `json:"weight,omitempty"`
	ModelRewrite string `json:"modelRewrite,omitempty"`
}
