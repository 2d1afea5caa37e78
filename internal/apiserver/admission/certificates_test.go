package admission

import (
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The garbage collector may write a bundle without the permission to attest for its signer; its requests have the kind
// and the version, which stored objects do not have.
func TestOnlyGarbageCollection(t *testing.T) {
	old := &certificatesv1.ClusterTrustBundle{Spec: certificatesv1.ClusterTrustBundleSpec{SignerName: "a/b"}}
	o := old.DeepCopy()
	o.TypeMeta = metav1.TypeMeta{Kind: "ClusterTrustBundle", APIVersion: "certificates.k8s.io/v1"}
	o.Finalizers = []string{"a/b"}
	if !onlyGarbageCollection(o, old) {
		t.Error("a finalizer counts as a change")
	}
	o.Spec.TrustBundle = "other"
	if onlyGarbageCollection(o, old) {
		t.Error("other certificates do not count as a change")
	}
}
