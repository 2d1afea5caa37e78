package tokens

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/golang-jwt/jwt/v5"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/audit"
	authserviceaccount "k8s.io/apiserver/pkg/authentication/serviceaccount"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
)

const (
	defaultLife  int64 = 60 * 60
	shortestLife int64 = 10 * 60
	longestLife  int64 = 1 << 32
	// podLife is the lifetime that the automatically mounted volume requests (L1.27). Old programs
	// read such a token once and never again: it stays valid for extendedLife, while the agent
	// still renews it after podLife.
	podLife      int64 = 60*60 + 7
	extendedLife       = 365 * 24 * time.Hour
)

var (
	serviceAccounts = schema.GroupResource{Resource: "serviceaccounts"}
	podResource     = schema.GroupResource{Resource: "pods"}
	secretResource  = schema.GroupResource{Resource: "secrets"}
	nodeResource    = schema.GroupResource{Resource: "nodes"}
)

// REST is the token subresource of service accounts: a POST of a TokenRequest returns it with a
// token.
func (s *Service) REST() rest.Storage { return &tokenREST{s} }

type tokenREST struct{ *Service }

var (
	_ rest.NamedCreater                   = (*tokenREST)(nil)
	_ rest.GroupVersionKindProvider       = (*tokenREST)(nil)
	_ rest.SubresourceObjectMetaPreserver = (*tokenREST)(nil)
)

func (*tokenREST) New() runtime.Object { return &authenticationv1.TokenRequest{} }

func (*tokenREST) Destroy() {}

// GroupVersionKind returns the type of the body, whose group differs from that of the path.
func (*tokenREST) GroupVersionKind(schema.GroupVersion) schema.GroupVersionKind {
	return authenticationv1.SchemeGroupVersion.WithKind("TokenRequest")
}

// PreserveRequestObjectMetaSystemFieldsOnSubresourceCreate implements rest.SubresourceObjectMetaPreserver: a request
// may
// name the UID of the account that it is for.
func (*tokenREST) PreserveRequestObjectMetaSystemFieldsOnSubresourceCreate() bool { return true }

func (r *tokenREST) Create(ctx context.Context, name string, obj runtime.Object, validate rest.ValidateObjectFunc,
	_ *metav1.CreateOptions) (runtime.Object, error) {
	req, ok := obj.(*authenticationv1.TokenRequest)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a TokenRequest: %T", obj))
	}
	namespace, ok := genericapirequest.NamespaceFrom(ctx)
	if !ok {
		return nil, apierrors.NewBadRequest("namespace is required")
	}
	switch {
	case req.Name == "":
		req.Name = name
	case req.Name != name:
		return nil, invalidRequest(name,
			field.Invalid(field.NewPath("metadata", "name"), req.Name,
				"must match the service account name if specified"))
	}
	switch {
	case req.Namespace == "":
		req.Namespace = namespace
	case req.Namespace != namespace:
		return nil, invalidRequest(name,
			field.Invalid(field.NewPath("metadata", "namespace"), req.Namespace,
				"must match the service account namespace if specified"))
	}
	if req.Spec.ExpirationSeconds == nil {
		life := defaultLife
		req.Spec.ExpirationSeconds = &life
	}
	if len(req.Spec.Audiences) == 0 {
		req.Spec.Audiences = slices.Clone(r.audiences)
	}

	account, err := r.object(ctx, serviceAccounts, namespace, name)
	if err != nil {
		return nil, err
	}
	if req.UID != "" && req.UID != account.GetUID() {
		return nil, apierrors.NewConflict(schema.GroupResource{Group: authenticationv1.GroupName,
			Resource: "TokenRequest"}, name,
			fmt.Errorf("the UID in the token request (%s) does not match the UID of the service account (%s)", req.UID,
				account.GetUID()))
	}
	req.UID = account.GetUID()
	req.Status = authenticationv1.TokenRequestStatus{}
	if errs := validateRequest(req); len(errs) > 0 {
		return nil, invalidRequest("", errs...)
	}
	if validate != nil {
		if err := validate(ctx, obj.DeepCopyObject()); err != nil {
			return nil, err
		}
	}

	c := &claims{Kubernetes: bound{Namespace: namespace, ServiceAccount: ref{Name: name, UID: account.GetUID()}}}
	if req.Spec.BoundObjectRef != nil {
		if err := r.bind(ctx, c, namespace, req.Spec.BoundObjectRef); err != nil {
			return nil, err
		}
	}
	now := r.now()
	expires := now.Add(time.Duration(*req.Spec.ExpirationSeconds) * time.Second)
	// The answer says when to renew; the token itself may be valid longer.
	req.Status.ExpirationTimestamp = metav1.NewTime(expires)
	if *req.Spec.ExpirationSeconds == podLife && c.Kubernetes.Pod != nil && r.forAPIServer(req.Spec.Audiences) {
		c.Kubernetes.WarnAfter = jwt.NewNumericDate(expires)
		expires = now.Add(extendedLife)
	}
	c.RegisteredClaims = jwt.RegisteredClaims{
		Issuer: r.issuer, Subject: authserviceaccount.MakeUsername(namespace, name), Audience: req.Spec.Audiences,
		ID:       string(uuid.NewUUID()),
		IssuedAt: jwt.NewNumericDate(now), NotBefore: jwt.NewNumericDate(now), ExpiresAt: jwt.NewNumericDate(expires),
	}
	if req.Status.Token, err = r.sign(c); err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	audit.AddAuditAnnotation(ctx, authserviceaccount.IssuedCredentialIDAuditAnnotationKey, "JTI="+c.ID)
	req.CreationTimestamp = metav1.NewTime(now)
	return req, nil
}

