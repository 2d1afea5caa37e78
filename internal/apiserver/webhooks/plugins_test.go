package webhooks

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	restclient "k8s.io/client-go/rest"
	"k8s.io/component-base/compatibility"

	"carob/internal/base/errkind"
)

func attributes(op admission.Operation) admission.Attributes {
	return admission.NewAttributesRecord(nil, nil, schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, "ns", "x",
		schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, "", op, nil, false,
		&user.DefaultInfo{Name: "u"})
}

// plugin records its calls, and returns an error.
type plugin struct {
	name    string
	handles admission.Operation
	called  *[]string
	err     error
}

func (p plugin) Handles(op admission.Operation) bool { return op == p.handles }
func (p plugin) Admit(context.Context, admission.Attributes, admission.ObjectInterfaces) error {
	*p.called = append(*p.called, "admit "+p.name)
	return p.err
}

func (p plugin) Validate(context.Context, admission.Attributes, admission.ObjectInterfaces) error {
	*p.called = append(*p.called, "validate "+p.name)
	return p.err
}

// both calls mutation, then validation, like a write.
func both(ctx context.Context, p *Plugins) error {
	a := attributes(admission.Create)
	return errors.Join(p.Admit(ctx, a, nil), p.Validate(ctx, a, nil))
}

// Without a webhook or policy, every write passes at once, and nothing is created.
func TestNothingIsCalledBeforeActivate(t *testing.T) {
	p := NewPlugins(Config{Client: func() *restclient.Config { t.Error("a client is made"); return nil }})
	if p.Handles(admission.Create) {
		t.Error("it handles writes")
	}
	if err := both(t.Context(), p); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p.Run(ctx) // ends although it was never activated
}

// A write after the first webhook was stored and before the plugins are created waits for them:
// none bypasses them. A cancelled one gets an error.
func TestWritesWaitForThePlugins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPlugins(Config{})
		p.Activate()
		p.Activate() // a second object
		if !p.Handles(admission.Create) {
			t.Error("it does not handle writes")
		}
		canceled, cancel := context.WithCancel(t.Context())
		var called []string
		done, gaveUp := make(chan error, 1), make(chan error, 1)
		go func() { done <- both(t.Context(), p) }()
		go func() { gaveUp <- p.Validate(canceled, attributes(admission.Create), nil) }()
		synctest.Wait()
		select {
		case <-done:
			t.Fatal("a write did not wait")
		default:
		}
		cancel()
		if err := <-gaveUp; !errors.Is(err, context.Canceled) {
			t.Errorf("who gave up: %v", err)
		}
		c := p.active.Load()
		c.mutating = []admission.MutationInterface{plugin{"policy", admission.Create, &called, nil},
			plugin{"delete", admission.Delete, &called, nil},
			plugin{"webhook", admission.Create, &called, nil}}
		c.validating = []admission.ValidationInterface{plugin{"policy", admission.Create, &called, nil},
			plugin{"webhook", admission.Create, &called, nil}}
		close(c.made)
		if err := <-done; err != nil {
			t.Error(err)
		}
		if want := []string{"admit policy", "admit webhook", "validate policy",
			"validate webhook"}; !slices.Equal(called, want) {
			t.Errorf("called %q, want %q", called, want)
		}
	})
}

// The first plugin that rejects ends the chain.
func TestRefusalEndsTheChain(t *testing.T) {
	p := NewPlugins(Config{})
	p.Activate()
	var called []string
	c := p.active.Load()
	no := errors.New("no")
	c.mutating = []admission.MutationInterface{plugin{"a", admission.Create, &called, no},
		plugin{"b", admission.Create, &called, nil}}
	c.validating = []admission.ValidationInterface{plugin{"a", admission.Create, &called, no},
		plugin{"b", admission.Create, &called, nil}}
	close(c.made)
	if err := p.Admit(t.Context(), attributes(admission.Create), nil); !errors.Is(err, no) {
		t.Error(err)
	}
	if err := p.Validate(t.Context(), attributes(admission.Create), nil); !errors.Is(err, no) {
		t.Error(err)
	}
	if want := []string{"admit a", "validate a"}; !slices.Equal(called, want) {
		t.Errorf("called %q, want %q", called, want)
	}
}

