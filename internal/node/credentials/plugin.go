package credentials

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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

	"carob/internal/core/pullcredentials"
)

// Bounds of a plugin.
const (
	runTimeout = time.Minute // S13.6
	// afterEnd is how long output is still read after a plugin has ended, because its children keep it open.
	afterEnd    = time.Second
	maxResponse = 1 << 20 // bytes
	maxMessage  = 4 << 10 // bytes of its standard error that are logged
)

// Accounts reads service accounts and makes their tokens.
type Accounts interface {
	Account(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error)
	// Token makes a token of the pod's service account for an audience, bound to the pod.
	Token(ctx context.Context, pod *corev1.Pod, audience string) (string, error)
}

// Plugins are all plugins of the node. They are safe for concurrent use.
type Plugins struct {
	all []*plugin
	// Hash is that of the texts of the configuration, sha256: and hexadecimal digits (S13.12).
	Hash string
	// Accounts is required if a plugin uses tokens; set it before the first use.
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
	cache pullcredentials.Cache
}

func newPlugin(c kubelet.CredentialProvider, program string) *plugin {
	return &plugin{CredentialProvider: c, program: program}
}

// For runs the plugins that match a repository (without tag and digest) and returns their credentials. It logs errors
// of plugins and skips those plugins (S13.8).
func (p *Plugins) For(ctx context.Context, pod *corev1.Pod, repository string) []pullcredentials.Credential {
	var found []pullcredentials.Credential
	for _, one := range p.all {
		matches := func(pattern string) bool { return pullcredentials.Matches(pattern, repository) }
		if !slices.ContainsFunc(one.MatchImages, matches) {
			continue
		}
		who, ok, err := p.identity(ctx, one, pod)
		if err == nil && ok {
			var auth map[string]api.AuthConfig
			if auth, err = one.credentials(ctx, repository, who, p.Observed); err == nil {
				found = append(found, pullcredentials.Credentials(auth, repository, who)...)
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

// identity returns the identity (namespace, service account) for which a plugin runs. It is false if the plugin is not
// run for this pod (S13.9).
func (p *Plugins) identity(ctx context.Context, one *plugin, pod *corev1.Pod) (
	who pullcredentials.Identity, ok bool, err error) {
	t := one.TokenAttributes
	if t == nil || pod.Spec.ServiceAccountName == "" || p.Accounts == nil {
		return who, pullcredentials.WithoutAccount(t), nil
	}
	name := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Spec.ServiceAccountName}
	account, err := p.Accounts.Account(ctx, name.Namespace, name.Name)
	if err != nil {
		return who, false, fmt.Errorf("read service account %s: %w", name, err)
	}
	if who, ok = pullcredentials.OfAccount(t, name, account); !ok {
		return who, false, nil
	}
	token, err := p.Accounts.Token(ctx, pod, t.ServiceAccountTokenAudience)
	if err != nil {
		return who, false, fmt.Errorf("get a token of service account %s: %w", name, err)
	}
	return who.WithToken(t, token), true, nil
}

// credentials returns the plugin's response for a repository, from the cache if that is still valid. Equal requests at
// one time cause one run of the program.
func (p *plugin) credentials(ctx context.Context, repository string, who pullcredentials.Identity,
	observed func(plugin string, took time.Duration, failed bool)) (map[string]api.AuthConfig, error) {
	p.mu.Lock()
	auth, ok := p.cache.Find(repository, who, time.Now())
	p.mu.Unlock()
	if ok {
		return auth, nil
	}
	response := p.flight.DoChan(pullcredentials.RunKey(repository, who), func() (any, error) {
		began := time.Now()
		// Other callers may wait for this run, too: it continues if the first caller is cancelled.
		r, err := p.run(context.WithoutCancel(ctx), repository, who)
		if observed != nil {
			observed(p.Name, time.Since(began), err != nil)
		}
		if err != nil {
			return nil, err
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.cache.Add(repository, who, r, p.DefaultCacheDuration.Duration, time.Now())
		return r.Auth, nil
	})
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case r := <-response:
		if r.Err != nil {
			return nil, r.Err
		}
		return r.Val.(map[string]api.AuthConfig), nil
	}
}

// run runs the program once (S13.6).
func (p *plugin) run(ctx context.Context, repository string, who pullcredentials.Identity) (
	*api.CredentialProviderResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, runTimeout)
	defer cancel()
	request, err := json.Marshal(&api.CredentialProviderRequest{
		TypeMeta: metav1.TypeMeta{APIVersion: p.APIVersion, Kind: requestKind}, Image: repository,
		ServiceAccountToken: who.Token, ServiceAccountAnnotations: who.Annotations,
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
	cmd.Stdout = &limited{to: &out, left: maxResponse}
	cmd.Stderr = &limited{to: &message, left: maxMessage, drop: true}
	// A plugin may start other processes: all of them are killed with it.
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
	return pullcredentials.Response(&p.CredentialProvider, out.Bytes(), who)
}

// limited is a writer with a maximum size; further bytes are an error, or are dropped.
type limited struct {
	to   io.Writer
	left int
	drop bool
}

func (l *limited) Write(b []byte) (int, error) {
	n := len(b)
	if n > l.left {
		if !l.drop {
			return 0, errors.New("the response is too long")
		}
		b = b[:l.left]
	}
	l.left -= len(b)
	if _, err := l.to.Write(b); err != nil {
		return 0, err
	}
	return n, nil
}
