package credentials

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/singleflight"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	kubelet "k8s.io/kubelet/config/v1"
	api "k8s.io/kubelet/pkg/apis/credentialprovider/v1"
)

// Bounds of a plugin.
const (
	runTimeout = time.Minute // S13.6
	// afterEnd is how long the output of a plugin is waited for whose children keep it open.
	afterEnd   = time.Second
	maxAnswer  = 1 << 20 // bytes
	maxMessage = 4 << 10 // bytes of its standard error that are logged
	maxCached  = 1024    // answers of one plugin
)

// Accounts reads service accounts and makes their tokens.
type Accounts interface {
	Account(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error)
	// Token makes a token of the pod's service account for an audience, bound to the pod.
	Token(ctx context.Context, pod *corev1.Pod, audience string) (string, error)
}

// Credential is what a plugin answered for a repository.
type Credential struct {
	Username, Password string
	Pattern            string // of repositories it is good for
	// Account has got it; nil: it is the node's, for all pods.
	Account *types.NamespacedName
	UID     types.UID // of the account
}

// Plugins are all plugins of the node. They are safe for concurrent use.
type Plugins struct {
	all []*plugin
	// Hash is that of the texts of the configuration, sha256: and hexadecimal digits (S13.12).
	Hash string
	// Accounts is required where a plugin wants tokens; set it before the first use.
	Accounts Accounts
	// Observed is called for each run; nil: not at all.
	Observed func(plugin string, took time.Duration, failed bool)
}

// plugin is one program with its cache.
type plugin struct {
	kubelet.CredentialProvider

	program string
	flight  singleflight.Group

	mu    sync.Mutex
	cache map[string]cached
}

type cached struct {
	auth  map[string]api.AuthConfig
	until time.Time
}

func newPlugin(c kubelet.CredentialProvider, program string) *plugin {
	return &plugin{CredentialProvider: c, program: program, cache: map[string]cached{}}
}

// For asks the plugins that match a repository, without tag and digest. It logs errors of
// plugins and skips those plugins (S13.8).
func (p *Plugins) For(ctx context.Context, pod *corev1.Pod, repository string) []Credential {
	var found []Credential
	for _, one := range p.all {
		if !slices.ContainsFunc(one.MatchImages, func(m string) bool { return Matches(m, repository) }) {
			continue
		}
		who, ok, err := p.identity(ctx, one, pod)
		if err == nil && ok {
			var auth map[string]api.AuthConfig
			if auth, err = one.ask(ctx, repository, who, p.Observed); err == nil {
				found = append(found, credentials(auth, repository, who)...)
				continue
			}
		}
		if err != nil {
			klog.FromContext(ctx).Error(err, "A credential provider plugin failed; the image is pulled without it",
				"plugin", one.Name, "pod", klog.KObj(pod), "image", repository)
		}
	}
	return found
}

// credentials are the matching entries of an answer, the longest pattern first.
func credentials(auth map[string]api.AuthConfig, repository string, who identity) []Credential {
	var out []Credential
	for _, pattern := range slices.Sorted(maps.Keys(auth)) {
		if Matches(pattern, repository) {
			out = append(out, Credential{Username: auth[pattern].Username, Password: auth[pattern].Password,
				Pattern: pattern, Account: who.account, UID: who.uid})
		}
	}
	slices.Reverse(out)
	return out
}

// identity is the identity on whose behalf a plugin is asked; the zero value is the node.
type identity struct {
	account     *types.NamespacedName
	uid         types.UID
	token       string
	annotations map[string]string
	key         string // of the cache
}

// identity makes what a plugin wants to know of the pod's service account. It is false if the plugin is not asked for
// this pod (S13.9).
func (p *Plugins) identity(ctx context.Context, one *plugin, pod *corev1.Pod) (who identity, ok bool, err error) {
	t := one.TokenAttributes
	if t == nil {
		return who, true, nil
	}
	if pod.Spec.ServiceAccountName == "" || p.Accounts == nil {
		return who, !*t.RequireServiceAccount, nil
	}
	name := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Spec.ServiceAccountName}
	account, err := p.Accounts.Account(ctx, name.Namespace, name.Name)
	if err != nil {
		return who, false, fmt.Errorf("read service account %s: %w", name, err)
	}
	who.annotations = map[string]string{}
	for _, key := range t.RequiredServiceAccountAnnotationKeys {
		value, has := account.Annotations[key]
		if !has {
			return who, false, nil
		}
		who.annotations[key] = value
	}
	for _, key := range t.OptionalServiceAccountAnnotationKeys {
		if value, has := account.Annotations[key]; has {
			who.annotations[key] = value
		}
	}
	who.account, who.uid = &name, account.UID
	if who.token, err = p.Accounts.Token(ctx, pod, t.ServiceAccountTokenAudience); err != nil {
		return who, false, fmt.Errorf("get a token of service account %s: %w", name, err)
	}
	parts := []string{name.String(), string(account.UID)}
	for _, key := range slices.Sorted(maps.Keys(who.annotations)) {
		parts = append(parts, key, who.annotations[key])
	}
	if t.CacheType == kubelet.TokenServiceAccountTokenCacheType {
		parts = append(parts, who.token)
	}
	who.key = digest(parts)
	return who, true, nil
}

