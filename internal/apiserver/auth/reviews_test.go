package auth

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/registry/rest"
)

// The answer about a token is the user that a request with it would be.
func TestTokenReview(t *testing.T) {
	tokens := authenticator.TokenFunc(func(_ context.Context, token string) (*authenticator.Response, bool, error) {
		switch token {
		case "good":
			u := &user.DefaultInfo{Name: "system:serviceaccount:a:b", UID: "1", Groups: []string{"system:serviceaccounts", "system:serviceaccounts:a"}}
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
		{"expired", authenticationv1.TokenReviewSpec{Token: "old"}, authenticationv1.TokenReviewStatus{Error: "token has expired"}},
		{"unknown", authenticationv1.TokenReviewSpec{Token: "?"}, authenticationv1.TokenReviewStatus{}},
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