// If the plugins cannot be created, every write is rejected: a stored object may forbid it.
func TestPluginsThatCannotBeMadeRefuse(t *testing.T) {
	p := NewPlugins(Config{Client: func() *restclient.Config { return &restclient.Config{Host: "://"} }})
	p.Activate()
	p.Run(t.Context())
	for range 2 {
		if err := both(t.Context(), p); err == nil || strings.Count(err.Error(), "not available") != 2 {
			t.Error(err)
		}
	}
}

// unreachable is an unavailable API server.
type unreachable struct{}

func (unreachable) RoundTrip(*http.Request) (*http.Response, error) {
	return nil, errors.New("not there")
}

// All four plugins of upstream are created: two that mutate, two that validate.
func TestPluginsAreMade(t *testing.T) {
	p := NewPlugins(Config{
		Client: func() *restclient.Config { return &restclient.Config{Host: "http://x", Transport: unreachable{}} },
		Authorizer: authorizer.AuthorizerFunc(func(context.Context, authorizer.Attributes) (authorizer.Decision, string,
			error) {
			return authorizer.DecisionDeny, "", nil
		}),
		Version:  compatibility.NewEffectiveVersionFromString("1.37", "1.37", "1.36"),
		Resolver: webhookutil.NewDefaultServiceResolver(),
		Wrapper: func(r webhookutil.AuthenticationInfoResolver) webhookutil.AuthenticationInfoResolver {
			return r
		},
		Configuration: func(string) io.Reader { return nil }, KindsChanged: func(func()) {},
	})
	p.Activate()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); p.Run(ctx) }()
	c, err := p.wait(t.Context())
	if err != nil || len(c.mutating) != 2 || len(c.validating) != 2 {
		t.Errorf("%v: %+v", err, c)
	}
	cancel()
	<-ended
}

func TestCheckConfiguration(t *testing.T) {
	const good = "apiVersion: apiserver.config.k8s.io/v1\nkind: WebhookAdmissionConfiguration\nkubeConfigFile: /etc/webhooks\n"
	for name, tc := range map[string]struct {
		mutating, validating string
		wrong                string
	}{
		"none":             {},
		"both":             {good, good, ""},
		"one unknown kind": {good, "apiVersion: v1\nkind: Pod\n", "ValidatingAdmissionWebhook"},
		"no YAML":          {"{", "", "MutatingAdmissionWebhook"},
		"relative path":    {"", strings.Replace(good, "/etc", "etc", 1), "ValidatingAdmissionWebhook"},
	} {
		t.Run(name, func(t *testing.T) {
			err := CheckConfiguration(func(plugin string) io.Reader {
				text := map[string]string{"MutatingAdmissionWebhook": tc.mutating,
					"ValidatingAdmissionWebhook": tc.validating}[plugin]
				if text == "" {
					return nil
				}
				return strings.NewReader(text)
			})
			if (err != nil) != (tc.wrong != "") || err != nil && !strings.Contains(err.Error(), tc.wrong) {
				t.Errorf("%v, want %q", err, tc.wrong)
			}
		})
	}
}

// exclusionRecorder is a policy plugin that accepts a list of exempt resources.
type exclusionRecorder struct {
	admission.Interface
	excluded []schema.GroupResource
}

func (*exclusionRecorder) ValidateInitialization() error { return nil }

func (w *exclusionRecorder) SetExcludedAdmissionResources(r []schema.GroupResource) { w.excluded = r }