// digest is a key made of parts that may hold anything.
func digest(parts []string) string {
	text, _ := json.Marshal(parts) // strings always encode
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// ask returns the plugin's answer for a repository, from the cache if it is valid still. Equal questions at one time
// are one run of the program.
func (p *plugin) ask(ctx context.Context, repository string, who identity,
	observed func(plugin string, took time.Duration, failed bool)) (map[string]api.AuthConfig, error) {
	if auth, ok := p.cached(repository, who); ok {
		return auth, nil
	}
	answered := p.flight.DoChan(digest([]string{repository, who.key}), func() (any, error) {
		began := time.Now()
		// Other callers may wait for this run, too: it continues when the first caller gives up.
		r, err := p.run(context.WithoutCancel(ctx), repository, who)
		if observed != nil {
			observed(p.Name, time.Since(began), err != nil)
		}
		if err != nil {
			return nil, err
		}
		p.keep(repository, who, r)
		return r.Auth, nil
	})
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case r := <-answered:
		if r.Err != nil {
			return nil, r.Err
		}
		return r.Val.(map[string]api.AuthConfig), nil
	}
}

// key is that of an answer that holds for an image, a registry, or everything (S13.7).
func key(kind api.PluginCacheKeyType, repository string, who identity) string {
	host, _, _ := strings.Cut(repository, "/")
	switch kind {
	case api.ImagePluginCacheKeyType:
		return digest([]string{string(kind), repository, who.key})
	case api.RegistryPluginCacheKeyType:
		return digest([]string{string(kind), host, who.key})
	default:
		return digest([]string{string(kind), who.key})
	}
}

func (p *plugin) cached(repository string, who identity) (map[string]api.AuthConfig, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, kind := range []api.PluginCacheKeyType{api.ImagePluginCacheKeyType, api.RegistryPluginCacheKeyType,
		api.GlobalPluginCacheKeyType} {
		if c, ok := p.cache[key(kind, repository, who)]; ok && time.Now().Before(c.until) {
			return c.auth, true
		}
	}
	return nil, false
}

func (p *plugin) keep(repository string, who identity, r *api.CredentialProviderResponse) {
	valid := p.DefaultCacheDuration.Duration
	if r.CacheDuration != nil {
		valid = r.CacheDuration.Duration
	}
	if valid <= 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(p.cache, func(_ string, c cached) bool { return !now.Before(c.until) })
	if len(p.cache) >= maxCached {
		clear(p.cache) // they can be requested again
	}
	p.cache[key(r.CacheKeyType, repository, who)] = cached{auth: r.Auth, until: now.Add(valid)}
}

// run runs the program once (S13.6).
func (p *plugin) run(ctx context.Context, repository string, who identity) (*api.CredentialProviderResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, runTimeout)
	defer cancel()
	request, err := json.Marshal(&api.CredentialProviderRequest{
		TypeMeta: metav1.TypeMeta{APIVersion: p.APIVersion, Kind: requestKind}, Image: repository,
		ServiceAccountToken: who.token, ServiceAccountAnnotations: who.annotations,
	})
	if err != nil {
		return nil, fmt.Errorf("encode the request to credential provider plugin %s: %w", p.Name, err)
	}
	cmd := exec.CommandContext(ctx, p.program, p.Args...)
	cmd.Env = os.Environ()
	for _, e := range p.Env {
		cmd.Env = append(cmd.Env, e.Name+"="+e.Value)
	}
	var out, message bytes.Buffer
	cmd.Stdin = bytes.NewReader(request)
	cmd.Stdout = &limited{to: &out, left: maxAnswer}
	cmd.Stderr = &limited{to: &message, left: maxMessage, drop: true}
	// A plugin may start others: all of them end with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = afterEnd
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("it did not answer within %s", runTimeout)
		}
		return nil, fmt.Errorf("run credential provider plugin %s: %w: %s", p.Name, err,
			strings.ToValidUTF8(strings.TrimSpace(message.String()), "?"))
	}
	return p.answer(out.Bytes(), who)
}

// answer reads what a program has written.
func (p *plugin) answer(text []byte, who identity) (*api.CredentialProviderResponse, error) {
	var r api.CredentialProviderResponse
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, fmt.Errorf("read the answer of credential provider plugin %s: it is not JSON", p.Name)
	}
	if r.APIVersion != p.APIVersion {
		return nil, fmt.Errorf("apiVersion from credential plugin response did not match expected apiVersion:%s, "+
			"actual apiVersion:%.100s", p.APIVersion, r.APIVersion)
	}
	switch r.CacheKeyType {
	case api.ImagePluginCacheKeyType, api.RegistryPluginCacheKeyType, api.GlobalPluginCacheKeyType:
	default:
		return nil, fmt.Errorf("credential provider plugin did not return a valid cacheKeyType: %.100q",
			r.CacheKeyType)
	}
	for _, a := range r.Auth {
		if who.token != "" && a.Password == who.token &&
			p.TokenAttributes.CacheType != kubelet.TokenServiceAccountTokenCacheType {
			return nil, errors.New("credential provider plugin returned the service account token as the password which " +
				"is not allowed when service account cache type is not set to 'Token'")
		}
	}
	return &r, nil
}

// limited takes so many bytes; more are an error, or dropped.
type limited struct {
	to   io.Writer
	left int
	drop bool
}

func (l *limited) Write(b []byte) (int, error) {
	n := len(b)
	if n > l.left {
		if !l.drop {
			return 0, errors.New("the answer is too long")
		}
		b = b[:l.left]
	}
	l.left -= len(b)
	if _, err := l.to.Write(b); err != nil {
		return 0, err
	}
	return n, nil
}
