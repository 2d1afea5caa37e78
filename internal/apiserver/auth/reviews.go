package auth

import (
	"context"
	"errors"
	"fmt"
	"slices"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
)

// Reviews returns the kinds that are requests, not objects: they are created, answered, and never
// stored.
func Reviews(resolver authorizer.RuleResolver, a authorizer.UnconditionalAuthorizer,
	tokens authenticator.Token) map[schema.GroupVersion]map[string]rest.Storage {
	authz := func(kind, singular string, namespaced bool, mk func() runtime.Object,
		answer func(context.Context, runtime.Object) error) rest.Storage {
		return &review{kind: authorizationv1.SchemeGroupVersion.WithKind(kind), singular: singular,
			namespaced: namespaced, mk: mk, answer: answer}
	}
	authn := func(kind, singular string, mk func() runtime.Object,
		answer func(context.Context, runtime.Object) error) rest.Storage {
		return &review{kind: authenticationv1.SchemeGroupVersion.WithKind(kind), singular: singular, mk: mk,
			answer: answer}
	}
	if tokens != nil { // a review returns what a request with the token would get
		tokens = group.NewTokenGroupAdder(tokens, []string{user.AllAuthenticated})
	}
	r := reviewer{resolver, a, tokens}
	return map[schema.GroupVersion]map[string]rest.Storage{
		authorizationv1.SchemeGroupVersion: {
			"selfsubjectaccessreviews": authz("SelfSubjectAccessReview", "selfsubjectaccessreview", false,
				func() runtime.Object { return &authorizationv1.SelfSubjectAccessReview{} }, r.selfAccess),
			"subjectaccessreviews": authz("SubjectAccessReview", "subjectaccessreview", false,
				func() runtime.Object { return &authorizationv1.SubjectAccessReview{} }, r.access),
			"localsubjectaccessreviews": authz("LocalSubjectAccessReview", "localsubjectaccessreview", true,
				func() runtime.Object { return &authorizationv1.LocalSubjectAccessReview{} }, r.localAccess),
			"selfsubjectrulesreviews": authz("SelfSubjectRulesReview", "selfsubjectrulesreview", false,
				func() runtime.Object { return &authorizationv1.SelfSubjectRulesReview{} }, r.rules),
		},
		authenticationv1.SchemeGroupVersion: {
			"selfsubjectreviews": authn("SelfSubjectReview", "selfsubjectreview",
				func() runtime.Object { return &authenticationv1.SelfSubjectReview{} }, r.self),
			"tokenreviews": authn("TokenReview", "tokenreview",
				func() runtime.Object { return &authenticationv1.TokenReview{} }, r.token),
		},
	}
}

// review is the storage of one such kind.
type review struct {
	kind       schema.GroupVersionKind
	singular   string
	namespaced bool
	mk         func() runtime.Object
	answer     func(context.Context, runtime.Object) error
}

var (
	_ rest.Creater              = (*review)(nil)
	_ rest.Scoper               = (*review)(nil)
	_ rest.SingularNameProvider = (*review)(nil)
)

func (r *review) New() runtime.Object     { return r.mk() }
func (r *review) Destroy()                {}
func (r *review) NamespaceScoped() bool   { return r.namespaced }
func (r *review) GetSingularName() string { return r.singular }

