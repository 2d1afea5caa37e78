package webhooks

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	admissionmetrics "k8s.io/apiserver/pkg/admission/metrics"
	mutatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	validatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	webhookconfig "k8s.io/apiserver/pkg/admission/plugin/webhook/config"
	mutatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	validatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/validating"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/component-base/compatibility"

	"carob/internal/base/errkind"
)

// Config is what the plugins need from the API server.
type Config struct {
	// Client returns the configuration of an in-process client with all permissions.
	Client     func() *restclient.Config
	Authorizer authorizer.Authorizer
	// Resolver finds the endpoints of services, Wrapper adds the credentials for them.
	Resolver webhookutil.ServiceResolver
	Wrapper  webhookutil.AuthenticationInfoResolverWrapper
	Version  compatibility.EffectiveVersion
	// Configuration returns the user's configuration of a plugin; nil for none.
	Configuration func(plugin string) io.Reader
	// Loaded is closed when Activate has been called if there are stored webhooks or policies; nil: at once.
	Loaded <-chan struct{}
	// KindsChanged calls its argument, which does not wait, whenever the set of served kinds has changed.
	KindsChanged func(func())
}

// Plugins are the four plugins in one. Without Activate, they allow everything.
type Plugins struct {
	cfg    Config
	active atomic.Pointer[chains]
	wake   chan struct{} // closed by Activate
	once   sync.Once
}

// chains are the plugins once they are created, and what they wait for.
type chains struct {
	made       chan struct{} // closed when the rest is set
	err        error
	mutating   []admission.MutationInterface
	validating []admission.ValidationInterface
}

var (
	_ admission.MutationInterface   = (*Plugins)(nil)
	_ admission.ValidationInterface = (*Plugins)(nil)
)

// CheckConfiguration validates the configuration of a webhook plugin, which otherwise is only read
// when there is a webhook. Webhooks in files (staticManifestsDir) are refused (errkind.Invalid): without
// this check, they would not be called, and each write would fail as soon as a webhook is stored.
func CheckConfiguration(config func(plugin string) io.Reader) error {
	for _, plugin := range []string{mutatingwebhook.PluginName, validatingwebhook.PluginName} {
		r := config(plugin)
		if r == nil {
			continue
		}
		c, err := webhookconfig.LoadConfig(r)
		if err != nil {
			return fmt.Errorf("read the configuration of admission plugin %s: %w", plugin, err)
		}
		if c.StaticManifestsDir != "" {
			return errkind.Errorf(errkind.Invalid, "read the configuration of admission plugin %s: "+
				"staticManifestsDir is not supported; create the webhooks through the API", plugin)
		}
	}
	return nil
}

// NewPlugins returns inactive plugins.
func NewPlugins(cfg Config) *Plugins {
	if cfg.Loaded == nil {
		loaded := make(chan struct{})
		close(loaded)
		cfg.Loaded = loaded
	}
	return &Plugins{cfg: cfg, wake: make(chan struct{})}
}

// Activate makes the plugins effective from the next request on. A request that comes before they
// have read their configuration waits for that.
func (p *Plugins) Activate() {
	p.once.Do(func() {
		p.active.Store(&chains{made: make(chan struct{})})
		close(p.wake)
	})
}

// Run creates the plugins when they are activated, and lets them follow their configuration until
// ctx ends.
func (p *Plugins) Run(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-p.wake:
	}
	c := p.active.Load()
	f, err := p.make(ctx, c)
	c.err = err
	close(c.made)
	if err != nil {
		return // every request returns the error
	}
	<-ctx.Done()
	f.Shutdown()
}

func (p *Plugins) make(ctx context.Context, c *chains) (informers.SharedInformerFactory, error) {
	config := p.cfg.Client()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	plain := restclient.CopyConfig(config)
	plain.ContentConfig = restclient.ContentConfig{} // parameters may be custom resources, which have no protobuf form
	objects, err := dynamic.NewForConfig(plain)
	if err != nil {
		return nil, err
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client.Discovery()))
	p.followKinds(ctx, mapper)
	initial := admission.PluginInitializers{
		initializer.New(client, objects, factory, p.cfg.Authorizer, utilfeature.DefaultFeatureGate, p.cfg.Version,
			ctx.Done(), mapper),
		exclude{},
		webhookInitializer{p.cfg},
	}
	policyMutation, err := mutatingpolicy.NewPlugin(nil)
	if err != nil {
		return nil, err
	}
	mutation, err := mutatingwebhook.NewMutatingWebhook(p.cfg.Configuration(mutatingwebhook.PluginName))
	if err != nil {
		return nil, err
	}
	policyValidation, err := validatingpolicy.NewPlugin(nil)
	if err != nil {
		return nil, err
	}
	validation, err := validatingwebhook.NewValidatingAdmissionWebhook(
		p.cfg.Configuration(validatingwebhook.PluginName))
	if err != nil {
		return nil, err
	}
	// In upstream's order.
	for _, plugin := range []struct {
		name string
		admission.Interface
	}{{mutatingpolicy.PluginName, policyMutation}, {mutatingwebhook.PluginName, mutation},
		{validatingpolicy.PluginName, policyValidation}, {validatingwebhook.PluginName, validation}} {
		initial.Initialize(plugin.Interface)
		if err := admission.ValidateInitialization(plugin.Interface); err != nil {
			return nil, fmt.Errorf("start admission plugin %s: %w", plugin.name, err)
		}
		measured := admissionmetrics.WithControllerMetrics(plugin.Interface, plugin.name)
		if m, ok := measured.(admission.MutationInterface); ok && isMutating(plugin.Interface) {
			c.mutating = append(c.mutating, m)
		}
		if v, ok := measured.(admission.ValidationInterface); ok && !isMutating(plugin.Interface) {
			c.validating = append(c.validating, v)
		}
	}
	check, err := newTypeChecks(factory, client, mapper)
	if err != nil {
		return nil, err
	}
	factory.Start(ctx.Done())
	go check.run(ctx)
	return factory, nil
}

