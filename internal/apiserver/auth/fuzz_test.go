package auth

import (
	"os"
	"path/filepath"
	"testing"

	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	authenticationcel "k8s.io/apiserver/pkg/authentication/cel"
)

// FuzzStructured reads files with an AuthenticationConfiguration without contacting an issuer.
func FuzzStructured(f *testing.F) {
	f.Add(
		"apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\nanonymous: {enabled: true, conditions: [{path: /healthz}]}\njwt:\n- issuer: {url: https://a.example, audiences: [x, y], audienceMatchPolicy: MatchAny, discoveryURL: https://b.example}\n  claimValidationRules: [{claim: a, requiredValue: b}, {expression: 'claims.exp - claims.nbf <= 86400', message: m}]\n  claimMappings: {username: {claim: sub, prefix: 'x:'}, groups: {expression: 'claims.roles.split(\",\")'}, uid: {claim: uid}, extra: [{key: a.example/b, valueExpression: claims.c}]}\n  userValidationRules: [{expression: \"!user.username.startsWith('system:')\"}]\n")
	f.Add(
		`{"apiVersion":"apiserver.config.k8s.io/v1","kind":"AuthenticationConfiguration","jwt":[{"issuer":{"url":"https://a.example","audiences":[],"certificateAuthority":"-----BEGIN CERTIFICATE-----"}},null]}`)
	f.Add("apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\n")
	if more, err := filepath.Glob("testdata/*.yaml"); err == nil {
		for _, name := range more {
			if text, err := os.ReadFile(name); err == nil {
				f.Add(string(text))
			}
		}
	}
	f.Fuzz(func(_ *testing.T, text string) {
		cfg, err := decode(text)
		if err != nil {
			return
		}
		_ = validation.ValidateAuthenticationConfiguration(authenticationcel.NewDefaultCompiler(), cfg,
			[]string{"https://own.example"})
		_ = anonymousBy(cfg.Anonymous)
	})
}
