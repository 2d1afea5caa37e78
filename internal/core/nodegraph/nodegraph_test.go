package nodegraph

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func local(name string) corev1.LocalObjectReference { return corev1.LocalObjectReference{Name: name} }

// Every field by which a pod can refer to an object.
func TestRefs(t *testing.T) {
	env := func(n string) corev1.Container {
		return corev1.Container{
			Env: []corev1.EnvVar{
				{Name: "plain", Value: "x"},
				{ValueFrom: &corev1.EnvVarSource{
					SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: local("env-" + n)}}},
				{ValueFrom: &corev1.EnvVarSource{
					ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: local("env-" + n)}}},
			},
			EnvFrom: []corev1.EnvFromSource{
				{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: local("from-" + n)}},
				{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: local("from-" + n)}},
			},
		}
	}
	volume := func(s corev1.VolumeSource) corev1.Volume { return corev1.Volume{Name: "v", VolumeSource: s} }
	ref := func(n string) *corev1.LocalObjectReference { l := local(n); return &l }
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}, Spec: corev1.PodSpec{
		ServiceAccountName: "sa",
		ImagePullSecrets:   []corev1.LocalObjectReference{local("pull"), local("pull"), local("")},
		InitContainers:     []corev1.Container{env("init")}, Containers: []corev1.Container{env("main")},
		EphemeralContainers: []corev1.EphemeralContainer{
			{EphemeralContainerCommon: corev1.EphemeralContainerCommon(env("debug"))}},
		Volumes: []corev1.Volume{
			volume(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}),
			volume(corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "secret"}}),
			volume(corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: local("map")}}),
			volume(
				corev1.VolumeSource{
					PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim"}}),
			volume(corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}),
			volume(corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{NodePublishSecretRef: ref("csi")}}),
			volume(corev1.VolumeSource{AzureFile: &corev1.AzureFileVolumeSource{SecretName: "azure"}}),
			volume(corev1.VolumeSource{CephFS: &corev1.CephFSVolumeSource{SecretRef: ref("cephfs")}}),
			volume(corev1.VolumeSource{Cinder: &corev1.CinderVolumeSource{SecretRef: ref("cinder")}}),
			volume(corev1.VolumeSource{FlexVolume: &corev1.FlexVolumeSource{SecretRef: ref("flex")}}),
			volume(corev1.VolumeSource{ISCSI: &corev1.ISCSIVolumeSource{SecretRef: ref("iscsi")}}),
			volume(corev1.VolumeSource{RBD: &corev1.RBDVolumeSource{SecretRef: ref("rbd")}}),
			volume(corev1.VolumeSource{ScaleIO: &corev1.ScaleIOVolumeSource{SecretRef: ref("scaleio")}}),
			volume(corev1.VolumeSource{StorageOS: &corev1.StorageOSVolumeSource{SecretRef: ref("storageos")}}),
			volume(corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
				{Secret: &corev1.SecretProjection{LocalObjectReference: local("projected")}},
				{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: local("projected")}},
			}}}),
		},
		ResourceClaims: []corev1.PodResourceClaim{{Name: "a", ResourceClaimName: new("named")}, {Name: "b"},
			{Name: "not-made-yet"}},
	}, Status: corev1.PodStatus{
		ResourceClaimStatuses: []corev1.PodResourceClaimStatus{{Name: "b", ResourceClaimName: new("made")},
			{Name: "none"}},
		ExtendedResourceClaimStatus: &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "extended"},
	}}
	names := map[Kind][]string{
		ServiceAccount: {"sa"},
		Secret: {"pull", "secret", "csi", "azure", "cephfs", "cinder", "flex", "iscsi", "rbd", "scaleio", "storageos",
			"projected",
			"env-init", "from-init", "env-main", "from-main", "env-debug", "from-debug"},
		ConfigMap: {"map", "projected", "env-init", "from-init", "env-main", "from-main", "env-debug",
			"from-debug"},
		VolumeClaim:   {"claim", "p-v"},
		ResourceClaim: {"named", "made", "extended"},
	}
	got := map[Kind][]string{}
	for _, r := range Refs(pod) {
		if r.Namespace != "ns" {
			t.Errorf("%v is of another namespace", r)
		}
		got[r.Kind] = append(got[r.Kind], r.Name)
	}
	for kind, want := range names {
		if !slices.Equal(got[kind], want) {
			t.Errorf("kind %d: %v, want %v", kind, got[kind], want)
		}
	}
	pod.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
	if refs := Refs(pod); refs != nil {
		t.Errorf("a mirror pod gives %v", refs)
	}
}

