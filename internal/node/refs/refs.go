// Package refs keeps the config maps, secrets and services that pods of this
// node refer to current: one watch for each object, only while a pod refers to
// it, and one watch of services. The volume manager and spec.Assemble read from
// it. It must never write to the API.
package refs

import (
	"context"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// Store implements spec.Fetcher, volume.Objects and volume.Tokens.
type Store struct{}

// New makes a Store that reads through client.
func New(client kubernetes.Interface) *Store { panic("unfinished") }

// Run watches until ctx ends.
func (s *Store) Run(ctx context.Context) error { panic("unfinished") }

// ConfigMap answers the object, from memory when it is held.
func (s *Store) ConfigMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error) {
	panic("unfinished")
}

// Secret answers the object, from memory when it is held.
func (s *Store) Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	panic("unfinished")
}

// Services are those of the namespace, and default/kubernetes (L3.132).
func (s *Store) Services(ctx context.Context, namespace string) ([]*corev1.Service, error) {
	panic("unfinished")
}

// Hold keeps what the pod refers to current until Release; changed is called for each change.
func (s *Store) Hold(pod *corev1.Pod, changed func(uid types.UID)) { panic("unfinished") }

// Release ends Hold.
func (s *Store) Release(uid types.UID) { panic("unfinished") }

// Token asks for a service account token.
func (s *Store) Token(ctx context.Context, namespace, serviceAccount string, req *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	panic("unfinished")
}