// A policy for everything must not lock everybody out: reviews are always answered.
func TestReviewsAreLeftAlone(t *testing.T) {
	w := &exclusionRecorder{}
	exclude{}.Initialize(w)
	for _, name := range []string{"selfsubjectaccessreviews", "subjectaccessreviews", "localsubjectaccessreviews",
		"selfsubjectrulesreviews"} {
		if !slices.Contains(w.excluded, schema.GroupResource{Group: "authorization.k8s.io", Resource: name}) {
			t.Errorf("%s can be refused", name)
		}
	}
	for _, name := range []string{"tokenreviews", "selfsubjectreviews"} {
		if !slices.Contains(w.excluded, schema.GroupResource{Group: "authentication.k8s.io", Resource: name}) {
			t.Errorf("%s can be refused", name)
		}
	}
}

// Webhooks in files are refused at the start, not ignored until each write fails.
func TestStaticManifestsAreRefused(t *testing.T) {
	for _, plugin := range []string{"MutatingAdmissionWebhook", "ValidatingAdmissionWebhook"} {
		for lines, refused := range map[string]bool{"": false, "staticManifestsDir: " + t.TempDir(): true} {
			err := CheckConfiguration(func(name string) io.Reader {
				if name != plugin {
					return nil
				}
				return strings.NewReader("apiVersion: apiserver.config.k8s.io/v1\n" +
					"kind: WebhookAdmissionConfiguration\n" + lines)
			})
			if (err != nil) != refused || refused && (errkind.Of(err) != errkind.Invalid ||
				!strings.Contains(err.Error(), "staticManifestsDir is not supported")) {
				t.Errorf("%s with %q: %v", plugin, lines, err)
			}
		}
	}
}

// A denial with a status code that net/http refuses to send by a panic is sent as 403; others keep their codes.
func TestAnswerableDenials(t *testing.T) {
	for code, want := range map[int32]int32{400: 400, 403: 403, 599: 599, 999: 999, 1000: 403, 9999: 403} {
		p := NewPlugins(Config{})
		p.Activate()
		var called []string
		c := p.active.Load()
		given := &apierrors.StatusError{ErrStatus: metav1.Status{Code: code, Message: "no"}}
		c.mutating = []admission.MutationInterface{plugin{"a", admission.Create, &called, given}}
		c.validating = []admission.ValidationInterface{plugin{"a", admission.Create, &called, given}}
		close(c.made)
		for _, err := range []error{p.Admit(t.Context(), attributes(admission.Create), nil),
			p.Validate(t.Context(), attributes(admission.Create), nil)} {
			denied, ok := errors.AsType[*apierrors.StatusError](err)
			if !ok || denied.ErrStatus.Code != want || !strings.HasPrefix(denied.ErrStatus.Message, "no") {
				t.Errorf("%d: %v", code, err)
			}
			if want != code && !strings.Contains(denied.ErrStatus.Message, fmt.Sprint("status code ", code)) {
				t.Errorf("%d: %v does not name it", code, err)
			}
		}
	}
}

// Writes wait until it is known whether there are webhooks; then they pass at once without any.
func TestWritesWaitForTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		loaded := make(chan struct{})
		p := NewPlugins(Config{Loaded: loaded})
		if !p.Handles(admission.Create) {
			t.Error("it does not handle writes")
		}
		done, gaveUp := make(chan error, 1), make(chan error, 1)
		canceled, cancel := context.WithCancel(t.Context())
		go func() { done <- both(t.Context(), p) }()
		go func() { gaveUp <- p.Validate(canceled, attributes(admission.Create), nil) }()
		synctest.Wait()
		if len(done)+len(gaveUp) > 0 {
			t.Error("a write did not wait")
		}
		cancel()
		if err := <-gaveUp; !errors.Is(err, context.Canceled) {
			t.Errorf("who gave up: %v", err)
		}
		close(loaded)
		if err := <-done; err != nil || p.Handles(admission.Create) {
			t.Errorf("without a webhook: %v", err)
		}
	})
}
