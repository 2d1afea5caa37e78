package tokens

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/ptr"
)

// objects is a Reader over a map by resource and name.
type objects map[string]runtime.Object

func (o objects) Get(_ context.Context, r schema.GroupResource, _, name string) (runtime.Object, error) {
	if obj, ok := o[r.Resource+"/"+name]; ok {
		return obj, nil
	}
	return nil, apierrors.NewNotFound(r, name)
}

func (o objects) Await(ctx context.Context, r schema.GroupResource, ns, name string, _ time.Duration) (runtime.Object,
	error) {
	return o.Get(ctx, r, ns, name)
}

func (objects) List(context.Context, schema.GroupResource, string, func(runtime.Object) bool) error {
	return nil
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

type fixture struct {
	*Service
	objects objects
	now     time.Time
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), objects: objects{
		"serviceaccounts/robot": &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot", Namespace: "ns",
			UID: "sa-uid"}},
		"nodes/n1": &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "node-uid"}},
		"secrets/s": &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "ns",
			UID: "secret-uid"}},
		"pods/p": &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "pod-uid"},
			Spec: corev1.PodSpec{ServiceAccountName: "robot", NodeName: "n1"}},
		"pods/stranger": &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "stranger", Namespace: "ns", UID: "x"},
			Spec: corev1.PodSpec{ServiceAccountName: "other"}},
	}}
	var err error
	if f.Service,
		err = New(Config{Key: newKey(t), Reader: f.objects, Now: func() time.Time { return f.now }}); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *fixture) request(spec authenticationv1.TokenRequestSpec) (*authenticationv1.TokenRequest, error) {
	ctx := genericapirequest.WithNamespace(context.Background(), "ns")
	obj, err := f.REST().(rest.NamedCreater).Create(ctx, "robot", &authenticationv1.TokenRequest{Spec: spec},
		rest.ValidateAllObjectFunc, nil)
	if err != nil {
		return nil, err
	}
	return obj.(*authenticationv1.TokenRequest), nil
}

func bindTo(kind, name string, uid types.UID) *authenticationv1.BoundObjectReference {
	return &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: kind, Name: name, UID: uid}
}

// The answer names the account of the token, and a request for another one of that name is a
// conflict.
func TestAccountOfRequest(t *testing.T) {
	f := newFixture(t)
	r, err := f.request(authenticationv1.TokenRequestSpec{})
	if err != nil || r.UID != "sa-uid" {
		t.Errorf("UID %q, %v", r.UID, err)
	}
	if s, ok := f.REST().(rest.SubresourceObjectMetaPreserver); !ok ||
		!s.PreserveRequestObjectMetaSystemFieldsOnSubresourceCreate() {
		t.Error("the UID of a request never arrives")
	}
}

func TestTokenOfAPod(t *testing.T) {
	f := newFixture(t)
	r, err := f.request(authenticationv1.TokenRequestSpec{BoundObjectRef: bindTo("Pod", "p", "pod-uid")})
	if err != nil {
		t.Fatal(err)
	}
	if got := r.Status.ExpirationTimestamp.Sub(f.now); got != time.Hour {
		t.Errorf("expires after %v, want 1h", got)
	}
	who, ok, err := f.Authenticator().AuthenticateToken(context.Background(), r.Status.Token)
	if err != nil || !ok {
		t.Fatalf("%v, %v", ok, err)
	}
	if who.User.GetName() != "system:serviceaccount:ns:robot" || who.User.GetUID() != "sa-uid" {
		t.Errorf("user %s uid %s", who.User.GetName(), who.User.GetUID())
	}
	extra := who.User.GetExtra()
	for key, want := range map[string]string{
		"authentication.kubernetes.io/pod-name": "p", "authentication.kubernetes.io/pod-uid": "pod-uid",
		"authentication.kubernetes.io/node-name": "n1", "authentication.kubernetes.io/node-uid": "node-uid",
	} {
		if len(extra[key]) != 1 || extra[key][0] != want {
			t.Errorf("%s = %v, want %s", key, extra[key], want)
		}
	}
}

// A token ends with its lifetime, its account, and its object.
func TestTokenEnds(t *testing.T) {
	deleted := func(f *fixture, key string, ago time.Duration) {
		o := f.objects[key].DeepCopyObject()
		o.(metav1.Object).SetDeletionTimestamp(&metav1.Time{Time: f.now.Add(-ago)})
		f.objects[key] = o
	}
	for _, c := range []struct {
		name string
		do   func(*fixture)
		good bool
		want string
	}{
		{"untouched", func(*fixture) {}, true, ""},
		{"expired", func(f *fixture) { f.now = f.now.Add(time.Hour + time.Second) }, false,
			"service account token has expired"},
		{"account deleted", func(f *fixture) { delete(f.objects, "serviceaccounts/robot") }, false,
			"service account ns/robot has been deleted"},
		{"account made anew", func(f *fixture) {
			f.objects["serviceaccounts/robot"] = &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{UID: "new"}}
		}, false, "service account UID (new) does not match claim (sa-uid)"},
		{"pod deleted", func(f *fixture) { delete(f.objects, "pods/p") }, false,
			"service account token has been invalidated"},
		{"pod shuts down", func(f *fixture) { deleted(f, "pods/p", 59*time.Second) }, true, ""},
		{"pod should be gone", func(f *fixture) { deleted(f, "pods/p", 61*time.Second) }, false,
			"has been invalidated"},
		{"node deleted, pod still there", func(f *fixture) { delete(f.objects, "nodes/n1") }, true, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t)
			r, err := f.request(authenticationv1.TokenRequestSpec{BoundObjectRef: bindTo("Pod", "p", "")})
			if err != nil {
				t.Fatal(err)
			}
			c.do(f)
			_, ok, err := f.Authenticator().AuthenticateToken(context.Background(), r.Status.Token)
			if ok != c.good || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v, %v; want %v, %s", ok, err, c.good, c.want)
			}
		})
	}
}