// followKinds lets a mapper forget what it knows of the served kinds when they change, until ctx ends: a policy may be
// older than the definition of its parameters. The change is announced under a lock that discovery needs.
func (p *Plugins) followKinds(ctx context.Context, mapper meta.ResettableRESTMapper) {
	changed := make(chan struct{}, 1)
	p.cfg.KindsChanged(func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	})
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-changed:
				mapper.Reset()
			}
		}
	}()
}

func isMutating(p admission.Interface) bool {
	_, ok := p.(admission.MutationInterface)
	return ok
}

// wait returns the chains when they are created; nil if there are none. Writes that come before the stored webhooks
// and policies are known wait: none bypasses them during a start.
func (p *Plugins) wait(ctx context.Context) (*chains, error) {
	select {
	case <-p.cfg.Loaded:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	c := p.active.Load()
	if c == nil {
		return nil, nil
	}
	select {
	case <-c.made:
		if c.err != nil {
			return nil, fmt.Errorf("admission webhooks and policies are not available: %w", c.err)
		}
		return c, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Handles implements admission.Interface.
func (p *Plugins) Handles(admission.Operation) bool {
	select {
	case <-p.cfg.Loaded:
		return p.active.Load() != nil
	default:
		return true
	}
}

// Admit implements admission.MutationInterface.
func (p *Plugins) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	c, err := p.wait(ctx)
	if err != nil || c == nil {
		return err
	}
	for _, m := range c.mutating {
		if m.Handles(a.GetOperation()) {
			if err := m.Admit(ctx, a, o); err != nil {
				return answerable(err)
			}
		}
	}
	return nil
}

// Validate implements admission.ValidationInterface.
func (p *Plugins) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	c, err := p.wait(ctx)
	if err != nil || c == nil {
		return err
	}
	for _, v := range c.validating {
		if v.Handles(a.GetOperation()) {
			if err := v.Validate(ctx, a, o); err != nil {
				return answerable(err)
			}
		}
	}
	return nil
}

// answerable returns a denial with a status code that can be sent: the library passes on any code of a webhook above
// 400, and net/http panics for those above 999.
func answerable(err error) error {
	denied, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok || denied.ErrStatus.Code <= 999 {
		return err
	}
	status := denied.ErrStatus
	status.Message += fmt.Sprintf(" (with the status code %d, which does not exist)", status.Code)
	status.Code = http.StatusForbidden
	return &apierrors.StatusError{ErrStatus: status}
}

// exclude exempts reviews, which are never stored, from policies: a policy that rejects them would
// lock everybody out.
type exclude struct{}

// Initialize implements admission.PluginInitializer.
func (exclude) Initialize(plugin admission.Interface) {
	if w, ok := plugin.(initializer.WantsExcludedAdmissionResources); ok {
		w.SetExcludedAdmissionResources([]schema.GroupResource{
			{Group: "authentication.k8s.io", Resource: "selfsubjectreviews"},
			{Group: "authentication.k8s.io", Resource: "tokenreviews"},
			{Group: "authorization.k8s.io", Resource: "localsubjectaccessreviews"},
			{Group: "authorization.k8s.io", Resource: "selfsubjectaccessreviews"},
			{Group: "authorization.k8s.io", Resource: "selfsubjectrulesreviews"},
			{Group: "authorization.k8s.io", Resource: "subjectaccessreviews"},
		})
	}
}

type webhookInitializer struct{ cfg Config }

// Initialize implements admission.PluginInitializer.
func (i webhookInitializer) Initialize(plugin admission.Interface) {
	if w, ok := plugin.(interface {
		SetServiceResolver(webhookutil.ServiceResolver)
		SetAuthenticationInfoResolverWrapper(webhookutil.AuthenticationInfoResolverWrapper)
	}); ok {
		w.SetServiceResolver(i.cfg.Resolver)
		w.SetAuthenticationInfoResolverWrapper(i.cfg.Wrapper)
	}
}
