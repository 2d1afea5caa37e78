package refs

import (
	"testing"
	"testing/synctest"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
)

func bundle(name, signer, version string) *certificatesv1.ClusterTrustBundle {
	return &certificatesv1.ClusterTrustBundle{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: version},
		Spec: certificatesv1.ClusterTrustBundleSpec{SignerName: signer}}
}

func podWithSource(uid string, src corev1.VolumeProjection) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: uid, UID: types.UID(uid)},
		Spec: corev1.PodSpec{
			NodeName: "n1", ServiceAccountName: "sa",
			Volumes: []corev1.Volume{{Name: "v",
				VolumeSource: corev1.VolumeSource{
					Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{src}}}}}}}
}

// The bundles of a signer are one watch: what comes, changes and goes reaches the pods
// that select among them, and the bundles of other signers do not.
func TestTrustBundlesOfSigner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(bundle("s:1", "s", "1"), bundle("other:1", "other", "1"))
		s := New(client)
		notified := 0
		for _, uid := range []string{"u1", "u2"} {
			s.Hold(podWithSource(uid,
				corev1.VolumeProjection{ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{SignerName: new("s"),
					LabelSelector: &metav1.LabelSelector{}}}),
				func(types.UID) { notified++ })
		}
		expect := func(n, changes int) {
			t.Helper()
			synctest.Wait()
			list, err := s.TrustBundles(t.Context(), "s")
			if err != nil || len(list) != n || notified != 2*changes {
				t.Fatalf("%d bundles, %d notifications, %v; want %d, %d", len(list), notified, err, n, 2*changes)
			}
		}
		api := client.CertificatesV1().ClusterTrustBundles()
		expect(1, 0)
		if _, err := api.Create(t.Context(), bundle("s:2", "s", "2"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		expect(2, 1)
		if _, err := api.Create(t.Context(), bundle("other:2", "other", "3"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		expect(2, 1)
		if err := api.Delete(t.Context(), "s:1", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		expect(1, 2)
		watches := 0
		for _, a := range client.Actions() {
			if a.Matches("watch", "clustertrustbundles") {
				watches++
			}
		}
		if watches != 1 {
			t.Errorf("%d watches for two pods, want 1", watches)
		}
		stop(t, s)
	})
}

// A request for a certificate names its pod, and only that pod gets its changes.
func TestCertificateRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "sa",
			UID: "sa-uid"}},
			&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "n1-uid"}})
		s := New(client)
		notified := map[types.UID]int{}
		src := &corev1.PodCertificateProjection{SignerName: "example.com/s", KeyType: "ED25519",
			MaxExpirationSeconds: new(int32(3600)), UserAnnotations: map[string]string{"example.com/a": "b"}}
		pod := podWithSource("u1", corev1.VolumeProjection{PodCertificate: src})
		s.Hold(pod, func(uid types.UID) { notified[uid]++ })
		s.Hold(podWithSource("u2", corev1.VolumeProjection{PodCertificate: src}),
			func(uid types.UID) { notified[uid]++ })
		synctest.Wait()
		name, err := s.RequestCertificate(t.Context(), pod, src, []byte("csr"))
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		req, err := s.CertificateRequest(t.Context(), pod, name)
		if err != nil {
			t.Fatal(err)
		}
		if p := req.Spec; p.PodName != "u1" || p.PodUID != "u1" || p.ServiceAccountName != "sa" ||
			p.ServiceAccountUID != "sa-uid" || p.NodeName != "n1" || p.NodeUID != "n1-uid" ||
			p.SignerName != "example.com/s" || *p.MaxExpirationSeconds != 3600 ||
			string(p.StubPKCS10Request) != "csr" || p.UnverifiedUserAnnotations["example.com/a"] != "b" ||
			len(req.OwnerReferences) != 1 || req.OwnerReferences[0].UID != "u1" {
			t.Errorf("%+v", req)
		}
		if notified["u1"] != 1 || notified["u2"] != 0 {
			t.Errorf("told %v, want the pod of the request alone", notified)
		}
		for _, a := range client.Actions() {
			if a.Matches("get", "podcertificaterequests") {
				t.Error("asked for a request that the watch shows")
			}
		}
		stop(t, s)
	})
}
