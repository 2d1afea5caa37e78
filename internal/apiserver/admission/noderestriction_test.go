package admission

import (
	"crypto/ed25519"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
)

// signing is a request for a certificate with a common name.
func signing(t *testing.T, name, signer string, u user.Info) request {
	t.Helper()
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(nil, &x509.CertificateRequest{Subject: pkix.Name{CommonName: name}}, key)
	if err != nil {
		t.Fatal(err)
	}
	return request{group: "certificates.k8s.io", resource: "certificatesigningrequests", op: admission.Create, user: u,
		obj: &certificatesv1.CertificateSigningRequest{
			Spec: certificatesv1.CertificateSigningRequestSpec{SignerName: signer,
				Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})}}}
}

// L1.37
func TestNodeRestriction(t *testing.T) {
	agent := &user.DefaultInfo{Name: "system:node:n1", Groups: []string{user.NodesGroup}}
	owner := []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "n1", UID: "uid-n1", Controller: new(true)}}
	mirrorOn := func(node string, owner []metav1.OwnerReference) *corev1.Pod {
		return newTestPod(func(p *corev1.Pod) {
			p.Annotations, p.OwnerReferences, p.Spec.NodeName = map[string]string{corev1.MirrorPodAnnotationKey: "x"},
				owner, node
		})
	}
	needing := func(change func(*corev1.PodSpec)) *corev1.Pod {
		p := mirrorOn("n1", owner)
		change(&p.Spec)
		return p
	}
	leaseOf := func(op admission.Operation, namespace, name string) request {
		r := request{group: "coordination.k8s.io", resource: "leases", namespace: namespace, op: op, user: agent}
		if op == admission.Create {
			r.obj = &coordinationv1.Lease{ObjectMeta: named(name)}
		} else {
			r.name = name
		}
		return r
	}
	pods := func(op admission.Operation, sub, name string, obj, old runtime.Object) request {
		return request{kind: "Pod", resource: "pods", sub: sub, namespace: "ns", name: name, op: op, obj: obj, old: old,
			user: agent}
	}
	relabeled := newTestPod(func(p *corev1.Pod) { p.Spec.NodeName = "n1"; p.Labels = map[string]string{"a": "b"} })
	onN1 := newTestPod(func(p *corev1.Pod) { p.Spec.NodeName = "n1" })
	onN2 := newTestPod(func(p *corev1.Pod) { p.Spec.NodeName = "n2" })
	token := func(pod string, uid string, audiences ...string) request {
		return request{kind: "TokenRequest", resource: "serviceaccounts", sub: "token", namespace: "ns",
			name: "default", op: admission.Create, user: agent,
			obj: &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: audiences,
				BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod,
					UID: types.UID(uid)}}}}
	}
	of := func(group, resource, sub, name string, op admission.Operation, obj, old runtime.Object) request {
		return request{group: group, resource: resource, sub: sub, name: name, op: op, obj: obj, old: old, user: agent}
	}
	sliceOn := func(node string) *resourcev1.ResourceSlice {
		return &resourcev1.ResourceSlice{Spec: resourcev1.ResourceSliceSpec{NodeName: &node}}
	}
	labelled := func(keys ...string) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{}}}
		for _, k := range keys {
			n.Labels[k] = ""
		}
		return n
	}
	claiming := onN1.DeepCopy()
	claiming.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "theirs"}
	podCertificate := func(change func(*certificatesv1.PodCertificateRequestSpec)) request {
		s := certificatesv1.PodCertificateRequestSpec{SignerName: "example.com/s", PodName: "mine", PodUID: "uid-mine",
			ServiceAccountName: "default", ServiceAccountUID: "uid-default", NodeName: "n1", NodeUID: "uid-n1"}
		if change != nil {
			change(&s)
		}
		r := of("certificates.k8s.io", "podcertificaterequests", "", "", admission.Create,
			&certificatesv1.PodCertificateRequest{Spec: s}, nil)
		r.namespace = "ns"
		return r
	}
	for _, c := range []struct {
		name string
		req  request
		want string
	}{
		{"own mirror pod", pods(admission.Create, "", "p", mirrorOn("n1", owner), nil), ""},
		{"mirror pod of another node", pods(admission.Create, "", "p", mirrorOn("n2", owner), nil),
			"can only create pods with spec.nodeName set to itself"},
		{"mirror pod without owner", pods(admission.Create, "", "p", mirrorOn("n1", nil), nil),
			"can only create pods with an owner reference set to itself"},
		{"mirror pod with a config map", pods(admission.Create, "", "p", needing(func(s *corev1.PodSpec) {
			s.Containers[0].EnvFrom = []corev1.EnvFromSource{
				{ConfigMapRef: &corev1.ConfigMapEnvSource{
					LocalObjectReference: corev1.LocalObjectReference{Name: "m"}}}}
		}), nil), "can not create pods that reference configmaps"},
		{"mirror pod with a projected config map", pods(admission.Create, "", "p", needing(func(s *corev1.PodSpec) {
			s.Volumes = []corev1.Volume{
				{VolumeSource: corev1.VolumeSource{
					Projected: &corev1.ProjectedVolumeSource{
						Sources: []corev1.VolumeProjection{
							{ConfigMap: &corev1.ConfigMapProjection{
								LocalObjectReference: corev1.LocalObjectReference{Name: "m"}}}}}}}}
		}), nil), "can not create pods that reference configmaps"},
		{"mirror pod with a claimed device", pods(admission.Create, "", "p", needing(func(s *corev1.PodSpec) {
			s.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu"}}
		}), nil), "can not create pods that reference resourceclaims"},
		{"mirror pod with a volume claim", pods(admission.Create, "", "p", needing(func(s *corev1.PodSpec) {
			s.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}}}
		}), nil), "can not create pods that reference persistentvolumeclaims"},
		{"mirror pod with a trust bundle", pods(admission.Create, "", "p", needing(func(s *corev1.PodSpec) {
			s.Volumes = []corev1.Volume{
				{VolumeSource: corev1.VolumeSource{
					Projected: &corev1.ProjectedVolumeSource{
						Sources: []corev1.VolumeProjection{
							{ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{}}}}}}}
		}), nil), "can not create pods that reference clustertrustbundles"},
		{"exec", pods(admission.Create, "exec", "mine", &corev1.PodExecOptions{}, nil), "unexpected pod subresource"},
		{"evict its own", pods(admission.Create, "eviction", "mine", &policyv1.Eviction{}, nil), ""},
		{"evict another's", pods(admission.Create, "eviction", "theirs", &policyv1.Eviction{}, nil),
			"can only evict pods with spec.nodeName set to itself"},
		{"its lease", leaseOf(admission.Create, "kube-node-lease", "n1"), ""},
		{"another's lease", leaseOf(admission.Create, "kube-node-lease", "n2"),
			"can only access node lease with the same name"},
		{"a lease elsewhere", leaseOf(admission.Delete, "ns", "n1"), "can only access leases in the"},
		{"ordinary pod", pods(admission.Create, "", "p", newTestPod(nil), nil), "can only create mirror pods"},
		{"delete its own", pods(admission.Delete, "", "mine", nil, nil), ""},
		{"delete another's", pods(admission.Delete, "", "theirs", nil, nil),
			"can only delete pods with spec.nodeName set to itself"},
		{"status of its own", pods(admission.Update, "status", "p", onN1.DeepCopy(), onN1), ""},
		{"status of another's", pods(admission.Update, "status", "p", onN2.DeepCopy(), onN2),
			"can only update pod status for pods with spec.nodeName set to itself"},
		{"labels through status", pods(admission.Update, "status", "p", relabeled, onN1),
			"cannot update labels through pod status"},
		{"spec", pods(admission.Update, "", "p", onN1.DeepCopy(), onN1), "can only create and delete mirror pods"},
		{"token of its own pod", token("mine", "uid-mine"), ""},
		{"token of another's pod", token("theirs", "uid-theirs"),
			"node requested token bound to a pod scheduled on a different node"},
		{"token of an audience the pod names", token("mine", "uid-mine", "vault"), ""},
		{"token of an audience of an inline volume", token("mine", "uid-mine", "for-inline"), ""},
		{"token of an audience of a claimed volume", token("mine", "uid-mine", "for-claimed"), ""},
		{"token of another audience", token("mine", "uid-mine", "bank"),
			`is not authorized to request tokens for audience "bank"`},
		{"token of two audiences", token("mine", "uid-mine", "vault", "for-inline"),
			"node may only request 0 or 1 audiences"},
		{"own CSINode", of("storage.k8s.io", "csinodes", "", "", admission.Create,
			&storagev1.CSINode{ObjectMeta: named("n1")}, nil), ""},
		{"another's CSINode", of("storage.k8s.io", "csinodes", "", "", admission.Create,
			&storagev1.CSINode{ObjectMeta: named("n2")}, nil),
			"can only access CSINode with the same name as the requesting node"},
		{"update another's CSINode",
			of("storage.k8s.io", "csinodes", "", "n2", admission.Update, &storagev1.CSINode{}, &storagev1.CSINode{}),
			"can only access CSINode with the same name as the requesting node"},
		{"drivers by CSINode status", of("storage.k8s.io", "csinodes", "status", "n1", admission.Update,
			&storagev1.CSINode{Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: "d"}}}},
			&storagev1.CSINode{}), "not allowed to modify CSINode spec via status"},
		{"own slice", of("resource.k8s.io", "resourceslices", "", "", admission.Create, sliceOn("n1"), nil), ""},
		{"another's slice", of("resource.k8s.io", "resourceslices", "", "", admission.Create, sliceOn("n2"), nil),
			"can only create ResourceSlice with the same NodeName"},
		{"slice of no node", of("resource.k8s.io", "resourceslices", "", "", admission.Create,
			&resourcev1.ResourceSlice{}, nil), "can only create ResourceSlice with the same NodeName"},
		{"delete own slice", of("resource.k8s.io", "resourceslices", "", "s", admission.Delete, nil, sliceOn("n1")),
			""},
		{"delete another's slice",
			of("resource.k8s.io", "resourceslices", "", "s", admission.Delete, nil, sliceOn("n2")),
			"can only delete ResourceSlice with the same NodeName"},
		{"resized claim", of("", "persistentvolumeclaims", "status", "c", admission.Update,
			&corev1.PersistentVolumeClaim{
				Status: corev1.PersistentVolumeClaimStatus{Capacity: amounts("1", "1Gi")}},
			&corev1.PersistentVolumeClaim{}), ""},
		{"claim that is written as it was read", of("", "persistentvolumeclaims", "status", "c", admission.Update,
			&corev1.PersistentVolumeClaim{TypeMeta: metav1.TypeMeta{Kind: "PersistentVolumeClaim", APIVersion: "v1"}},
			&corev1.PersistentVolumeClaim{}), ""},
		{"bound claim", of("", "persistentvolumeclaims", "status", "c", admission.Update, &corev1.PersistentVolumeClaim{
			Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound}}, &corev1.PersistentVolumeClaim{}),
			"not allowed to update fields other than status.quantity"},
		{"spec of a claim", of("", "persistentvolumeclaims", "", "c", admission.Update, &corev1.PersistentVolumeClaim{},
			&corev1.PersistentVolumeClaim{}), "may only update PVC status"},
		{"own certificate", signing(t, "system:node:n1", certificatesv1.KubeletServingSignerName, agent), ""},
		{"another's certificate",
			signing(t, "system:node:n2", certificatesv1.KubeAPIServerClientKubeletSignerName, agent),
			"can only create a node CSR with CN=system:node:n1"},
		{"certificate of another signer", signing(t, "anything", "example.com/s", agent), ""},
		{"certificate of its pod", podCertificate(nil), ""},
		{"certificate of another signer for its pod",
			podCertificate(func(s *certificatesv1.PodCertificateRequestSpec) { s.SignerName = "example.com/t" }),
			"does not mount a podCertificate projected volume"},
		{"certificate for another's pod",
			podCertificate(func(s *certificatesv1.PodCertificateRequestSpec) {
				s.PodName, s.PodUID = "theirs", "uid-theirs"
			}), "is not running on node"},
		{"certificate for another node",
			podCertificate(func(s *certificatesv1.PodCertificateRequestSpec) { s.NodeName = "n2" }),
			"is not the requesting node"},
		{"certificate with another account",
			podCertificate(func(s *certificatesv1.PodCertificateRequestSpec) { s.ServiceAccountName = "quiet" }),
			"differs from running pod"},
		{"extended claims by status", pods(admission.Update, "status", "p", claiming, onN1),
			"cannot update extended resource claim status"},
		{"its own taints", of("", "nodes", "", "n1", admission.Update,
			&corev1.Node{ObjectMeta: named("n1"), Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "k"}}}},
			&corev1.Node{ObjectMeta: named("n1")}), "is not allowed to modify taints"},
		{"a label of an agent",
			of("", "nodes", "", "n1", admission.Create,
				labelled(corev1.LabelHostname, "kubelet.kubernetes.io/x", "a.node.kubernetes.io/x",
					"node.kubernetes.io/x"), nil), ""},
		{"a role of itself", of("", "nodes", "", "n1", admission.Create,
			labelled("node-role.kubernetes.io/control-plane"), nil),
			"is not allowed to set the following labels: node-role.kubernetes.io/control-plane"},
		{"a label of Kubernetes", of("", "nodes", "", "n1", admission.Update, labelled("x.k8s.io/y"), labelled()),
			"is not allowed to modify labels: x.k8s.io/y"},
		{"another node", request{kind: "Node", resource: "nodes", name: "n2", op: admission.Update,
			obj: &corev1.Node{ObjectMeta: named("n2")}, old: &corev1.Node{}, user: agent},
			`node "n1" is not allowed to modify node "n2"`},
		{"its own labels", request{kind: "Node", resource: "nodes", name: "n1", op: admission.Update, user: agent,
			obj: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"x": "y"}}},
			old: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}}, ""},
		{"restricted labels", request{kind: "Node", resource: "nodes", name: "n1", op: admission.Update, user: agent,
			obj: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1",
				Labels: map[string]string{"a.node-restriction.kubernetes.io/x": "y"}}},
			old: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}},
			"is not allowed to modify labels: a.node-restriction.kubernetes.io/x"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := send(usual(), c.req)
			if c.want == "" && err != nil || c.want != "" &&
				(!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}
