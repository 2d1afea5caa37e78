// Package resource holds the rules that the comments of k8s.io/api/resource/v1 declare
// for its types, made into functions by validation-gen. Package declared calls
// them; nothing here is written by hand but what the comments name as custom.
//
// +k8s:validation-gen=TypesWithField=TypeMeta
// +k8s:validation-gen-input=k8s.io/api/resource/v1
package resource

import "k8s.io/apimachinery/pkg/runtime"

// localSchemeBuilder is what the generated code registers itself with; package declarative calls it directly.
var localSchemeBuilder runtime.SchemeBuilder
