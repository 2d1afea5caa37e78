package volume

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
)

// A token is replaced when 80 % of its life is over, at the latest after a day.
const (
	maxTokenAge  = 24 * time.Hour
	tokenRetry   = 10 * time.Second // after a failed renewal
	tokenTimeout = 30 * time.Second // of one request in the background
)

// token is a service account token in a volume.
type token struct {
	text    string
	renew   time.Time
	expires time.Time
}

// addToken adds the token of a projection, a new one if the old one must be renewed.
func (m *Manager) addToken(ctx context.Context, out payload, p *podVolumes, volume string,
	src *corev1.ServiceAccountTokenProjection, mode uint32) error {
	key := volume + "/" + src.Path
	life := time.Hour
	if src.ExpirationSeconds != nil {
		life = time.Duration(*src.ExpirationSeconds) * time.Second
	}
	t, ok := p.tokens[key]
	if !ok {
		t, ok = storedToken(filepath.Join(m.writtenDir(p.uid, volume), dataLink, filepath.Clean(src.Path)), life)
	}
	now := time.Now()
	if !ok || !now.Before(t.renew) {
		fresh, err := m.requestToken(ctx, p.pod, src, life)
		switch {
		case err == nil:
			t = fresh
		case ok && now.Before(t.expires):
			t.renew = now.Add(tokenRetry) // the old one is still good
			m.cfg.Logger.Error(err, "Renewing a service account token failed; the old one stays", "pod", p.pod.Name,
				"namespace", p.pod.Namespace)
		default:
			return fmt.Errorf("failed to fetch token: %w", err)
		}
	}
	p.tokens[key] = t

	return out.add(src.Path, private(p.pod, []byte(t.text), mode))
}

// private is a file that only the common user of all containers, or the pod's fsGroup, may read.
func private(pod *corev1.Pod, data []byte, mode uint32) file {
	f := file{data: data, mode: mode}
	user := commonUser(pod)
	if user != nil || fsGroup(pod) != nil {
		f.mode = 0o600
	}
	if user != nil {
		f.uid = int(*user)
	}
	return f
}

func (m *Manager) requestToken(ctx context.Context, pod *corev1.Pod, src *corev1.ServiceAccountTokenProjection,
	life time.Duration) (token, error) {
	seconds := int64(life / time.Second)
	req := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: &seconds,
		BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name,
			UID: pod.UID},
	}}
	if src.Audience != "" {
		req.Spec.Audiences = []string{src.Audience}
	}
	account := pod.Spec.ServiceAccountName
	if account == "" {
		account = "default"
	}
	now := time.Now()
	answer, err := m.cfg.Tokens.Token(ctx, pod.Namespace, account, req)
	if err != nil {
		return token{}, err
	}
	if s := answer.Spec.ExpirationSeconds; s != nil {
		life = time.Duration(*s) * time.Second // the server may shorten it
	}
	return token{text: answer.Status.Token, renew: renewal(now, life), expires: answer.Status.ExpirationTimestamp.Time},
		nil
}

// renewal is when a token must be replaced, by the wall clock, which judges it: a monotonic reading stops while the
// machine is suspended.
func renewal(issued time.Time, life time.Duration) time.Time {
	return issued.Round(0).Add(min(life*8/10, maxTokenAge))
}

// storedToken reads the token that an earlier run of the agent stored.
func storedToken(path string, life time.Duration) (token, bool) {
	text, err := os.ReadFile(path)
	if err != nil {
		return token{}, false
	}
	parts := strings.Split(string(text), ".")
	if len(parts) != 3 {
		return token{}, false
	}
	var claims struct {
		IssuedAt int64 `json:"iat"`
		Expires  int64 `json:"exp"`
	}
	body, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil || json.Unmarshal(body, &claims) != nil || claims.IssuedAt == 0 || claims.Expires == 0 {
		return token{}, false
	}
	return token{text: string(text), renew: renewal(time.Unix(claims.IssuedAt, 0), life),
		expires: time.Unix(claims.Expires, 0)}, true
}

// commonUser is the user as which all containers of the pod run, if they specify one.
func commonUser(pod *corev1.Pod) *int64 {
	var user *int64
	if pod.Spec.SecurityContext != nil {
		user = pod.Spec.SecurityContext.RunAsUser
	}
	var common *int64
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			u := user
			if sc := list[i].SecurityContext; sc != nil && sc.RunAsUser != nil {
				u = sc.RunAsUser
			}
			if u == nil || common != nil && *common != *u {
				return nil
			}
			common = u
		}
	}
	return common
}

func fsGroup(pod *corev1.Pod) *int64 {
	if pod.Spec.SecurityContext == nil {
		return nil
	}
	return pod.Spec.SecurityContext.FSGroup
}