func invalidRequest(name string, errs ...*field.Error) error {
	return apierrors.NewInvalid(authenticationv1.SchemeGroupVersion.WithKind("TokenRequest").GroupKind(), name, errs)
}

func validateRequest(req *authenticationv1.TokenRequest) field.ErrorList {
	at := field.NewPath("spec", "expirationSeconds")
	switch s := *req.Spec.ExpirationSeconds; {
	case s < shortestLife:
		return field.ErrorList{field.Invalid(at, s, "may not specify a duration less than 10 minutes")}
	case s > longestLife:
		return field.ErrorList{field.Invalid(at, s, "may not specify a duration larger than 2^32 seconds")}
	}
	return nil
}

func (s *Service) forAPIServer(audiences []string) bool {
	for _, a := range audiences {
		if !slices.Contains(s.audiences, a) {
			return false
		}
	}
	return true
}

// bind binds the token to an object: it ends with it.
func (s *Service) bind(ctx context.Context, c *claims, namespace string,
	b *authenticationv1.BoundObjectReference) error {
	gvk := schema.FromAPIVersionAndKind(b.APIVersion, b.Kind)
	var target **ref
	var resource schema.GroupResource
	switch {
	case gvk.Group == "" && gvk.Kind == "Pod":
		resource, target = podResource, &c.Kubernetes.Pod
	case gvk.Group == "" && gvk.Kind == "Secret":
		resource, target = secretResource, &c.Kubernetes.Secret
	case gvk.Group == "" && gvk.Kind == "Node":
		resource, target, namespace = nodeResource, &c.Kubernetes.Node, ""
	default:
		return apierrors.NewBadRequest(fmt.Sprintf("cannot bind token to object of type %s", gvk.String()))
	}
	obj, err := s.object(ctx, resource, namespace, b.Name)
	if err != nil {
		return err
	}
	if b.UID != "" && b.UID != obj.GetUID() {
		return apierrors.NewConflict(schema.GroupResource{Group: gvk.Group, Resource: gvk.Kind}, b.Name,
			fmt.Errorf(
				"the UID in the bound object reference (%s) does not match the UID in record. The object might have been deleted and then recreated", b.UID))
	}
	*target = &ref{Name: b.Name, UID: obj.GetUID()}
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return nil
	}
	if name := c.Kubernetes.ServiceAccount.Name; pod.Spec.ServiceAccountName != name {
		return apierrors.NewBadRequest(
			fmt.Sprintf("cannot bind token for serviceaccount %q to pod running with different serviceaccount name.",
				name))
	}
	if pod.Spec.NodeName == "" {
		return nil
	}
	// The node is only information; a pod may be bound before its Node object is known.
	c.Kubernetes.Node = &ref{Name: pod.Spec.NodeName}
	if node, err := s.object(ctx, nodeResource, "", pod.Spec.NodeName); err == nil {
		c.Kubernetes.Node.UID = node.GetUID()
	} else if !apierrors.IsNotFound(err) {
		return apierrors.NewInternalError(err)
	}
	return nil
}

func (s *Service) object(ctx context.Context, resource schema.GroupResource, namespace, name string) (metav1.Object,
	error) {
	obj, err := s.reader.Get(ctx, resource, namespace, name)
	if err != nil {
		return nil, err
	}
	return meta.Accessor(obj)
}

// sameUID reports whether the object of a token still has that UID.
func sameUID(uid, recorded types.UID) bool { return uid == "" || uid == recorded }
