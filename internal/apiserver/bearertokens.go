package apiserver

import (
	"context"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	tokenunion "k8s.io/apiserver/pkg/authentication/token/union"
)

// forAudiences authenticates by tokens that name their audiences, then by others, which are for the
// API server alone. A request without audiences is for the audience of the API server.
func forAudiences(own authenticator.Audiences, named authenticator.Token,
	others ...authenticator.Token) authenticator.Token {
	all := tokenunion.NewFailOnError(named,
		authenticator.WrapAudienceAgnosticToken(own, tokenunion.NewFailOnError(others...)))
	return authenticator.TokenFunc(func(ctx context.Context, token string) (*authenticator.Response, bool, error) {
		if _, ok := authenticator.AudiencesFrom(ctx); !ok {
			ctx = authenticator.WithAudiences(ctx, own)
		}
		return all.AuthenticateToken(ctx, token)
	})
}