func (r *review) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc,
	_ *metav1.CreateOptions) (runtime.Object, error) {
	if errs := validateReview(obj); len(errs) > 0 {
		// Like upstream's, the error names only the group: a review has no name.
		return nil, apierrors.NewInvalid(schema.GroupKind{Group: r.kind.Group}, "", errs)
	}
	if validate != nil {
		if err := validate(ctx, obj.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	if err := r.answer(ctx, obj); err != nil {
		return nil, err
	}
	return obj, nil
}

type reviewer struct {
	resolver authorizer.RuleResolver
	authz    authorizer.UnconditionalAuthorizer
	tokens   authenticator.Token
}

var errNoUser = apierrors.NewBadRequest("no user present on request")

func (r reviewer) selfAccess(ctx context.Context, obj runtime.Object) error {
	s := obj.(*authorizationv1.SelfSubjectAccessReview)
	u, ok := apirequest.UserFrom(ctx)
	if !ok {
		return errNoUser
	}
	s.Status = r.decide(ctx, u, s.Spec.ResourceAttributes, s.Spec.NonResourceAttributes)
	return nil
}

func (r reviewer) access(ctx context.Context, obj runtime.Object) error {
	s := obj.(*authorizationv1.SubjectAccessReview)
	s.Status = r.decide(ctx, subjectOf(s.Spec), s.Spec.ResourceAttributes, s.Spec.NonResourceAttributes)
	return nil
}

func (r reviewer) localAccess(ctx context.Context, obj runtime.Object) error {
	s := obj.(*authorizationv1.LocalSubjectAccessReview)
	s.Status = r.decide(ctx, subjectOf(s.Spec), s.Spec.ResourceAttributes, nil)
	return nil
}

func subjectOf(spec authorizationv1.SubjectAccessReviewSpec) user.Info {
	extra := map[string][]string{}
	for k, v := range spec.Extra {
		extra[k] = v
	}
	return &user.DefaultInfo{Name: spec.User, Groups: spec.Groups, UID: spec.UID, Extra: extra}
}

// decide answers whether u may do what either res or non describes.
func (r reviewer) decide(ctx context.Context, u user.Info, res *authorizationv1.ResourceAttributes,
	non *authorizationv1.NonResourceAttributes) authorizationv1.SubjectAccessReviewStatus {
	a := authorizer.AttributesRecord{User: u}
	if res != nil {
		a = resourceAttributes(u, res)
	} else {
		a.Verb, a.Path = non.Verb, non.Path
	}
	decision, reason, err := r.authz.Authorize(ctx, a)
	return authorizationv1.SubjectAccessReviewStatus{
		Allowed: decision == authorizer.DecisionAllow, Denied: decision == authorizer.DecisionDeny,
		Reason: reason, EvaluationError: evaluationError(a, err),
	}
}

func (r reviewer) rules(ctx context.Context, obj runtime.Object) error {
	s := obj.(*authorizationv1.SelfSubjectRulesReview)
	u, ok := apirequest.UserFrom(ctx)
	if !ok {
		return errNoUser
	}
	if s.Spec.Namespace == "" {
		return apierrors.NewBadRequest("no namespace on request")
	}
	res, non, incomplete, err := r.resolver.RulesFor(ctx, u, s.Spec.Namespace)
	// the response has the result only
	s.ObjectMeta, s.Spec = metav1.ObjectMeta{}, authorizationv1.SelfSubjectRulesReviewSpec{}
	s.Status = authorizationv1.SubjectRulesReviewStatus{Incomplete: incomplete,
		ResourceRules: []authorizationv1.ResourceRule{}, NonResourceRules: []authorizationv1.NonResourceRule{}}
	for _, p := range res {
		s.Status.ResourceRules = append(s.Status.ResourceRules,
			authorizationv1.ResourceRule{Verbs: p.GetVerbs(), APIGroups: p.GetAPIGroups(), Resources: p.GetResources(),
				ResourceNames: p.GetResourceNames()})
	}
	for _, p := range non {
		s.Status.NonResourceRules = append(s.Status.NonResourceRules,
			authorizationv1.NonResourceRule{Verbs: p.GetVerbs(), NonResourceURLs: p.GetNonResourceURLs()})
	}
	if err != nil {
		s.Status.EvaluationError = err.Error()
	}
	return nil
}

func (r reviewer) self(ctx context.Context, obj runtime.Object) error {
	s := obj.(*authenticationv1.SelfSubjectReview)
	u, ok := apirequest.UserFrom(ctx)
	if !ok {
		return errNoUser
	}
	s.ObjectMeta = metav1.ObjectMeta{CreationTimestamp: metav1.Now()}
	s.Status.UserInfo = userInfo(u)
	return nil
}

func (r reviewer) token(ctx context.Context, obj runtime.Object) error {
	s := obj.(*authenticationv1.TokenReview)
	if s.Spec.Token == "" {
		return apierrors.NewBadRequest("token is required for TokenReview in authentication")
	}
	s.Status = authenticationv1.TokenReviewStatus{}
	if r.tokens == nil {
		return nil
	}
	if len(s.Spec.Audiences) > 0 {
		ctx = authenticator.WithAudiences(ctx, s.Spec.Audiences)
	}
	resp, ok, err := r.tokens.AuthenticateToken(ctx, s.Spec.Token)
	if !ok || err != nil {
		// Upstream looks the token up twice, and the first time without a user.
		s.Status.Error = "invalid bearer token"
	}
	if err != nil {
		s.Status.Error = fmt.Sprintf("[%s, %s]", s.Status.Error, err)
	}
	if !ok || resp == nil || resp.User == nil {
		return nil
	}
	if len(s.Spec.Audiences) > 0 && !slices.ContainsFunc(resp.Audiences,
		func(a string) bool { return slices.Contains(s.Spec.Audiences, a) }) {
		s.Status.Error = errors.New("the token is not for the requested audiences").Error()
		return nil
	}
	s.Status.Authenticated, s.Status.Audiences, s.Status.User = true, resp.Audiences, userInfo(resp.User)
	return nil
}

func userInfo(u user.Info) authenticationv1.UserInfo {
	i := authenticationv1.UserInfo{Username: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups()}
	for k, v := range u.GetExtra() {
		if i.Extra == nil {
			i.Extra = map[string]authenticationv1.ExtraValue{}
		}
		i.Extra[k] = v
	}
	return i
}
