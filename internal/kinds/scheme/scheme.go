// Package scheme builds the API server's type registry: every served kind in its external version,
// and the same Go type as the group's hub (the "__internal" version), so that conversion between
// the two only sets the kind. The API server and its generators use it; it must never contain
// carob's own types or depend on how a kind is stored.
package scheme

import (
	"fmt"
	"reflect"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

// Set is the type registry with its codecs. It is complete when New returns, and read only
// afterwards.
type Set struct {
	// Scheme has the external versions and the hubs.
	Scheme *runtime.Scheme
	// External has the external versions only. OpenAPI names and managed fields need it, because
	// they must never see a hub.
	External *runtime.Scheme
	// Codecs serializes requests and responses: JSON, YAML, protobuf; lists are streamed.
	Codecs serializer.CodecFactory
	// ParameterCodec reads query parameters.
	ParameterCodec runtime.ParameterCodec
}

// New builds the registry. Each register function adds defaulting or conversions to the scheme
// before the codecs are built.
func New(register ...func(*runtime.Scheme) error) (*Set, error) {
	s := &Set{Scheme: runtime.NewScheme(), External: runtime.NewScheme()}
	for _, sc := range []*runtime.Scheme{s.Scheme, s.External} {
		if err := addExternal(sc); err != nil {
			return nil, err
		}
	}
	// The library's own registry serves definitions of custom resources; they are registered here
	// for field ownership and OpenAPI.
	if err := apiextensionsv1.AddToScheme(s.External); err != nil {
		return nil, fmt.Errorf("build the API scheme: %w", err)
	}
	if err := addHubs(s.Scheme); err != nil {
		return nil, err
	}
	for _, add := range []func(*runtime.Scheme) error{addEventConversions, addAutoscalerConversions} {
		if err := add(s.Scheme); err != nil {
			return nil, fmt.Errorf("build the API scheme: %w", err)
		}
	}
	// Clients of older releases send evictions of pods in the previous version, whose fields are the same; nothing
	// else of it is served (L1.F).
	s.Scheme.AddKnownTypeWithName(EvictionBeta, &policyv1.Eviction{})
	for _, r := range register {
		if err := r(s.Scheme); err != nil {
			return nil, fmt.Errorf("build the API scheme: %w", err)
		}
	}
	s.Codecs = serializer.NewCodecFactory(s.Scheme, serializer.WithStreamingCollectionEncodingToJSON(),
		serializer.WithStreamingCollectionEncodingToProtobuf())
	s.ParameterCodec = runtime.NewParameterCodec(s.Scheme)
	return s, nil
}

// EvictionBeta is the kind of an eviction in the version before v1.
var EvictionBeta = schema.GroupVersionKind{Group: policyv1.GroupName, Version: "v1beta1", Kind: "Eviction"}

// Hub returns the hub version of a group.
func Hub(group string) schema.GroupVersion {
	return schema.GroupVersion{Group: group, Version: runtime.APIVersionInternal}
}

func addExternal(s *runtime.Scheme) error {
	v1 := schema.GroupVersion{Version: "v1"}
	metav1.AddToGroupVersion(s, v1)
	s.AddUnversionedTypes(v1, &metav1.Status{}, &metav1.APIVersions{}, &metav1.APIGroupList{}, &metav1.APIGroup{},
		&metav1.APIResourceList{})
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, appsv1.AddToScheme, batchv1.AddToScheme, coordinationv1.AddToScheme,
		discoveryv1.AddToScheme,
		eventsv1.AddToScheme, rbacv1.AddToScheme, policyv1.AddToScheme, schedulingv1.AddToScheme, nodev1.AddToScheme,
		authenticationv1.AddToScheme, authorizationv1.AddToScheme, networkingv1.AddToScheme, storagev1.AddToScheme,
		certificatesv1.AddToScheme,
		resourcev1.AddToScheme, storagemigrationv1.AddToScheme,
		// The first version of a group is the stored one, and its types are the hub.
		autoscalingv2.AddToScheme, autoscalingv1.AddToScheme,
		admissionregistrationv1.AddToScheme, flowcontrolv1.AddToScheme, apiregistrationv1.AddToScheme,
	} {
		if err := add(s); err != nil {
			return fmt.Errorf("build the API scheme: %w", err)
		}
	}
	return nil
}

// addHubs registers each external type as its group's hub. The kinds that metav1.AddToGroupVersion
// adds to every group are shared by all versions and must not get one.
func addHubs(s *runtime.Scheme) error {
	shared := map[string]bool{
		"ListOptions": true, "GetOptions": true, "DeleteOptions": true, "CreateOptions": true, "UpdateOptions": true,
		"PatchOptions": true,
		"WatchEvent":   true, "Status": true, "APIVersions": true, "APIGroupList": true, "APIGroup": true,
		"APIResourceList": true,
	}
	for _, gv := range s.PrioritizedVersionsAllGroups() {
		hub := Hub(gv.Group)
		for kind := range s.KnownTypes(gv) {
			if shared[kind] || s.Recognizes(hub.WithKind(kind)) {
				continue
			}
			if gv.Group == eventsv1.GroupName && (kind == "Event" || kind == "EventList") {
				continue // its hub is the core kind
			}
			obj, err := s.New(gv.WithKind(kind))
			if err != nil {
				return fmt.Errorf("build the API scheme: %w", err)
			}
			s.AddKnownTypeWithName(hub.WithKind(kind), obj)
			// Admission plugins request a copy in a version with Convert, which has no conversion
			// between equal types.
			if err := s.AddGeneratedConversionFunc(obj, obj, assign); err != nil {
				return fmt.Errorf("build the API scheme: %w", err)
			}
		}
	}
	s.AddKnownTypeWithName(Hub(eventsv1.GroupName).WithKind("Event"), &corev1.Event{})
	s.AddKnownTypeWithName(Hub(eventsv1.GroupName).WithKind("EventList"), &corev1.EventList{})
	return nil
}

// assign makes b a shallow copy of a, which has the same type; the result of a conversion may share
// memory with its input.
func assign(a, b any, _ conversion.Scope) error {
	reflect.ValueOf(b).Elem().Set(reflect.ValueOf(a).Elem())
	return nil
}
