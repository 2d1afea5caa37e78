// Package nodegraph decides which objects the pods of a node refer to: Secrets, ConfigMaps, service
// accounts, volume claims, and resource claims; and which of them a static pod must not refer to.
// The node authorizer, NodeRestriction, and the node's static pods use it. It depends only on its
// input and has no locks.
//
// Contract: docs/spec/pod-lifecycle.md.
package nodegraph

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Kind is a kind of object that pods refer to.
type Kind uint8

// The kinds.
const (
	Secret Kind = iota
	ConfigMap
	ServiceAccount
	VolumeClaim
	ResourceClaim
)

// Ref is an object that a pod or volume refers to.
type Ref struct {
	Kind            Kind
	Namespace, Name string
}

// Graph has the pods that are bound to nodes and the objects they refer to. Its size is the number
// of these references.
type Graph struct {
	pods  map[podKey]bound
	edges map[edge]int // number of pods on the node that refer to the object
}

type podKey struct{ namespace, name string }

type bound struct {
	node string
	refs []Ref
}

type edge struct {
	node string
	ref  Ref
}

// New returns a graph without pods.
func New() *Graph { return &Graph{pods: map[podKey]bound{}, edges: map[edge]int{}} }

// Set adds or updates a pod. A pod without a node refers to nothing.
func (g *Graph) Set(pod *corev1.Pod) {
	k, now := podKey{pod.Namespace, pod.Name}, bound{pod.Spec.NodeName, Refs(pod)}
	if old, ok := g.pods[k]; ok && old.node == now.node && slices.Equal(old.refs, now.refs) {
		return
	}
	g.Remove(pod.Namespace, pod.Name)
	if now.node == "" {
		return
	}
	g.pods[k] = now
	for _, r := range now.refs {
		g.edges[edge{now.node, r}]++
	}
}

// Remove removes a pod; an unknown pod is ignored.
func (g *Graph) Remove(namespace, name string) {
	k := podKey{namespace, name}
	old := g.pods[k]
	delete(g.pods, k)
	for _, r := range old.refs {
		e := edge{old.node, r}
		if g.edges[e]--; g.edges[e] == 0 {
			delete(g.edges, e)
		}
	}
}

// Leads reports whether a pod of the node refers to the object.
func (g *Graph) Leads(node string, r Ref) bool { return g.edges[edge{node, r}] > 0 }

// Refs returns the objects to which a pod gives its node access, each once. A mirror pod gives
// access to none: nodes create mirror pods themselves.
func Refs(pod *corev1.Pod) []Ref {
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return nil
	}
	return Named(pod)
}

// Named returns the objects that a pod refers to by name, each once.
func Named(pod *corev1.Pod) []Ref {
	var out []Ref
	add := func(kind Kind, name string) {
		if r := (Ref{kind, pod.Namespace, name}); name != "" && !slices.Contains(out, r) {
			out = append(out, r)
		}
	}
	add(ServiceAccount, pod.Spec.ServiceAccountName)
	for _, s := range pod.Spec.ImagePullSecrets {
		add(Secret, s.Name)
	}
	for i := range pod.Spec.Volumes {
		volumeRefs(pod.Name, &pod.Spec.Volumes[i], add)
	}
	env := func(vars []corev1.EnvVar, from []corev1.EnvFromSource) {
		for i := range vars {
			if v := vars[i].ValueFrom; v != nil {
				if v.SecretKeyRef != nil {
					add(Secret, v.SecretKeyRef.Name)
				}
				if v.ConfigMapKeyRef != nil {
					add(ConfigMap, v.ConfigMapKeyRef.Name)
				}
			}
		}
		for _, f := range from {
			if f.SecretRef != nil {
				add(Secret, f.SecretRef.Name)
			}
			if f.ConfigMapRef != nil {
				add(ConfigMap, f.ConfigMapRef.Name)
			}
		}
	}
	for i := range pod.Spec.InitContainers {
		env(pod.Spec.InitContainers[i].Env, pod.Spec.InitContainers[i].EnvFrom)
	}
	for i := range pod.Spec.Containers {
		env(pod.Spec.Containers[i].Env, pod.Spec.Containers[i].EnvFrom)
	}
	for i := range pod.Spec.EphemeralContainers {
		env(pod.Spec.EphemeralContainers[i].Env, pod.Spec.EphemeralContainers[i].EnvFrom)
	}
	for _, name := range resourceClaims(pod) {
		add(ResourceClaim, name)
	}
	return out
}

