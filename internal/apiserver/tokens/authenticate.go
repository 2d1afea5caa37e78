package tokens

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/golang-jwt/jwt/v5"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	authserviceaccount "k8s.io/apiserver/pkg/authentication/serviceaccount"
)

// deletionLeeway is how long a token outlives the deletion timestamp of its object: a pod that
// shuts down still calls the API.
const deletionLeeway = 60 * time.Second

// issuerOf returns the issuer claim of a token, empty if it is not a JWT.
func issuerOf(parser *jwt.Parser, token string) string {
	var c claims
	if _, _, err := parser.ParseUnverified(token, &c); err != nil {
		return ""
	}
	return c.Issuer
}

// Authenticator authenticates the tokens of service accounts. It has no opinion (false, no error)
// about a token of another issuer, and an error for an invalid one of its own.
func (s *Service) Authenticator() authenticator.Token {
	options := []jwt.ParserOption{jwt.WithValidMethods([]string{jwt.SigningMethodES256.Alg()}), jwt.WithTimeFunc(s.now)}
	ofSecrets, parser := jwt.NewParser(options...), jwt.NewParser(append(options, jwt.WithExpirationRequired())...)
	register()
	signatures, secretSignatures := &signatures[claims]{now: s.now}, &signatures[secretClaims]{now: s.now}
	return authenticator.TokenFunc(func(ctx context.Context, token string) (*authenticator.Response, bool, error) {
		var info *authserviceaccount.ServiceAccountInfo
		var audiences authenticator.Audiences
		switch issuerOf(parser, token) {
		case s.issuer:
			c, err := signatures.claims(token, func(c *claims) *jwt.NumericDate { return c.ExpiresAt },
				func(c *claims) error {
					_, err := parser.ParseWithClaims(token, c, s.publicKey)
					return err
				})
			if err == nil {
				audiences, err = s.wanted(ctx, authenticator.Audiences(c.Audience))
			}
			if err == nil {
				info, err = s.account(ctx, c)
			}
			if err != nil {
				return nil, false, refused(err)
			}
		case secretIssuer:
			c, err := secretSignatures.claims(token, func(c *secretClaims) *jwt.NumericDate { return c.ExpiresAt },
				func(c *secretClaims) error {
					_, err := ofSecrets.ParseWithClaims(token, c, s.publicKey)
					return err
				})
			if err == nil {
				// Such a token is for the audiences of the API server.
				audiences, err = s.wanted(ctx, authenticator.Audiences(s.audiences))
			}
			if err == nil {
				info, err = s.secretAccount(ctx, token, c)
			}
			if err != nil {
				return nil, false, refused(err)
			}
		default:
			return nil, false, nil
		}
		return &authenticator.Response{User: info.UserInfo(), Audiences: audiences}, true, nil
	})
}

// publicKey implements jwt.Keyfunc.
func (s *Service) publicKey(*jwt.Token) (any, error) { return &s.key.PublicKey, nil }

// wanted returns the audiences of a token that the request names: by default, the API server's
// own.
func (s *Service) wanted(ctx context.Context, audiences authenticator.Audiences) (authenticator.Audiences, error) {
	wanted, ok := authenticator.AudiencesFrom(ctx)
	if !ok || len(wanted) == 0 {
		wanted = s.audiences
	}
	both := audiences.Intersect(wanted)
	if len(both) == 0 {
		return nil, fmt.Errorf("token audiences %q is invalid for the target audiences %q", []string(audiences),
			[]string(wanted))
	}
	return both, nil
}

// refused returns why a token is invalid without repeating its content.
func refused(err error) error {
	switch {
	case errors.Is(err, jwt.ErrTokenExpired):
		return errors.New("service account token has expired")
	case errors.Is(err, jwt.ErrTokenUnverifiable), errors.Is(err, jwt.ErrTokenSignatureInvalid),
		errors.Is(err, jwt.ErrTokenInvalidClaims), errors.Is(err, jwt.ErrTokenMalformed):
		return fmt.Errorf("service account token is not valid: %w", err)
	}
	return err
}

// account checks that everything the token is bound to still exists.
func (s *Service) account(ctx context.Context, c *claims) (*authserviceaccount.ServiceAccountInfo, error) {
	k := &c.Kubernetes
	if c.Subject != authserviceaccount.MakeUsername(k.Namespace, k.ServiceAccount.Name) {
		return nil, errors.New("service account token subject does not match its claims")
	}
	info := &authserviceaccount.ServiceAccountInfo{Namespace: k.Namespace, Name: k.ServiceAccount.Name,
		UID: string(k.ServiceAccount.UID)}
	if c.ID != "" {
		info.CredentialID = "JTI=" + c.ID
	}
	if err := s.exists(ctx, serviceAccounts, k.Namespace, k.ServiceAccount); err != nil {
		return nil, err
	}
	if k.Secret != nil {
		if err := s.exists(ctx, secretResource, k.Namespace, *k.Secret); err != nil {
			return nil, err
		}
	}
	if k.Pod != nil {
		if err := s.exists(ctx, podResource, k.Namespace, *k.Pod); err != nil {
			return nil, err
		}
		info.PodName, info.PodUID = k.Pod.Name, string(k.Pod.UID)
	}
	if k.Node != nil {
		// A pod's node is only information; a token that is bound to the node itself ends with it.
		if k.Pod == nil {
			if err := s.exists(ctx, nodeResource, "", *k.Node); err != nil {
				return nil, err
			}
		}
		info.NodeName, info.NodeUID = k.Node.Name, string(k.Node.UID)
	}
	if w := k.WarnAfter; w == nil || !s.now().After(w.Time) {
		validUsed.Inc()
	} else {
		staleUsed.Inc()
		// An old client that does not reload its token.
		audit.AddAuditAnnotation(ctx, "authentication.k8s.io/stale-token",
			fmt.Sprintf("subject: %s, seconds after warning threshold: %d", c.Subject,
				int64(s.now().Sub(w.Time).Seconds())))
	}
	return info, nil
}

// exists checks that the object of the token still exists. Deleted means deleted some time ago, so
// that its own last requests are accepted.
func (s *Service) exists(ctx context.Context, resource schema.GroupResource, namespace string, r ref) error {
	words := map[schema.GroupResource][2]string{
		serviceAccounts: {"service account", ""}, secretResource: {"secret", "service account secret ref "},
		podResource: {"pod", "service account pod ref "}, nodeResource: {"node", "service account node ref "},
	}[resource]
	obj, err := s.object(ctx, resource, namespace, r.Name)
	switch {
	case apierrors.IsNotFound(err) && resource == serviceAccounts:
		return fmt.Errorf("service account %s/%s has been deleted", namespace, r.Name)
	case apierrors.IsNotFound(err):
		return errInvalidated
	case err != nil:
		return fmt.Errorf("look up what the token is bound to: %w", err)
	case !sameUID(r.UID, obj.GetUID()):
		return fmt.Errorf("%s UID (%s) does not match %sclaim (%s)", words[0], obj.GetUID(), words[1], r.UID)
	}
	if d := obj.GetDeletionTimestamp(); d != nil && s.now().After(d.Add(deletionLeeway)) {
		if resource == serviceAccounts {
			return fmt.Errorf("service account %s/%s has been deleted", namespace, r.Name)
		}
		return errInvalidated
	}
	return nil
}

var errInvalidated = errors.New("service account token has been invalidated")
