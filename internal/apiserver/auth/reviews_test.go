package auth

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/registry/rest"
)

// The answer about a token is the user of a request with it.
func TestTokenReview(t *testing.T) {
	tokens := authenticator.TokenFunc(func(_ context.Context, token string) (*authenticator.Response, bool, error) {
		switch token {
		case "good":
			u := &user.DefaultInfo{Name: "system:serviceaccount:a:b", UID: "1",
				Groups: []string{"system:serviceaccounts", "system:serviceaccounts:a"}}
			return &authenticator.Response{User: u, Audiences: []string{"api"}}, true, nil
		case "old":
			return nil, false, errors.New("token has expired")
		}
		return nil, false, nil
	})
	good := authenticationv1.UserInfo{
		Username: "system:serviceaccount:a:b", UID: "1",
		Groups: []string{"system:serviceaccounts", "system:serviceaccounts:a", "system:authenticated"},
	}
	for _, c := range []struct {
		name string
		spec authenticationv1.TokenReviewSpec
		want authenticationv1.TokenReviewStatus
	}{
		{"valid", authenticationv1.TokenReviewSpec{Token: "good"},
			authenticationv1.TokenReviewStatus{Authenticated: true, User: good, Audiences: []string{"api"}}},
		{"expired", authenticationv1.TokenReviewSpec{Token: "old"},
			authenticationv1.TokenReviewStatus{Error: "[invalid bearer token, token has expired]"}},
		{"unknown", authenticationv1.TokenReviewSpec{Token: "?"},
			authenticationv1.TokenReviewStatus{Error: "invalid bearer token"}},
		{"for somebody else", authenticationv1.TokenReviewSpec{Token: "good", Audiences: []string{"vault"}},
			authenticationv1.TokenReviewStatus{Error: "the token is not for the requested audiences"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			storage := Reviews(nil, nil, tokens)[authenticationv1.SchemeGroupVersion]["tokenreviews"].(rest.Creater)
			got, err := storage.Create(t.Context(), &authenticationv1.TokenReview{Spec: c.spec}, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(c.want, got.(*authenticationv1.TokenReview).Status); d != "" {
				t.Error(d)
			}
		})
	}
}

// Invalid access reviews are rejected, and unreadable selectors are reported; the answers are
// upstream's.
func TestAccessReview(t *testing.T) {
	r := NewRBAC(Policy{})
	create := func(kind string, obj runtime.Object) (runtime.Object, error) {
		return Reviews(r, r, nil)[authorizationv1.SchemeGroupVersion][kind].(rest.Creater).Create(t.Context(), obj, nil,
			nil)
	}
	path := &authorizationv1.NonResourceAttributes{Path: "/", Verb: "get"}
	fieldSelector := func(s authorizationv1.FieldSelectorAttributes) *authorizationv1.ResourceAttributes {
		return &authorizationv1.ResourceAttributes{FieldSelector: &s}
	}
	labelSelector := func(s authorizationv1.LabelSelectorAttributes) *authorizationv1.ResourceAttributes {
		return &authorizationv1.ResourceAttributes{LabelSelector: &s}
	}
	for _, c := range []struct {
		spec              authorizationv1.SubjectAccessReviewSpec
		refused, confused string
	}{
		{authorizationv1.SubjectAccessReviewSpec{User: "u"},
			`spec: Invalid value: null: exactly one of nonResourceAttributes or resourceAttributes must be specified`,
			""},
		{authorizationv1.SubjectAccessReviewSpec{User: "u", NonResourceAttributes: path,
			ResourceAttributes: &authorizationv1.ResourceAttributes{}},
			`spec: Invalid value: {"Path":"/","Verb":"get"}: exactly one of nonResourceAttributes or resourceAttributes must be specified`, ""},
		{authorizationv1.SubjectAccessReviewSpec{NonResourceAttributes: path},
			`spec.user: Invalid value: "": at least one of user or group must be specified`, ""},
		{authorizationv1.SubjectAccessReviewSpec{User: "u",
			ResourceAttributes: fieldSelector(authorizationv1.FieldSelectorAttributes{})},
			`spec.resourceAttributes.fieldSelector.requirements: Required value: when spec.resourceAttributes.fieldSelector is specified, requirements or rawSelector is required`, ""},
		{authorizationv1.SubjectAccessReviewSpec{User: "u",
			ResourceAttributes: fieldSelector(authorizationv1.FieldSelectorAttributes{RawSelector: "a",
				Requirements: []metav1.FieldSelectorRequirement{{Key: "a", Operator: "In", Values: []string{"b"}}}})},
			`spec.resourceAttributes.fieldSelector.rawSelector: Invalid value: "a": may not specified at the same time as requirements`, ""},
		{authorizationv1.SubjectAccessReviewSpec{User: "u",
			ResourceAttributes: labelSelector(
				authorizationv1.LabelSelectorAttributes{Requirements: []metav1.LabelSelectorRequirement{{Key: "a",
					Operator: "In"}}})},
			"spec.resourceAttributes.labelSelector.requirements[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'", ""},
		{authorizationv1.SubjectAccessReviewSpec{User: "u",
			ResourceAttributes: labelSelector(authorizationv1.LabelSelectorAttributes{RawSelector: "((("})},
			"", "spec.resourceAttributes.labelSelector ignored due to parse error"},
		{authorizationv1.SubjectAccessReviewSpec{User: "u",
			ResourceAttributes: fieldSelector(
				authorizationv1.FieldSelectorAttributes{Requirements: []metav1.FieldSelectorRequirement{{Key: "a",
					Operator: "In", Values: []string{"b"}}, {Key: "a", Operator: "Near", Values: []string{"b"}}}})},
			"", "spec.resourceAttributes.fieldSelector partially ignored due to parse error"},
	} {
		got, err := create("subjectaccessreviews", &authorizationv1.SubjectAccessReview{Spec: c.spec})
		if c.refused != "" {
			if want := `.authorization.k8s.io "" is invalid: ` + c.refused; err == nil || err.Error() != want {
				t.Errorf("%v, want %s", err, want)
			}
			continue
		}
		if err != nil || got.(*authorizationv1.SubjectAccessReview).Status.EvaluationError != c.confused {
			t.Errorf("%v, %v, want %q", got, err, c.confused)
		}
	}
}