func volumeRefs(podName string, v *corev1.Volume, add func(Kind, string)) {
	local := func(r *corev1.LocalObjectReference) {
		if r != nil {
			add(Secret, r.Name)
		}
	}
	switch {
	case v.Secret != nil:
		add(Secret, v.Secret.SecretName)
	case v.ConfigMap != nil:
		add(ConfigMap, v.ConfigMap.Name)
	case v.PersistentVolumeClaim != nil:
		add(VolumeClaim, v.PersistentVolumeClaim.ClaimName)
	case v.Ephemeral != nil:
		add(VolumeClaim, podName+"-"+v.Name)
	case v.CSI != nil:
		local(v.CSI.NodePublishSecretRef)
	case v.AzureFile != nil:
		add(Secret, v.AzureFile.SecretName)
	case v.CephFS != nil:
		local(v.CephFS.SecretRef)
	case v.Cinder != nil:
		local(v.Cinder.SecretRef)
	case v.FlexVolume != nil:
		local(v.FlexVolume.SecretRef)
	case v.ISCSI != nil:
		local(v.ISCSI.SecretRef)
	case v.RBD != nil:
		local(v.RBD.SecretRef)
	case v.ScaleIO != nil:
		local(v.ScaleIO.SecretRef)
	case v.StorageOS != nil:
		local(v.StorageOS.SecretRef)
	case v.Projected != nil:
		for _, s := range v.Projected.Sources {
			if s.Secret != nil {
				add(Secret, s.Secret.Name)
			}
			if s.ConfigMap != nil {
				add(ConfigMap, s.ConfigMap.Name)
			}
		}
	}
}

// resourceClaims returns the names of a pod's existing claims: those in its spec, and those in its
// status that were created for it.
func resourceClaims(pod *corev1.Pod) []string {
	var out []string
	for _, c := range pod.Spec.ResourceClaims {
		if c.ResourceClaimName != nil {
			out = append(out, *c.ResourceClaimName)
			continue
		}
		for _, s := range pod.Status.ResourceClaimStatuses {
			if s.Name == c.Name && s.ResourceClaimName != nil {
				out = append(out, *s.ResourceClaimName)
			}
		}
	}
	if s := pod.Status.ExtendedResourceClaimStatus; s != nil {
		out = append(out, s.ResourceClaimName)
	}
	return out
}

// VolumeClaimOf returns the claim that a volume is bound to, if any. The claim's own reference to
// the volume does not count, because the owner of the claim can write it.
func VolumeClaimOf(pv *corev1.PersistentVolume) (Ref, bool) {
	c := pv.Spec.ClaimRef
	if c == nil {
		return Ref{}, false
	}
	return Ref{VolumeClaim, c.Namespace, c.Name}, true
}

// VolumeSecrets returns the Secrets that a node needs to mount a volume, without those that only
// controllers need.
func VolumeSecrets(pv *corev1.PersistentVolume) []Ref {
	claimed := ""
	if pv.Spec.ClaimRef != nil {
		claimed = pv.Spec.ClaimRef.Namespace
	}
	var out []Ref
	add := func(namespace, name string) {
		if namespace == "" {
			namespace = claimed
		}
		if name != "" && namespace != "" {
			out = append(out, Ref{Secret, namespace, name})
		}
	}
	ref := func(r *corev1.SecretReference) {
		if r != nil {
			add(r.Namespace, r.Name)
		}
	}
	switch s := &pv.Spec.PersistentVolumeSource; {
	case s.CSI != nil:
		ref(s.CSI.NodePublishSecretRef)
		ref(s.CSI.NodeStageSecretRef)
		ref(s.CSI.NodeExpandSecretRef)
	case s.AzureFile != nil:
		ns := ""
		if s.AzureFile.SecretNamespace != nil {
			ns = *s.AzureFile.SecretNamespace
		}
		add(ns, s.AzureFile.SecretName)
	case s.CephFS != nil:
		ref(s.CephFS.SecretRef)
	case s.Cinder != nil:
		ref(s.Cinder.SecretRef)
	case s.FlexVolume != nil:
		ref(s.FlexVolume.SecretRef)
	case s.ISCSI != nil:
		ref(s.ISCSI.SecretRef)
	case s.RBD != nil:
		ref(s.RBD.SecretRef)
	case s.ScaleIO != nil:
		ref(s.ScaleIO.SecretRef)
	case s.StorageOS != nil && s.StorageOS.SecretRef != nil:
		add(s.StorageOS.SecretRef.Namespace, s.StorageOS.SecretRef.Name)
	}
	return out
}