func TestVolumeSecrets(t *testing.T) {
	ref := func(ns, n string) *corev1.SecretReference { return &corev1.SecretReference{Namespace: ns, Name: n} }
	pv := &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
			NodePublishSecretRef: ref("a", "publish"), NodeStageSecretRef: ref("b", "stage"),
			NodeExpandSecretRef:        ref("c", "expand"),
			ControllerPublishSecretRef: ref("d", "controller"), ControllerExpandSecretRef: ref("e", "controller"),
		}}}}
	if got, want := VolumeSecrets(pv),
		[]Ref{{Secret, "a", "publish"}, {Secret, "b", "stage"}, {Secret, "c", "expand"}}; !slices.Equal(got, want) {
		t.Errorf("CSI: %v, want %v", got, want)
	}
	if r, ok := VolumeClaimOf(pv); ok {
		t.Errorf("an unbound volume is of %v", r)
	}
	pv.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{
		RBD: &corev1.RBDPersistentVolumeSource{SecretRef: ref("", "s")}}
	if got := VolumeSecrets(pv); got != nil {
		t.Errorf("a secret of no namespace: %v", got)
	}
	pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "c"}
	if got, want := VolumeSecrets(pv), []Ref{{Secret, "ns", "s"}}; !slices.Equal(got, want) {
		t.Errorf("RBD: %v, want %v", got, want)
	}
	if r, ok := VolumeClaimOf(pv); !ok || r != (Ref{VolumeClaim, "ns", "c"}) {
		t.Errorf("claim %v, %v", r, ok)
	}
}

// After any changes, a node has access to exactly what its pods refer to, and a graph without pods
// is empty.
func TestAccessMatchesReferences(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		g, pods := New(), map[string]*corev1.Pod{}
		for range 60 {
			name := fmt.Sprint(rnd.IntN(6))
			if rnd.IntN(3) == 0 {
				delete(pods, name)
				g.Remove("ns", name)
				continue
			}
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: corev1.PodSpec{
				NodeName: []string{"", "n1", "n2"}[rnd.IntN(3)], ServiceAccountName: fmt.Sprint(rnd.IntN(3)),
				ImagePullSecrets: []corev1.LocalObjectReference{local(fmt.Sprint(rnd.IntN(3))),
					local(fmt.Sprint(rnd.IntN(3)))}}}
			if rnd.IntN(4) == 0 {
				pod.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
			}
			pods[name] = pod
			g.Set(pod)
			for _, node := range []string{"", "n1", "n2"} {
				for _, kind := range []Kind{Secret, ServiceAccount, ConfigMap} {
					for i := range 3 {
						r, want := Ref{kind, "ns", fmt.Sprint(i)}, false
						for _, p := range pods {
							want = want || node != "" && p.Spec.NodeName == node && slices.Contains(Refs(p), r)
						}
						if got := g.Leads(node, r); got != want {
							t.Fatalf("seed %d: node %q to %v: %v, want %v", seed, node, r, got, want)
						}
					}
				}
			}
		}
		for name := range pods {
			g.Remove("ns", name)
		}
		if len(g.pods)+len(g.edges) != 0 {
			t.Fatalf("seed %d: %d pods and %d edges stay", seed, len(g.pods), len(g.edges))
		}
	}
}