// L1.27: the mounted token is renewed after an hour and valid for a year.
func TestMountedTokenLivesLonger(t *testing.T) {
	f := newFixture(t)
	r, err := f.request(authenticationv1.TokenRequestSpec{ExpirationSeconds: new(podLife),
		BoundObjectRef: bindTo("Pod", "p", "")})
	if err != nil {
		t.Fatal(err)
	}
	if got := r.Status.ExpirationTimestamp.Sub(f.now); got != time.Hour+7*time.Second {
		t.Errorf("to be renewed after %v", got)
	}
	for after, want := range map[time.Duration]bool{2 * time.Hour: true, 366 * 24 * time.Hour: false} {
		f.now = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(after)
		if _, ok, _ := f.Authenticator().AuthenticateToken(context.Background(), r.Status.Token); ok != want {
			t.Errorf("after %v: %v, want %v", after, ok, want)
		}
	}
}

func TestRequestsRefused(t *testing.T) {
	for want, spec := range map[string]authenticationv1.TokenRequestSpec{
		"may not specify a duration less than 10 minutes":       {ExpirationSeconds: ptr.To[int64](599)},
		"may not specify a duration larger than 2^32 seconds":   {ExpirationSeconds: ptr.To[int64](1<<32 + 1)},
		`pods "nobody" not found`:                               {BoundObjectRef: bindTo("Pod", "nobody", "")},
		"The object might have been deleted and then recreated": {BoundObjectRef: bindTo("Secret", "s", "other")},
		"cannot bind token to object of type /v1, Kind=Service": {BoundObjectRef: bindTo("Service", "s", "")},
		"cannot bind token for serviceaccount \"robot\" to pod": {BoundObjectRef: bindTo("Pod", "stranger", "")},
	} {
		if _, err := newFixture(t).request(spec); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

func TestForeignTokens(t *testing.T) {
	f, g := newFixture(t), newFixture(t)
	r, err := g.request(authenticationv1.TokenRequestSpec{})
	if err != nil {
		t.Fatal(err)
	}
	// The same issuer, another key: a forgery.
	if _, ok, err := f.Authenticator().AuthenticateToken(context.Background(), r.Status.Token); ok || err == nil {
		t.Errorf("token of another key: %v, %v", ok, err)
	}
	// Another issuer, or not a JWT: no opinion.
	g.issuer = "https://elsewhere"
	if r, err = g.request(authenticationv1.TokenRequestSpec{}); err != nil {
		t.Fatal(err)
	}
	for _, token := range []string{r.Status.Token, "garbage", ""} {
		if _, ok, err := f.Authenticator().AuthenticateToken(context.Background(), token); ok || err != nil {
			t.Errorf("%.10q: %v, %v; want no opinion", token, ok, err)
		}
	}
	// For another audience.
	if r, err = f.request(authenticationv1.TokenRequestSpec{Audiences: []string{"vault"}}); err != nil {
		t.Fatal(err)
	}
	if _, ok, err := f.Authenticator().AuthenticateToken(context.Background(), r.Status.Token); ok || err == nil {
		t.Errorf("token of another audience: %v, %v", ok, err)
	}
}

func TestKeySetIsPublicOnly(t *testing.T) {
	f := newFixture(t)
	handlers, err := f.Handlers()
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{jwksPath: `"crv":"P-256"`,
		configurationPath: `"issuer":"` + DefaultIssuer + `"`} {
		w := httptest.NewRecorder()
		handlers[path].ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		if body := w.Body.String(); w.Code != 200 || !strings.Contains(body, want) || strings.Contains(body, `"d":`) {
			t.Errorf("%s: %d %s", path, w.Code, body)
		}
		w = httptest.NewRecorder()
		handlers[path].ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, nil))
		if w.Code != 405 {
			t.Errorf("POST %s: %d", path, w.Code)
		}
	}
}

func TestKeyMustBeP256(t *testing.T) {
	k, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []*ecdsa.PrivateKey{nil, k} {
		if _, err := New(Config{Key: key}); err == nil {
			t.Errorf("key %v was accepted", key != nil)
		}
	}
}
