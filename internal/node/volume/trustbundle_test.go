package volume

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// selfSigned is a certificate for the key in PEM.
func selfSigned(t *testing.T, serial int64, notBefore, notAfter time.Time, key *ecdsa.PrivateKey) string {
	t.Helper()
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), NotBefore: notBefore, NotAfter: notAfter,
		IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func bundle(name, signer string, labels map[string]string, certs ...string) *certificatesv1.ClusterTrustBundle {
	return &certificatesv1.ClusterTrustBundle{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec: certificatesv1.ClusterTrustBundleSpec{SignerName: signer,
			TrustBundle: strings.Join(certs, "some words\n")}}
}

// The file holds each certificate of the selected bundles once, in an order that does not
// depend on theirs; bundles that are missing keep the pod waiting unless they are optional.
func TestTrustBundle(t *testing.T) {
	key := newKey(t)
	var certs []string
	for i := range 3 {
		certs = append(certs, selfSigned(t, int64(i+1), time.Now(), time.Now().Add(time.Hour), key))
	}
	signer, labels := new("example.com/s"), map[string]string{"live": "true"}
	bundles := []*certificatesv1.ClusterTrustBundle{
		bundle("alone", "", labels, certs[0]),
		bundle("example.com:s:1", *signer, labels, certs[0], certs[1]),
		bundle("example.com:s:2", *signer, nil, certs[2], certs[1]),
		bundle("broken", "", nil, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")}))),
	}
	const none = "combination of signerName and labelSelector matched zero ClusterTrustBundles"
	tests := []struct {
		name string
		src  corev1.ClusterTrustBundleProjection
		want []string
		err  string
	}{
		{name: "by name", src: corev1.ClusterTrustBundleProjection{Name: new("alone")}, want: certs[:1]},
		{name: "labels", src: corev1.ClusterTrustBundleProjection{SignerName: signer,
			LabelSelector: &metav1.LabelSelector{MatchLabels: labels}}, want: certs[:2]},
		{name: "empty selector",
			src:  corev1.ClusterTrustBundleProjection{SignerName: signer, LabelSelector: &metav1.LabelSelector{}},
			want: certs},
		{name: "no selector", src: corev1.ClusterTrustBundleProjection{SignerName: signer}, err: none},
		{name: "no selector, optional",
			src: corev1.ClusterTrustBundleProjection{SignerName: signer, Optional: new(true)}},
		{name: "other signer", src: corev1.ClusterTrustBundleProjection{SignerName: new("example.com/t"),
			LabelSelector: &metav1.LabelSelector{}}, err: none},
		{name: "other name", src: corev1.ClusterTrustBundleProjection{Name: new("x")},
			err: `while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io "x" not found`},
		{name: "other name, optional", src: corev1.ClusterTrustBundleProjection{Name: new("x"), Optional: new(true)}},
		{name: "no certificate", src: corev1.ClusterTrustBundleProjection{Name: new("broken")},
			err: `ClusterTrustBundle "broken" contains something that is not a certificate: `},
		{name: "nothing named", err: "ClusterTrustBundle projection requires either name or signerName to be set"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t)
			w.bundles = bundles
			tc.src.Path = "ca.crt"
			pod := podWith("u1",
				volume(
					"v", corev1.VolumeSource{
						Projected: &corev1.ProjectedVolumeSource{
							Sources: []corev1.VolumeProjection{{ClusterTrustBundle: &tc.src}}}}))
			err := w.prepare(pod)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Fatalf("%v, want %s", err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(w.Volumes("u1")["v"].HostPath, "ca.crt")
			first, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			got := slices.Sorted(slices.Values(strings.SplitAfter(string(first), "-----END CERTIFICATE-----\n")))
			if want := append(slices.Sorted(slices.Values(tc.want)), ""); !slices.Equal(got,
				slices.Sorted(slices.Values(want))) {
				t.Errorf("got %d certificates, want %d", len(got)-1, len(tc.want))
			}
			w.bundles = slices.Clone(bundles)
			slices.Reverse(w.bundles)
			w.refresh(t.Context(), w.find("u1"))
			if second, err := os.ReadFile(path); err != nil || string(second) != string(first) {
				t.Errorf("another order of the bundles makes another file (%v)", err)
			}
		})
	}
}
