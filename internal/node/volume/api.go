// Package volume sets up the files of pods: volumes, hosts files, termination message files, and sub-paths, all below
// <root>/pods/<uid>.
//
// The node agent calls Prepare before the first container and Remove after the
// last one; Run keeps the contents of configMap, secret, downwardAPI and
// projected volumes of running pods up to date. The file system is the only
// state that must survive: Prepare of a pod that was prepared before (by an
// earlier process, too) finds its work done. It must never remove data across a
// mount point and never follow a link that a container could have made.
//
// Contract: docs/spec/pod-lifecycle.md.
package volume

import (
	"context"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"carob/internal/node/csi"
	"carob/internal/node/spec"
)

// Objects are the API objects that volumes show; refs.Store is one.
type Objects interface {
	ConfigMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error)
	Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error)
	TrustBundle(ctx context.Context, name string) (*certificatesv1.ClusterTrustBundle, error)
	// TrustBundles are all of the signer, in any order.
	TrustBundles(ctx context.Context, signer string) ([]*certificatesv1.ClusterTrustBundle, error)
	// Hold keeps the objects that the pod refers to current until Release, and calls changed whenever one of them
	// changes.
	Hold(pod *corev1.Pod, changed func(uid types.UID))
	Release(uid types.UID)
}

// Tokens requests service account tokens.
type Tokens interface {
	Token(ctx context.Context, namespace, serviceAccount string,
		req *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error)
}

// Certificates requests certificates on behalf of pods. Hold covers the requests of a pod.
type Certificates interface {
	// RequestCertificate makes a request and returns its name; csr is a PKCS #10 request in DER.
	RequestCertificate(ctx context.Context, pod *corev1.Pod, src *corev1.PodCertificateProjection,
		csr []byte) (name string, err error)
	CertificateRequest(ctx context.Context, pod *corev1.Pod, name string) (*certificatesv1.PodCertificateRequest, error)
}

// Persistent reads the current claims and volumes from the API.
type Persistent interface {
	VolumeClaim(ctx context.Context, namespace, name string) (*corev1.PersistentVolumeClaim, error)
	PersistentVolume(ctx context.Context, name string) (*corev1.PersistentVolume, error)
}

// Drivers make volumes of CSI drivers usable; csi.Manager is one.
type Drivers interface {
	SetUp(ctx context.Context, req csi.Request) (csi.Ready, error)
	// Release undoes SetUp for all volumes of a pod. After an error the caller must call it again.
	Release(ctx context.Context, pod types.UID) error
	// Held reports whether a pod has something to release; Pods are all pods that have.
	Held(pod types.UID) bool
	Pods() []types.UID
}

// Config is the configuration of a Manager: its directory and the parts that it calls.
type Config struct {
	Root         string // data directory of the agent; pods live in <Root>/pods/<uid>
	Node         func() *spec.Node
	Objects      Objects
	Tokens       Tokens
	Certificates Certificates
	Persistent   Persistent // nil: there are no persistent volumes
	CSI          Drivers    // nil: there are no CSI drivers
	SELinux      bool       // the kernel uses SELinux labels
	// NotLabelled counts a volume that has no SELinux label: containers of the pod need several, or one cannot be made.
	// May be nil.
	NotLabelled func(accessMode string, several bool)
	Object      func() *corev1.Node // as the API shows it; nil, or nil as its answer: unknown
	// Event records an event about a pod: FailedMount for each failure (L10.24).
	// May be nil: the caller then records the error that Prepare returns.
	Event  func(pod *corev1.Pod, eventType, reason, message string)
	Logger klog.Logger
}
